"""What upkeep refuses: a place without tables, and removing what somebody may be at work on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnirelay.errors import InvalidArgument
from omnirelay.lakehouse import upkeep
from omnirelay.lakehouse.errors import TablesMissing
from omnirelay.lakehouse.formats import open_tables
from omnirelay.lakehouse.progress import End
from omnirelay.lakehouse.tables import QUARANTINE
from tests.cli.processes import omnirelay
from tests.property.strategies import LONG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_keeping_less_than_a_day_is_refused_unless_forced(tmp_path: Path) -> None:
    done = omnirelay("lakehouse", "vacuum", "--warehouse", str(tmp_path), "--keep-hours", "23.5")
    assert done.returncode == 5, done.stderr
    assert "error.lakehouse.keeps_too_little" in done.stderr
    assert "--force" in done.stderr
    upkeep.check_keep_hours(24)
    upkeep.check_keep_hours(0, force=True)


@pytest.mark.parametrize("hours", [-1.0, math.nan, math.inf])
def test_what_is_no_number_of_hours_is_refused_by_name(hours: float) -> None:
    with pytest.raises(InvalidArgument, match="keep-hours"):
        upkeep.check_keep_hours(hours, force=True)


def test_stores_without_tables_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """As in a bucket, which is not looked into before Spark runs."""
    store = open_tables(spark, str(tmp_path / "lake"), "delta")
    with pytest.raises(TablesMissing, match="lake"):
        upkeep.optimize(store)
    with pytest.raises(TablesMissing, match="lake"):
        upkeep.vacuum(store)


@pytest.mark.skipif(not LONG, reason="Delta takes long to look for files: make spark-test")
def test_vacuum_says_nothing_but_how_many_tables(spark: SparkSession, tmp_path: Path) -> None:
    store = open_tables(spark, str(tmp_path / "lake"), "delta")
    store.append(QUARANTINE, store.spark.createDataFrame([], QUARANTINE.ddl), {"": End(1)})
    done = omnirelay("lakehouse", "vacuum", "--warehouse", str(tmp_path / "lake"), "--master", "local[1]")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines() == ["starting Spark", "1 tables vacuumed"]


@pytest.mark.skipif(not LONG, reason="Delta takes long to look for files: make spark-test")
def test_files_on_their_way_survive_a_day(spark: SparkSession, tmp_path: Path) -> None:
    """Delta cannot tell a file that a run will commit from one that a crash left: only its age speaks for it."""
    store = open_tables(spark, str(tmp_path / "lake"), "delta")
    rows = store.spark.createDataFrame([], QUARANTINE.ddl)
    store.append(QUARANTINE, rows, {"": End(1)})
    coming = Path(store.path(QUARANTINE)) / "part-00000-of-a-run.parquet"
    coming.write_bytes(b"on its way")
    assert upkeep.vacuum(store, upkeep.KEEP_HOURS_MIN) == [QUARANTINE]
    assert coming.exists()
    assert upkeep.vacuum(store, 0, force=True) == [QUARANTINE]
    assert not coming.exists(), "then the floor protects nobody"
