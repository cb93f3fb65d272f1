"""The index of a table that is far behind: left out while much is to come, and there afterwards whatever happens."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import pytest

from omnirelay.replication import late_index
from omnirelay.replication.courtesy import Courtesy
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.replication import Replication
from omnirelay.replication.settings import TABLE, SinkSettings
from omnirelay.replication.sinks import SinkUnusable
from omnirelay.replication.tables import SqliteSink
from omnirelay.testing.sinks import SHARD, made_events
from tests.integration.shards import enqueued, items
from tests.integration.test_replication_following import QUICK, Recorder, caught_up, following, memory_shard

EVENTS = made_events(12)
MANY = late_index.WORTH_EVENTS


def database_in(directory: Path) -> apsw.Connection:
    """By the library that the sink has: two of them in one process take each other's locks away."""
    return apsw.Connection(str(directory / f"{SHARD}.db"))


def indexes_of(directory: Path) -> list[str]:
    with closing(database_in(directory)) as database:
        assert database.execute("pragma integrity_check").fetchall() == [("ok",)]
        return [str(name) for (name,) in database.execute("select name from sqlite_schema where type = 'index'")]


def rows_of(directory: Path, *, by_type: bool = False) -> int:
    """How many there are; `by_type`: as the index says."""
    using = f'indexed by "IX_{TABLE}_EventType" where event_type >= 0' if by_type else ""
    with closing(database_in(directory)) as database:
        count = database.execute(f"select count(*) from {TABLE} {using}").get
    assert isinstance(count, int)
    return count


INDEX = [f"IX_{TABLE}_EventType"]


async def opened(directory: Path) -> SqliteSink:
    sink = SqliteSink(directory)
    await sink.open(SHARD)
    return sink


async def test_the_index_is_made_with_the_last_of_many_rows(tmp_path: Path) -> None:
    sink = await opened(tmp_path)
    assert indexes_of(tmp_path) == INDEX
    for first, follows, there in ((0, MANY, []), (3, late_index.FEW_EVENTS, []), (6, 0, INDEX)):
        sink.expect(follows)
        await sink.apply(EVENTS[first : first + 3])
        assert (rows_of(tmp_path), indexes_of(tmp_path)) == (first + 3, there)
    assert rows_of(tmp_path, by_type=True) == 9
    await sink.close()


async def test_an_index_is_kept_while_little_follows(tmp_path: Path) -> None:
    sink = await opened(tmp_path)
    sink.expect(MANY - 1)
    await sink.apply(EVENTS[:3])
    assert indexes_of(tmp_path) == INDEX
    await sink.close()


async def test_an_index_of_more_rows_than_follow_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_index, "WORTH_EVENTS", 1)
    sink = await opened(tmp_path)
    await sink.apply(EVENTS[:5])
    sink.expect(4)
    await sink.apply(EVENTS[5:8])
    assert indexes_of(tmp_path) == INDEX
    await sink.close()


async def test_many_rows_do_not_wait_for_their_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_index, "ROWS_MAX", 6)
    sink = await opened(tmp_path)
    there = []
    for first in (0, 3, 6):
        sink.expect(MANY)
        await sink.apply(EVENTS[first : first + 3])
        there.append(indexes_of(tmp_path))
    assert there == [[], INDEX, INDEX]
    await sink.close()


async def test_a_table_that_nobody_writes_to_any_more_has_its_index(tmp_path: Path) -> None:
    sink = await opened(tmp_path)
    sink.expect(MANY)
    await sink.apply(EVENTS[:3])
    assert indexes_of(tmp_path) == []
    await sink.close()
    assert indexes_of(tmp_path) == INDEX


async def test_a_delivery_that_failed_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    with closing(database_in(tmp_path)) as database:
        database.execute(
            f'create table "{TABLE}" (sequence_number integer primary key, event_type integer not null,'
            " timestamp text not null, peer_id text, event_json text not null, unique (event_type))"
        )
    sink = await opened(tmp_path)
    before = indexes_of(tmp_path)
    sink.expect(MANY)
    with pytest.raises(SinkUnusable, match="refuses events"):
        await sink.apply(EVENTS[:3])
    assert indexes_of(tmp_path) == before
    await sink.close()


_CHILD = """
import asyncio, sys
from pathlib import Path
from omnirelay.replication.tables import SqliteSink
from omnirelay.testing.sinks import SHARD, made_events

async def fill():
    sink = SqliteSink(Path(sys.argv[1]))
    await sink.open(SHARD)
    sink.expect(int(sys.argv[2]))
    await sink.apply(made_events(12)[:6])
    print("filled", flush=True)
    sys.stdin.read()

asyncio.run(fill())
"""


async def test_the_index_is_there_again_after_a_kill(tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _CHILD, str(tmp_path), str(MANY)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"filled\n"
    assert indexes_of(tmp_path) == []
    child.kill()
    await child.wait()
    sink = SqliteSink(tmp_path)
    assert await sink.open(SHARD) == 6
    assert indexes_of(tmp_path) == INDEX
    await sink.apply(EVENTS)
    assert rows_of(tmp_path, by_type=True) == len(EVENTS)
    await sink.close()


class Expecting(Recorder):
    """Remembers what it was told before each delivery."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []

    def expect(self, events: int) -> None:
        self.told.append(events)

    def followed(self, last: int) -> Sequence[int]:
        return [last - delivery[-1] for delivery in self.deliveries]

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        assert len(self.told) == len(self.deliveries) + 1
        await super().apply(events)


async def test_a_sink_is_told_how_much_follows_while_nobody_calls() -> None:
    async with memory_shard() as shard:
        await enqueued(shard, *items(25))
        sink = Expecting()
        async with following(shard, sink, settings=msgspec.structs.replace(QUICK, batch_events=5)) as follower:
            await caught_up(follower, shard)
        assert len(sink.told) > 3
        assert sink.told == sink.followed(shard.last_sequence)


async def test_a_sink_beside_callers_is_told_of_nothing_that_follows() -> None:
    courtesy = Courtesy(lambda: 100.0)
    courtesy.called(1)
    async with memory_shard() as shard:
        await enqueued(shard, *items(25))
        sink = Expecting()
        settings = msgspec.structs.replace(QUICK, batch_events=5)
        async with following(shard, sink, settings=settings, courtesy=courtesy) as follower:
            await caught_up(follower, shard)
        assert set(sink.told) == {0}


async def test_a_table_of_a_node_leaves_its_index_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change of what a database consists of is counted by it: to drop an index, and to make it."""
    changes = []
    for worth in (MANY, 1):
        monkeypatch.setattr(late_index, "WORTH_EVENTS", worth)
        follow = msgspec.structs.replace(QUICK, batch_events=5)
        directory = tmp_path / str(worth)
        settings = SinkSettings(name="lake", kind="sqlite", path=str(directory / "lake"), follow=follow)
        directory.mkdir()
        async with memory_shard() as shard:
            await enqueued(shard, *items(25))
            replication = Replication([settings], directory, durable=False)
            replication.follow(shard)
            await caught_up(replication.followers[0], shard)
            await replication.stop()
            with closing(apsw.Connection(str(directory / "lake" / f"{shard.log.shard}.db"))) as database:
                changes.append(database.pragma("schema_version"))
    assert changes[1] == changes[0] + 2
