"""The same code through Spark Connect; the long form only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnirelay.lakehouse.jars import spark_home
from omnirelay.lakehouse.java import find_java, launcher_home
from tests.spark.logs import segments_of

pytestmark = pytest.mark.skipif(os.environ.get("OMNIRELAY_LONG") != "1", reason="the long form only: make spark-test")

# In a process of its own: one process has either a Spark in it or a connection to one.
CLIENT = """
import sys
from omnirelay.lakehouse.segment_files import read_segments
from omnirelay.lakehouse.session import open_session
spark = open_session(sys.argv[1])
ours = spark.read.format("omnirelay").load(sys.argv[2]).where("sequence > 12")
native = read_segments(spark, sys.argv[2], after={"jobs": 12})
print(*(sorted(row.sequence for row in each.select("sequence").collect()) for each in (ours, native)), sep="|")
spark.stop()
"""


@pytest.fixture
def connect_server() -> Iterator[str]:
    """The address of a server that is up."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(launcher_home(find_java())),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
    }
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    server = subprocess.Popen(
        [*command, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    try:
        said = []
        for line in server.stderr:
            said.append(line)
            if "Spark Connect server started at:" in line:
                yield f"sc://127.0.0.1:{line.strip().rpartition(':')[2]}"
                break
        else:
            pytest.fail(f"the server did not start: {''.join(said[-20:])}")
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_log_is_read_through_spark_connect(connect_server: str, tmp_path: Path) -> None:
    segments_of(tmp_path, 10, 10)
    ran = subprocess.run(
        [sys.executable, "-c", CLIENT, connect_server, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "|".join([str(list(range(13, 21)))] * 2)
