"""The same code through Spark Connect; the long form only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from omnirelay.lakehouse.jars import delta_coordinates, fetch_jars
from tests.spark.elsewhere import assert_source_and_sink_work, run
from tests.spark.logs import segments_of
from tests.spark.plain import Plain
from tests.spark.servers import connect_server
from tests.spark.workload import recorded, write_segments

pytestmark = [
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(os.environ.get("OMNIRELAY_LONG") != "1", reason="the long form only: make spark-test"),
]

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


def test_log_is_read_through_spark_connect(server: str, tmp_path: Path) -> None:
    segments_of(tmp_path, 10, 10)
    assert run(SEGMENTS, server, tmp_path)[0] == "|".join([str(list(range(13, 21)))] * 2)


def test_the_live_tail_is_read_and_rows_are_written_through_spark_connect(server: str, tmp_path: Path) -> None:
    assert_source_and_sink_work(server, tmp_path)


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
