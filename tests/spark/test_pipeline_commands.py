"""The commands of the pipeline, as a person runs them, and the page of tables."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnirelay.errors import InvalidArgument
from omnirelay.lakehouse.columns import spark_schema
from omnirelay.lakehouse.formats import open_tables
from omnirelay.lakehouse.tables import TABLES, reference
from tests.property.strategies import LONG
from tests.spark.logs import write_segments as write_to
from tests.spark.pipeline_process import EVERY
from tests.spark.workload import recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.segment_logs import S3Server

DOCS = Path(__file__).parents[2] / "docs" / "lakehouse"


def lakehouse(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "omnirelay.cli", "lakehouse", *words],
        capture_output=True,
        text=True,
        timeout=250,
        env=environment,
        check=False,
    )


def test_run_makes_tables_and_says_what_it_did(tmp_path: Path) -> None:
    log = recorded("jobs", seed=17, steps=40)
    write_segments(tmp_path / "segments", log, pieces=3)
    last = sorted((tmp_path / "segments" / "jobs" / "segments").glob("*.parquet"))[-1]
    last.write_bytes(b"no Parquet")
    where = ("--source", str(tmp_path / "segments"), "--warehouse", str(tmp_path / "lake"))
    done = lakehouse("run", "--once", *where, "--format", "parquet", "--master", "local[1]", "-o", "json")
    assert done.returncode == 6, done.stderr
    answer = json.loads(done.stdout)
    [refused] = answer["refused"]
    assert refused["segment"] == last.name
    assert answer["progress"] == {"jobs": refused["sequence"] - 1}
    assert answer["segments"] == 2
    assert "gold.daily" in done.stderr


def test_rebuild_asks_first_and_bad_formats_are_refused(tmp_path: Path) -> None:
    where = ("--source", str(tmp_path), "--warehouse", str(tmp_path / "lake"))
    assert lakehouse("rebuild", *where).returncode == 2
    wrong = lakehouse("run", *where, "--format", "csv")
    assert wrong.returncode == 2
    assert "csv" in wrong.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--source", "there", "--warehouse", ""), "'--warehouse': is empty"),
        (("vacuum", "--warehouse", " "), "'--warehouse': is empty"),
        (("rebuild", "--yes", "--source", "", "--warehouse", "lake"), "'--source': is empty"),
        (("run", "--continuous", "--every", "inf", "--source", "there", "--warehouse", "lake"), "'--every'"),
    ],
)
def test_values_that_name_nothing_are_refused_before_anything_is_started(words: tuple[str, ...], message: str) -> None:
    done = lakehouse(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "starting" not in done.stderr


@pytest.mark.parametrize("warehouse", ["", " ", "file://", "/", "file:///"])
def test_warehouse_without_a_name_is_not_the_root_of_the_file_system(spark: SparkSession, warehouse: str) -> None:
    with pytest.raises(InvalidArgument, match="warehouse must name a directory"):
        open_tables(spark, warehouse, "parquet")


def options_of(server: S3Server) -> list[str]:
    return [word for name, value in server.options.items() for word in ("--option", f"{name}={value}")]


def test_segments_in_a_bucket_are_looked_for_with_the_options_of_its_store(s3: S3Server, tmp_path: Path) -> None:
    where = ("--source", s3.address("empty"), "--warehouse", str(tmp_path / "lake"), "--format", "parquet")
    for words in (("run",), ("rebuild", "--yes")):
        nameless = lakehouse(*words, *where, "--option", "region")
        assert nameless.returncode == 2
        assert "--option wants KEY=VALUE" in nameless.stderr
    # A store that is asked with the wrong options, or with none, would not be reached at all.
    nothing = lakehouse("run", *where, "--master", "local[1]", *options_of(s3))
    assert nothing.returncode == 4, nothing.stderr
    assert "there are no segments in s3://lake/empty" in nothing.stderr


def test_a_bucket_that_does_not_exist_ends_runs_instead_of_being_waited_for(s3: S3Server, tmp_path: Path) -> None:
    where = ("--source", "s3://nosuch/events", "--warehouse", str(tmp_path / "lake"), "--format", "parquet")
    never = lakehouse("run", "--continuous", "--every", "0.1", *where, "--master", "local[1]", *options_of(s3))
    assert never.returncode == 4, never.stderr
    assert "error.segments.none" in never.stderr
    assert "there is no bucket s3://nosuch/events" in never.stderr


@pytest.mark.skipif(not LONG, reason="every table of two runs: make spark-test")
@pytest.mark.timeout(900)
def test_tables_are_made_of_segments_in_a_bucket(s3: S3Server, tmp_path: Path) -> None:
    log = recorded("jobs", seed=17, steps=40)
    write_to(s3.address("events"), log.frames, **s3.options)
    where = ("--source", s3.address("events"), "--warehouse", str(tmp_path / "lake"), "--format", "parquet")
    for words in (("run",), ("rebuild", "--yes")):
        done = lakehouse(*words, *where, *options_of(s3), "--master", "local[1]", "-o", "json")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["progress"] == {"jobs": len(log.events)}
        assert len(answer["steps"]) == len(EVERY)


def test_the_page_of_tables_is_what_the_schemas_say() -> None:
    assert (DOCS / "tables.md").read_text() == reference(), "write it anew: python -m omnirelay.lakehouse.tables"
    assert all(column.meaning for table in TABLES for column in table.columns)
    bronze = reference().partition("## bronze.events")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \| [A-Z]+ \| \S", bronze, re.MULTILINE) == [*spark_schema().names, "date"]
