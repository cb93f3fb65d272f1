"""A process that stood still (SIGSTOP, a blocked event loop) takes no time from leases: nobody could heartbeat."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from omnirelay.core.events import LeaderElected
from omnirelay.core.snapshot import digest
from omnirelay.engine.shard import Shard
from omnirelay.engine.standstill import LOOK_MS, STOOD_STILL_MS
from omnirelay.log import EventLog
from omnirelay.testing.clock import FakeClock, settle
from tests.integration.shards import (
    WORKER,
    GatedLog,
    Place,
    enqueued,
    events_of,
    item,
    items,
    kinds_of,
    on_every_log,
    one_lease,
    passed,
    soon,
    start,
)

LEASE_MS = 10_000


async def prolongations(log: EventLog) -> list[int]:
    """What leases were given back, apart from the beginning."""
    events = await events_of(log)
    return [event.timestamp - event.down_from for event in events[1:] if isinstance(event, LeaderElected)]


@pytest.mark.parametrize("first", ["a heartbeat", "a timer"])
@on_every_log
async def test_a_standstill_takes_no_time_from_live_leases(kind: str, first: str, tmp_path: Path) -> None:
    clock = FakeClock()
    shard = await Place(kind, tmp_path).open(clock)
    await enqueued(shard, *items(2))
    kept, forgotten = await shard.lease(WORKER, max_items=2, lease_duration_ms=LEASE_MS)
    for lease in (kept, forgotten):
        await shard.heartbeat(lease.token)
    clock.move(60_000)
    if first == "a timer":
        await passed(clock, shard, 0)
    answer = await soon(shard.heartbeat(kept.token))
    assert answer.remaining_ms == LEASE_MS
    assert await prolongations(shard.log) == [60_000]
    await passed(clock, shard, LEASE_MS - 1)
    await soon(shard.complete(kept.token))
    await passed(clock, shard, 1)
    view = await shard.get(forgotten.sequence_id)
    assert (view.state, view.attempt) == ("ready", 2), "what nobody keeps up runs out after a standstill, too"
    assert await prolongations(shard.log) == [60_000]
    assert digest(await shard.state_at(shard.last_sequence)) == digest(shard.state)
    await shard.close()


async def test_a_standstill_while_a_frame_is_written_takes_no_time_either() -> None:
    log, clock = GatedLog(), FakeClock()
    shard = await Shard.open(log, clock=clock)
    await enqueued(shard)
    lease = await one_lease(shard, lease_duration_ms=LEASE_MS)
    log.gate.clear()
    flying = start(shard.enqueue(item("being written")))
    await settle()
    clock.move(60_000)
    beat = start(shard.heartbeat(lease.token))
    await settle()
    log.gate.set()
    await soon(flying)
    assert (await soon(beat)).remaining_ms == LEASE_MS
    await shard.close()


async def test_a_slow_disk_is_no_standstill() -> None:
    """Heartbeats come in meanwhile and count when they arrived; dead owners must not keep their leases for it."""
    log, clock = GatedLog(), FakeClock()
    shard = await Shard.open(log, clock=clock)
    [sequence_id] = await enqueued(shard)
    await one_lease(shard, lease_duration_ms=LEASE_MS)
    log.gate.clear()
    flying = start(shard.enqueue(item("being written")))
    await clock.advance(60_000)
    log.gate.set()
    await soon(flying)
    await settle()
    assert (await soon(shard.get(sequence_id))).state == "ready"
    assert await prolongations(log) == []
    await shard.close()


async def test_a_timer_that_is_a_little_late_is_no_standstill() -> None:
    clock = FakeClock()
    shard = await Place("memory", Path()).open(clock)
    [sequence_id] = await enqueued(shard)
    await one_lease(shard, lease_duration_ms=LOOK_MS)
    clock.move(STOOD_STILL_MS)
    await clock.advance(0)
    assert (await soon(shard.get(sequence_id))).state == "ready"
    assert await prolongations(shard.log) == []
    await shard.close()


async def test_a_standstill_is_no_event_when_nobody_has_a_lease(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    shard = await Place("memory", Path()).open(clock)
    await enqueued(shard, *items(2))
    await shard.complete((await one_lease(shard)).token)
    caplog.set_level(logging.WARNING)
    clock.move(60_000)
    await one_lease(shard)
    await clock.advance(LOOK_MS)
    assert await kinds_of(shard.log, 2) == ["Enqueue", "Enqueue", "LeaseGranted", "Completed", "LeaseGranted"]
    assert caplog.messages == []
    await shard.close()
