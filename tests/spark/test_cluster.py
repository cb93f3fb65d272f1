"""The source, the sink and the pipeline on a standalone cluster, which loses executors; the long form only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
from deltalake import DeltaTable

from omnirelay.client.sync import SyncClient
from omnirelay.lakehouse.tables import EVENTS, GOLD, SILVER
from tests.processes import children_of, wait_gone
from tests.spark.elsewhere import assert_source_and_sink_work, run
from tests.spark.logs import serving
from tests.spark.servers import Cluster, standalone_cluster
from tests.spark.workload import recorded, write_segments

pytestmark = [
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(os.environ.get("OMNIRELAY_LONG") != "1", reason="the long form only: make spark-test"),
]


SETTINGS = """
spark.sql.shuffle.partitions 2
spark.databricks.delta.snapshotPartitions 2
"""
"""A cluster has other defaults than this process: hundreds of tasks for hundreds of rows."""


def start(place: Path, warehouse: str, master: str) -> subprocess.Popen[str]:
    where = ("--source", str(place / "segments"), "--warehouse", str(place / warehouse))
    (place / "conf").mkdir(exist_ok=True)
    (place / "conf" / "spark-defaults.conf").write_text(SETTINGS)
    return subprocess.Popen(
        [sys.executable, "-m", "omnirelay.cli", "lakehouse", "run", *where, "--master", master, "-o", "json"],
        env={
            **os.environ,
            "NO_COLOR": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(place / "conf"),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(run: subprocess.Popen[str]) -> dict[str, Any]:
    said, complained = run.communicate(timeout=900)
    assert run.returncode == 0, complained
    answer: dict[str, Any] = json.loads(said)
    return answer


def wait_for_line(lines: IO[str] | None, text: str) -> None:
    assert lines is not None
    before = []
    for line in lines:
        before.append(line)
        if text in line:
            return
    pytest.fail(f"{text} was never said: {''.join(before)}")


def kill_an_executor(cluster: Cluster) -> int:
    executor = children_of(cluster.workers[0].pid)[0]
    os.kill(executor, signal.SIGKILL)
    wait_gone([executor])
    return executor


def rows_of(path: Path) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist())


RETRIED = """
import sys
from pyspark import TaskContext
from pyspark.sql import functions as F
from omnirelay.lakehouse.session import open_session
_, master, url = sys.argv

def dying(batches):
    yield from batches
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("the first attempt dies behind its last row")

spark = open_session(master, conf={"spark.sql.execution.arrow.maxRecordsPerBatch": "10"})
rows = spark.range(0, 100, 1, 2).select("id", F.concat(F.lit("retried-"), F.col("id")).alias("resource_id"))
rows = rows.mapInArrow(dying, rows.schema)
rows.write.format("omnirelay").mode("append").options(url=url, key="id", resourceType="table").save()
spark.stop()
"""


def test_source_and_sink_work_on_a_cluster_and_a_task_that_is_retried_enqueues_nothing_twice(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path / "cluster", workers=2) as cluster:
        assert_source_and_sink_work(cluster.master, tmp_path)
        with serving(data=tmp_path / "retried") as node, SyncClient(node.url) as client:
            run(RETRIED, cluster.master, node.url)
            assert client.stats().pending_count == 100


def test_tables_of_a_cluster_that_loses_an_executor_are_those_of_a_clean_run(tmp_path: Path) -> None:
    log = recorded("jobs", seed=17, steps=300)
    write_segments(tmp_path / "segments", log, pieces=3)
    with standalone_cluster(tmp_path / "cluster", workers=2) as cluster:
        run = start(tmp_path, "cluster-lake", cluster.master)
        try:
            wait_for_line(run.stderr, "bronze.events")
            kill_an_executor(cluster)
            wait_for_line(run.stderr, "silver.items")
            kill_an_executor(cluster)
            answer = end(run)
        finally:
            run.kill()
        assert answer["events"] == len(log.events)
    end(start(tmp_path, "clean-lake", "local[2]"))
    for table in (EVENTS, *SILVER, *GOLD):
        below = Path(table.layer) / table.name
        expected = rows_of(tmp_path / "clean-lake" / below)
        assert expected or table.name == "anomalies", f"{table.name} is empty, which proves nothing"
        assert rows_of(tmp_path / "cluster-lake" / below) == expected, table.name
