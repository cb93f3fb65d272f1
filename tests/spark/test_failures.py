"""Spark that fails, or that is interrupted, ends a command with one line and an exit code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from omnirelay.errors import InvalidArgument
from omnirelay.lakehouse.failures import SparkFailed, spark_failures
from tests.property.strategies import LONG
from tests.spark.workload import recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


def test_reason_of_java_and_of_python_is_told_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SparkFailed, match=r"^Spark failed: .*file/table.*not a directory.*$"), spark_failures():
        spark.range(1).write.format("delta").save(str(tmp_path / "file" / "table"))

    def broken(number: int) -> int:
        raise ValueError(f"no {number}")

    with pytest.raises(SparkFailed, match=r"^Spark failed: ValueError: no 0$"), spark_failures():
        spark.range(1).select(F.udf(broken, "int", useArrow=False)("id")).collect()
    with pytest.raises(SparkFailed, match=r"^Spark failed: \[PATH_NOT_FOUND\] .*nowhere.*$"), spark_failures():
        spark.read.parquet(str(tmp_path / "nowhere"))
    with pytest.raises(InvalidArgument), spark_failures():
        raise InvalidArgument("of ours")


def command(directory: Path, *words: str) -> list[str]:
    log = recorded("jobs", seed=17, steps=20)
    write_segments(directory / "segments", log)
    where = ("--source", str(directory / "segments"), "--format", "parquet")
    return [sys.executable, "-m", "omnirelay.cli", "lakehouse", "run", *where, *words]


@pytest.mark.parametrize(
    ("master", "warehouse", "code", "message"),
    [
        ("locale[2]", "lake", 5, r"does not start at 'locale\[2\]': .*Could not parse Master URL.*spark_unusable"),
        ("local[1]", "file/lake", 1, r"Spark failed: .*file.*error\.lakehouse\.spark_failed"),
    ],
)
def test_command_that_spark_fails_says_why_in_one_line(
    tmp_path: Path, master: str, warehouse: str, code: int, message: str
) -> None:
    words = command(tmp_path, "--warehouse", str(tmp_path / warehouse), "--master", master)
    (tmp_path / "file").write_text("")
    done = subprocess.run(words, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == code, done.stderr
    [told] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert re.search(message, told)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) < 15


@pytest.mark.parametrize("number", [signal.SIGINT, *([signal.SIGTERM] if LONG else [])])
def test_run_that_is_interrupted_amid_spark_ends_at_once_and_says_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = command(tmp_path, "--warehouse", str(tmp_path / "lake"), "--master", "local[1]")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith("bronze.events"):
                break
        # From here on Spark is at work on the next table.
        run.send_signal(number)
        rest = run.stderr.read()
        assert run.wait(timeout=250) == 128 + number
    assert [line for line in rest.splitlines() if not line.startswith(("silver.", "gold."))] == []
    assert not list(tmp_path.glob("omnirelay-segments-*"))


def test_run_that_is_interrupted_while_spark_starts_ends_at_once_and_says_nothing(tmp_path: Path) -> None:
    words = command(tmp_path, "--warehouse", str(tmp_path / "lake"), "--master", "local[1]")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        next(line for line in run.stderr if "starting Spark" in line)
        run.send_signal(signal.SIGINT)
        rest = run.stderr.read()
        assert run.wait(timeout=250) == 128 + signal.SIGINT
    assert rest == ""
