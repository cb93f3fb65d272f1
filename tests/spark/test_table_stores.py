"""What every format promises of a commit; Iceberg's promises are tested in its own lane."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from omnirelay.lakehouse.errors import SparkUnusable
from omnirelay.lakehouse.formats import TableOvertaken, TableStore, open_tables
from omnirelay.lakehouse.formats_delta import DeltaTables
from omnirelay.lakehouse.formats_parquet import ParquetTables
from omnirelay.lakehouse.progress import NOTHING, End, Progress
from omnirelay.lakehouse.sizing import PARTITIONS, Sizing, Suited
from omnirelay.lakehouse.tables import Column, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTES = Table(
    layer="silver",
    name="notes",
    meaning="a note",
    keys=("shard", "number"),
    columns=(Column("shard", "STRING", ""), Column("number", "BIGINT", ""), Column("text", "STRING", "")),
)
Stores = Callable[[], TableStore]


def upto(number: int) -> Progress:
    return {"a": End(number, "c0de", "log")}


@pytest.fixture(params=["delta", "parquet"])
def stores(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Stores:
    """Pipelines of one warehouse, in a session as it is for many rows."""
    return lambda: open_tables(spark, str(tmp_path / "lake"), request.param)


@pytest.fixture(params=["delta", "parquet"])
def few_stores(request: pytest.FixtureRequest, few_spark: SparkSession, tmp_path: Path) -> Stores:
    """The same in a session for few."""
    return lambda: open_tables(few_spark, str(tmp_path / "lake"), request.param)


def notes(store: TableStore, *rows: tuple[Any, ...]) -> DataFrame:
    return store.spark.createDataFrame(list(rows), NOTES.ddl)


def found(store: TableStore) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in store.read(NOTES).select("shard", "number", "text").collect())


def test_who_begins_from_a_place_that_was_left_writes_nothing(stores: Stores) -> None:
    quick, late = stores(), stores()
    assert quick.progress(NOTES) == late.progress(NOTES) == NOTHING
    quick.append(NOTES, notes(quick, ("a", 1, "x")), upto(1))
    # It has come further than the other; what it brings is in the table in part all the same.
    with pytest.raises(TableOvertaken, match="notes"):
        late.append(NOTES, notes(late, ("a", 1, "late"), ("a", 2, "late")), upto(2))
    assert late.progress(NOTES) == upto(1)
    quick.merge(NOTES, notes(quick, ("a", 1, "y"), ("a", 2, "y")), upto(2))
    with pytest.raises(TableOvertaken):
        late.merge(NOTES, notes(late, ("a", 1, "late")), upto(3))
    assert late.progress(NOTES) == upto(2)
    quick.replace(NOTES, notes(quick, ("a", 2, "z")), upto(3), where="number = 2")
    with pytest.raises(TableOvertaken):
        late.replace(NOTES, notes(late), upto(4), where="number > 0")
    assert (found(quick), quick.progress(NOTES)) == ([("a", 1, "y"), ("a", 2, "z")], upto(3))
    late.progress(NOTES)
    late.append(NOTES, notes(late, ("a", 3, "x")), upto(4))
    assert len(found(quick)) == 3


def test_a_table_may_say_that_it_came_further_and_stayed_as_it_was(few_stores: Stores) -> None:
    store, late = few_stores(), few_stores()
    store.stay(NOTES, upto(1))
    assert (found(store), store.progress(NOTES)) == ([], upto(1))
    store.append(NOTES, notes(store, ("a", 1, "x")), upto(2))
    assert late.progress(NOTES) == upto(2)
    store.stay(NOTES, upto(3))
    assert (found(store), store.progress(NOTES)) == ([("a", 1, "x")], upto(3))
    with pytest.raises(TableOvertaken):
        late.stay(NOTES, upto(4))
    store.merge(NOTES, notes(store, ("a", 1, "y")), upto(4))
    assert (found(store), store.progress(NOTES)) == ([("a", 1, "y")], upto(4))


def test_a_table_that_is_not_in_a_directory_is_asked_in_sql(
    few_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a bucket, where its log cannot be looked into."""
    monkeypatch.setattr(DeltaTables, "_local_log", lambda *_: None)
    store = DeltaTables(few_spark, str(tmp_path / "a `lake`"))
    assert (store.version(NOTES), store.progress(NOTES)) == (-1, NOTHING)
    store.append(NOTES, notes(store, ("a", 1, "x")), upto(1))
    store.merge(NOTES, notes(store, ("a", 1, "y")), upto(2), only="t.number > 0")
    store.optimize([NOTES])
    store.vacuum([NOTES], 0)
    assert (found(store), store.progress(NOTES)) == ([("a", 1, "y")], upto(2))
    assert store.version(NOTES) >= 1


