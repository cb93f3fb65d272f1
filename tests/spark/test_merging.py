"""What a merge writes again: rows that may still change are kept apart from those that are done with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from omnirelay.lakehouse.formats import TableOvertaken
from omnirelay.lakehouse.formats_delta import DeltaTables, _bare
from omnirelay.lakehouse.progress import End
from omnirelay.lakehouse.silver import of_shards, open_or_back
from omnirelay.lakehouse.sizing import PARTITIONS
from omnirelay.lakehouse.tables import ITEMS, Column, Table
from tests.spark.test_table_stores import NOTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORK = Table(
    layer="silver",
    name="work",
    meaning="a piece of work",
    keys=("shard", "item"),
    columns=(Column("shard", "STRING", ""), Column("item", "BIGINT", ""), Column("ended_at", "BIGINT", "")),
    partition=("shard",),
    open="ended_at",
)
BY_EVENT = msgspec.structs.replace(WORK, event="item")
UPTO = {"jobs": End(20)}
Row = tuple[str, int, int | None]


def store_in(directory: Path, spark: SparkSession) -> DeltaTables:
    """Rows that are done with come to lie in more than one file."""
    spark.conf.set(PARTITIONS, "2")
    return DeltaTables(spark, str(directory / "lake"))


def files(store: DeltaTables) -> set[str]:
    return set(DeltaTable(store.path(WORK)).file_uris())


def rows(store: DeltaTables) -> list[Row]:
    return sorted(tuple(row) for row in store.read(WORK).select(*WORK.names).collect())


def put(store: DeltaTables, *new: Row, upto: int, shard: str = "jobs", table: Table = WORK) -> None:
    store.progress(table)
    only = f"{of_shards([shard], 't.')} AND (t.ended_at IS NULL)"
    store.merge(table, store.spark.createDataFrame(new, table.ddl), {shard: End(upto)}, only=only)


def test_rows_that_are_done_with_are_not_written_again(few_spark: SparkSession, tmp_path: Path) -> None:
    store = store_in(tmp_path, few_spark)
    put(store, *(("jobs", item, 10) for item in range(1, 20)), ("jobs", 20, None), ("jobs", 21, None), upto=1)
    first = files(store)
    put(store, ("jobs", 20, 30), ("jobs", 22, None), upto=2)
    second = files(store)
    done = {path for path in first if "jobs" in path} & second
    assert done, "the files of rows that had ended are as they were"
    assert len(first - second) == 1, "only the file of rows that had not is gone"
    assert rows(store)[-3:] == [("jobs", 20, 30), ("jobs", 21, None), ("jobs", 22, None)]
    put(store, ("jobs", 21, 40), ("jobs", 22, 41), upto=3)
    assert second & files(store) > done, "those that ended meanwhile are done with, too"
    assert rows(store) == [
        *(("jobs", item, 10) for item in range(1, 20)),
        *zip(["jobs"] * 3, (20, 21, 22), (30, 40, 41), strict=True),
    ]


def test_rows_that_are_done_with_lie_in_files_by_the_event_that_began_them(
    few_spark: SparkSession, tmp_path: Path
) -> None:
    """So what is asked of the last minutes is found in a few files."""
    store = store_in(tmp_path, few_spark)
    store.append(BY_EVENT, store.spark.createDataFrame([("jobs", item, 10) for item in range(1, 20)], WORK.ddl), UPTO)
    older, newer = sorted(sorted(pq.read_table(file, columns=["item"])["item"].to_pylist()) for file in files(store))
    assert older + newer == list(range(1, 20))
    assert len(store.read(WORK).where("item > 15").inputFiles()) == 1


def items(store: DeltaTables, first: int, last: int, *, ended: str) -> DataFrame:
    """Items that came in one after the other, each with two events; those for which it is true have ended."""
    said = {"shard": "'jobs'", "item": "id", "first_sequence": "2 * id"}
    said["ended_at"] = f"IF({ended.replace('item', 'id')}, timestamp_millis(id), NULL)"
    values = (f"CAST({said.get(each.name, 'NULL')} AS {each.type}) AS {each.name}" for each in ITEMS.columns)
    return store.spark.range(first, last + 1).selectExpr(*values)


def test_items_that_are_done_with_lie_in_files_by_when_they_came_in(few_spark: SparkSession, tmp_path: Path) -> None:
    """An item that comes back is found in a few files: those of a large load would each span all items."""
    few_spark.conf.set(PARTITIONS, "4")
    store = DeltaTables(few_spark, str(tmp_path / "lake"))
    store.append(ITEMS, items(store, 1, 400, ended="true"), {"jobs": End(800)})
    assert len(store.read(ITEMS).inputFiles()) == 4
    assert len(store.read(ITEMS).where("item >= 350").inputFiles()) == 1


def test_rows_that_may_still_change_lie_in_files_by_when_they_came_in(few_spark: SparkSession, tmp_path: Path) -> None:
    """Of a long queue a run changes what is first and what is last."""
    few_spark.conf.set(PARTITIONS, "4")
    store = DeltaTables(few_spark, str(tmp_path / "lake"))
    store.append(ITEMS, items(store, 1, 400, ended="item < 0"), {"jobs": End(800)})
    assert len(store.read(ITEMS).inputFiles()) == 4
    assert len(store.read(ITEMS).where("item <= 50").inputFiles()) == 1


def in_small_runs(store: DeltaTables, runs: int) -> None:
    """Each brings a hundred items, of which every tenth goes on for ever."""
    for run in range(runs):
        store.progress(ITEMS)
        new = items(store, 100 * run + 1, 100 * run + 100, ended="item % 10 > 0")
        store.merge(ITEMS, new, {"jobs": End(200 * run + 200, events=200 * run + 200)}, only="t.ended_at IS NULL")


def test_optimize_keeps_rows_that_may_still_change_apart_and_others_by_when_they_came_in(
    few_spark: SparkSession, tmp_path: Path
) -> None:
    few_spark.conf.set(PARTITIONS, "2")
    store = DeltaTables(few_spark, str(tmp_path / "lake"), file_events=400)
    in_small_runs(store, 4)
    before = sorted(store.read(ITEMS).collect())
    progress = store.progress(ITEMS)

    def read_for(condition: str) -> set[str]:
        return set(store.read(ITEMS).where(condition).inputFiles())

    assert len(read_for("ended_at IS NOT NULL")) > 4
    store.optimize([ITEMS])
    done, may_change = read_for("ended_at IS NOT NULL"), read_for("ended_at IS NULL")
    assert (len(done), len(may_change)) == (2, 2)
    assert done.isdisjoint(may_change)
    assert len(read_for("ended_at IS NOT NULL AND item > 350")) == 1, "an item that comes back is found in one of them"
    assert sorted(store.read(ITEMS).collect()) == before
    assert store.progress(ITEMS) == progress
    newest = store.version(ITEMS)
    store.optimize([ITEMS])
    assert store.version(ITEMS) == newest, "it is in order"

    store.progress(ITEMS)
    store.merge(
        ITEMS, items(store, 10, 10, ended="true"), {"jobs": End(802)}, only="t.ended_at IS NULL AND t.item = 10"
    )
    assert done < set(store.read(ITEMS).inputFiles()), "the run behind it writes none of these again"
    assert store.progress(ITEMS) == {"jobs": End(802)}


def test_optimize_and_a_run_that_begin_from_the_same_place_exclude_each_other(
    few_spark: SparkSession, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    run = DeltaTables(few_spark, lake)
    in_small_runs(run, 2)
    run.progress(ITEMS)
    DeltaTables(few_spark, lake).optimize([ITEMS])
    with pytest.raises(TableOvertaken):
        run.append(ITEMS, items(run, 201, 201, ended="true"), {"jobs": End(402)})
    assert run.read(ITEMS).count() == 200

    class Slow(DeltaTables):
        """Upkeep that has looked at the rows when somebody else changes them."""

        def read(self, table: Table) -> DataFrame:
            rows = super().read(table)
            run.progress(table)
            run.append(table, items(run, 201, 300, ended="true"), {"jobs": End(600)})
            return rows

    run.progress(ITEMS)
    run.append(ITEMS, items(run, 301, 301, ended="true"), {"jobs": End(500)})
    with pytest.raises(TableOvertaken):
        Slow(few_spark, lake).optimize([ITEMS])
    assert run.read(ITEMS).count() == 301, "nothing that came meanwhile is lost"
    assert run.progress(ITEMS) == {"jobs": End(600)}


def test_files_from_before_rows_were_put_in_order_are_merged_with(few_spark: SparkSession, tmp_path: Path) -> None:
    store = store_in(tmp_path, few_spark)
    put(store, *(("jobs", item, 10) for item in range(1, 20)), ("jobs", 20, None), upto=20)
    hashed = files(store)
    new: list[Row] = [("jobs", item, 30) for item in range(21, 40)]
    put(store, ("jobs", 20, 30), *new, ("jobs", 40, None), upto=40, table=BY_EVENT)
    assert len(hashed - files(store)) == 1, "only the file of the row that was open"
    assert rows(store) == [
        *(("jobs", item, 10) for item in range(1, 20)),
        ("jobs", 20, 30),
        *new,
        ("jobs", 40, None),
    ]
    assert len(set(store.read(BY_EVENT).where("item > 35 AND ended_at IS NOT NULL").inputFiles()) - hashed) == 1


def test_open_rows_of_other_shards_stay_as_they_are(few_spark: SparkSession, tmp_path: Path) -> None:
    strange = "it's t.007"
    store = store_in(tmp_path, few_spark)
    put(store, (strange, 1, None), ("jobs", 1, None), upto=1)
    before = files(store)
    put(store, (strange, 1, 5), (strange, 2, None), upto=2, shard=strange)
    assert rows(store) == sorted([(strange, 1, 5), (strange, 2, None), ("jobs", 1, None)])
    assert len(before & files(store)) == 1


@pytest.mark.parametrize("shard", ["jobs", "it's t.007", "t.", "\\", "'"])
def test_a_condition_loses_the_name_of_the_table_and_nothing_else(shard: str) -> None:
    ranges = {shard: (7, 9)}
    assert _bare(open_or_back(ranges, ranges, "t.")) == open_or_back(ranges, ranges)
    assert _bare(of_shards([shard], "t.")) == of_shards([shard])


@pytest.mark.parametrize("small_bytes", [0, 1_000_000])
def test_a_small_table_that_is_written_whole_holds_what_a_large_one_does(
    spark: SparkSession, tmp_path: Path, small_bytes: int
) -> None:
    store = DeltaTables(spark, str(tmp_path / "lake"), small_bytes=small_bytes)

    def notes(*new: tuple[str, int | None, str | None]) -> DataFrame:
        return store.spark.createDataFrame(new, NOTES.ddl)

    def upto(number: int) -> dict[str, End]:
        return {"a": End(number)}

    store.append(NOTES, notes(("a", 1, "x"), ("a", 2, "x"), ("b", 2, "x"), ("b", None, "x"), ("b", 3, None)), upto(1))
    # The first is not to be replaced, and neither is one of which the condition says nothing: the new ones go beside.
    store.merge(NOTES, notes(("a", 1, "y"), ("a", 2, "y"), ("b", None, "y")), upto(2), only="t.number > 1")
    store.replace(NOTES, notes(("b", 2, "z")), upto(3), where="shard = 'b' AND text >= 'x' AND number < 3")
    assert sorted(map(repr, store.read(NOTES).collect())) == sorted(
        f"Row(shard={shard!r}, number={number!r}, text={text!r})"
        for shard, number, text in [
            ("a", 1, "x"),
            ("a", 1, "y"),
            ("a", 2, "y"),
            ("b", 2, "z"),
            ("b", 3, None),
            ("b", None, "x"),
            ("b", None, "y"),
        ]
    )
    assert store.progress(NOTES) == upto(3)
    # Only of a part that is replaced Delta writes down what it is.
    newest = DeltaTable(store.path(NOTES)).history(1)[0]["operationParameters"]
    assert ("predicate" in newest) == (small_bytes == 0)
