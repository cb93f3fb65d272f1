"""The data source and the commands on the Spark of this lane, which is older than that of the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from typer.testing import CliRunner

from omnirelay.cli.app import app
from omnirelay.client.sync import SyncClient
from omnirelay.client.threads import LoopThread
from omnirelay.errors import InvalidArgument
from omnirelay.lakehouse.segment_files import read_segments
from omnirelay.lakehouse.source import OmniRelayDataSource
from tests.integration.test_replication_node import node_with
from tests.spark.workload import Recorded, recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def log() -> Recorded:
    return recorded("jobs", seed=3, steps=40)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[str]:
    """The address of a node that serves in a thread while Spark works."""
    thread = LoopThread("node of a test")
    thread.start()
    try:
        running = node_with(data=tmp_path / "data")
        serving = thread.run(running.__aenter__())
        try:
            yield serving.url
        finally:
            thread.run(running.__aexit__(None, None, None))
    finally:
        thread.stop()


def sequences(frame: DataFrame) -> list[int]:
    return sorted(row.sequence for row in frame.select("sequence").collect())


def streamed(spark: SparkSession, place: Path) -> list[list[int]]:
    """Run a stream until it has read what is there; the sequences of each batch it made."""
    batches: list[list[int]] = []
    for _ in range(30):
        query = (
            spark.readStream.format("omnirelay")
            .load(str(place / "segments"))
            .writeStream.foreachBatch(lambda batch, _: batches.append(sequences(batch)))
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
            break
        except StreamingQueryException as error:
            # Spark gives the Python of a source ten seconds to come up, which a busy machine may not have.
            if "failed to connect back" not in str(error):
                raise
        finally:
            query.stop()
    else:
        pytest.fail("the Python of the source never came up")
    return [batch for batch in batches if batch]


def test_this_is_the_lane_of_iceberg() -> None:
    assert pyspark.__version__.startswith("4.1.")


def test_the_log_is_read_with_filters_pushed_down(spark: SparkSession, log: Recorded, tmp_path: Path) -> None:
    write_segments(tmp_path, log, pieces=3)
    ours, native = spark.read.format("omnirelay").load(str(tmp_path)), read_segments(spark, str(tmp_path))
    assert ours.schema == native.schema
    assert sequences(ours) == sequences(native) == list(range(1, len(log.events) + 1))
    late = ours.where((F.col("sequence") > 20) & (F.col("event_type") == "Enqueue"))
    assert sequences(late) == sequences(native.where("sequence > 20 AND event_type = 'Enqueue'"))


def test_a_stream_goes_on_where_it_was(spark: SparkSession, log: Recorded, tmp_path: Path) -> None:
    half = len(log.frames) // 2
    write_segments(tmp_path / "segments", log, last=half)
    last = log.frames[half - 1].last
    assert streamed(spark, tmp_path) == [list(range(1, last + 1))]
    assert streamed(spark, tmp_path) == []
    write_segments(tmp_path / "segments", log, first=half)
    assert streamed(spark, tmp_path) == [list(range(last + 1, len(log.events) + 1))]


def test_a_limit_that_this_spark_does_not_know_is_refused() -> None:
    source = OmniRelayDataSource({"path": "/lake", "maxEventsPerTrigger": "4"})
    with pytest.raises(InvalidArgument, match=r"maxEventsPerTrigger needs Spark 4\.2"):
        source.streamReader(source.schema())


def test_rows_become_items_once(spark: SparkSession, node: str) -> None:
    rows = spark.range(0, 50, 1, 2).select("id", F.concat(F.lit("orders-"), F.col("id")).alias("resource_id"))
    for _ in range(2):
        options = {"url": node, "key": "id", "resourceType": "table"}
        rows.write.format("omnirelay").mode("append").options(**options).save()
    with SyncClient(node) as client:
        assert client.stats().pending_count == 50
    live = spark.read.format("omnirelay").option("url", node).option("types", "Enqueue").load()
    assert {row.payload_resource_id for row in live.collect()} == {f"orders-{number}" for number in range(50)}


def test_doctor_finds_both_formats(whole_spark: SparkSession) -> None:
    ran = CliRunner().invoke(app, ["lakehouse", "doctor", "-o", "json"])
    assert ran.exit_code == 0, ran.stdout
    found = {each["name"]: each["found"] for each in json.loads(ran.stdout)["findings"] if each["ok"]}
    assert "iceberg-spark-runtime-4.1_2.13" in found["iceberg jars"]
    assert "delta-spark_4.1_2.13" in found["delta jars"]
