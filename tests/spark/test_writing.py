"""`df.write.format("omnirelay")`: rows become items of a real node, once each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from omnirelay.client.sync import SyncClient
from omnirelay.errors import InvalidArgument
from omnirelay.lakehouse.formats import open_tables
from omnirelay.lakehouse.writing import WriteOptions, item_of, read_write_options, request_id
from tests.spark.logs import ThreadedNode, segments_of, serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

URL = "http://127.0.0.1:7070"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ThreadedNode]:
    with serving(data=tmp_path / "data") as node:
        yield node


def write(frame: DataFrame, node: ThreadedNode, **options: str) -> None:
    chosen = {"url": node.url, "key": "id", "resourceType": "table", **options}
    frame.write.format("omnirelay").mode("append").options(**chosen).save()


def pending(node: ThreadedNode) -> int:
    with SyncClient(node.url) as client:
        return client.stats().pending_count


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).select("id", F.concat(F.lit("orders-"), F.col("id")).alias("resource_id"))


def test_every_row_becomes_an_item_and_a_second_write_adds_nothing(spark: SparkSession, node: ThreadedNode) -> None:
    frame = rows(spark, 2_500)
    write(frame, node)
    assert pending(node) == 2_500
    write(frame, node)
    assert pending(node) == 2_500
    write(frame.limit(3), node, keyScope="another day")
    assert pending(node) == 2_503


def test_columns_become_fields_of_the_item(spark: SparkSession, node: ThreadedNode) -> None:
    later = datetime(2100, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    frame = rows(spark, 1).select(
        "*",
        F.lit("view").alias("resource_type"),
        F.lit("{}").alias("body"),
        F.lit("application/json").alias("encoding"),
        F.create_map(F.lit("team"), F.lit("north")).alias("attributes"),
        F.lit(7).alias("priority"),
        F.lit(later).alias("not_before"),
        F.lit("not a column of items").alias("comment"),
    )
    write(frame, node)
    with SyncClient(node.url) as client:
        [item] = client.peek(state="delayed").items
    assert (item.payload.resource_type, item.payload.resource_id, item.priority) == ("view", "orders-0", 7)
    assert (item.payload.body, item.payload.payload_encoding) == (b"{}", "application/json")
    assert item.payload.attributes == {"team": "north"}
    assert item.not_before == "2100-01-02T03:04:05.678+00:00"


def test_task_that_dies_half_way_is_repeated_without_a_second_item(spark: SparkSession, node: ThreadedNode) -> None:
    frame = rows(spark, 100)
    # The first run has some rows that are refused at the end, after those before them went in.
    broken = frame.withColumn("resource_id", F.when(F.col("id") != 99, F.col("resource_id")))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
    with pytest.raises(PySparkException, match=r"column resource_id is null in the row with key \{'id': 99\}"):
        write(broken, node)
    assert 0 < pending(node) < 100
    write(frame, node)
    assert pending(node) == 100


def test_stream_writes_every_event_once(spark: SparkSession, node: ThreadedNode, tmp_path: Path) -> None:
    segments_of(tmp_path / "lake", 20, 20)
    for checkpoint in ("one", "two"):
        source = spark.readStream.format("omnirelay").load(str(tmp_path / "lake"))
        query = (
            source.where("event_type = 'Enqueue'")
            .selectExpr("shard", "sequence", "payload_resource_id as resource_id")
            .writeStream.format("omnirelay")
            .options(url=node.url, key="shard, sequence", resourceType="copy")
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        assert pending(node) == 8


def test_same_key_with_another_payload_is_refused(spark: SparkSession, node: ThreadedNode) -> None:
    write(rows(spark, 3), node)
    with pytest.raises(PySparkException, match="requestId"):
        write(rows(spark, 3).withColumn("body", F.lit("other")), node)
    with pytest.raises(PySparkException, match="not overwritten"):
        rows(spark, 1).write.format("omnirelay").mode("overwrite").options(url=node.url, key="id").save()


SCHEMA = StructType().add("id", "long").add("resource_id", "string").add("priority", "string")


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"key": "id"}, SCHEMA, "option url must be the address"),
        ({"url": URL}, SCHEMA, "option key is required"),
        ({"url": URL, "key": "no"}, SCHEMA, "names the column no, which"),
        ({"url": URL, "key": "id"}, SCHEMA, "option resourceType is required"),
        ({"url": URL, "key": "id", "resourceType": "t"}, SCHEMA, "column priority must be int or bigint, is string"),
        ({"url": URL, "key": "id"}, StructType().add("id", "integer"), "column resource_id is missing"),
        ({"url": URL, "key": "id", "timeoutMs": "soon"}, SCHEMA, "option timeoutMs must be"),
        (
            {"url": URL, "key": "id", "colour": "red"},
            SCHEMA,
            "colour is no option of writing; .*, keyScope, ",
        ),
        ({"url": URL, "key": "id", "path": "/lake"}, SCHEMA, "option path is '/lake', and a queue is at no path"),
        ({"url": "http://", "key": "id"}, SCHEMA, "option url must be the address"),
        ({"url": URL, "key": "id", "namespace": " "}, SCHEMA, "option namespace must not be blank"),
        ({"url": URL, "key": "id", "resourceType": ""}, SCHEMA, "option resourceType must not be blank"),
    ],
)
def test_wrong_options_and_columns_are_named(options: dict[str, str], schema: StructType, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read_write_options(options, schema, False)


def options_with(*key: str) -> WriteOptions:
    return WriteOptions(url=URL, namespace="n", key=key, key_scope="", resource_type="t", timeout_ms=1)


VALUES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(), st.binary(), st.booleans())


@given(st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=2))
def test_request_ids_differ_exactly_when_keys_do(pairs: list[tuple[Any, Any]]) -> None:
    one, other = (request_id(options_with("a", "b"), {"a": a, "b": b}) for a, b in pairs)
    same = [(type(each), each) for each in pairs[0]] == [(type(each), each) for each in pairs[1]]
    # Bytes are compared as their base64 text: a column has one type, so no text ever stands beside them.
    if {type(each) for pair in pairs for each in pair} >= {str, bytes}:
        return
    assert (one == other) == same


def test_instant_in_a_key_is_the_same_in_every_time_zone() -> None:
    """Spark hands instants over in the time zone of the session."""
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    there = noon.astimezone(timezone(timedelta(hours=1)))
    assert request_id(options_with("a"), {"a": there}) == request_id(options_with("a"), {"a": noon})
    assert request_id(options_with("a"), {"a": [{"at": there}]}) == request_id(options_with("a"), {"a": [{"at": noon}]})


def test_keys_that_spark_takes_for_equal_are_one_item() -> None:
    below_zero, zero = ({"a": [{"at": value}], "b": value} for value in (-0.0, 0.0))
    assert request_id(options_with("a", "b"), below_zero) == request_id(options_with("a", "b"), zero)
    # Arrow hands a map over as pairs, and an array of arrays as lists.
    pairs = [("x", 1), ("y", 2)]
    assert request_id(options_with("a"), {"a": pairs}) == request_id(options_with("a"), {"a": pairs[::-1]})
    lists = [["x", 1], ["y", 2]]
    assert request_id(options_with("a"), {"a": lists}) != request_id(options_with("a"), {"a": lists[::-1]})


@pytest.mark.parametrize("value", [None, float("nan"), float("-inf")])
def test_key_that_tells_nothing_apart_is_refused(value: float | None) -> None:
    with pytest.raises(InvalidArgument, match=r"key column a is (null|nan|-inf): such rows"):
        item_of(options_with("a"), {"a": value, "resource_id": "x"})


def test_rows_are_written_behind_a_pipeline_in_the_same_process(
    spark: SparkSession, node: ThreadedNode, tmp_path: Path
) -> None:
    """The pipeline has a session of its own, and Spark looks for formats in the one that was active last."""
    open_tables(spark, str(tmp_path / "lake"), "parquet").spark.createDataFrame([(1,)], "one int").collect()
    write(rows(spark, 3), node)
    assert pending(node) == 3
