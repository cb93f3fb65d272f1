"""Followers behind real shards: order, restarts, failing sinks, and what operators do to them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from omnirelay.engine.shard import Shard
from omnirelay.errors import InvalidArgument, Unavailable
from omnirelay.replication.checkpoints import Checkpoint, Checkpoints
from omnirelay.replication.courtesy import Courtesy
from omnirelay.replication.events import ReplicatedEvent, events_of_frame
from omnirelay.replication.files import FileSink
from omnirelay.replication.following import Follower
from omnirelay.replication.memory import MemorySink
from omnirelay.replication.settings import TABLE, FollowSettings
from omnirelay.replication.sinks import ReplicationSink, SinkRefused, SinkUnusable
from omnirelay.replication.tables import SqliteSink
from omnirelay.testing.clock import FakeClock
from tests.integration.shards import NAMESPACE, Place, enqueued, frames_of, items, on_every_log, one_lease, soon

QUICK = FollowSettings(linger_ms=0, retry_first_ms=1, retry_max_ms=5, timeout_ms=600_000)


class Recorder:
    """A sink that keeps no account. `answer` decides what becomes of a delivery."""

    rebuilds_state = False

    def __init__(self, answer: Callable[[Sequence[ReplicatedEvent]], Any] = lambda events: None) -> None:
        self.answer = answer
        self.deliveries: list[list[int]] = []
        self.taken: list[ReplicatedEvent] = []
        self.opened = 0
        self.closed = 0
        self._came = asyncio.Condition()

    async def delivered(self, count: int) -> None:
        """Return when that many deliveries have come, taken or not."""
        async with self._came:
            await self._came.wait_for(lambda: len(self.deliveries) >= count)

    async def open(self, shard: str) -> int | None:
        self.opened += 1
        return None

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        self.deliveries.append([event.sequence for event in events])
        async with self._came:
            self._came.notify_all()
        outcome = self.answer(events)
        if outcome is not None:
            await outcome
        self.taken += events

    async def close(self) -> None:
        self.closed += 1


class Rebuilding(Recorder):
    rebuilds_state = True


@asynccontextmanager
async def following(
    shard: Shard,
    sink: ReplicationSink,
    checkpoints: Checkpoints | None = None,
    settings: FollowSettings = QUICK,
    courtesy: Courtesy | None = None,
) -> AsyncIterator[Follower]:
    own = Checkpoints(None) if checkpoints is None else checkpoints
    follower = Follower("lake", sink, shard, own, settings, courtesy=courtesy)
    follower.start()
    try:
        yield follower
    finally:
        await follower.stop()
        if checkpoints is None:
            await own.close()


@asynccontextmanager
async def memory_shard() -> AsyncIterator[Shard]:
    async with await Place("memory", Path("unused")).open(FakeClock()) as shard:
        yield shard


async def caught_up(follower: Follower, shard: Shard) -> None:
    await soon(follower.wait_confirmed(shard.last_sequence))


async def log_of(shard: Shard) -> list[ReplicatedEvent]:
    events: list[ReplicatedEvent] = []
    for frame in await frames_of(shard.log):
        events += events_of_frame(frame, "local", events[-1].sequence if events else 0)
    return events


async def work(shard: Shard, rounds: int = 3) -> None:
    for _ in range(rounds):
        await enqueued(shard, *items(4))
        lease = await one_lease(shard)
        await shard.complete(lease.token)


# -- order and restarts --------------------------------------------------------------------------


@on_every_log
async def test_every_event_comes_in_order_with_its_bytes(kind: str, tmp_path: Path) -> None:
    async with await Place(kind, tmp_path).open(FakeClock()) as shard:
        await work(shard)
        sink = MemorySink()
        async with following(shard, sink, settings=msgspec.structs.replace(QUICK, batch_events=4)) as follower:
            await caught_up(follower, shard)
            await work(shard)
            await caught_up(follower, shard)
            status = follower.status()
        assert sink.events == await log_of(shard)
        assert (status.state, status.lag_events, status.lag_ms, status.last_error) == ("running", 0, 0, None)
        assert status.events == len(sink.events) == status.checkpoint


@on_every_log
async def test_a_follower_goes_on_from_its_checkpoint(kind: str, tmp_path: Path) -> None:
    place, clock = Place(kind, tmp_path), FakeClock()
    path = tmp_path / "checkpoints.db"
    seen: list[int] = []
    for _ in range(3):
        shard = await place.open(clock)
        checkpoints = Checkpoints(path)
        sink = Recorder()
        async with following(shard, sink, checkpoints) as follower:
            await work(shard)
            await caught_up(follower, shard)
            expected = [event.sequence for event in await log_of(shard)]
        await checkpoints.close()
        place.crash(shard)
        seen += [event.sequence for event in sink.taken]
        assert seen == expected


@on_every_log
async def test_what_the_target_knows_goes_before_the_checkpoint(kind: str, tmp_path: Path) -> None:
    place, clock = Place(kind, tmp_path / "log"), FakeClock()
    for round_ in range(3):
        shard = await place.open(clock)
        # A checkpoint that was lost, as if the process had died before it was written.
        async with (
            following(shard, FileSink(tmp_path / "files")) as files,
            following(shard, SqliteSink(tmp_path / "tables")) as tables,
        ):
            await work(shard)
            await caught_up(files, shard)
            await caught_up(tables, shard)
        expected = [event.json() for event in await log_of(shard)]
        await shard.close()
        lines = [
            line
            for path in sorted((tmp_path / "files" / NAMESPACE).iterdir())
            for line in path.read_bytes().split(b"\n")
        ]
        assert [line for line in lines if line] == expected, round_


async def test_large_events_make_small_deliveries() -> None:
    async with memory_shard() as shard:
        await enqueued(shard, *items(20))
        sink = Recorder()
        async with following(shard, sink, settings=msgspec.structs.replace(QUICK, batch_bytes=300)) as follower:
            await caught_up(follower, shard)
        assert [event.sequence for event in sink.taken] == [event.sequence for event in await log_of(shard)]
        assert all(
            sum(len(event.data) for event in sink.taken if event.sequence in each) <= 300 or len(each) == 1
            for each in sink.deliveries
        )
        assert max(map(len, sink.deliveries)) < 20


async def test_a_new_generation_is_followed_over_its_jump(tmp_path: Path) -> None:
    clock = FakeClock()
    place = Place("sqlite", tmp_path / "first")
    sink = MemorySink()
    shard = await place.open(clock)
    await work(shard)
    async with following(shard, sink) as follower:
        await caught_up(follower, shard)
    await shard.log.backup(tmp_path / "second" / NAMESPACE)
    await shard.close()
    async with await Place("sqlite", tmp_path / "second").open(clock) as restored:
        assert restored.last_sequence > 1 << 32
        async with following(restored, sink) as follower:
            await work(restored)
            await caught_up(follower, restored)
        assert sink.events == await log_of(restored)
        assert "GenerationStarted" in [event.event_type for event in sink.events]


async def test_a_target_ahead_of_the_log_fails_instead_of_leaving_events_out(tmp_path: Path) -> None:
    async with memory_shard() as first:
        await work(first, rounds=10)
        async with following(first, FileSink(tmp_path)) as follower:
            await caught_up(follower, first)
    async with memory_shard() as other, following(other, FileSink(tmp_path)) as follower:
        await soon(follower.wait_state("failed"))
        assert "belongs to something else" in (follower.last_error or "")


# -- targets that change under a sink --------------------------------------------------------------


def sequences_in(directory: Path) -> list[int]:
    found: list[int] = []
    for path in sorted(directory.rglob("*.jsonl")):
        found += [msgspec.json.decode(line)["sequenceNumber"] for line in path.read_bytes().splitlines()]
    for path in directory.glob("*.db"):
        database = apsw.Connection(str(path))
        found += [row[0] for row in database.execute(f"select sequence_number from {TABLE} order by 1")]
        database.close()
    return found


@pytest.mark.parametrize("kind", ["file", "lines", "sqlite"])
@pytest.mark.parametrize("paused", [False, True])
async def test_a_target_that_was_moved_away_is_filled_anew(kind: str, paused: bool, tmp_path: Path) -> None:
    target = tmp_path / "target"
    sink: ReplicationSink = SqliteSink(target) if kind == "sqlite" else FileSink(target, keeps_all=kind == "file")
    async with memory_shard() as shard:
        async with following(shard, sink) as follower:
            await work(shard)
            await caught_up(follower, shard)
            if paused:
                await follower.pause()
            target.rename(tmp_path / "moved")
            if paused:
                await follower.resume()
            await work(shard)
            await caught_up(follower, shard)
        assert sequences_in(target) == [event.sequence for event in await log_of(shard)]


async def test_an_older_copy_put_in_place_gets_what_it_lacks(tmp_path: Path) -> None:
    async with memory_shard() as shard:
        async with following(shard, FileSink(tmp_path)) as follower:
            await work(shard)
            await caught_up(follower, shard)
            path = tmp_path / NAMESPACE / f"{1:020d}.jsonl"
            older = path.read_bytes()
            await work(shard)
            await caught_up(follower, shard)
            await follower.pause()
            path.write_bytes(older)
            await follower.resume()
            await work(shard)
            await caught_up(follower, shard)
        assert sequences_in(tmp_path) == [event.sequence for event in await log_of(shard)]


# -- targets of somebody else ----------------------------------------------------------------------


def forget_owner(target: Path) -> None:
    """As a version left it that knew of none."""
    for path in target.glob(".*.owner"):
        path.unlink()
    for path in target.glob("*.db"):
        database = apsw.Connection(str(path))
        database.execute("drop table OmniRelayOwners")
        database.close()


def sink_on(kind: str, target: Path) -> ReplicationSink:
    return SqliteSink(target) if kind == "sqlite" else FileSink(target)


@pytest.mark.parametrize("kind", ["file", "sqlite"])
@pytest.mark.parametrize("known", [True, False])
async def test_a_target_of_another_log_is_refused_however_long_that_is(kind: str, known: bool, tmp_path: Path) -> None:
    async with memory_shard() as first, following(first, sink_on(kind, tmp_path)) as follower:
        await work(first)
        await caught_up(follower, first)
        held = first.last_sequence
    if not known:
        forget_owner(tmp_path)
    async with await Place("memory", Path("unused")).open(FakeClock(1_700_000_000_001)) as other:
        await work(other, rounds=6)
        async with following(other, sink_on(kind, tmp_path)) as follower:
            await soon(follower.wait_state("failed"))
            assert "belongs to something else" in (follower.last_error or "")
            if known:
                assert first.log.log_id in (follower.last_error or "")
    assert sequences_in(tmp_path) == list(range(1, held + 1))


@pytest.mark.parametrize("kind", ["file", "sqlite"])
async def test_a_target_without_an_owner_is_taken_over_by_its_log(kind: str, tmp_path: Path) -> None:
    async with memory_shard() as shard:
        for _ in range(3):
            async with following(shard, sink_on(kind, tmp_path)) as follower:
                await work(shard)
                await caught_up(follower, shard)
            forget_owner(tmp_path)
        assert sequences_in(tmp_path) == [event.sequence for event in await log_of(shard)]


@pytest.mark.parametrize("kind", ["file", "sqlite", "recorder"])
async def test_a_target_with_events_that_a_restored_log_lost_is_refused(kind: str, tmp_path: Path) -> None:
    clock, checkpoints = FakeClock(), Checkpoints(None)

    def sink() -> ReplicationSink:
        return Recorder() if kind == "recorder" else sink_on(kind, tmp_path / "target")

    shard = await Place("sqlite", tmp_path / "first").open(clock)
    await work(shard)
    await shard.log.backup(tmp_path / "second" / NAMESPACE)
    kept = shard.last_sequence
    await work(shard)  # Which the backup does not have.
    async with following(shard, sink(), checkpoints) as follower:
        await caught_up(follower, shard)
        held = follower.checkpoint
    await shard.close()
    async with await Place("sqlite", tmp_path / "second").open(clock) as restored:
        await work(restored)
        async with following(restored, sink(), checkpoints) as follower:
            await soon(follower.wait_state("failed"))
            assert f"holds events up to {held}, which the log" in (follower.last_error or "")
            if kind == "recorder":  # It keeps no account, so that somebody has to say what is to come.
                await follower.reset(kept)
                await caught_up(follower, restored)
    await checkpoints.close()
    if kind != "recorder":
        assert sequences_in(tmp_path / "target") == list(range(1, held + 1))


# -- sinks that fail -----------------------------------------------------------------------------


async def test_a_sink_that_fails_is_tried_again_and_says_why() -> None:
    broken = True

    def answer(events: Sequence[ReplicatedEvent]) -> None:
        if broken:
            raise ConnectionError("the target is away")

    async with memory_shard() as shard:
        sink = Recorder(answer)
        async with following(shard, sink) as follower:
            await soon(follower.wait_state("retrying"))
            status = follower.status()
            assert status.last_error == "ConnectionError: the target is away"
            assert status.lag_events == shard.last_sequence
            broken = False
            await caught_up(follower, shard)
            await soon(follower.wait_state("running"))
            assert follower.last_error is None
            assert follower.failures >= 1


async def test_a_sink_that_fails_for_long_is_stalled_and_recovers_by_itself() -> None:
    broken = True

    def answer(events: Sequence[ReplicatedEvent]) -> None:
        if broken:
            raise ConnectionError("away")

    async with memory_shard() as shard:
        settings = msgspec.structs.replace(QUICK, stalled_after_ms=20)
        async with following(shard, Recorder(answer), settings=settings) as follower:
            await soon(follower.wait_state("retrying"))
            await soon(follower.wait_state("stalled"))
            broken = False
            await soon(follower.wait_state("running"))


async def test_a_long_idle_time_is_no_failure() -> None:
    fail = False

    def answer(events: Sequence[ReplicatedEvent]) -> None:
        if fail:
            raise ConnectionError("away")

    async with memory_shard() as shard:
        settings = msgspec.structs.replace(QUICK, stalled_after_ms=100, retry_first_ms=10_000, retry_max_ms=10_000)
        async with following(shard, Recorder(answer), settings=settings) as follower:
            await caught_up(follower, shard)
            await asyncio.sleep(0.15)
            fail = True
            await enqueued(shard)
            await soon(follower.wait_state("retrying", "stalled"))
            assert follower.state == "retrying"


async def test_a_sink_that_hangs_or_fails_delays_neither_the_others_nor_callers() -> None:
    async with memory_shard() as shard:
        hanging = Recorder(lambda events: asyncio.get_running_loop().create_future())
        failing = Recorder(lambda events: 1 / 0)
        good = MemorySink()
        settings = msgspec.structs.replace(QUICK, timeout_ms=50)
        async with (
            following(shard, hanging, settings=settings) as hung,
            following(shard, failing, settings=settings),
            following(shard, good) as follower,
        ):
            for _ in range(20):
                await soon(work(shard, rounds=1))
                await caught_up(follower, shard)
            await soon(hung.wait_state("retrying"))
            assert hung.last_error == "no answer within 0.05 s"
            assert hung.checkpoint == 0
        assert good.events == await log_of(shard)


async def test_a_sink_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnirelay.replication.following.GRACE_MS", 50)
    async with memory_shard() as shard:
        sink = Recorder(lambda events: asyncio.get_running_loop().create_future())
        async with following(shard, sink) as follower:
            await soon(sink.delivered(1))
            await soon(follower.stop())
            await follower.stop()
        assert sink.closed == 1


async def test_an_unusable_sink_fails_until_somebody_resumes_it() -> None:
    usable = False

    def answer(events: Sequence[ReplicatedEvent]) -> None:
        if not usable:
            raise SinkUnusable("the table has other columns")

    async with memory_shard() as shard:
        sink = Recorder(answer)
        async with following(shard, sink) as follower:
            await soon(follower.wait_state("failed"))
            assert follower.status().last_error == "the table has other columns"
            await enqueued(shard)
            assert len(sink.deliveries) == 1
            usable = True
            await follower.resume()
            await caught_up(follower, shard)
            assert (sink.opened, sink.closed) == (2, 1)


# -- refused events ------------------------------------------------------------------------------


def refusing(*bad: int) -> Callable[[Sequence[ReplicatedEvent]], None]:
    def answer(events: Sequence[ReplicatedEvent]) -> None:
        for event in events:
            if event.sequence in bad:
                raise SinkRefused("too long", sequence=event.sequence)

    return answer


@pytest.mark.parametrize("refusals_max", [1, 3])
async def test_a_refused_event_is_parked_with_its_reason_and_the_rest_goes_on(refusals_max: int) -> None:
    async with memory_shard() as shard:
        await enqueued(shard, *items(8))
        checkpoints = Checkpoints(None)
        sink = Recorder(refusing(4, 7))
        settings = msgspec.structs.replace(QUICK, refusals_max=refusals_max)
        async with following(shard, sink, checkpoints, settings) as follower:
            await caught_up(follower, shard)
            assert follower.status().parked == 2
            parked = await checkpoints.parked("lake", NAMESPACE)
        events = await log_of(shard)
        await checkpoints.close()
        assert [(each.sequence, each.reason) for each in parked] == [(4, "too long"), (7, "too long")]
        assert parked[0].event.encode() == events[3].data
        assert [event.sequence for event in sink.taken] == [e.sequence for e in events if e.sequence not in (4, 7)]
        assert sum(4 in each for each in sink.deliveries) == refusals_max


async def test_a_parked_event_that_is_delivered_again_gets_as_many_tries_as_at_first() -> None:
    async with memory_shard() as shard:
        await enqueued(shard, *items(8))
        sink = Recorder(refusing(4))
        settings = msgspec.structs.replace(QUICK, refusals_max=3)
        async with following(shard, sink, settings=settings) as follower:
            for tries in (3, 6):
                await caught_up(follower, shard)
                assert sum(4 in each for each in sink.deliveries) == tries
                await follower.reset(0)


@pytest.mark.parametrize(("sink_type", "on_refusal"), [(Recorder, "block"), (Rebuilding, "park")])
async def test_a_refused_event_blocks_by_option_and_always_where_a_state_is_rebuilt(
    sink_type: type[Recorder], on_refusal: Any
) -> None:
    async with memory_shard() as shard:
        await enqueued(shard, *items(8))
        sink = sink_type(refusing(4))
        settings = msgspec.structs.replace(QUICK, refusals_max=2, on_refusal=on_refusal)
        async with following(shard, sink, settings=settings) as follower:
            await soon(sink.delivered(6))
            status = follower.status()
            assert (status.checkpoint, status.state, status.last_error, status.parked) == (3, "retrying", "too long", 0)
            sink.answer = lambda events: None
            await caught_up(follower, shard)


# -- operators -----------------------------------------------------------------------------------


async def test_a_paused_sink_stays_paused_over_a_restart_and_goes_on_when_resumed() -> None:
    async with memory_shard() as shard:
        checkpoints = Checkpoints(None)
        sink = Recorder()
        async with following(shard, sink, checkpoints) as follower:
            await caught_up(follower, shard)
            await follower.pause()
            await soon(follower.wait_state("paused"))
            before = len(sink.taken)
            await enqueued(shard, *items(3))
        async with following(shard, sink, checkpoints) as follower:
            await soon(follower.wait_state("paused"))
            assert follower.status().lag_events == 3
            assert len(sink.taken) == before
            await follower.resume()
            await caught_up(follower, shard)
        await checkpoints.close()
        assert [event.sequence for event in sink.taken] == [event.sequence for event in await log_of(shard)]


async def test_a_paused_sink_says_how_far_behind_it_is() -> None:
    clock = FakeClock()
    async with await Place("memory", Path("unused")).open(clock) as shard, following(shard, Recorder()) as follower:
        await caught_up(follower, shard)
        await follower.pause()
        await soon(follower.wait_state("paused"))
        await enqueued(shard)
        clock.move(7_000)
        assert follower.status().lag_ms == 7_000


async def test_a_reset_delivers_again_what_is_behind_it() -> None:
    async with memory_shard() as shard:
        await enqueued(shard, *items(6))
        sink = Recorder()
        async with following(shard, sink) as follower:
            await caught_up(follower, shard)
            first = [event.sequence for event in sink.taken]
            await follower.reset(3)
            await caught_up(follower, shard)
        assert [event.sequence for event in sink.taken] == [*first, *first[3:]]


async def test_a_paused_sink_that_is_reset_says_how_far_it_is_behind() -> None:
    async with memory_shard() as shard:
        await enqueued(shard, *items(6))
        async with following(shard, Recorder()) as follower:
            await caught_up(follower, shard)
            await follower.pause()
            await soon(follower.wait_state("paused"))
            assert follower.status().lag_events == 0
            await follower.reset(2)
            assert follower.status().lag_events == shard.last_sequence - 2
            await enqueued(shard)
            assert follower.status().lag_events == shard.last_sequence - 2
            await follower.resume()
            await caught_up(follower, shard)
            assert follower.status().lag_events == 0


async def test_checkpoints_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "replication.db"
    path.write_text("this is no database" * 100)
    checkpoints = Checkpoints(path)
    async with memory_shard() as shard, following(shard, MemorySink(), checkpoints) as follower:
        await soon(follower.wait_state("retrying"))
        assert follower.last_error == f"the checkpoints in {path} cannot be used: file is not a database"
    await checkpoints.close()


async def test_a_reset_during_a_delivery_is_not_undone_by_it() -> None:
    async with memory_shard() as shard:
        gate = asyncio.Event()
        sink = Recorder(lambda events: gate.wait())
        async with following(shard, sink) as follower:
            await soon(sink.delivered(1))
            await follower.reset(0)
            gate.set()
            await caught_up(follower, shard)
        assert [delivery[0] for delivery in sink.deliveries] == [1, 1]


async def test_what_is_behind_is_known_as_soon_as_a_reset_is_answered() -> None:
    clock = FakeClock()
    async with await Place("memory", Path("unused")).open(clock) as shard:
        await enqueued(shard)
        begin = shard.last_sequence
        await clock.advance(2_000)
        await enqueued(shard, *items(3))
        gate = asyncio.Event()
        gate.set()
        sink = Recorder(lambda events: gate.wait())
        async with following(shard, sink) as follower:
            await caught_up(follower, shard)
            await clock.advance(7_000)
            gate.clear()
            for sequence, age_ms in ((0, 9_000), (begin, 7_000)):
                if sequence:
                    gate.set()
                    await caught_up(follower, shard)
                    gate.clear()
                await follower.reset(sequence)
                status = follower.status()
                assert status.lag_ms == age_ms
                assert status.lag_events == shard.last_sequence - sequence
                assert status.lag_bytes
            gate.set()
            await caught_up(follower, shard)
            assert (follower.status().lag_ms, follower.status().lag_bytes) == (0, 0)


async def test_what_is_behind_is_not_called_nothing_before_it_is_known() -> None:
    clock = FakeClock()
    async with await Place("memory", Path("unused")).open(clock) as shard:
        await enqueued(shard, *items(3))
        gate = asyncio.Event()
        sink = Recorder(lambda events: gate.wait())
        async with following(shard, sink) as follower:
            started = follower.status()
            assert (started.lag_events, started.lag_ms, started.lag_bytes) == (shard.last_sequence, None, None)
            await soon(sink.delivered(1))
            await follower.reset(0)  # While a delivery hangs.
            hanging = follower.status()
            assert (hanging.lag_events, hanging.lag_ms) == (shard.last_sequence, None)
            gate.set()
            await caught_up(follower, shard)
            assert follower.status().lag_ms == 0


async def test_a_reset_fills_a_target_that_was_emptied(tmp_path: Path) -> None:
    async with memory_shard() as shard:
        await work(shard)
        async with following(shard, FileSink(tmp_path)) as follower:
            await caught_up(follower, shard)
            [path] = (tmp_path / NAMESPACE).iterdir()
            whole = path.read_bytes()
            path.unlink()
            await follower.reset(0)
            await caught_up(follower, shard)
            assert path.read_bytes() == whole


async def test_commits_that_do_not_fit_evenly_wait_for_nobody(tmp_path: Path) -> None:
    patient = msgspec.structs.replace(QUICK, batch_events=5, linger_ms=3_600_000)
    async with memory_shard() as shard:
        ends = []
        for _ in range(3):
            await enqueued(shard, *items(4))
            ends.append(shard.last_sequence)
        async with following(shard, FileSink(tmp_path), settings=patient) as follower:
            await soon(follower.wait_confirmed(ends[1]))
            assert follower.checkpoint == ends[1]


def in_table(path: Path, statement: str) -> Any:
    """By the library that the sink uses: another one would take its locks away."""
    database = apsw.Connection(str(path))
    database.set_busy_timeout(10_000)
    try:
        return database.execute(statement).get
    finally:
        database.close()


def make_holes(path: Path) -> None:
    in_table(path, f"delete from {TABLE} where sequence_number between 3 and 8")


def rows_in(path: Path) -> int:
    return int(in_table(path, f"select count(*) from {TABLE}"))


async def test_a_replay_is_not_forgotten_when_the_target_cannot_be_opened_at_first(tmp_path: Path) -> None:
    class Starting(SqliteSink):
        refuses = 0

        async def open(self, shard: str) -> int | None:
            if self.refuses:
                self.refuses -= 1
                raise Unavailable("it is starting")
            return await super().open(shard)

    async with memory_shard() as shard:
        await work(shard)
        sink, path = Starting(tmp_path), tmp_path / f"{NAMESPACE}.db"
        async with following(shard, sink) as follower:
            await caught_up(follower, shard)
            make_holes(path)
            sink.refuses = 2
            await follower.reset(0)
            await caught_up(follower, shard)
            assert follower.failures == 2
        assert rows_in(path) == shard.last_sequence


async def test_a_replay_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with memory_shard() as shard:
        await work(shard)
        checkpoints, path = Checkpoints(tmp_path / "checkpoints.db"), tmp_path / f"{NAMESPACE}.db"
        async with following(shard, SqliteSink(tmp_path), checkpoints) as follower:
            await caught_up(follower, shard)
            make_holes(path)
            await follower.pause()
            await follower.reset(2)
        await checkpoints.close()
        checkpoints = Checkpoints(tmp_path / "checkpoints.db")
        async with following(shard, SqliteSink(tmp_path), checkpoints) as follower:
            await follower.resume()
            await caught_up(follower, shard)
        assert rows_in(path) == shard.last_sequence
        # From then on the target's word counts again.
        in_table(path, f"delete from {TABLE} where sequence_number > 4")
        async with following(shard, SqliteSink(tmp_path), checkpoints) as follower:
            await caught_up(follower, shard)
        assert rows_in(path) == shard.last_sequence
        await checkpoints.close()


async def test_checkpoints_of_a_version_that_knew_of_no_replays_are_read(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.db"
    with sqlite3.connect(path) as database:
        database.execute(
            "create table checkpoints (sink text not null, shard text not null, sequence integer not null, updated_ms"
            " integer not null, paused integer not null default 0, skipped_to integer not null default 0,"
            " primary key (sink, shard)) without rowid"
        )
        database.execute("insert into checkpoints values ('lake', 'jobs', 7, 1, 0, 2)")
    checkpoints = Checkpoints(path)
    assert await checkpoints.load("lake", "jobs") == Checkpoint(7, skipped_to=2, untouched=False)
    await checkpoints.reset("lake", "jobs", "a log", 3, 1, skipping=False, replay_to=9)
    assert (await checkpoints.load("lake", "jobs")).replay_to == 9
    await checkpoints.close()


async def test_a_skip_holds_over_a_restart_also_for_a_target_with_an_account(tmp_path: Path) -> None:
    async with memory_shard() as shard:
        await work(shard)
        checkpoints = Checkpoints(None)
        async with following(shard, FileSink(tmp_path), checkpoints) as follower:
            await follower.pause()
            await follower.reset(shard.last_sequence - 1)
        async with following(shard, FileSink(tmp_path), checkpoints) as follower:
            await follower.resume()
            await caught_up(follower, shard)
        await checkpoints.close()
        [line] = [line for path in (tmp_path / NAMESPACE).iterdir() for line in path.read_bytes().splitlines()]
        assert msgspec.json.decode(line)["sequenceNumber"] == shard.last_sequence


async def test_a_reset_that_makes_no_sense_is_refused() -> None:
    async with memory_shard() as shard, following(shard, MemorySink()) as follower:
        await follower.pause()
        for sequence in (-1, shard.last_sequence + 1):
            with pytest.raises(InvalidArgument, match=f"must be between.* the log of {NAMESPACE} ends"):
                await follower.reset(sequence)
        await enqueued(shard, *items(3))
        with pytest.raises(InvalidArgument, match="cannot leave out"):
            await follower.reset(shard.last_sequence)


# -- a log that was trimmed ----------------------------------------------------------------------


@asynccontextmanager
async def trimmed_shard(directory: Path) -> AsyncIterator[tuple[Shard, int]]:
    """A shard whose log has lost its beginning, and the last event that is gone."""
    async with await Place("sqlite", directory).open(FakeClock()) as shard:
        anchor = await trimmed(shard)
        await work(shard, rounds=1)
        yield shard, anchor


async def trimmed(shard: Shard) -> int:
    for _ in range(3):  # The newest two snapshots, and what is behind the older of them, are kept.
        await work(shard, rounds=1)
        await shard.snapshot()
    anchor = (await shard.trim(retention_ms=0)).sequence
    assert anchor > 0
    return anchor


async def test_a_new_sink_begins_with_the_first_event_that_is_still_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with trimmed_shard(tmp_path) as (shard, anchor):
        checkpoints, sink = Checkpoints(None), Recorder()
        async with following(shard, sink, checkpoints) as follower:
            await caught_up(follower, shard)
            assert (follower.state, follower.failures, follower.status().lag_events) == ("running", 0, 0)
        assert sink.taken[0].sequence == anchor + 1
        assert [record.sequence for record in caplog.records if record.message == "sink_begins_later"] == [anchor + 1]  # type: ignore[attr-defined]
        assert await checkpoints.load("lake", NAMESPACE) == Checkpoint(
            shard.last_sequence, skipped_to=anchor, untouched=False, log_id=shard.log.log_id
        )
        await checkpoints.close()


async def test_a_sink_whose_checkpoints_fail_for_a_moment_while_it_begins_later_goes_on(tmp_path: Path) -> None:
    class Full(Checkpoints):
        refuses = 1

        async def reset(self, *arguments: Any, **more: Any) -> None:
            if self.refuses:
                self.refuses -= 1
                raise Unavailable("the disk is full")
            await super().reset(*arguments, **more)

    async with trimmed_shard(tmp_path) as (shard, anchor):
        checkpoints, sink = Full(None), Recorder()
        async with following(shard, sink, checkpoints) as follower:
            await caught_up(follower, shard)
            assert (follower.state, follower.failures) == ("running", 1)
        assert sink.taken[0].sequence == anchor + 1
        await checkpoints.close()


async def test_a_new_sink_that_was_paused_before_it_began_begins_there_as_well(tmp_path: Path) -> None:
    async with trimmed_shard(tmp_path) as (shard, anchor):
        checkpoints, sink = Checkpoints(None), Recorder()
        await checkpoints.pause("lake", NAMESPACE, True)
        async with following(shard, sink, checkpoints) as follower:
            await soon(follower.wait_state("paused"))
            await follower.resume()
            await caught_up(follower, shard)
        assert sink.taken[0].sequence == anchor + 1
        await checkpoints.close()


async def test_a_new_table_begins_there_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with trimmed_shard(tmp_path) as (shard, anchor):
        checkpoints = Checkpoints(None)
        for _ in range(2):
            async with following(shard, SqliteSink(tmp_path / "sink"), checkpoints) as follower:
                await work(shard, rounds=1)
                await caught_up(follower, shard)
                assert follower.failures == 0
        await checkpoints.close()
        database = sqlite3.connect(tmp_path / "sink" / f"{NAMESPACE}.db")
        found = [row[0] for row in database.execute(f"select sequence_number from {TABLE} order by 1")]
        database.close()
        assert found == list(range(anchor + 1, shard.last_sequence + 1))


async def test_a_new_sink_that_rebuilds_a_state_fails_and_says_what_to_do(tmp_path: Path) -> None:
    async with trimmed_shard(tmp_path) as (shard, anchor), following(shard, Rebuilding()) as follower:
        await soon(follower.wait_state("failed"))
        assert f"begins after {anchor}, lake has come to 0" in (follower.last_error or "")
        assert "restore its target from a backup" in (follower.last_error or "")


async def test_a_sink_that_somebody_reset_to_the_beginning_does_not_pass_over_what_is_gone(tmp_path: Path) -> None:
    async with await Place("sqlite", tmp_path).open(FakeClock()) as shard:
        checkpoints, sink = Checkpoints(None), Recorder()
        async with following(shard, sink, checkpoints) as follower:
            await work(shard)
            await caught_up(follower, shard)
        await checkpoints.reset("lake", NAMESPACE, shard.log.log_id, 0, shard.now_ms(), skipping=False)
        anchor = await trimmed(shard)
        async with following(shard, sink, checkpoints) as follower:
            await soon(follower.wait_state("failed"))
            assert f"reset lake --shard {NAMESPACE} --to {anchor}" in (follower.last_error or "")
            await follower.reset(anchor)
            await work(shard, rounds=1)
            await caught_up(follower, shard)
        await checkpoints.close()
