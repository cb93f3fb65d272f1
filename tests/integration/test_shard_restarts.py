"""What a shard is after a restart: its leases, its options, its numbers."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from omnirelay.core import events as ev
from omnirelay.core.evolve import evolve
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import OwnershipToken
from omnirelay.core.snapshot import digest, load
from omnirelay.core.state import State
from omnirelay.engine import recovery
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.shard import SNAPSHOT_NICENESS, Shard
from omnirelay.engine.snapshotter import make_snapshot
from omnirelay.errors import FailedPrecondition, LogDamaged, Unavailable
from omnirelay.log import MemoryLog, SqliteLog
from omnirelay.log.base import EventLog, SnapshotRecord
from omnirelay.log.frame import decode_frame, decode_header
from omnirelay.testing.clock import FakeClock, settle
from omnirelay.testing.conformance import Leader
from tests.integration.shards import (
    NAMESPACE,
    WORKER,
    Place,
    enqueued,
    events_of,
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
from tests.patience import PATIENCE_S

GENERATION_JUMP = 1 << 32


@on_every_log
async def test_a_restart_moves_live_deadlines_by_the_time_nobody_was_there(kind: str, tmp_path: Path) -> None:
    place, clock = Place(kind, tmp_path), FakeClock()
    shard = await place.open(clock)
    [sequence_id] = await enqueued(shard)
    lease = await one_lease(shard, lease_duration_ms=10_000)
    place.crash(shard)
    clock.move(3_600_000)
    shard = await place.open(clock)
    view = await shard.get(sequence_id)
    assert (view.state, view.expires_at) == ("leased", lease.expires_at + 3_600_000)
    await clock.advance(9_999)
    await shard.complete(lease.token)
    await shard.close()


@on_every_log
async def test_a_lease_nobody_takes_up_after_a_restart_runs_out(kind: str, tmp_path: Path) -> None:
    place, clock = Place(kind, tmp_path), FakeClock()
    shard = await place.open(clock)
    [sequence_id] = await enqueued(shard)
    lease = await one_lease(shard, lease_duration_ms=10_000)
    await clock.advance(4_000)
    await shard.heartbeat(lease.token)
    place.crash(shard)
    clock.move(3_600_000)
    shard = await place.open(clock)
    await passed(clock, shard, 10_000)
    assert (await shard.get(sequence_id)).state == "ready"
    with pytest.raises(FailedPrecondition):
        await shard.complete(lease.token)
    await shard.close()


@on_every_log
async def test_the_shard_says_at_every_heartbeat_interval_that_it_lives_while_leases_do(
    kind: str, tmp_path: Path
) -> None:
    place, clock = Place(kind, tmp_path), FakeClock()
    shard = await place.open(clock)
    await enqueued(shard)
    before = shard.last_sequence
    await clock.advance(60_000)
    assert shard.last_sequence == before, "without leases there is nothing to prove"
    lease = await one_lease(shard, lease_duration_ms=60_000)
    for _ in range(6):
        await passed(clock, shard, 5_000)
    times = [event.timestamp for event in await events_of(shard.log, lease.fence)]
    assert len(times) == 7
    assert all(later - earlier <= 5_000 for earlier, later in itertools.pairwise(times))
    place.crash(shard)
    clock.move(100_000)
    shard = await place.open(clock)
    view = await shard.get(lease.sequence_id)
    assert view.expires_at == lease.expires_at + 100_000
    await shard.close()


async def test_time_never_goes_back_when_the_wall_clock_does() -> None:
    place, clock = Place("memory", Path()), FakeClock()
    shard = await place.open(clock)
    await enqueued(shard)
    lease = await one_lease(shard, lease_duration_ms=10_000)
    place.crash(shard)
    clock.jump_wall(-3_600_000)
    shard = await place.open(clock)
    assert (await shard.get(lease.sequence_id)).expires_at == lease.expires_at
    times = [event.timestamp for event in await events_of(shard.log)]
    assert times == sorted(times)
    await shard.close()


def clocks_told(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [each.__dict__["wall_ahead_ms"] for each in caplog.records if each.message == "clock_differs"]


async def test_a_wall_clock_that_was_set_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    shard = await Place("memory", Path()).open(clock := FakeClock())
    clock.jump_wall(59_000)
    await enqueued(shard, item("a"))
    assert clocks_told(caplog) == []
    clock.jump_wall(3_600_000)
    await enqueued(shard, item("b"))
    await enqueued(shard, item("c"))
    clock.jump_wall(-3_600_000)
    await enqueued(shard, item("d"))
    await shard.close()
    assert clocks_told(caplog) == [3_659_000, 59_000]


async def test_a_log_from_the_future_of_the_wall_clock_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    place, clock = Place("memory", Path()), FakeClock()
    place.crash(await place.open(clock))
    clock.jump_wall(-3_600_000)
    await (await place.open(clock)).close()
    assert clocks_told(caplog) == [-3_600_000]


@on_every_log
async def test_the_state_after_a_restart_is_the_one_that_was_served(kind: str, tmp_path: Path) -> None:
    place, clock = Place(kind, tmp_path), FakeClock()
    shard = await place.open(clock)
    await enqueued(shard, *items(6), item("later", delay_ms=1_000), item("known", request_id="r"))
    done, failed, *_ = await shard.lease(WORKER, max_items=4)
    await shard.complete(done.token, result=b"well", follow_ups=[item("then")])
    await shard.fail(failed.token, mode="dead", reason="broken")
    await shard.cancel(6)
    served, sequence = digest(shard.state), shard.last_sequence
    place.crash(shard)
    shard = await place.open(clock)
    assert digest(await shard.state_at(sequence)) == served
    await shard.close()


async def test_an_empty_body_gives_the_same_digest_live_and_replayed() -> None:
    """An empty body is empty however it was made; msgspec tells defaults apart by identity."""
    shard = await Place("memory", Path()).open(FakeClock())
    nothing = int("0")
    await enqueued(shard, item(body=b"x" * nothing))
    assert digest(await shard.state_at(shard.last_sequence)) == digest(shard.state)
    await shard.close()


# -- options ---------------------------------------------------------------------------------------


@on_every_log
async def test_options_change_by_an_event_and_survive(kind: str, tmp_path: Path) -> None:
    place, clock = Place(kind, tmp_path), FakeClock()
    shard = await place.open(clock, options=QueueOptions(lease_duration_ms=1_000))
    await shard.close()
    shard = await place.open(clock, options=QueueOptions(lease_duration_ms=1_000))
    await shard.close()
    shard = await place.open(clock)
    assert shard.state.options.lease_duration_ms == 1_000
    await shard.change_options(QueueOptions(lease_duration_ms=2_000))
    await enqueued(shard)
    assert (await one_lease(shard)).remaining_ms == 2_000
    place.crash(shard)
    shard = await place.open(clock)
    assert shard.state.options == QueueOptions(lease_duration_ms=2_000)
    assert (await kinds_of(shard.log)).count("OptionsChanged") == 2
    await shard.close()


@on_every_log
async def test_every_frame_of_a_log_says_how_deep_the_queue_was_after_it(kind: str, tmp_path: Path) -> None:
    place, clock = Place(kind, tmp_path), FakeClock()
    shard = await place.open(clock)
    await enqueued(shard, *items(5))
    await one_lease(shard)
    await shard.close_intake("archive", "it is full")
    place.crash(shard)
    # A frame of its own that nobody asked for: the election, the intake that is opened again, and the options.
    shard = await place.open(clock, options=QueueOptions(lease_duration_ms=2_000))
    await shard.complete((await one_lease(shard)).token)
    state, told, counted = State(), [], []
    for frame in await frames_of(shard.log):
        for event in decode_frame(frame, shard=shard.log.shard, log_id=shard.log.log_id):
            evolve(state, event)
        header = decode_header(frame.data)
        told.append((header.pending, header.active))
        counted.append((state.pending_count, state.leased.live))
    assert told == counted
    assert (4, 1) in counted[:-1]
    await shard.close()


# -- history that is not proven complete -------------------------------------------------------------


async def an_old_fence(shard: Shard) -> int:
    await enqueued(shard, *items(3))
    return (await one_lease(shard, lease_duration_ms=10_000)).fence


async def check_new_generation(shard: Shard, old_fence: int) -> None:
    assert shard.state.generation == 2
    assert (await kinds_of(shard.log)).count("GenerationStarted") == 1
    assert (await one_lease(shard)).fence > old_fence + GENERATION_JUMP
    [new_id] = await enqueued(shard, item("new"))
    assert new_id > GENERATION_JUMP
    await shard.log.verify()


async def test_a_log_without_its_witness_starts_a_generation(tmp_path: Path) -> None:
    place, clock = Place("sqlite", tmp_path), FakeClock()
    shard = await place.open(clock)
    fence = await an_old_fence(shard)
    await shard.close()
    os.remove(tmp_path / NAMESPACE / "leases.witness")
    shard = await place.open(clock)
    await check_new_generation(shard, fence)
    await shard.close()
    shard = await place.open(clock)
    assert shard.state.generation == 2, "once is enough"
    await shard.close()


@on_every_log
async def test_a_restored_backup_starts_a_generation(kind: str, tmp_path: Path) -> None:
    clock = FakeClock()
    shard = await Place(kind, tmp_path / "here").open(clock)
    fence = await an_old_fence(shard)
    await shard.log.backup(tmp_path / "backup" / NAMESPACE)
    lost = await one_lease(shard)
    await shard.close()
    restored = (
        MemoryLog.from_backup(tmp_path / "backup" / NAMESPACE)
        if kind == "memory"
        else SqliteLog.open(tmp_path / "backup", NAMESPACE)
    )
    shard = await Shard.open(restored, clock=clock)
    await check_new_generation(shard, max(fence, lost.fence))
    await shard.close()


@on_every_log
async def test_live_deadlines_move_on_a_restored_backup_too(kind: str, tmp_path: Path) -> None:
    clock = FakeClock()
    shard = await Place(kind, tmp_path / "here").open(clock)
    await enqueued(shard)
    lease = await one_lease(shard, lease_duration_ms=10_000)
    await shard.log.backup(tmp_path / "backup" / NAMESPACE)
    await shard.close()
    clock.move(3_600_000)
    restored = (
        MemoryLog.from_backup(tmp_path / "backup" / NAMESPACE)
        if kind == "memory"
        else SqliteLog.open(tmp_path / "backup", NAMESPACE)
    )
    shard = await Shard.open(restored, clock=clock)
    view = await shard.get(lease.sequence_id)
    assert (view.state, view.expires_at) == ("leased", lease.expires_at + 3_600_000)
    await shard.complete(lease.token)
    await shard.close()


# -- snapshots and trimming --------------------------------------------------------------------------


def replayed(caplog: pytest.LogCaptureFixture) -> tuple[int, int | None]:
    """How many events the last start replayed, and the snapshot it began with."""
    opened = [record for record in caplog.records if record.message == "shard_opened"][-1]
    return opened.__dict__["replayed"], opened.__dict__["snapshot"]


async def test_a_restart_replays_only_what_follows_the_snapshot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omnirelay.engine")
    place, clock = Place("sqlite", tmp_path), FakeClock()
    shard = await place.open(clock)
    await enqueued(shard, *items(50))
    record = await shard.snapshot()
    assert record.sequence == shard.last_sequence
    assert record.digest == digest(shard.state)
    await enqueued(shard, *items(7, "later"))
    served, sequence = digest(shard.state), shard.last_sequence
    place.crash(shard)
    shard = await place.open(clock)
    assert replayed(caplog) == (7, record.sequence)
    assert digest(await shard.state_at(sequence)) == served
    await shard.close()


async def test_loading_a_snapshot_does_not_hold_the_event_loop_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, clock = Place("sqlite", tmp_path), FakeClock()
    shard = await place.open(clock)
    await enqueued(shard)
    await shard.snapshot()
    await shard.close()
    loading, turned = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def load_slowly(header: Any, chunks: Any) -> State:
        loop.call_soon_threadsafe(loading.set)
        assert turned.wait(PATIENCE_S), "the event loop stood still"
        return load(header, chunks)

    monkeypatch.setattr(recovery, "load", load_slowly)
    opening = start(place.open(clock))
    await loading.wait()
    turned.set()
    await (await opening).close()


async def test_a_snapshot_does_not_hold_the_shard_up(tmp_path: Path) -> None:
    shard = await Place("sqlite", tmp_path).open(FakeClock())
    await enqueued(shard)
    snapshot = start(shard.snapshot())
    count = 0
    while not snapshot.done():
        await soon(shard.enqueue(item(f"meanwhile-{count}")))
        count += 1
    assert count > 1
    assert (await snapshot).sequence < shard.last_sequence
    await shard.close()


async def test_a_helper_that_cannot_be_started_is_logged_and_not_tried_again_with_every_frame(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    shard = await Place("sqlite", tmp_path).open(FakeClock(), settings=EngineSettings(snapshot_every_events=10))
    for each in items(50):
        await soon(shard.enqueue(each))
        await settle()
    failures = [record for record in caplog.records if record.message == "snapshot_failed"]
    assert 1 <= len(failures) <= 5
    assert "cannot be started" in vars(failures[0])["reason"]
    with pytest.raises(Unavailable) as failed:
        await shard.snapshot()
    assert failed.value.code == "error.log.snapshot_failed"
    gc.collect()
    assert not unheard
    await shard.close()


async def test_a_snapshot_gives_way_to_callers_until_too_much_would_have_to_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    may_begin = asyncio.Event()
    shard = await Place("sqlite", tmp_path).open(FakeClock(), settings=EngineSettings(snapshot_every_events=10))

    async def make(log: EventLog, created_ms: int, *, niceness: int) -> SnapshotRecord:
        await may_begin.wait()
        made.append(niceness)
        return await make_snapshot(log, created_ms)

    monkeypatch.setattr("omnirelay.engine.shard.make_snapshot_in_helper", make)
    await enqueued(shard, *items(12))
    await settle()
    await enqueued(shard, *items(100))  # While the first is under way; they count for the next.
    may_begin.set()
    while len(made) < 2:
        await enqueued(shard, *items(1))
        await settle()
    assert made == [SNAPSHOT_NICENESS, 0]
    await shard.close()


async def test_a_shard_whose_name_is_not_its_directory_makes_snapshots(tmp_path: Path) -> None:
    log = SqliteLog.open(tmp_path, "directory", shard="name")
    shard = await Shard.open(log, clock=FakeClock())
    await enqueued(shard)
    assert (await shard.snapshot()).sequence == shard.last_sequence
    await shard.close()


async def two_snapshots(shard: Shard) -> tuple[int, int]:
    await enqueued(shard, *items(20))
    older = (await shard.snapshot()).sequence
    await enqueued(shard, *items(20, "later"))
    newer = (await shard.snapshot()).sequence
    await enqueued(shard, *items(20, "last"))
    return older, newer


async def test_a_trim_keeps_what_the_two_newest_snapshots_need(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "omnirelay.engine")
    place, clock = Place("sqlite", tmp_path), FakeClock()
    shard = await place.open(clock)
    older, newer = await two_snapshots(shard)
    assert (await shard.trim()).sequence == 0, "history is kept for a day by default"
    anchor = await shard.trim(retention_ms=0)
    assert 0 < anchor.sequence < older + 1
    served = digest(shard.state)
    place.crash(shard)
    # The newest turns out to be unreadable: the one before must do.
    shutil.rmtree(tmp_path / NAMESPACE / "snapshots" / f"{newer:020d}")
    shard = await place.open(clock)
    assert replayed(caplog)[1] == older
    assert digest(await shard.state_at(shard.last_sequence - 1)) == served
    await shard.log.verify()
    await shard.close()


async def test_a_shard_trims_itself_after_a_snapshot_and_keeps_its_retention(tmp_path: Path) -> None:
    place, clock = Place("sqlite", tmp_path), FakeClock()
    shard = await place.open(clock)
    await two_snapshots(shard)
    await clock.advance(24 * 3_600_000 + 1)
    assert (await shard.trim()).sequence > 0
    await shard.close()


async def test_a_busy_shard_drops_what_is_older_than_its_retention_although_its_snapshots_are_young(
    tmp_path: Path,
) -> None:
    place, clock = Place("sqlite", tmp_path), FakeClock()
    shard = await place.open(clock)
    _, old = await two_snapshots(shard)
    await clock.advance(24 * 3_600_000 + 1)
    await two_snapshots(shard)
    anchor = await shard.trim()
    assert 0 < anchor.sequence <= old
    assert await shard.trim() == anchor
    await shard.close()


async def test_a_busy_shard_keeps_a_few_snapshots_of_its_retention(tmp_path: Path) -> None:
    """Two to start from, and enough in between to trim by and to look at the past with."""
    place, clock = Place("sqlite", tmp_path), FakeClock()
    shard = await place.open(clock, settings=EngineSettings(retention_ms=80_000, snapshot_every_events=0))
    states: dict[int, str] = {}
    for _ in range(12):
        for _ in range(3):
            await enqueued(shard)
            # As the helper makes one, without the time that a process takes to start.
            await shard.log.add_snapshot(await make_snapshot(shard.log, shard.now_ms()), shard.epoch)
            states[shard.last_sequence] = digest(shard.state)
            await shard.trim()
            await clock.advance(4_000)
    records = await shard.log.snapshots()
    spaced = [younger.created_ms - older.created_ms for younger, older in itertools.pairwise(records)]
    assert spaced[0] == 4_000
    assert all(10_000 <= each <= 20_000 for each in spaced[2:])
    kept_ms = shard.now_ms() - records[-1].created_ms
    assert 80_000 <= kept_ms <= 100_000
    files = {path.name for path in (tmp_path / NAMESPACE / "snapshots").iterdir()}
    assert files == {Path(each.path).name for each in records}
    for sequence, state in states.items():
        if sequence >= records[-1].sequence:
            assert digest(await shard.state_at(sequence)) == state
    await shard.close()
    await (await place.open(clock)).close()


async def test_a_trim_does_not_take_a_snapshot_away_that_is_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written and not yet recorded: to a trim it would look like one that nobody needs."""
    place, clock = Place("sqlite", tmp_path), FakeClock()
    shard = await place.open(clock)
    await two_snapshots(shard)
    await clock.advance(24 * 3_600_000 + 1)
    trims = []

    async def while_a_trim_is_wanted(log: EventLog, created_ms: int, *, niceness: int) -> SnapshotRecord:
        record = await make_snapshot(log, created_ms)
        trims.append(start(shard.trim()))
        for _ in range(100):  # More than a trim would need, if it did not wait.
            await log.snapshots()
        return record

    monkeypatch.setattr("omnirelay.engine.shard.make_snapshot_in_helper", while_a_trim_is_wanted)
    await enqueued(shard)
    record = await soon(shard.snapshot())
    assert (await soon(trims[0])).sequence > 0
    assert (tmp_path / NAMESPACE / record.path).is_dir()
    await shard.log.verify()
    await shard.close()


async def test_an_event_that_cannot_follow_from_those_before_it_is_damage_with_its_place() -> None:
    log = MemoryLog("shard")
    leader = await Leader.of(log)
    await leader.append()
    token = OwnershipToken(77, 1, "7" * 32, 3)
    before, last = leader.position.sequence, leader.position.sequence + 3
    harmless = [ev.TimeAdvanced(sequence_number=number, timestamp=1) for number in (before + 1, last)]
    impossible = ev.Completed(sequence_number=before + 2, timestamp=1, ownership=token)
    await leader.append(leader.frame_of([harmless[0], impossible, harmless[1]]))
    with pytest.raises(LogDamaged) as refused:
        await Shard.open(log)
    assert refused.value.details["sequence"] == impossible.sequence_number
    assert "Completed" in refused.value.message
