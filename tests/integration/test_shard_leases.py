"""Lease calls and acknowledgements: who is served, when, and what time does to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.events import Event
from omnirelay.core.payload import Caller
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.shard import Shard
from omnirelay.errors import FailedPrecondition, OmniRelayError, ResourceExhausted
from omnirelay.log.failpoints import armed
from omnirelay.testing.clock import FakeClock, settle
from tests.integration.shards import (
    WORKER,
    GatedLog,
    Place,
    enqueued,
    frames_of,
    item,
    items,
    kinds_of,
    on_every_log,
    one_lease,
    passed,
    soon,
    start,
)

# -- waiting ---------------------------------------------------------------------------------------


@on_every_log
async def test_waiting_lease_calls_are_served_in_the_order_they_came(kind: str, tmp_path: Path) -> None:
    shard = await Place(kind, tmp_path).open(FakeClock())
    waiting = []
    for name in ("a", "b", "c"):
        waiting.append(start(shard.lease(Caller(peer_id=name), wait_ms=10_000)))
        await settle()
    [first] = await enqueued(shard)
    [lease] = await soon(waiting[0])
    assert (lease.sequence_id, lease.owner) == (first, "a")
    assert not waiting[1].done()
    rest = await enqueued(shard, *items(2))
    assert [(await soon(call))[0].sequence_id for call in waiting[1:]] == rest
    await shard.close()


def _hear(heard: list[str], name: str, _: asyncio.Future[Any]) -> None:
    heard.append(name)


@on_every_log
async def test_who_waited_for_work_hears_before_who_brought_it(kind: str, tmp_path: Path) -> None:
    shard = await Place(kind, tmp_path).open(FakeClock())
    heard: list[str] = []
    waiting = [start(shard.lease(Caller(peer_id=name), wait_ms=10_000)) for name in ("a", "b")]
    await settle()
    bringing = start(shard.enqueue(items(2)))
    for name, call in (("producer", bringing), ("a", waiting[0]), ("b", waiting[1])):
        call.add_done_callback(partial(_hear, heard, name))
    await soon(bringing)
    await settle()
    assert heard == ["a", "b", "producer"]
    assert (await frames_of(shard.log))[-1].count == 4  # Two items, two grants: one frame brought all of it.
    await shard.close()


async def test_a_call_that_comes_later_does_not_overtake_one_that_waits() -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    waits = start(shard.lease(Caller(peer_id="first"), wait_ms=10_000))
    await settle()
    _, later = await asyncio.gather(shard.enqueue(item()), shard.lease(Caller(peer_id="later")))
    assert later == []
    assert [lease.owner for lease in await soon(waits)] == ["first"]
    await shard.close()


@on_every_log
async def test_a_call_whose_time_is_over_gets_an_empty_list(kind: str, tmp_path: Path) -> None:
    clock = FakeClock()
    shard = await Place(kind, tmp_path).open(clock)
    call = start(shard.lease(WORKER, wait_ms=1_000))
    await settle()
    await clock.advance(999)
    assert not call.done()
    await clock.advance(1)
    assert await soon(call) == []
    await enqueued(shard)
    assert len(await shard.lease(WORKER)) == 1, "the call that left the line takes nothing"
    await shard.close()


async def test_an_empty_answer_waits_for_what_is_being_written() -> None:
    """Time runs out while the frame that would have served the call is on its way: no item is lost by it."""
    log, clock = GatedLog(), FakeClock()
    shard = await Shard.open(log, clock=clock)
    call = start(shard.lease(WORKER, wait_ms=1_000))
    await settle()
    log.gate.clear()
    coming = start(shard.enqueue(item()))
    await settle()
    await clock.advance(2_000)
    assert not call.done()
    log.gate.set()
    await soon(coming)
    assert len(await soon(call)) == 1, "it was granted before its time was over"
    await shard.close()


async def test_a_cancelled_call_leaves_the_line() -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    gone = start(shard.lease(Caller(peer_id="gone"), wait_ms=10_000))
    stays = start(shard.lease(Caller(peer_id="stays"), wait_ms=10_000))
    await settle()
    gone.cancel()
    await settle()
    await enqueued(shard)
    assert [lease.owner for lease in await soon(stays)] == ["stays"]
    assert "Released" not in await kinds_of(shard.log)
    await shard.close()


@pytest.mark.parametrize("together", [1, 2], ids=["alone", "in company"])
async def test_a_grant_whose_caller_is_gone_is_released_in_the_next_frame(together: int) -> None:
    log = GatedLog(quick=together == 1)
    shard = await Shard.open(log, clock=FakeClock())
    [sequence_id] = await enqueued(shard)
    log.gate.clear()
    call = start(shard.lease(WORKER))
    others = [start(shard.enqueue(item(f"other-{n}"))) for n in range(1, together)]
    await settle()
    call.cancel()
    await settle()
    log.gate.set()
    await soon(asyncio.gather(*others))
    await settle()
    assert (await soon(shard.get(sequence_id))).state == "ready"
    [release] = [frame for frame in await frames_of(log) if b'"Released"' in frame.data]
    assert b'"undelivered":true' in release.data
    again = await one_lease(shard)
    assert (again.sequence_id, again.attempt) == (sequence_id, 1), "the attempt is not burned"
    await shard.close()


async def test_every_grant_of_many_callers_that_are_gone_is_released() -> None:
    log = GatedLog()
    shard = await Shard.open(log, clock=FakeClock())
    for batch in range(2):
        await shard.enqueue(items(6_000, f"batch-{batch}"))
    log.gate.clear()
    calls = [start(shard.lease(WORKER, max_items=1_000)) for _ in range(12)]
    await settle()
    for call in calls:
        call.cancel()
    await settle()
    log.gate.set()
    await soon(asyncio.gather(*calls, return_exceptions=True))
    # Two frames of grants were on their way; each is given back in the frame after it.
    active = [(await soon(shard.stats())).active_lease_count for _ in range(4)]
    assert active[-1] == 0, active
    assert (await soon(shard.stats())).ready_count == 12_000
    await shard.close()


async def test_a_caller_cancelled_in_the_moment_of_the_answer_gives_its_lease_back() -> None:
    """The answer is there, the caller has not looked at it yet, and now it is cancelled."""
    shard = await Place("memory", Path()).open(FakeClock())
    [sequence_id] = await enqueued(shard)
    call = start(shard.lease(WORKER))

    def cancel() -> None:
        call.cancel()

    with armed("engine.answered", cancel):
        await asyncio.wait([call])
    assert call.cancelled()
    assert (await soon(shard.get(sequence_id))).state == "ready"
    assert await kinds_of(shard.log, 3) == ["LeaseGranted", "Released"]
    await shard.close()


async def test_one_call_too_many_is_refused_instead_of_waiting() -> None:
    shard = await Place("memory", Path()).open(FakeClock(), settings=EngineSettings(waiting_leases_max=1))
    waits = start(shard.lease(WORKER, wait_ms=1_000))
    await settle()
    with pytest.raises(ResourceExhausted) as refused:
        await shard.lease(WORKER, wait_ms=1_000)
    assert refused.value.code == "resource-exhausted"
    assert not waits.done()
    await shard.close()


# -- repeats by request id -------------------------------------------------------------------------


@on_every_log
async def test_a_repeat_by_request_id_gets_the_same_leases(kind: str, tmp_path: Path) -> None:
    shard = await Place(kind, tmp_path).open(FakeClock())
    await enqueued(shard, *items(4))
    first = await shard.lease(WORKER, max_items=2, request_id="r")
    again = await shard.lease(WORKER, max_items=2, request_id="r")
    assert [lease.token for lease in again] == [lease.token for lease in first]
    other = await shard.lease(Caller(peer_id="other"), max_items=2, request_id="r")
    assert not {lease.fence for lease in other} & {lease.fence for lease in first}
    await shard.close()


async def test_a_repeat_gets_the_same_leases_after_a_restart() -> None:
    clock = FakeClock()
    place = Place("memory", Path())
    shard = await place.open(clock)
    await enqueued(shard, *items(4))
    first = await shard.lease(WORKER, max_items=2, request_id="r")
    place.crash(shard)
    clock.move(60_000)
    shard = await place.open(clock)
    again = await shard.lease(WORKER, max_items=2, request_id="r")
    assert [lease.token for lease in again] == [lease.token for lease in first]
    await shard.close()


async def test_a_repeat_while_the_first_call_waits_gets_the_same_leases() -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    first = start(shard.lease(WORKER, wait_ms=10_000, request_id="r"))
    await settle()
    repeat = start(shard.lease(WORKER, wait_ms=10_000, request_id="r"))
    await settle()
    await enqueued(shard)
    [lease] = await soon(first)
    await settle()
    assert repeat.done(), "the repeat still waits for an item of its own"
    assert [each.token for each in await soon(repeat)] == [lease.token]
    await shard.close()


@pytest.mark.parametrize("moment", ["undecided", "being written", "answered"])
async def test_a_repeat_that_is_cancelled_does_not_take_the_lease_from_the_first_call(moment: str) -> None:
    """A client that hedges: the answer to its first call arrived, so it drops the second."""
    log = GatedLog()
    shard = await Shard.open(log, clock=FakeClock())
    await enqueued(shard)
    held = await one_lease(shard, request_id="r")
    log.gate.clear()
    busy = start(shard.enqueue(item("busy")))
    await settle()
    repeat = start(shard.lease(WORKER, request_id="r"))
    beside = start(shard.enqueue(item("in one frame with it")))
    await settle()
    frames = 0

    def frame_answered() -> None:
        nonlocal frames
        frames += 1
        if frames == 1:
            log.gate.clear()
        elif moment == "answered":
            repeat.cancel()

    if moment == "undecided":
        repeat.cancel()
    with armed("engine.answered", frame_answered):
        log.gate.set()
        await soon(busy)
        await settle()
        if moment == "being written":
            repeat.cancel()
        log.gate.set()
        await soon(beside)
        await asyncio.wait([repeat])
    await settle()
    assert repeat.cancelled()
    await soon(shard.complete(held.token))
    assert (await shard.get(held.sequence_id)).state == "completed"
    await shard.close()


# -- time ------------------------------------------------------------------------------------------


async def test_an_acknowledgement_that_came_in_time_counts_even_when_decided_late() -> None:
    log, clock = GatedLog(), FakeClock()
    shard = await Shard.open(log, clock=clock)
    await enqueued(shard)
    lease = await one_lease(shard, lease_duration_ms=1_000)
    log.gate.clear()
    busy = start(shard.enqueue(item("busy")))
    await settle()
    await clock.advance(999)
    in_time = start(shard.complete(lease.token))
    await settle()
    await clock.advance(5_000)
    log.gate.set()
    await soon(asyncio.gather(busy, in_time))
    assert (await shard.get(lease.sequence_id)).state == "completed"
    assert "Expired" not in await kinds_of(log)
    await shard.close()


async def test_an_acknowledgement_that_came_too_late_is_refused() -> None:
    log, clock = GatedLog(), FakeClock()
    shard = await Shard.open(log, clock=clock)
    await enqueued(shard)
    lease = await one_lease(shard, lease_duration_ms=1_000)
    log.gate.clear()
    busy = start(shard.enqueue(item("busy")))
    await settle()
    await clock.advance(1_000)
    late = start(shard.complete(lease.token))
    await settle()
    log.gate.set()
    await soon(busy)
    with pytest.raises(FailedPrecondition) as refused:
        await soon(late)
    assert refused.value.code == "error.taskqueue.lease_inactive"
    await shard.close()


async def test_acknowledgements_that_came_in_time_count_when_they_take_several_frames() -> None:
    log, clock = GatedLog(), FakeClock()
    shard = await Shard.open(log, clock=clock, settings=EngineSettings(frame_events_max=2))
    for each in items(5):
        await shard.enqueue(each)
    leases = [await one_lease(shard, lease_duration_ms=1_000) for _ in range(5)]
    log.gate.clear()
    busy = start(shard.enqueue(item("busy")))
    await settle()
    in_time = start(shard.acknowledge([cmd.CompleteItem(lease.token) for lease in leases]))
    await settle()
    await clock.advance(5_000)
    log.gate.set()
    await soon(busy)
    outcomes = await soon(in_time)
    assert [outcome for outcome in outcomes if isinstance(outcome, OmniRelayError)] == []
    await shard.close()


async def test_expiries_stand_last_in_a_frame() -> None:
    log, clock = GatedLog(), FakeClock()
    shard = await Shard.open(log, clock=clock)
    await enqueued(shard, *items(2))
    kept, lost = await shard.lease(WORKER, max_items=2, lease_duration_ms=1_000)
    log.gate.clear()
    busy = start(shard.enqueue(item("busy")))
    await settle()
    after = log.storage.head.position.sequence + 2
    calls = [start(shard.enqueue(item("meanwhile"))), start(shard.complete(kept.token))]
    await settle()
    await clock.advance(1_000)
    log.gate.set()
    await soon(asyncio.gather(busy, *calls))
    await soon(shard.stats())
    assert await kinds_of(log, after) == ["Completed", "Enqueue", "Expired"]
    assert (await shard.get(lost.sequence_id)).state == "ready"
    await shard.close()


@on_every_log
async def test_a_lease_nobody_keeps_up_runs_out_by_itself(kind: str, tmp_path: Path) -> None:
    clock = FakeClock()
    shard = await Place(kind, tmp_path).open(clock)
    [sequence_id] = await enqueued(shard)
    lease = await one_lease(shard, lease_duration_ms=30_000)
    await shard.heartbeat(lease.token)
    await passed(clock, shard, 29_999)
    assert (await shard.get(sequence_id)).state == "leased"
    await passed(clock, shard, 1)
    view = await shard.get(sequence_id)
    assert (view.state, view.attempt) == ("ready", 2)
    with pytest.raises(FailedPrecondition):
        await shard.complete(lease.token)
    await shard.close()


@on_every_log
async def test_a_heartbeat_keeps_the_lease(kind: str, tmp_path: Path) -> None:
    clock = FakeClock()
    shard = await Place(kind, tmp_path).open(clock)
    await enqueued(shard)
    lease = await one_lease(shard, lease_duration_ms=9_000)
    for _ in range(5):
        await clock.advance(8_000)
        assert (await shard.heartbeat(lease.token)).extended
    await shard.complete(lease.token)
    await shard.close()


@on_every_log
async def test_a_delayed_item_becomes_ready_when_its_time_comes(kind: str, tmp_path: Path) -> None:
    clock = FakeClock()
    shard = await Place(kind, tmp_path).open(clock)
    [sequence_id] = await enqueued(shard, item(delay_ms=500))
    call = start(shard.lease(WORKER, wait_ms=10_000))
    await settle()
    await clock.advance(499)
    assert not call.done()
    await clock.advance(1)
    assert [lease.sequence_id for lease in await soon(call)] == [sequence_id]
    await shard.close()


async def test_a_call_that_does_not_wait_gets_what_the_line_leaves_over() -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    waiting = asyncio.create_task(shard.lease(WORKER, wait_ms=1_000))
    await settle()
    enqueued, got = await asyncio.gather(shard.enqueue([item(), item()]), shard.lease(WORKER))
    [first], [second] = await waiting, got
    assert [first.sequence_id, second.sequence_id] == [result.sequence_id for result in enqueued.results]
    await shard.close()


async def test_leases_run_out_whatever_those_who_listen_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One listener that fails ends neither the expiries nor the other listeners."""
    clock = FakeClock()
    shard = await Place("memory", tmp_path).open(clock)
    heard: list[str] = []

    def fails(events: Sequence[Event]) -> None:
        raise RuntimeError("broken listener")

    shard.add_event_listener(fails)
    shard.add_event_listener(lambda events: heard.extend(type(event).__name__ for event in events))
    await enqueued(shard)
    for _ in range(3):
        await one_lease(shard)
        await passed(clock, shard, 60_000)
    assert heard.count("Expired") == 3
    assert caplog.text.count("event_listener_failed") == len(caplog.records) > 0
    await shard.close()
