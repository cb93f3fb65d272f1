"""Servers of Spark's own on this machine: a standalone cluster, and Spark Connect."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from omnirelay.lakehouse.jars import spark_home
from omnirelay.lakehouse.java import find_java, launcher_home


@contextmanager
def spark_server(*words: str, ready: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A program of Spark's that says `ready` when it is up: the process, and what it said behind that."""
    environment = {
        **os.environ,
        "JAVA_HOME": str(launcher_home(find_java())),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    server = subprocess.Popen(
        [str(spark_home() / "bin" / words[0]), *words[1:]],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    # It goes on talking when it is up, and must not have to wait for a listener.
    listener = threading.Thread(target=server.stderr.read, daemon=True)
    try:
        said = _said(server.stderr, ready)
        listener.start()
        yield server, said
    finally:
        server.terminate()
        server.wait(timeout=120)
        if listener.ident is not None:
            listener.join()
        server.stderr.close()


def _said(lines: IO[str], ready: str) -> str:
    before = []
    for line in lines:
        before.append(line)
        if ready in line:
            return line.partition(ready)[2].strip()
    pytest.fail(f"the server did not start: {''.join(before[-20:])}")


@contextmanager
def connect_server(settings: Mapping[str, str]) -> Iterator[str]:
    """The address of a Spark Connect server."""
    ours = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        **settings,
    }
    words = ["spark-submit", "--master", "local[2]"]
    for name, value in ours.items():
        words += ["--conf", f"{name}={value}"]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with spark_server(*words, ready="Spark Connect server started at:") as (_, said):
        yield f"sc://127.0.0.1:{said.rpartition(':')[2]}"


class Cluster:
    """A master and its workers."""

    def __init__(self, master: str, workers: list[subprocess.Popen[str]]) -> None:
        self.master = master
        self.workers = workers


@contextmanager
def standalone_cluster(directory: Path, workers: int) -> Iterator[Cluster]:
    deploy = "org.apache.spark.deploy"
    here = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as running:
        _, said = running.enter_context(
            spark_server("spark-class", f"{deploy}.master.Master", *here, ready="Starting Spark master at ")
        )
        cluster = Cluster(said, [])
        for number in range(workers):
            own = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"worker-{number}"))
            server, _ = running.enter_context(
                spark_server(
                    "spark-class",
                    f"{deploy}.worker.Worker",
                    *here,
                    *own,
                    cluster.master,
                    ready="Successfully registered with master ",
                )
            )
            cluster.workers.append(server)
        yield cluster
