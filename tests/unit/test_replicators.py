"""Replicators: one numbering, nothing lost or repeated, and each member with failures of its own."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from omnirelay.errors import (
    FailedPrecondition,
    InvalidArgument,
    LogLocked,
    LogRegressed,
    LogTrimmed,
    ResourceExhausted,
    Unavailable,
)
from omnirelay.log.memory import MemoryLog
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.files import FileSink
from omnirelay.replication.memory import MemorySink
from omnirelay.replication.replicators import (
    CompositeReplicator,
    InMemoryReplicator,
    ObjectStorageReplicator,
    Replicator,
    ShardedReplicator,
    SqliteReplicator,
)
from omnirelay.replication.replicators.members import ReplicatorAsSink
from omnirelay.replication.settings import TABLE, FollowSettings, ObjectFormat
from omnirelay.replication.sinks import ReplicationSink, SinkGap
from omnirelay.segments.connecting import connect
from omnirelay.segments.verification import verify
from omnirelay.testing.sinks import SHARD, SinkConformance, made_event, made_events

QUICK = FollowSettings(linger_ms=0, retry_first_ms=1, retry_max_ms=5)

R = TypeVar("R", bound=Replicator)


@asynccontextmanager
async def started(replicator: R) -> Any:
    await replicator.start()
    try:
        yield replicator
    finally:
        await replicator.stop()


def new(number: int, **more: Any) -> dict[str, Any]:
    return {"eventType": "Enqueue", "sequenceId": number, **more}


class BrokenSink(MemorySink):
    """Fails until somebody mends it."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        if self.broken:
            raise Unavailable("broken")
        await super().apply(events)


# -- numbers -------------------------------------------------------------------------------------


async def test_events_get_numbers_and_a_timestamp_and_come_back_as_they_were_taken() -> None:
    async with started(InMemoryReplicator(shard="jobs", region="eu")) as replicator:
        first, second = await replicator.publish([new(1), new(2, timestamp=5, sequenceNumber=0, colour="red")])
        [third] = await replicator.publish([new(3, timestamp="2025-01-01T00:00:00Z")])
        assert [event.sequence for event in (first, second, third)] == [1, 2, 3]
        assert replicator.last == 3
        document = msgspec.json.decode(second.json())
        assert document["timestamp"] == "1970-01-01T00:00:00.005+00:00"
        assert document["metadata"] == {"shard.id": "jobs", "region": "eu"}
        assert (document["colour"], document["sequenceNumber"]) == ("red", 2)
        assert first.timestamp > third.timestamp == 1_735_689_600_000
        assert [event.json() for event in await replicator.read()] == [each.json() for each in (first, second, third)]
        assert [event.sequence for event in await replicator.read(after=1, most=1)] == [2]
        assert await replicator.read(after=3) == []


async def test_calls_at_the_same_time_are_numbered_one_after_the_other() -> None:
    sink = MemorySink()
    async with started(InMemoryReplicator({"sink": sink}, follow=QUICK)) as replicator:
        batches = await asyncio.gather(*(replicator.publish([new(number), new(number)]) for number in range(50)))
        assert sorted(event.sequence for batch in batches for event in batch) == list(range(1, 101))
        await replicator.wait_delivered()
        assert [event.sequence for event in sink.events] == list(range(1, 101))


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (None, "event 1 must be an object, got NoneType"),
        ({}, "event 1 needs an eventType, got None"),
        ({"eventType": ""}, "event 1 needs an eventType"),
        ({"eventType": "X", "sequenceNumber": 7}, "event 1 has a sequenceNumber"),
        ({"eventType": "X", "timestamp": -1}, "event 1 has a timestamp that is none"),
        ({"eventType": "X", "timestamp": 253_402_300_800_000}, "event 1 has a timestamp that is none"),
        ({"eventType": "X", "timestamp": "yesterday"}, "timestamp"),
        ({"eventType": "X", "what": object()}, "event 1 cannot be written as JSON"),
    ],
)
async def test_what_is_no_event_is_named_and_uses_up_no_number(event: Any, named: str) -> None:
    async with started(InMemoryReplicator()) as replicator:
        with pytest.raises(InvalidArgument, match=named):
            await replicator.publish([new(1), event])
        [taken] = await replicator.publish([new(2)])
        assert taken.sequence == 1


