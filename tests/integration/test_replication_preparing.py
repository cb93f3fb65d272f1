"""What is delivered next is read and prepared while a delivery is under way, and nothing comes of it but speed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from omnirelay.errors import Unavailable
from omnirelay.replication import delivery as delivery_module
from omnirelay.replication import following as following_module
from omnirelay.replication.commits import Commits
from omnirelay.replication.courtesy import Courtesy
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.files import FileSink
from omnirelay.replication.objects import SegmentSink
from omnirelay.replication.settings import TABLE
from omnirelay.replication.sinks import ReplicationSink
from omnirelay.replication.tables import SqliteSink
from omnirelay.segments.connecting import connect
from omnirelay.segments.reader import SegmentReader
from tests.integration.shards import NAMESPACE, enqueued, frames_of, items, soon
from tests.integration.test_replication_following import (
    QUICK,
    Recorder,
    caught_up,
    following,
    in_table,
    log_of,
    memory_shard,
    work,
)

SMALL = msgspec.structs.replace(QUICK, batch_events=5)
"""One or two commits make a delivery."""


class Preparing(Recorder):
    """Takes commits, and remembers what it was to prepare."""

    takes_commits = True

    def __init__(self) -> None:
        super().__init__(self._deliver)
        self.prepared: list[Commits] = []
        self.came: list[Commits] = []
        self.go_on = asyncio.Event()
        self.failures = 0
        self._told = asyncio.Condition()

    async def was_prepared(self, count: int) -> None:
        async with self._told:
            await self._told.wait_for(lambda: len(self.prepared) >= count)

    async def prepare(self, commits: Commits) -> None:
        self.prepared.append(commits)
        async with self._told:
            self._told.notify_all()

    async def _deliver(self, events: Sequence[ReplicatedEvent]) -> None:
        assert isinstance(events, Commits)
        self.came.append(events)
        await self.go_on.wait()
        if self.failures:
            self.failures -= 1
            raise Unavailable("not now")


async def test_what_comes_next_is_prepared_while_a_delivery_is_under_way() -> None:
    async with memory_shard() as shard:
        await work(shard)
        sink = Preparing()
        async with following(shard, sink, settings=SMALL) as follower:
            await soon(sink.was_prepared(1))
            assert len(sink.came) == 1
            assert sink.prepared[0].after == sink.came[0].last
            sink.go_on.set()
            await caught_up(follower, shard)
        assert sink.came[1] is sink.prepared[0]
        assert sink.taken == await log_of(shard)


@pytest.mark.parametrize(("processors", "since_s", "ahead"), [(2, 0.5, False), (2, 1.5, True), (4, 0.5, True)])
async def test_nothing_is_prepared_meanwhile_where_callers_need_the_processor(
    processors: int, since_s: float, ahead: bool
) -> None:
    now = 100.0
    async with memory_shard() as shard:
        await work(shard)
        sink = Preparing()
        courtesy = Courtesy(lambda: now, among=processors)
        async with following(shard, sink, settings=SMALL, courtesy=courtesy) as follower:
            await enqueued(shard, *items(1))
            now += since_s
            sink.go_on.set()
            await caught_up(follower, shard)
        assert bool(sink.prepared) == ahead
        assert sink.taken == await log_of(shard)


@pytest.mark.parametrize("processors", [2, 64])
@pytest.mark.parametrize(("since_s", "most", "counts"), [(0.5, 2, {2}), (0.5, None, {6}), (1.5, 2, {6})])
async def test_deliveries_are_smaller_while_callers_wait_for_the_same_disk(
    processors: int, since_s: float, most: int | None, counts: set[int]
) -> None:
    """However many processors there are, and of sinks that say so."""
    now = 100.0
    async with memory_shard() as shard:
        for _ in range(18):
            await enqueued(shard, *items(1))
        sink = Preparing()
        if most is not None:
            sink.events_beside_callers = most  # type: ignore[attr-defined]
        courtesy = Courtesy(lambda: now, among=processors)
        courtesy.called(1)
        now += since_s
        sink.go_on.set()
        settings = msgspec.structs.replace(QUICK, batch_events=6)
        async with following(shard, sink, settings=settings, courtesy=courtesy) as follower:
            await caught_up(follower, shard)
        assert {len(each) for each in sink.deliveries[:1]} == counts  # Behind it there may be time to rest.
        assert sink.taken == await log_of(shard)


async def test_deliveries_are_smaller_still_where_there_is_time_to_rest() -> None:
    """With every one that ends, it is found out whether there is. At the end there is none: it has caught up."""
    async with memory_shard() as shard:
        for _ in range(60):
            await enqueued(shard, *items(1))
        sink = Preparing()
        sink.events_beside_callers = 8  # type: ignore[attr-defined]
        courtesy = Courtesy(lambda: 100.0, among=2)
        courtesy.called(1)
        sink.go_on.set()
        settings = msgspec.structs.replace(QUICK, batch_events=12)
        async with following(shard, sink, settings=settings, courtesy=courtesy) as follower:
            await caught_up(follower, shard)
        sizes = [len(each) for each in sink.deliveries]
        assert sizes[0] == 8
        assert set(sizes[1:15]) == {2}
        assert 8 in sizes[15:]
        assert sink.taken == await log_of(shard)


@pytest.mark.parametrize(("large", "prepared"), [(1, True), (1 << 20, False)])
async def test_a_large_delivery_is_prepared_although_nothing_is_under_way(
    monkeypatch: pytest.MonkeyPatch, large: int, prepared: bool
) -> None:
    """Whoever makes it knows where that is best done; a small one is made sooner than that is asked."""
    monkeypatch.setattr(delivery_module, "LARGE_BYTES", large)
    async with memory_shard() as shard:
        await work(shard)
        sink = Preparing()
        sink.go_on.set()
        async with following(shard, sink, settings=SMALL, courtesy=Courtesy(lambda: 100.0, among=64)) as follower:
            await caught_up(follower, shard)
        assert (sink.came[0] in sink.prepared) == prepared
        assert sink.taken == await log_of(shard)


async def test_what_would_still_wait_for_company_is_not_prepared() -> None:
    async with memory_shard() as shard:
        sink = Preparing()
        async with following(shard, sink, settings=SMALL) as follower:
            await soon(sink.delivered(1))
            await enqueued(shard, *items(1))
            sink.go_on.set()
            await caught_up(follower, shard)
        assert sink.prepared == []
        assert sink.taken == await log_of(shard)


async def test_what_goes_wrong_in_preparing_is_passed_over() -> None:
    class Unprepared(Preparing):
        async def prepare(self, commits: Commits) -> None:
            await super().prepare(commits)
            raise Unavailable("not prepared")

    async with memory_shard() as shard:
        await work(shard)
        sink = Unprepared()
        sink.go_on.set()
        async with following(shard, sink, settings=SMALL) as follower:
            await caught_up(follower, shard)
            assert (follower.failures, follower.state) == (0, "running")
        assert sink.prepared
        assert sink.taken == await log_of(shard)


class NeverPrepared(Preparing):
    async def prepare(self, commits: Commits) -> None:
        await super().prepare(commits)
        await asyncio.Event().wait()


async def test_what_is_never_prepared_is_delivered_all_the_same() -> None:
    async with memory_shard() as shard:
        await work(shard)
        sink = NeverPrepared()
        sink.go_on.set()
        async with following(shard, sink, settings=msgspec.structs.replace(SMALL, timeout_ms=50)) as follower:
            await caught_up(follower, shard)
        assert sink.prepared
        assert sink.taken == await log_of(shard)


async def test_who_stops_leaves_nothing_that_is_still_being_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following_module, "GRACE_MS", 0)
    async with memory_shard() as shard:
        await work(shard)
        before = asyncio.all_tasks()
        sink = NeverPrepared()
        async with following(shard, sink, settings=SMALL) as follower:
            await soon(sink.was_prepared(1))
            sink.go_on.set()
            await soon(follower.wait_confirmed(sink.came[0].last))
        assert asyncio.all_tasks() <= before


async def test_a_delivery_that_failed_comes_again_before_what_was_prepared_behind_it() -> None:
    async with memory_shard() as shard:
        await work(shard)
        sink = Preparing()
        sink.failures = 2
        async with following(shard, sink, settings=SMALL) as follower:
            await soon(sink.was_prepared(1))
            sink.go_on.set()
            await caught_up(follower, shard)
        assert [each.first for each in sink.came[:3]] == [1, 1, 1]
        assert sink.taken == await log_of(shard)


async def test_a_reset_goes_before_what_was_prepared() -> None:
    async with memory_shard() as shard:
        await work(shard)
        sink = Preparing()
        async with following(shard, sink, settings=SMALL) as follower:
            await soon(sink.was_prepared(1))
            await follower.reset(0)
            sink.go_on.set()
            await caught_up(follower, shard)
        assert [each.first for each in sink.came[:2]] == [1, 1]
        assert sink.taken[len(sink.came[0]) :] == await log_of(shard)


@pytest.mark.parametrize("kind", ["file", "sqlite", "parquet", "jsonl"])
async def test_every_sink_that_prepares_ends_with_the_whole_log(kind: str, tmp_path: Path) -> None:
    def made() -> ReplicationSink:
        if kind == "file":
            return FileSink(tmp_path)
        if kind == "sqlite":
            return SqliteSink(tmp_path)
        return SegmentSink(str(tmp_path), kind="parquet" if kind == "parquet" else "jsonl", compact_at=0)

    async with memory_shard() as shard:
        delivered = 0
        for _ in range(2):  # The second one goes on with a target that is there.
            await work(shard, rounds=6)
            async with following(shard, made(), settings=SMALL) as follower:
                await caught_up(follower, shard)
                assert (follower.failures, follower.events.total()) == (0, shard.last_sequence - delivered)
            delivered = shard.last_sequence
        expected = [event.json() for event in await log_of(shard)]
        if kind == "file":
            [path] = (tmp_path / NAMESPACE).iterdir()
            assert path.read_bytes().splitlines() == expected
        elif kind == "sqlite":
            rows = in_table(tmp_path / f"{NAMESPACE}.db", f"select event_json from {TABLE} order by sequence_number")
            assert [row.encode() for row in rows] == expected
        else:
            reader = SegmentReader(await connect(str(tmp_path)), NAMESPACE)
            assert [frame async for frame in reader.frames()] == await frames_of(shard.log)
