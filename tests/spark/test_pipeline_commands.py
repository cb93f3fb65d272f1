"""The commands of the pipeline, as a person runs them, and the page of tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from omnirelay.lakehouse.tables import TABLES, reference
from tests.spark.workload import recorded, write_segments

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


def test_the_page_of_tables_is_what_the_schemas_say() -> None:
    assert (DOCS / "tables.md").read_text() == reference(), "write it anew: python -m omnirelay.lakehouse.tables"
    assert all(column.meaning for table in TABLES for column in table.columns)