async def test_a_failed_commit_uses_up_no_number() -> None:
    replicator = InMemoryReplicator()
    async with started(replicator):
        log = replicator._journal.log
        assert isinstance(log, MemoryLog)
        log.fail_next_append("definite")
        with pytest.raises(Unavailable):
            await replicator.publish([new(1)])
        assert [event.sequence for event in await replicator.publish([new(2)])] == [1]


async def test_what_a_cancelled_call_left_behind_is_settled_before_anything_else(tmp_path: Path) -> None:
    replicator = SqliteReplicator(tmp_path, follow=QUICK)
    async with started(replicator):
        for turns in range(12):
            call = asyncio.create_task(replicator.publish([new(turns, cancelled=True), new(turns, cancelled=True)]))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            await replicator.publish([new(turns)])
        kept = await replicator.read()
        assert [event.sequence for event in kept] == list(range(1, len(kept) + 1))
        members = [msgspec.json.decode(event.data) for event in kept]
        assert [each["sequenceId"] for each in members if "cancelled" not in each] == list(range(12))
        cancelled = [each["sequenceId"] for each in members if "cancelled" in each]
        assert all(cancelled.count(turns) in (0, 2) for turns in range(12)), "a call is taken in as a whole"
        await replicator.wait_delivered()
    assert rows_of(tmp_path, "events") == list(range(1, len(kept) + 1))


async def test_nothing_is_published_before_the_start_and_after_the_stop() -> None:
    replicator = InMemoryReplicator()
    with pytest.raises(FailedPrecondition, match="not started"):
        await replicator.publish([new(1)])
    await replicator.start()
    await replicator.start()
    await replicator.publish([new(1)])
    await replicator.stop()
    await replicator.stop()
    with pytest.raises(FailedPrecondition, match="not started"):
        await replicator.publish([new(2)])
    await replicator.start()
    [event] = await replicator.publish([new(2)])
    assert event.sequence == 2
    await replicator.stop()


# -- numbers of a log ----------------------------------------------------------------------------


async def test_events_of_a_log_keep_their_numbers_and_come_only_once() -> None:
    events = made_events(5)
    async with started(InMemoryReplicator(shard=SHARD)) as replicator:
        assert await replicator.publish(events[:3]) == events[:3]
        assert await replicator.publish(events[1:4]) == events[3:4]
        assert await replicator.publish(events[:2]) == []
        with pytest.raises(SinkGap, match="follows 5"):
            await replicator.publish(events[5:])
        await replicator.publish(events[4:])
        assert [event.sequence for event in await replicator.read()] == [event.sequence for event in events]
        assert [event.json() for event in await replicator.read()] == [event.json() for event in events]
        [behind] = await replicator.publish([new(1)])
        assert behind.sequence == events[-1].sequence + 1


async def test_numbers_of_another_log_and_jumps_without_a_reason_are_refused() -> None:
    async with started(InMemoryReplicator(shard="other")) as replicator:
        with pytest.raises(InvalidArgument, match="has a number of 'jobs', and here are those of 'other'"):
            await replicator.publish([made_event(1)])
    async with started(InMemoryReplicator(shard=SHARD)) as replicator:
        with pytest.raises(InvalidArgument, match="jumps from 0 to 9"):
            await replicator.publish([made_event(9, previous=0)])


class TestReplicatorAsSink(SinkConformance):
    """A replicator behind a log is a sink like any other."""

    def make_sink(self, directory: Path) -> ReplicationSink:
        return ReplicatorAsSink(SqliteReplicator(directory, shard=SHARD, follow=QUICK))

    async def read_back(self, directory: Path) -> Sequence[int]:
        replicator = SqliteReplicator(directory, shard=SHARD, follow=QUICK)
        async with started(replicator):
            await replicator.wait_delivered()
            events = [event.sequence for event in await replicator.read()]
        assert rows_of(directory, SHARD) == events
        return events


