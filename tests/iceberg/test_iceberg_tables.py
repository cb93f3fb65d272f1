"""One table in Iceberg: what a commit promises, and what upkeep leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.table import StaticTable

from omnirelay.errors import DataLoss, InvalidArgument
from omnirelay.lakehouse.formats import TableOvertaken
from omnirelay.lakehouse.formats_iceberg import IcebergTables
from omnirelay.lakehouse.progress import NOTHING, End, Progress
from omnirelay.lakehouse.tables import Column, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTES = Table(layer="silver", name="notes", meaning="a note", keys=("shard", "number"), partition=("shard",))


def upto(number: int) -> Progress:
    return {"a": End(number, "c0de", "log")}


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path) -> IcebergTables:
    return IcebergTables(spark, str(tmp_path / "lake"))


def notes(
    store: IcebergTables, *rows: tuple[Any, ...], columns: str = "shard string, number bigint, text string"
) -> DataFrame:
    return store.spark.createDataFrame(list(rows), columns)


def found(store: IcebergTables) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in store.read(NOTES).collect())


def as_others_see_it(store: IcebergTables) -> StaticTable:
    """The table for those who have no Spark."""
    return StaticTable.from_metadata(store.path(NOTES))


def branches(store: IcebergTables) -> set[str]:
    return set(as_others_see_it(store).metadata.refs)


def test_a_table_begins_with_nothing_and_every_commit_says_how_far_it_came(store: IcebergTables) -> None:
    assert (store.exists(NOTES), store.version(NOTES), store.progress(NOTES)) == (False, -1, NOTHING)
    store.append(NOTES, notes(store, ("a", 1, "x")), upto(1))
    first = store.version(NOTES)
    assert (store.exists(NOTES), store.progress(NOTES)) == (True, upto(1))
    store.append(NOTES, notes(store, ("a", 2, "y"), ("b", 1, "z")), upto(2))
    assert store.version(NOTES) > first
    assert found(store) == [("a", 1, "x"), ("a", 2, "y"), ("b", 1, "z")]
    assert as_others_see_it(store).scan().to_arrow().num_rows == 3
    assert branches(store) == {"main"}


def test_rows_are_merged_by_their_keys_and_replaced_by_a_condition(store: IcebergTables) -> None:
    store.merge(NOTES, notes(store, ("a", 1, "x"), ("a", 2, "x")), upto(1), only="t.number > 0")
    store.merge(NOTES, notes(store, ("a", 2, "y"), ("b", 2, "y")), upto(2), only="t.number >= 2")
    assert found(store) == [("a", 1, "x"), ("a", 2, "y"), ("b", 2, "y")]
    store.replace(NOTES, notes(store, ("a", 3, "z")), upto(3), where="shard = 'a' AND number > 1")
    assert found(store) == [("a", 1, "x"), ("a", 3, "z"), ("b", 2, "y")]
    assert store.progress(NOTES) == upto(3)


def test_a_change_of_no_rows_moves_the_progress(store: IcebergTables) -> None:
    store.append(NOTES, notes(store, ("a", 1, "x")), upto(1))
    store.merge(NOTES, notes(store), upto(2))
    assert store.progress(NOTES) == upto(2)
    store.replace(NOTES, notes(store), upto(3), where="number > 5")
    assert (store.progress(NOTES), found(store)) == (upto(3), [("a", 1, "x")])


def test_columns_that_come_later_are_added_and_those_that_rows_lack_are_kept(store: IcebergTables) -> None:
    more = "shard string, number bigint, text string, mood string"
    store.append(NOTES, notes(store, ("a", 1, "x")), upto(1))
    store.append(NOTES, notes(store, ("a", 2, "y", "good"), columns=more), upto(2))
    assert found(store) == [("a", 1, "x", None), ("a", 2, "y", "good")]
    store.merge(NOTES, notes(store, ("a", 2, "z"), ("a", 3, "z")), upto(3))
    assert found(store) == [("a", 1, "x", None), ("a", 2, "z", "good"), ("a", 3, "z", None)]
    store.merge(NOTES, notes(store, ("a", 1, 7), columns="shard string, number bigint, size bigint"), upto(4))
    assert found(store)[0] == ("a", 1, "x", None, 7)


@pytest.mark.parametrize("change", ["append", "merge", "replace"])
def test_of_two_that_begin_from_the_same_place_one_commits(
    store: IcebergTables, spark: SparkSession, change: str
) -> None:
    store.append(NOTES, notes(store, ("a", 1, "x")), upto(1))
    late = IcebergTables(spark, store.warehouse)
    assert late.progress(NOTES) == upto(1)
    store.append(NOTES, notes(store, ("a", 2, "x")), upto(2))
    more = {"where": "true"} if change == "replace" else {}
    with pytest.raises(TableOvertaken, match="notes"):
        getattr(late, change)(NOTES, notes(late, ("a", 2, "late"), ("a", 3, "late")), upto(3), **more)
    assert (found(store), store.progress(NOTES)) == ([("a", 1, "x"), ("a", 2, "x")], upto(2))
    assert late.progress(NOTES) == upto(2)
    late.append(NOTES, notes(late, ("a", 3, "x")), upto(3))
    assert (len(found(store)), branches(store)) == (3, {"main"})


def test_of_two_that_make_the_table_one_does(store: IcebergTables, spark: SparkSession) -> None:
    late = IcebergTables(spark, store.warehouse)
    assert late.progress(NOTES) == store.progress(NOTES) == NOTHING
    store.append(NOTES, notes(store, ("a", 1, "x")), upto(1))
    with pytest.raises(TableOvertaken):
        late.append(NOTES, notes(late, ("a", 1, "late")), upto(1))
    assert found(store) == [("a", 1, "x")]


def test_who_finds_another_at_work_comes_again(store: IcebergTables, spark: SparkSession) -> None:
    store.append(NOTES, notes(store, ("a", 1, "x")), upto(1))
    late = IcebergTables(spark, store.warehouse)
    with store._alone(NOTES), pytest.raises(TableOvertaken):
        late.append(NOTES, notes(late, ("a", 2, "x")), upto(2))
    assert found(store) == [("a", 1, "x")]


def test_the_table_that_moves_while_a_change_is_written_refuses_it(store: IcebergTables, spark: SparkSession) -> None:
    """As where no lock is: between the writing of a branch and its becoming the table."""
    store.append(NOTES, notes(store, ("a", 1, "x")), upto(1))
    name = "omnirelay_iceberg.silver.notes"

    def change(branch: str) -> None:
        store._add(NOTES, branch, notes(store, ("a", 2, "late")))
        store.spark.sql(f"INSERT INTO {name} VALUES ('a', 2, 'first')")

    with pytest.raises(TableOvertaken):
        store._commit(NOTES, notes(store), upto(2), change)
    assert found(store) == [("a", 1, "x"), ("a", 2, "first")]
    assert branches(store) == {"main"}


def test_what_a_crash_left_is_seen_by_nobody_and_goes_with_the_next_vacuum(
    store: IcebergTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append(NOTES, notes(store, ("a", 1, "x")), upto(1))

    def killed(*_: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        # Neither the change nor what tidies up after it comes to its end, and a day passes in a millisecond.
        patch.setattr(store._metadata, "publish", killed)
        patch.setattr(store._metadata, "unbranch", killed)
        patch.setattr("omnirelay.lakehouse.iceberg_metadata._BRANCH_LIFE_MS", 1)
        with pytest.raises(KeyboardInterrupt):
            store.append(NOTES, notes(store, ("a", 2, "lost")), upto(2))
    assert (found(store), store.progress(NOTES), len(branches(store))) == ([("a", 1, "x")], upto(1), 2)
    store.append(NOTES, notes(store, ("a", 2, "y")), upto(2))
    assert len(list(Path(store.path(NOTES)).rglob("*.parquet"))) == 3
    store.vacuum([NOTES], 0)
    assert len(list(Path(store.path(NOTES)).rglob("*.parquet"))) == 2
    assert (found(store), branches(store)) == ([("a", 1, "x"), ("a", 2, "y")], {"main"})


def test_upkeep_changes_no_row_and_keeps_the_progress(store: IcebergTables) -> None:
    for number in range(1, 7):
        store.append(NOTES, notes(store, ("a", number, "x")), upto(number))
    before = found(store)
    files = len(list(as_others_see_it(store).scan().plan_files()))
    assert files == 6
    store.optimize([NOTES])
    assert len(list(as_others_see_it(store).scan().plan_files())) == 1
    assert (found(store), store.progress(NOTES)) == (before, upto(6))
    store.vacuum([NOTES], 0)
    assert (found(store), store.progress(NOTES)) == (before, upto(6))
    assert len(as_others_see_it(store).metadata.snapshots) == 1
    assert len(list(Path(store.path(NOTES)).rglob("*.parquet"))) == 1
    version = store.version(NOTES)
    store.optimize([NOTES])
    assert store.version(NOTES) == version, "there was nothing to do"
    store.append(NOTES, notes(store, ("a", 7, "x")), upto(7))
    store.drop(NOTES)
    assert (store.exists(NOTES), store.progress(NOTES)) == (False, NOTHING)


def test_a_table_that_does_not_say_how_far_it_came_is_refused(store: IcebergTables) -> None:
    store.spark.sql("CREATE TABLE omnirelay_iceberg.silver.notes (number bigint) USING iceberg")
    store.spark.sql("INSERT INTO omnirelay_iceberg.silver.notes VALUES (1)")
    with pytest.raises(DataLoss, match=r"silver/notes says how far .* lakehouse rebuild"):
        store.progress(NOTES)


def test_a_warehouse_without_safe_renames_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidArgument, match=r"needs a directory or HDFS .* got 's3://lake'"):
        IcebergTables(spark, "s3://lake")


def test_columns_of_every_type_that_tables_have_come_back(store: IcebergTables) -> None:
    from omnirelay.lakehouse.tables import TABLES

    kinds = sorted({column.type for table in TABLES for column in table.columns})
    columns = tuple(Column(f"c{place}", kind, "") for place, kind in enumerate(kinds))
    table = Table(layer="gold", name="kinds", meaning="", keys=("c0",), columns=columns)
    rows = store.spark.createDataFrame([tuple(None for _ in kinds)], table.ddl)
    store.append(table, rows, upto(1))
    assert store.read(table).schema == rows.schema
