"""The log read, streamed and written by a Spark that runs elsewhere, in a process of its own.

One process has one Spark, or one connection to one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from omnirelay.client.sync import SyncClient
from tests.integration.test_replication_node import sink
from tests.spark.logs import serving

LIVE = """
import sys
from pyspark.sql import functions as F
from omnirelay.lakehouse.session import open_session
_, master, segments, url, place = sys.argv
spark = open_session(master)
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
rows = spark.range(0, 100, 1, 2).select("id", F.concat(F.lit("written-"), F.col("id")).alias("resource_id"))
for _ in range(2):
    rows.write.format("omnirelay").mode("append").options(url=url, key="id", resourceType="table").save()
spark.stop()
"""


def run(script: str, *arguments: str | Path) -> list[str]:
    """The lines that a script prints."""
    ran = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def assert_source_and_sink_work(master: str, place: Path) -> None:
    """Segments and the tail behind them are read and streamed, and rows become items once, whoever runs the tasks."""
    lake, data = place / "lake", place / "data"
    with serving(sink("lake", "objects", path=str(lake)), data=data) as node, SyncClient(node.url) as client:
        for number in range(12):
            client.enqueue("table", f"sealed-{number}")
        node.wait_for_sinks()
    # What comes now has no way into segments.
    with serving(data=data) as node, SyncClient(node.url) as client:
        for number in range(13):
            client.enqueue("table", f"live-{number}")
        everything = str(list(range(1, node.last() + 1)))
        assert node.last() >= 25
        read, streamed = run(LIVE, master, lake, node.url, place / "sink")
        assert read == streamed == everything
        assert client.stats().pending_count == 125