# -- members -------------------------------------------------------------------------------------


async def test_a_member_that_fails_holds_up_neither_the_others_nor_whoever_publishes() -> None:
    broken, fine = BrokenSink(), MemorySink()
    async with started(CompositeReplicator({"broken": broken, "fine": fine}, follow=QUICK)) as replicator:
        for number in range(20):
            await replicator.publish([new(number)])
        await replicator.follower("fine").wait_confirmed(20)
        await replicator.follower("broken").wait_state("retrying")
        [status] = [each for each in replicator.status() if each.sink == "broken"]
        assert (status.checkpoint, status.lag_events, status.last_error) == (0, 20, "broken")
        broken.broken = False
        await replicator.wait_delivered()
        assert [event.sequence for event in broken.events] == list(range(1, 21))
        assert [event.data for event in broken.events] == [event.data for event in fine.events]


async def test_a_member_that_comes_later_gets_everything() -> None:
    late = MemorySink()
    async with started(InMemoryReplicator(follow=QUICK)) as replicator:
        await replicator.publish([new(1), new(2)])
        replicator.add("late", late)
        await replicator.wait_delivered()
        assert [event.sequence for event in late.events] == [1, 2]
        with pytest.raises(InvalidArgument, match="there is a member 'late' already"):
            replicator.add("late", MemorySink())
        with pytest.raises(InvalidArgument, match="no member 'early' under way; there are: late"):
            replicator.follower("early")


async def test_members_that_are_replicators_take_over_the_one_numbering(tmp_path: Path) -> None:
    memory = InMemoryReplicator(shard="jobs", follow=QUICK)
    table = SqliteReplicator(tmp_path / "b", shard="jobs", follow=QUICK)
    async with started(
        CompositeReplicator({"memory": memory, "table": table}, shard="jobs", directory=tmp_path / "a", follow=QUICK)
    ) as replicator:
        sharded = ShardedReplicator(replicator, "shard-7")
        published = await sharded.publish([new(1), new(2), new(3)])
        await replicator.wait_delivered()
        await table.wait_delivered()
        for member in (memory, table):
            assert [each.json() for each in await member.read()] == [each.json() for each in published]
    assert rows_of(tmp_path / "b", "jobs") == [1, 2, 3]


async def test_a_member_with_other_numbers_fails_and_says_why() -> None:
    member = InMemoryReplicator(shard="other")
    async with started(CompositeReplicator({"member": member}, shard="jobs", follow=QUICK)) as replicator:
        await replicator.follower("member").wait_state("failed")
        assert "numbers of 'other'" in replicator.status()[0].last_error


async def test_a_target_that_outlived_the_numbers_is_not_taken_for_having_what_is_new(tmp_path: Path) -> None:
    async with started(InMemoryReplicator({"file": FileSink(tmp_path)}, follow=QUICK)) as replicator:
        await replicator.publish([new(1), new(2)])
        await replicator.wait_delivered()
    async with started(InMemoryReplicator({"file": FileSink(tmp_path)}, follow=QUICK)) as replicator:
        await replicator.publish([new(3)])
        await replicator.follower("file").wait_state("failed")
        assert "belongs to something else" in replicator.status()[0].last_error


async def test_the_journal_in_memory_is_bounded_and_a_member_that_was_left_behind_has_failed() -> None:
    broken, fine = BrokenSink(), MemorySink()
    replicator = InMemoryReplicator({"broken": broken, "fine": fine}, follow=QUICK, retained_events=100)
    async with started(replicator):
        for _ in range(25):
            await replicator.publish([new(number) for number in range(100)])
            await replicator.follower("fine").wait_confirmed(replicator.last)
        with pytest.raises(LogTrimmed):
            await replicator.read()
        assert [event.sequence for event in await replicator.read(2_400, 200)] == list(range(2_401, 2_501))
        broken.broken = False
        await replicator.follower("broken").wait_state("failed")
        assert not broken.events


