"""The same code through Spark Connect; the long form only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnirelay.client.sync import SyncClient
from tests.integration.test_replication_node import sink
from tests.spark.logs import segments_of, serving
from tests.spark.servers import connect_server

pytestmark = pytest.mark.skipif(os.environ.get("OMNIRELAY_LONG") != "1", reason="the long form only: make spark-test")

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
    with connect_server({"spark.sql.python.filterPushdown.enabled": "true"}) as address:
        yield address


def run(script: str, *arguments: str | Path) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=250
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