def test_parquet_files_are_merged_and_removed_beside_a_run_without_losing_what_it_writes(
    few_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, upkeep = (ParquetTables(few_spark, str(tmp_path / "lake")) for _ in range(2))
    for number in (1, 2):
        run.progress(NOTES)
        run.append(NOTES, notes(run, ("a", number, "x")), upto(number))
    rows_of = upkeep._rows

    def overtaken_rows(table: Table, folders: Sequence[str]) -> DataFrame:
        run.progress(NOTES)
        run.append(NOTES, notes(run, ("a", 3, "meanwhile")), upto(3))
        return rows_of(table, folders)

    monkeypatch.setattr(upkeep, "_rows", overtaken_rows)
    with pytest.raises(TableOvertaken):
        upkeep.optimize([NOTES])
    assert ([number for _, number, _ in found(run)], run.progress(NOTES)) == ([1, 2, 3], upto(3))
    coming = Path(run.path(NOTES)) / "part-3-cafe"
    coming.mkdir()
    run.vacuum([NOTES], 0)
    assert coming.exists(), "a commit that names it may be on its way"
    assert len(found(run)) == 3


def test_parquet_folders_are_kept_by_when_they_were_replaced_and_not_by_when_they_were_written(
    few_spark: SparkSession, tmp_path: Path
) -> None:
    store = ParquetTables(few_spark, str(tmp_path / "lake"))
    folder = Path(store.path(NOTES))
    for number in (1, 2, 3):
        store.progress(NOTES)
        store.merge(NOTES, notes(store, ("a", 1, f"{number}")), upto(number))
    (folder / "part-1-left").mkdir()

    def grow_old(hours: float, *names: str) -> None:
        then = time.time() - hours * 3_600
        for path in (path for name in names for path in folder.glob(name)):
            os.utime(path, (then, then))

    def folders() -> list[str]:
        return sorted(path.name[: len("part-1-")] for path in folder.glob("part-*"))

    grow_old(300, "part-*", "_commits/*0.json")
    grow_old(200, "_commits/*1.json")
    grow_old(1, "_commits/*2.json")
    store.vacuum([NOTES], 168)
    # The first was replaced long ago, and what a crash left was never the table. The second was until an hour ago.
    assert folders() == ["part-1-", "part-2-"]
    store.vacuum([NOTES], 0.5)
    assert folders() == ["part-2-"]
    assert found(store) == [("a", 1, "3")]


def test_a_session_is_given_back_as_it_was(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.codegen.wholeStage"), spark.conf.get("spark.sql.shuffle.partitions")
    with Sizing(spark).suited(10):
        assert spark.conf.get("spark.sql.codegen.wholeStage") == "false"
    assert (spark.conf.get("spark.sql.codegen.wholeStage"), spark.conf.get("spark.sql.shuffle.partitions")) == before
    with Sizing(spark).suited(1 << 52):
        assert int(str(spark.conf.get("spark.sql.shuffle.partitions"))) <= 2_000


def test_iceberg_is_refused_on_a_spark_that_it_is_not_made_for(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(SparkUnusable, match=r"no Iceberg for Spark 4\.2.* pip install 'omnirelay\[iceberg\]'"):
        open_tables(spark, str(tmp_path), "iceberg")


def test_new_events_are_few_beyond_what_tables_with_few_hold(spark: SparkSession) -> None:
    sizing = Sizing(spark, few_events=100)
    assert sizing.suit(100, 100) == Suited(few=True, few_new=True)
    assert sizing.suit(101, 1) == Suited(few=False, few_new=True)
    assert sizing.suit(1_000, 300) == Suited(few=False, few_new=True)
    assert sizing.suit(1_000, 301) == Suited()
    assert sizing.suit(1_000) == Suited()


def test_a_run_is_cut_into_parts_by_what_is_new(spark: SparkSession) -> None:
    """Each part becomes a file: a long log must not get hundreds of small ones with every run."""
    sizing = Sizing(spark)

    def parts(events: int, new: int | None = None) -> int:
        assert sizing.suit(events, new) == Suited()
        return int(spark.conf.get(PARTITIONS) or 0)

    given = int(spark.conf.get(PARTITIONS) or 0)
    assert parts(100_000_000, 500_000) == max(given, 2)
    assert parts(100_000_000, 50_000_000) == 200
    assert parts(100_000_000) == 400