async def publish_on(replicator: Replicator) -> None:
    for _ in range(10_000):
        await replicator.publish([new(number) for number in range(100)])
        await asyncio.sleep(0)


async def test_the_journal_keeps_what_a_required_member_has_not_got_and_closes_when_that_is_too_much() -> None:
    broken = BrokenSink()
    required = msgspec.structs.replace(QUICK, required=True, lag_events_max=2_000)
    replicator = CompositeReplicator(
        {"broken": broken}, follow_members={"broken": required}, retained_events=10, follow=QUICK
    )
    async with started(replicator):
        follower = replicator.follower("broken")
        await follower.wait_state("retrying", "running")
        with pytest.raises(ResourceExhausted, match="required sink broken"):
            await publish_on(replicator)
        assert len(await replicator.read(0, 10_000)) == replicator.last
        broken.broken = False
        await replicator.wait_delivered()
        while True:
            with suppress(ResourceExhausted):
                await replicator.publish([new(1)])
                break
            await asyncio.sleep(0.01)
        await replicator.wait_delivered()
        assert len(broken.events) == replicator.last


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="retained_events must be at least 1, got 0"):
        InMemoryReplicator(retained_events=0)
    with pytest.raises(InvalidArgument, match="follow_members names 'x', which is no member"):
        CompositeReplicator({}, follow_members={"x": QUICK})
    with pytest.raises(InvalidArgument, match="'table' is that of the target itself"):
        SqliteReplicator(tmp_path, {"table": MemorySink()})


# -- shards --------------------------------------------------------------------------------------


async def test_events_of_several_shards_share_the_numbers_of_one_replicator(tmp_path: Path) -> None:
    async with started(SqliteReplicator(tmp_path, follow=QUICK)) as inner:
        for number, name in enumerate(["a", "b", "a"]):
            [event] = await ShardedReplicator(inner, name).publish([new(number)])
            assert (event.shard, event.sequence) == (name, number + 1)
        await inner.wait_delivered()
    documents = [msgspec.json.decode(text) for text in column_of(tmp_path, "events", "event_json")]
    assert [(each["sequenceNumber"], each["metadata"]["shard.id"]) for each in documents] == [
        (1, "a"),
        (2, "b"),
        (3, "a"),
    ]


async def test_a_shard_without_a_name_and_events_of_another_one_are_refused() -> None:
    inner = InMemoryReplicator(shard=SHARD)
    for blank in ("", "  ", None):
        with pytest.raises(InvalidArgument, match="a shard needs a name") as refused:
            ShardedReplicator(inner, blank)  # type: ignore[arg-type]
        assert refused.value.code == "error.resourcelease.replication.shard_id_missing"
    async with started(ShardedReplicator(inner, SHARD)) as replicator:
        assert await replicator.publish([made_event(1)]) == [made_event(1)]
        assert (replicator.shard, replicator.last) == (SHARD, 1)
        with pytest.raises(InvalidArgument, match="event 0 is from 'x'"):
            await replicator.publish([msgspec.structs.replace(made_event(2), shard="x")])
        with pytest.raises(InvalidArgument, match="must be an object"):
            await replicator.publish([5])


# -- SQLite --------------------------------------------------------------------------------------


def column_of(directory: Path, shard: str, column: str) -> list[Any]:
    connection = sqlite3.connect(directory / f"{shard}.db")
    try:
        rows = connection.execute(f"select {column} from {TABLE} order by sequence_number").fetchall()
        return [row[0] for row in rows]
    finally:
        connection.close()


def rows_of(directory: Path, shard: str) -> list[int]:
    return column_of(directory, shard, "sequence_number")


