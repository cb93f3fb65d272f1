"""A log that fails, another writer, and the end: nobody is left waiting, nothing half done is shown."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.answers import CompleteAnswer
from omnirelay.core.events import LeaderElected
from omnirelay.core.options import MIB
from omnirelay.core.snapshot import digest
from omnirelay.engine import writer
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.shard import Shard
from omnirelay.errors import LogFenced, LogOutcomeUnknown, LogUnavailable, OmniRelayError, Unavailable
from omnirelay.log import MemoryLog
from omnirelay.log.base import Frame, Position
from omnirelay.log.failpoints import armed
from omnirelay.log.memory import Fault
from omnirelay.testing.clock import FakeClock, settle
from tests.integration.shards import (
    NAMESPACE,
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
    soon,
    start,
)
from tests.patience import PATIENCE_S

UNAVAILABLE = "error.resourcelease.log_unavailable"

in_company = pytest.mark.parametrize("together", [1, 3], ids=["alone", "in company"])
"""One command is appended without a hop, as on a quick disk, several with one."""


class Answers:
    """Calls of every kind that wait, and how each ended."""

    def __init__(self, shard: Shard, known: int) -> None:
        self.calls: dict[str, asyncio.Future[object]] = {
            "lease": start(shard.lease(WORKER, wait_ms=60_000)),
            "get": start(shard.get(known, wait_ms=60_000)),
        }

    async def outcomes(self) -> dict[str, object]:
        """What each got; a call that got nothing within a few seconds is a hang."""
        await asyncio.wait(self.calls.values(), timeout=PATIENCE_S)
        return {
            name: (call.exception() or call.result()) if call.done() else "still waits"
            for name, call in self.calls.items()
        }


async def a_leased_item(shard: Shard) -> int:
    [known] = await enqueued(shard)
    await shard.lease(WORKER)
    return known


# -- the disk is full ------------------------------------------------------------------------------


@in_company
async def test_a_frame_the_store_refused_is_tried_again_with_the_same_bytes(together: int) -> None:
    log, clock = GatedLog(quick=together == 1), FakeClock()
    shard = await Shard.open(log, clock=clock)
    log.fail_next_append("definite")
    log.fail_next_append("definite")
    before = len(log.tried)
    calls = [start(shard.enqueue(each)) for each in items(together)]
    await settle()
    assert isinstance(shard.failure, LogUnavailable)
    for refused in (shard.enqueue(item("later")), shard.stats(), shard.lease(WORKER)):
        with pytest.raises(LogUnavailable) as intake:
            await soon(refused)
        assert intake.value.code == UNAVAILABLE
        assert intake.value.retry_after_ms
    assert not any(call.done() for call in calls)
    await clock.advance(100)
    await clock.advance(100)
    await soon(asyncio.gather(*calls))
    assert shard.failure is None
    assert len(set(log.tried[before:])) == 1
    assert len(log.tried[before:]) == 3
    assert (await shard.stats()).ready_count == together
    assert (await kinds_of(log)).count("Enqueue") == together
    await shard.close()


@in_company
async def test_closing_while_the_disk_is_full_answers_everyone(together: int) -> None:
    log, clock = GatedLog(quick=together == 1), FakeClock()
    shard = await Shard.open(log, clock=clock)
    known = await a_leased_item(shard)
    waiting = Answers(shard, known)
    await settle()
    for _ in range(100):
        log.fail_next_append("definite")
    calls = [start(shard.enqueue(each)) for each in items(together)]
    await settle()
    await soon(shard.close())
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE_S)
    assert [type(outcome) for outcome in outcomes] == [LogUnavailable] * together
    assert "still waits" not in (await waiting.outcomes()).values()
    tried = len(log.tried)
    await clock.advance(1_000)
    assert len(log.tried) == tried, "a closed shard must not write any more"


@pytest.mark.parametrize("then", ["written", "refused again"])
async def test_closing_during_another_try_waits_for_what_becomes_of_it(
    then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "INLINE_BYTES_MAX", 0)  # A frame that the writer thread takes.
    place, clock = Place("sqlite", tmp_path), FakeClock()
    shard = await place.open(clock)
    tries: list[int] = []
    under_way, disk = threading.Event(), threading.Event()

    def full_then_slow() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise LogUnavailable("the disk is full")
        under_way.set()
        disk.wait(PATIENCE_S)
        if then == "refused again":
            raise LogUnavailable("the disk is full")

    with armed("log.append.begin", full_then_slow):
        call = start(shard.enqueue(item()))
        async with asyncio.timeout(PATIENCE_S):
            while not under_way.is_set():
                await clock.advance(100)
        closing = start(shard.close())
        await settle()
        assert not call.done(), "answered while nobody knew what became of the frame"
        disk.set()
        await soon(closing)
    assert len(tries) == 2
    shard = await place.open(clock)
    found = (await shard.stats()).pending_count
    await shard.close()
    if then == "written":
        assert ((await call).results[0].sequence_id, found) == (1, 1)
    else:
        assert (type(call.exception()), found) == (LogUnavailable, 0)


class RoomFor(GatedLog):
    """A disk that takes so many frames more and is full then."""

    room = 1_000

    async def append(self, frame: Frame, expected: Position) -> Position:
        if self.room == 0:
            raise LogUnavailable("the disk is full")
        self.room -= 1
        return await super().append(frame, expected)

    def append_now(self, frame: Frame, expected: Position) -> Position | None:
        return None


@pytest.mark.parametrize("calls", ["one call", "many calls"])
async def test_what_is_durable_of_a_parted_batch_is_not_refused_when_the_rest_is(calls: str) -> None:
    log, clock = RoomFor(), FakeClock()
    shard = await Shard.open(log, clock=clock)
    await shard.enqueue(items(12))
    leases = await shard.lease(WORKER, max_items=12)
    heard: list[str] = []
    shard.add_event_listener(lambda events: heard.extend(type(event).__name__ for event in events))
    commands = [cmd.CompleteItem(lease.token, result=bytes(MIB)) for lease in leases]
    log.room = 1
    if calls == "one call":
        calling: list[asyncio.Task[object]] = [start(shard.acknowledge(commands))]
    else:
        calling = [start(shard.complete(each.token, result=each.result)) for each in commands]
    await settle()
    assert isinstance(shard.failure, LogUnavailable)
    assert not any(call.done() for call in calling)
    await soon(shard.close())
    outcomes = await soon(asyncio.gather(*calling, return_exceptions=True))
    shard = await Shard.open(log.reopen(), clock=clock)
    completed = (await shard.stats()).completed_count
    await shard.close()
    assert 0 < completed < 12
    assert heard == ["Completed"] * completed
    if calls == "one call":
        assert [type(outcome) for outcome in outcomes] == [LogOutcomeUnknown]
    else:
        assert [type(outcome) for outcome in outcomes] == (
            [CompleteAnswer] * completed + [LogUnavailable] * (12 - completed)
        )


async def test_a_call_whose_first_part_is_durable_is_not_told_that_nothing_was_written() -> None:
    """Frames take the commands of one large call one after the other."""
    log, clock = RoomFor(), FakeClock()
    shard = await Shard.open(log, clock=clock, settings=EngineSettings(frame_events_max=4))
    await shard.enqueue(items(12))
    leases = [lease for _ in range(3) for lease in await shard.lease(WORKER, max_items=4)]
    log.room = 1
    call = start(shard.acknowledge([cmd.CompleteItem(lease.token) for lease in leases]))
    await settle()
    await soon(shard.close())
    assert isinstance(call.exception(), LogOutcomeUnknown)


async def filled_up(shard: Shard, log: RoomFor, clock: FakeClock, ms: int) -> None:
    """Have a full disk refuse an enqueue for so long, and write it then."""
    log.room = 0
    call = start(shard.enqueue(item("meets the full disk")))
    await settle()
    assert isinstance(shard.failure, LogUnavailable)
    await clock.advance(ms - 1)
    log.room = 1_000
    await clock.advance(1)
    await soon(call)


@pytest.mark.parametrize("staged", [False, True], ids=["nothing behind it", "a frame decided behind it"])
async def test_a_full_disk_takes_no_time_from_live_leases(staged: bool) -> None:
    log, clock = RoomFor(), FakeClock()
    shard = await Shard.open(log, clock=clock, owner="n-1", settings=EngineSettings(stage_events_min=5))
    await shard.enqueue(items(2))
    kept, forgotten = await shard.lease(WORKER, max_items=2, lease_duration_ms=10_000)
    for lease in (kept, forgotten):
        await shard.heartbeat(lease.token)
    deadline = (await shard.get(kept.sequence_id)).expires_at
    assert deadline is not None
    if staged:
        log.gate.clear()
        calls = [start(shard.enqueue(each)) for each in items(2)]
        await settle()
        calls += [start(shard.enqueue(each)) for each in items(5)]
        await settle()
        log.room = 0
        log.fail_next_append("definite")
        log.gate.set()
        await settle()
        await clock.advance(60_000 - 1)
        log.room = 1_000
        await clock.advance(1)
        await soon(asyncio.gather(*calls))
    else:
        await filled_up(shard, log, clock, 60_000)
    for lease in (kept, forgotten):
        view = await shard.get(lease.sequence_id)
        assert (view.state, view.attempt, view.expires_at) == ("leased", 1, deadline + 60_000)
    await clock.advance(9_999)
    await soon(shard.complete(kept.token))
    await clock.advance(1)
    view = await shard.get(forgotten.sequence_id)
    assert (view.state, view.attempt) == ("ready", 2), "what nobody keeps up runs out after a stall, too"
    events = await events_of(log)
    [moved] = [event for event in events[1:] if isinstance(event, LeaderElected)]
    assert (moved.epoch, moved.owner) == (shard.epoch, "n-1")
    before = next(event for event in events if event.sequence_number == moved.sequence_number - 1)
    assert moved.down_from == before.timestamp
    assert moved.timestamp - moved.down_from == 60_000
    assert digest(await shard.state_at(shard.last_sequence)) == digest(shard.state)
    await shard.close()


async def test_a_full_disk_is_no_event_when_nobody_has_a_lease() -> None:
    log, clock = RoomFor(), FakeClock()
    shard = await Shard.open(log, clock=clock)
    await filled_up(shard, log, clock, 60_000)
    await one_lease(shard)
    assert await kinds_of(log) == ["LeaderElected", "Enqueue", "LeaseGranted"]
    await shard.close()


async def test_a_disk_that_fills_up_during_the_close_does_not_hold_it_up() -> None:
    log, clock = GatedLog(), FakeClock()
    shard = await Shard.open(log, clock=clock)
    for _ in range(100):
        log.fail_next_append("definite")
    call = start(shard.enqueue(item()))
    await asyncio.sleep(0)
    closing = start(shard.close())
    await settle()
    await clock.advance(5_000)
    done, _ = await asyncio.wait([closing, call], timeout=PATIENCE_S)
    assert done == {closing, call}
    assert isinstance(call.exception(), LogUnavailable)


# -- outcome unknown, another writer ---------------------------------------------------------------


@in_company
@pytest.mark.parametrize("fault", ["unknown-lost", "unknown-kept"])
async def test_an_unknown_outcome_gives_the_shard_up_and_the_next_start_learns_it(fault: Fault, together: int) -> None:
    log, clock = GatedLog(quick=together == 1), FakeClock()
    shard = await Shard.open(log, clock=clock)
    known = await a_leased_item(shard)
    waiting = Answers(shard, known)
    await settle()
    log.fail_next_append(fault)
    calls = [start(shard.enqueue(each)) for each in items(together)]
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE_S)
    assert [type(outcome) for outcome in outcomes] == [LogOutcomeUnknown] * together
    for outcome in (await waiting.outcomes()).values():
        assert isinstance(outcome, LogOutcomeUnknown)
    for refused in (shard.enqueue(item("later")), shard.stats(), shard.lease(WORKER)):
        with pytest.raises(LogOutcomeUnknown):
            await soon(refused)
    await soon(shard.close())
    shard = await Shard.open(log.reopen(), clock=clock)
    found = await shard.stats()
    assert found.ready_count + found.active_lease_count == 1 + (together if fault == "unknown-kept" else 0)
    await shard.close()


@in_company
async def test_a_shard_that_was_taken_over_gives_up(together: int) -> None:
    log, clock = MemoryLog(NAMESPACE), FakeClock()
    old = await Shard.open(log, clock=clock, owner="old")
    known = await a_leased_item(old)
    waiting = Answers(old, known)
    await settle()
    new = await Shard.open(log.reopen(), clock=clock, owner="new")
    calls = [start(old.enqueue(each)) for each in items(together)]
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE_S)
    assert [type(outcome) for outcome in outcomes] == [LogFenced] * together
    for outcome in (await waiting.outcomes()).values():
        assert isinstance(outcome, LogFenced)
    await enqueued(new)
    await soon(old.close())
    await new.close()


class BrokenLog(MemoryLog):
    """A store with a bug: it raises what no store may raise."""

    broken = False

    def _add(self, frame: Frame, expected: Position) -> Position:
        if self.broken:
            raise RuntimeError("a bug in the store")
        return super()._add(frame, expected)


@in_company
async def test_an_internal_error_answers_everyone_too(together: int) -> None:
    log, clock = BrokenLog(NAMESPACE), FakeClock()
    shard = await Shard.open(log, clock=clock)
    known = await a_leased_item(shard)
    waiting = Answers(shard, known)
    await settle()
    log.broken = True
    calls = [start(shard.enqueue(each)) for each in items(together)]
    _, hanging = await asyncio.wait(calls, timeout=PATIENCE_S)
    assert not hanging, f"{len(hanging)} callers were never answered"
    for call in calls:
        assert isinstance(call.exception(), OmniRelayError)
    for outcome in (await waiting.outcomes()).values():
        assert isinstance(outcome, OmniRelayError)
    await soon(shard.close())


# -- the end ---------------------------------------------------------------------------------------


@on_every_log
async def test_closing_answers_who_waits_and_is_safe_twice(kind: str, tmp_path: Path) -> None:
    place = Place(kind, tmp_path)
    shard = await place.open(FakeClock())
    known = await a_leased_item(shard)
    waiting = Answers(shard, known)
    await settle()
    await soon(shard.close())
    await soon(shard.close())
    outcomes = await waiting.outcomes()
    assert outcomes["lease"] == []
    assert outcomes["get"] != "still waits"
    for refused in (shard.enqueue(item()), shard.lease(WORKER)):
        with pytest.raises(Unavailable) as closed:
            await soon(refused)
        assert closed.value.code == "error.resourcelease.draining"
    shard = await place.open(FakeClock())
    assert (await shard.stats()).active_lease_count == 1
    await shard.close()


@on_every_log
async def test_what_was_decided_before_the_close_is_durable_and_answered(kind: str, tmp_path: Path) -> None:
    place = Place(kind, tmp_path)
    shard = await place.open(FakeClock())
    calls = [start(shard.enqueue(each)) for each in items(20)]
    await asyncio.sleep(0)
    await soon(shard.close())
    outcomes = await soon(asyncio.gather(*calls, return_exceptions=True))
    taken = [outcome for outcome in outcomes if not isinstance(outcome, OmniRelayError)]
    shard = await place.open(FakeClock())
    assert (await shard.stats()).ready_count == len(taken)
    await shard.close()


@on_every_log
async def test_a_killed_shard_leaves_what_was_durable_and_nothing_else(kind: str, tmp_path: Path) -> None:
    place, clock = Place(kind, tmp_path), FakeClock()
    shard = await place.open(clock)
    ids = await enqueued(shard, *items(3))
    place.crash(shard)
    with pytest.raises(Unavailable):
        await shard.enqueue(item())
    shard = await place.open(clock)
    assert [view.sequence_id for view in (await shard.peek()).items] == ids
    await shard.close()
