"""The same code through Spark Connect; the long form only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from omnirelay.client.sync import SyncClient
from omnirelay.lakehouse.jars import delta_coordinates, fetch_jars
from tests.integration.test_replication_node import sink
from tests.spark.logs import segments_of, serving
from tests.spark.plain import Plain
from tests.spark.servers import connect_server
from tests.spark.workload import recorded, write_segments

pytestmark = [
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(os.environ.get("OMNIRELAY_LONG") != "1", reason="the long form only: make spark-test"),
]

# In a process of its own: one process has either a Spark in it or a connection to one.
SEGMENTS = """
import sys
from omnirelay.lakehouse.segment_files import read_segments
from omnirelay.lakehouse.session import open_session
spark = open_session(sys.argv[1])
ours = spark.read.format("omnirelay").load(sys.argv[2]).where("sequence > 12")
native = read_segments(spark, sys.argv[2], after={"jobs": 12})
print(*(sorted(row.sequence for row in each.select("sequence").collect()) for each in (ours, native)), sep="|")
spark.stop()
"""

LIVE = """
import sys
from omnirelay.lakehouse.session import open_session
_, server, segments, url, place = sys.argv
spark = open_session(server)
log = spark.read.format("omnirelay").option("url", url).load(segments)
print(sorted(row.sequence for row in log.select("sequence").collect()))
stream = spark.readStream.format("omnirelay").option("url", url).option("maxEventsPerTrigger", 10).load(segments)
query = (
    stream.select("sequence").writeStream.format("parquet").option("path", place + "/rows")
    .option("checkpointLocation", place + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
assert query.exception() is None, query.exception()
print(sorted(row.sequence for row in spark.read.parquet(place + "/rows").collect()))
spark.stop()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    jars = ",".join(map(str, fetch_jars(delta_coordinates())))
    settings = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    with connect_server(settings) as address:
        yield address


def run(script: str, *arguments: str | Path) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split("\n")


def test_log_is_read_through_spark_connect(server: str, tmp_path: Path) -> None:
    segments_of(tmp_path, 10, 10)
    assert run(SEGMENTS, server, tmp_path)[0] == "|".join([str(list(range(13, 21)))] * 2)


def test_the_live_tail_is_read_and_streamed_through_spark_connect(server: str, tmp_path: Path) -> None:
    lake, data = tmp_path / "lake", tmp_path / "data"
    with serving(sink("lake", "objects", path=str(lake)), data=data) as node, SyncClient(node.url) as client:
        for number in range(12):
            client.enqueue("table", f"sealed-{number}")
        node.wait_for_sinks()
    # What comes now has no way into segments.
    with serving(data=data) as node, SyncClient(node.url) as client:
        for number in range(13):
            client.enqueue("table", f"live-{number}")
        read, streamed, _ = run(LIVE, server, lake, node.url, tmp_path / "sink")
        assert read == streamed == str(list(range(1, node.last() + 1)))
        assert node.last() >= 25


def test_the_pipeline_runs_through_spark_connect(server: str, tmp_path: Path) -> None:
    log = recorded("jobs", seed=17, steps=40)
    half = len(log.frames) // 2
    where = ("--source", str(tmp_path / "segments"), "--warehouse", str(tmp_path / "lake"), "--master", server)
    for first, last in ((0, half), (half, None)):
        write_segments(tmp_path / "segments", log, first=first, last=last)
        ran = subprocess.run(
            [sys.executable, "-m", "omnirelay.cli", "lakehouse", "run", *where],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert ran.returncode == 0, ran.stderr
    found = DeltaTable(str(tmp_path / "lake" / "silver" / "leases")).to_pyarrow_table().to_pylist()
    expected = Plain(log.shard, log.events).lease_rows()
    assert sorted(found, key=lambda row: row["fence"]) == sorted(expected, key=lambda row: row["fence"])