async def test_numbers_go_on_after_a_restart_and_what_was_not_delivered_is(tmp_path: Path) -> None:
    sink = BrokenSink()
    async with started(SqliteReplicator(tmp_path, {"sink": sink}, follow=QUICK)) as replicator:
        await replicator.publish([new(1), new(2)])
        await replicator.follower("table").wait_confirmed(2)
    sink.broken = False
    async with started(SqliteReplicator(tmp_path, {"sink": sink}, follow=QUICK)) as replicator:
        assert replicator.last == 2
        [event] = await replicator.publish([new(3)])
        assert event.sequence == 3
        await replicator.wait_delivered()
    assert [event.sequence for event in sink.events] == [1, 2, 3]
    assert rows_of(tmp_path, "events") == [1, 2, 3]


async def test_two_replicators_on_one_directory_do_not_collide(tmp_path: Path) -> None:
    async with started(SqliteReplicator(tmp_path)):
        with pytest.raises(LogLocked):
            await SqliteReplicator(tmp_path).start()


async def test_a_journal_that_ends_before_what_a_member_has_got_is_refused(tmp_path: Path) -> None:
    for directory, count in (("older", 1), ("data", 5)):
        async with started(SqliteReplicator(tmp_path / "data", follow=QUICK)) as replicator:
            await replicator.publish([new(number) for number in range(count)])
            await replicator.wait_delivered()
        if directory == "older":
            shutil.copytree(tmp_path / "data" / "events", tmp_path / "older")
    shutil.rmtree(tmp_path / "data" / "events")
    (tmp_path / "older").rename(tmp_path / "data" / "events")
    with pytest.raises(LogRegressed, match="the sink table has got event 6, the log ends at 1"):
        await SqliteReplicator(tmp_path / "data", follow=QUICK).start()


async def test_a_journal_that_lost_its_witness_goes_on_where_no_number_was_given(tmp_path: Path) -> None:
    async with started(SqliteReplicator(tmp_path, follow=QUICK)) as replicator:
        await replicator.publish([new(1)])
        await replicator.wait_delivered()
    (tmp_path / "events" / "leases.witness").unlink()
    async with started(SqliteReplicator(tmp_path, follow=QUICK)) as replicator:
        [event] = await replicator.publish([new(2)])
        await replicator.wait_delivered()
        assert event.sequence == event.previous + 1 > 1 << 32
        kept = await replicator.read()
        assert [each.event_type for each in kept] == ["Enqueue", "GenerationStarted", "Enqueue"]
    assert rows_of(tmp_path, "events") == [each.sequence for each in kept]


# -- object stores -------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["parquet", "jsonl"])
async def test_segments_hold_what_was_published_and_go_on_after_a_restart(tmp_path: Path, layout: ObjectFormat) -> None:
    for numbers in ([1, 2, 3], [4, 5]):
        async with started(
            ObjectStorageReplicator(tmp_path / "own", str(tmp_path / "store"), layout=layout, follow=QUICK)
        ) as replicator:
            for number in numbers:
                await ShardedReplicator(replicator, f"shard-{number}").publish([new(number)])
            await replicator.wait_delivered()
    report = await verify(await connect(str(tmp_path / "store"), {}, writable=False), "events")
    assert (report.events, report.position.sequence) == (5, 5)


async def test_one_object_per_event_is_never_written_over(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with started(ObjectStorageReplicator(tmp_path / "a", str(store), layout="json", follow=QUICK)) as replicator:
        await replicator.publish([new(1), new(2)])
        await replicator.wait_delivered()
    held = {path.name: path.read_bytes() for path in (store / "events").glob("*.json")}
    assert sorted(held) == [f"{1:020d}.json", f"{2:020d}.json"]
    # The journal is lost, and numbers begin at 1 again.
    async with started(ObjectStorageReplicator(tmp_path / "b", str(store), layout="json", follow=QUICK)) as replicator:
        await replicator.publish([{"eventType": "Heartbeat"}])
        await replicator.follower("objects").wait_state("failed")
        assert "is another event" in replicator.status()[0].last_error
    assert {path.name: path.read_bytes() for path in (store / "events").glob("*.json")} == held
