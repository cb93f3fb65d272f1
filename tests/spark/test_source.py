"""`spark.read` and `spark.readStream` of the log: real segments, a real node, real Spark."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadAllAvailable

from omnirelay.client.sync import SyncClient
from omnirelay.errors import FailedPrecondition, InvalidArgument, LogRegressed, LogTrimmed, NotFound, OutOfRange
from omnirelay.lakehouse.columns import spark_schema
from omnirelay.lakehouse.segment_files import read_segments, segment_files
from omnirelay.lakehouse.source import LogReader, PiecePartition
from omnirelay.lakehouse.source_offsets import Offset
from omnirelay.lakehouse.source_options import read_options
from omnirelay.lakehouse.source_stream import LogStreamReader
from omnirelay.lakehouse.source_stream_base import UnlimitedLogStreamReader
from omnirelay.lakehouse.tail import tail_batches
from omnirelay.segments.archive import Archive
from omnirelay.segments.connecting import connect
from omnirelay.segments.upkeep import compact, expire, purge
from tests.cli.processes import omnirelay
from tests.integration.test_replication_node import sink
from tests.segment_logs import LOG_ID, SHARD, START_MS, FrameLog, S3Server
from tests.spark.logs import ThreadedNode, rows_of, segments_of, sequences, serving, write_segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, address: Path | str, **options: Any) -> DataFrame:
    return spark.read.format("omnirelay").options(**options).load(str(address))


# -- sealed segments -----------------------------------------------------------------------------


def test_source_and_native_scan_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    log = segments_of(tmp_path, 7, 5, 9)
    ours, native = read(spark, tmp_path), read_segments(spark, str(tmp_path))
    assert ours.schema == native.schema == spark_schema()
    rows = rows_of(ours)
    assert [row.sequence for row in rows] == list(range(1, log.last + 1))
    assert rows == rows_of(native)
    first = rows[0]
    assert (first.event_type, first.shard, first.region, first.payload_resource_id) == (
        "Enqueue",
        SHARD,
        "north",
        "orders-1",
    )
    assert bytes(first.frame) == log.frames[0].data


def test_segments_of_lines_are_read_too(spark: SparkSession, tmp_path: Path) -> None:
    segments_of(tmp_path, 4, 6, kind="jsonl")
    assert sequences(read(spark, tmp_path)) == list(range(1, 11))
    with pytest.raises(InvalidArgument, match=r"jsonl\.zst is not Parquet"):
        read_segments(spark, str(tmp_path))


def test_native_scan_reads_only_files_with_something_new(spark: SparkSession, tmp_path: Path) -> None:
    segments_of(tmp_path, 10, 10, 10)
    address = str(tmp_path)
    assert [each.entry.first for each in segment_files(address, after={SHARD: 10})] == [11, 21]
    frame = read_segments(spark, address, after={SHARD: 13})
    assert len(frame.inputFiles()) == 2
    assert sequences(frame) == list(range(14, 31))
    assert read_segments(spark, address, after={SHARD: 30}).isEmpty()


def test_segments_in_a_bucket_are_read(spark: SparkSession, s3: S3Server) -> None:
    log = FrameLog()
    log.commit(5)
    write_segments(s3.address("events"), log.frames, **s3.options)
    options = {f"store.{name}": str(value).lower() for name, value in s3.options.items()}
    options |= {"store.access_key_id": "key", "store.secret_access_key": "secret"}
    assert sequences(read(spark, s3.address("events"), **options)) == [1, 2, 3, 4, 5]


@pytest.fixture
def s3() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.stop()


# -- choosing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "tasks", "expected"),
    [
        ("sequence > 20", 2, range(21, 31)),
        ("sequence >= 11 and sequence <= 13", 1, range(11, 14)),
        ("sequence in (3, 25)", 3, [3, 25]),
        ("event_type = 'Heartbeat' and sequence <= 10", 1, [5, 10]),
        ("shard = 'elsewhere'", 1, []),
        ("event_type in ('Heartbeat', 'Nothing')", 3, [5, 10, 15, 20, 25, 30]),
    ],
)
def test_filters_choose_segments_and_rows(
    spark: SparkSession, tmp_path: Path, condition: str, tasks: int, expected: Any
) -> None:
    segments_of(tmp_path, 10, 10, 10)
    chosen = read(spark, tmp_path).where(condition)
    assert sequences(chosen) == list(expected)
    assert chosen.rdd.getNumPartitions() == tasks


def test_time_chooses_segments(spark: SparkSession, tmp_path: Path) -> None:
    log = FrameLog()
    for at in range(5):
        log.commit(2, time_ms=START_MS + at * 60_000)
    write_segments(str(tmp_path), *([frame] for frame in log.frames))
    begin = datetime.fromtimestamp((START_MS + 60_000) / 1000, UTC)
    end = datetime.fromtimestamp((START_MS + 120_000) / 1000, UTC)
    chosen = read(spark, tmp_path).where((F.col("timestamp") >= begin) & (F.col("timestamp") <= end))
    assert sequences(chosen) == [3, 4, 5, 6]
    # The one behind may begin in the same moment, as far as the manifest tells.
    assert chosen.rdd.getNumPartitions() == 3


def test_options_choose_what_is_read(spark: SparkSession, tmp_path: Path) -> None:
    segments_of(tmp_path, 10, 10)
    chosen = read(spark, tmp_path, after='{"jobs": 4}', upTo='{"jobs": 12}', types="Heartbeat,Completed", shards="jobs")
    assert sequences(chosen) == [5, 9, 10]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "address or url is required"),
        ({"address": "x", "colour": "red"}, "colour is no option"),
        ({"address": "x", "after": "[1]"}, "option after must be earliest, latest, or JSON"),
        ({"address": "x", "after": "lastest"}, "option after must be earliest, latest, or JSON"),
        ({"address": "x", "types": "Enqueue,Enqeued"}, r"types names 'Enqeued' \(is it Enqueue\?\), .*; there are Enq"),
        ({"address": "x", "types": "enqueue"}, "option types names 'enqueue' .*Heartbeat, Completed"),
        ({"address": "x", "types": "Nothing"}, r"where\(\"event_type = 'Nothing'\"\)"),
        ({"address": "x", "types": ","}, "option types must name at least one"),
        ({"address": "x", "store.": "y"}, r"option store\. must name an option of the store"),
        ({"address": "x", "uptp": "{}"}, "uptp is no option of omnirelay; there are address, .*upTo, maxEvents"),
        ({"url": "http://"}, "option url must be an address"),
        ({"url": "http://here:port"}, "option url must be an address"),
        ({"address": "x", "upTo": '{"a": -1}'}, "option upTo must be JSON"),
        ({"address": "x", "maxEventsPerTrigger": "0"}, "maxEventsPerTrigger must be a whole number from 1"),
        ({"address": "x", "shards": " , "}, "option shards must name at least one"),
        ({"address": "x", "failOnDataLoss": "perhaps"}, "failOnDataLoss must be true or false"),
        ({"url": "127.0.0.1"}, "option url must be an address"),
        ({"address": "x", "path": "y"}, r"option address is 'x', and load\(…\) was given 'y'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read_options(options)


def test_events_that_a_newer_node_wrote_are_read_and_chosen(spark: SparkSession, tmp_path: Path) -> None:
    log = FrameLog()
    future = {"eventType": "Borrowed", "sequenceNumber": 3, "timestamp": START_MS}
    frames = [log.commit(2), log.commit_raw(msgspec.json.encode(future), schema=2)]
    write_segments(str(tmp_path), frames)
    assert [row.event_type for row in rows_of(read(spark, tmp_path))][-1] == "Borrowed"
    assert sequences(read(spark, tmp_path).where("event_type = 'Borrowed'")) == [3]


def test_wrong_options_reach_the_caller_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="colour is no option of omnirelay"):
        read(spark, tmp_path, colour="red").collect()
    with pytest.raises(PySparkException, match="option types names 'Enqeued'"):
        read(spark, tmp_path, types="Enqeued").collect()
    with pytest.raises(PySparkException, match="nosuch: there is no such directory"):
        read(spark, tmp_path / "nosuch").collect()
    segments_of(tmp_path, 1)
    with pytest.raises(PySparkException, match=r"no segments of 'nobody' in .*; it has jobs"):
        read(spark, tmp_path, shards="nobody").collect()
    with pytest.raises(PySparkException, match="after=latest is for streams"):
        read(spark, tmp_path, after="latest").collect()
    with pytest.raises(PySparkException, match="the columns of omnirelay are its own"):
        spark.read.format("omnirelay").schema("sequence BIGINT").load(str(tmp_path)).collect()


@pytest.mark.parametrize("option", ["after", "upTo"])
def test_shard_that_is_not_there_is_not_passed_over_where_reading_begins_or_ends(tmp_path: Path, option: str) -> None:
    segments_of(tmp_path, 5)
    options = read_options({"address": str(tmp_path), option: '{"jbos": 3}'})
    refused = pytest.raises(NotFound, match=f"option {option} names the shard 'jbos'; there are jobs")
    with refused:
        LogReader(options).partitions()
    with refused:
        LogStreamReader(options).latestOffset({}, ReadAllAvailable())
    with refused:
        UnlimitedLogStreamReader(options).latestOffset()
    with pytest.raises(NotFound, match="after names the shard 'jbos'; there are jobs"):
        segment_files(str(tmp_path), after={"jbos": 3})


# -- what happens to segments --------------------------------------------------------------------


def test_damaged_segment_is_refused_and_named(spark: SparkSession, tmp_path: Path) -> None:
    segments_of(tmp_path, 5, 5)
    victim = sorted((tmp_path / SHARD / "segments").iterdir())[1]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(PySparkException, match=f"segment {victim.name} of 'jobs' is not what was written"):
        read(spark, tmp_path).collect()
    assert sequences(read(spark, tmp_path).where("sequence <= 5")) == [1, 2, 3, 4, 5]


def test_segments_merged_after_planning_are_found_again(tmp_path: Path) -> None:
    segments_of(tmp_path, 5, 5, 5)
    reader = LogReader(read_options({"address": str(tmp_path)}))
    partitions = reader.partitions()
    assert len(partitions) == 3

    async def merge() -> None:
        archive = Archive(await connect(str(tmp_path)), SHARD)
        assert await compact(archive, segment_bytes=2**20, at_least=2) == 3
        assert await purge(archive, grace_ms=-1) == 3

    asyncio.run(merge())
    found = [batch["sequence"].to_pylist() for each in partitions for batch in reader.read(each)]
    assert found == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15]]


def test_events_dropped_before_they_were_read_are_an_error_unless_told(spark: SparkSession, tmp_path: Path) -> None:
    segments_of(tmp_path, 5, 5)

    async def drop() -> None:
        archive = Archive(await connect(str(tmp_path)), SHARD, clock=lambda: START_MS + 1_000_006)
        assert await expire(archive, retention_ms=1_000_000) == 1

    asyncio.run(drop())
    assert sequences(read(spark, tmp_path)) == [6, 7, 8, 9, 10]
    with pytest.raises(PySparkException, match="those behind 2 were dropped"):
        read(spark, tmp_path, after='{"jobs": 2}').collect()
    assert sequences(read(spark, tmp_path, after='{"jobs": 2}', failOnDataLoss="false")) == [6, 7, 8, 9, 10]
    with pytest.raises(LogTrimmed):
        segment_files(str(tmp_path), after={SHARD: 2})
    with pytest.raises(NotFound):
        segment_files(str(tmp_path), shards=["nobody"])


# -- the live tail -------------------------------------------------------------------------------


def work(node: ThreadedNode, count: int, namespace: str = "resourcelease") -> None:
    """Some items, of which one is leased and completed. The names hold what ends a line for some readers."""
    with SyncClient(node.url, namespace=namespace) as client:
        for at in range(count):
            client.enqueue("table", f"orders\u2028{at}", body=b"\x00", delay_ms=3_600_000 if at else None)
        [lease] = client.lease(peer_id="anna")
        client.heartbeat(lease, message="half")
        client.complete(lease, result=b"done")


def test_tail_of_a_node_has_the_rows_that_its_segments_get(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with serving(sink("lake", "objects", path=str(lake)), data=tmp_path / "data", namespaces=("a", "b")) as node:
        work(node, 3, "a")
        work(node, 5, "b")
        node.wait_for_sinks()
        only_frames_know = ("region", "queue_pending", "queue_active")
        tail = spark.read.format("omnirelay").option("url", node.url).load()
        names = [each for each in tail.columns if not each.startswith(("frame", "chain", *only_frames_know))]
        rows = rows_of(tail.select(names))
        assert rows == rows_of(read(spark, lake).select(names))
        assert [(row.shard, row.sequence) for row in rows] == [
            (shard, sequence) for shard in "ab" for sequence in range(1, node.last(shard) + 1)
        ]


def test_batch_is_sealed_segments_and_then_the_tail(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    data = tmp_path / "data"
    with serving(sink("lake", "objects", path=str(lake)), data=data) as node:
        work(node, 4)
        node.wait_for_sinks()
        sealed = node.last()
    with serving(data=data) as node:
        work(node, 2)
        both = read(spark, lake, url=node.url)
        assert sequences(both) == list(range(1, node.last() + 1))
        assert both.where("frame_first is null").count() == node.last() - sealed
        assert sequences(both.where(f"sequence = {sealed + 1}")) == [sealed + 1]
        enqueued = both.where("event_type = 'Enqueue'").select("payload_resource_id")
        assert len(enqueued.collect()) == 6
        with pytest.raises(OutOfRange, match="another node"):
            list(tail_batches(node.url, "resourcelease", 1, node.last() + 1))
    with pytest.raises(PySparkException, match="cannot read from the node"):
        read(spark, lake, url=node.url).collect()


def another_history(lake: Path, node: ThreadedNode) -> None:
    options = read_options({"address": str(lake), "url": node.url})
    for look in (LogReader(options).partitions, lambda: LogStreamReader(options).latestOffset({}, ReadAllAvailable())):
        with pytest.raises(FailedPrecondition, match="has another history of 'resourcelease' than the segments"):
            look()


def test_tail_of_another_log_is_not_put_behind_segments(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with serving(sink("lake", "objects", path=str(lake)), data=tmp_path / "data") as node:
        work(node, 2)
        node.wait_for_sinks()
        sealed = node.last()
    with serving(data=tmp_path / "other") as node:
        work(node, 9)
        assert node.last() > sealed
        another_history(lake, node)


def test_tail_of_a_restored_log_is_put_behind_the_segments_that_it_continues_only(tmp_path: Path) -> None:
    lake, data = tmp_path / "lake", tmp_path / "data"
    with serving(sink("lake", "objects", path=str(lake)), data=data) as node:
        work(node, 2)
        node.wait_for_sinks()
    shutil.copytree(data / "resourcelease", tmp_path / "backup" / "resourcelease")
    with serving(sink("lake", "objects", path=str(lake)), data=data) as node:
        work(node, 3)
        node.wait_for_sinks()
        sealed = node.last()
    for source, place in (("backup", "older"), ("lake", "newest")):
        restored = omnirelay("log", "restore", "--from", source, "--data", place, cwd=tmp_path)
        assert restored.returncode == 0, restored.stderr
    with serving(data=tmp_path / "older") as node:
        another_history(lake, node)
    with serving(data=tmp_path / "newest") as node:
        assert node.last() > 1 << 32
        reader = LogReader(read_options({"address": str(lake), "url": node.url}))
        numbers = [
            number
            for each in reader.partitions()
            for batch in reader.read(each)
            for number in batch["sequence"].to_pylist()
        ]
        assert numbers[:sealed] == list(range(1, sealed + 1))
        assert sealed + (1 << 32) <= numbers[sealed] <= numbers[-1] == node.last()


# -- streams -------------------------------------------------------------------------------------


def stream(spark: SparkSession, target: Path, address: Path | None, **options: Any) -> list[list[int]]:
    """Run a stream until it has read what is there; the sequences of each batch it made."""
    batches: list[list[int]] = []
    source = spark.readStream.format("omnirelay").options(**options)
    frame = source.load() if address is None else source.load(str(address))
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: batches.append(sequences(batch)))
        .option("checkpointLocation", str(target))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return [batch for batch in batches if batch]


def test_stream_reads_in_batches_and_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    log = segments_of(tmp_path / "lake", 5, 5)
    here = tmp_path / "checkpoint"
    assert stream(spark, here, tmp_path / "lake", maxEventsPerTrigger="4") == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    write_segments(str(tmp_path / "lake"), [log.commit(3)])
    assert stream(spark, here, tmp_path / "lake") == [[11, 12, 13]]
    assert stream(spark, here, tmp_path / "lake") == []


def test_stream_ends_where_it_is_told_to(spark: SparkSession, tmp_path: Path) -> None:
    segments_of(tmp_path / "lake", 5, 5)
    lake, here = tmp_path / "lake", tmp_path / "checkpoint"
    assert stream(spark, here, lake, after='{"jobs": 2}', upTo='{"jobs": 4}') == [[3, 4]]
    assert stream(spark, here, lake, upTo='{"jobs": 8}', maxEventsPerTrigger="3") == [[5, 6, 7], [8]]
    # What was read stays read.
    assert stream(spark, here, lake, upTo='{"jobs": 6}') == []


def test_older_stream_ends_where_it_is_told_to(tmp_path: Path) -> None:
    segments_of(tmp_path, 5, 5)
    reader = UnlimitedLogStreamReader(read_options({"address": str(tmp_path), "upTo": '{"jobs": 7}'}))
    assert reader.initialOffset() == {}
    assert reader.latestOffset() == at(7)


def test_stream_misses_a_shard_that_it_has_read_unless_told(tmp_path: Path) -> None:
    segments_of(tmp_path, 5)
    options = {"address": str(tmp_path)}
    read_before = {"jobs": 5, "other": 3}
    strict = LogStreamReader(read_options(options))
    with pytest.raises(NotFound, match="checkpoint names the shard 'other'; there are jobs; option failOnDataLoss"):
        strict.latestOffset(read_before, ReadAllAvailable())
    older = UnlimitedLogStreamReader(read_options(options))
    older.partitions(read_before, read_before)
    with pytest.raises(NotFound, match="checkpoint names the shard 'other'"):
        older.latestOffset()
    for more in ({"failOnDataLoss": "false"}, {"shards": "jobs"}):
        lenient = LogStreamReader(read_options(options | more))
        assert lenient.latestOffset(read_before, ReadAllAvailable()) == at(5) | {"other": 3}


def test_stream_that_was_further_than_the_log_says_so_unless_told(tmp_path: Path) -> None:
    segments_of(tmp_path, 5)
    options = read_options({"address": str(tmp_path)})
    gone_back = pytest.raises(LogRegressed, match="'jobs' ends with event 5, and was read up to 7: it is another log")
    with gone_back:
        LogStreamReader(options).latestOffset({SHARD: 7}, ReadAllAvailable())
    older = UnlimitedLogStreamReader(options)
    older.reached = Offset({SHARD: 7})
    with gone_back:
        older.latestOffset()
    going_on = msgspec.structs.replace(options, fail_on_data_loss=False)
    assert LogStreamReader(going_on).latestOffset({SHARD: 7}, ReadAllAvailable()) == at(7)
    assert LogStreamReader(options).latestOffset({SHARD: 5}, ReadAllAvailable()) == at(5)


def at(sequence: int, log_id: str = LOG_ID) -> dict[str, Any]:
    """The offset of a stream that has read so far."""
    return {SHARD: {"sequence": sequence, "logId": log_id}}


def test_stream_does_not_go_on_in_another_log(tmp_path: Path) -> None:
    """Also where that is longer, or events may be lost: its numbers are those of other events."""
    segments_of(tmp_path, 5, 5)
    options = read_options({"address": str(tmp_path)})
    for each in (options, msgspec.structs.replace(options, fail_on_data_loss=False)):
        another = pytest.raises(FailedPrecondition, match=f"read the log elsewhere of 'jobs' up to event 3.*{LOG_ID}")
        with another:
            LogStreamReader(each).latestOffset(at(3, "elsewhere"), ReadAllAvailable())
        with another:
            LogStreamReader(each).partitions(at(3, "elsewhere"), at(5))
        with another:
            LogStreamReader(each).partitions({}, at(3, "elsewhere"))
        older = UnlimitedLogStreamReader(each)
        older.partitions(at(3, "elsewhere"), at(3, "elsewhere"))
        with another:
            older.latestOffset()


def test_stream_goes_on_from_a_checkpoint_of_before_that_names_no_log(tmp_path: Path) -> None:
    segments_of(tmp_path, 5, 5)
    options = read_options({"address": str(tmp_path)})
    reader = LogStreamReader(options)
    assert reader.latestOffset({SHARD: 3}, ReadAllAvailable()) == at(10)
    pieces = [part.piece for part in reader.partitions({SHARD: 3}, at(10)) if isinstance(part, PiecePartition)]
    assert [(piece.first, piece.last) for piece in pieces] == [(4, 5), (6, 10)]
    older = UnlimitedLogStreamReader(options)
    older.partitions({SHARD: 3}, {SHARD: 3})
    assert older.latestOffset() == at(10)


@pytest.mark.parametrize(
    "stored", [{"jobs": "5"}, {"jobs": {"sequence": 5}}, {"jobs": {"sequence": "x", "logId": "y"}}]
)
def test_checkpoint_of_something_else_is_refused(tmp_path: Path, stored: dict[str, Any]) -> None:
    segments_of(tmp_path, 5)
    reader = LogStreamReader(read_options({"address": str(tmp_path)}))
    with pytest.raises(InvalidArgument, match="the checkpoint is not one of omnirelay"):
        reader.latestOffset(stored, ReadAllAvailable())


def test_checkpoint_of_one_node_is_refused_for_another(spark: SparkSession, tmp_path: Path) -> None:
    here = tmp_path / "checkpoint"
    with serving(data=tmp_path / "data") as node:
        work(node, 1)
        assert stream(spark, here, None, url=node.url) == [list(range(1, node.last() + 1))]
    with serving(data=tmp_path / "other") as node:
        work(node, 9)
        with pytest.raises(PySparkException, match=r"the checkpoint has read the log .* of 'resourcelease' up to"):
            stream(spark, here, None, url=node.url)
        with pytest.raises(OutOfRange, match="another node"):
            list(tail_batches(node.url, "resourcelease", 1, 2, log_id="elsewhere"))


def test_stream_skips_the_gap_that_a_new_generation_leaves(spark: SparkSession, tmp_path: Path) -> None:
    log = FrameLog()
    frames = [log.commit(3), log.commit(3, jump=1 << 32)]
    write_segments(str(tmp_path / "lake"), *([frame] for frame in frames))
    jumped = frames[1].first
    assert stream(spark, tmp_path / "checkpoint", tmp_path / "lake", maxEventsPerTrigger="2") == [
        [1, 2],
        [3, jumped],
        [jumped + 1, jumped + 2],
    ]


def test_stream_of_a_node_reads_every_shard_to_its_end(spark: SparkSession, tmp_path: Path) -> None:
    with serving(data=tmp_path / "data", namespaces=("a", "b")) as node:
        work(node, 3, "a")
        work(node, 1, "b")
        ends = [node.last("a"), node.last("b")]
        found = stream(spark, tmp_path / "checkpoint", None, url=node.url, maxEventsPerTrigger="5")
        assert max(len(batch) for batch in found) <= 5
        assert sorted(chain.from_iterable(found)) == sorted([*range(1, ends[0] + 1), *range(1, ends[1] + 1)])
        work(node, 1, "b")
        assert stream(spark, tmp_path / "checkpoint", None, url=node.url) == [
            list(range(ends[1] + 1, node.last("b") + 1))
        ]
        assert stream(spark, tmp_path / "latest", None, url=node.url, after="latest") == []
