"""From a log to every table in Iceberg, by a run that is cut off between two commits, beside a clean run in Delta."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from omnirelay.lakehouse.pipeline import Pipeline
from omnirelay.lakehouse.tables import EVENTS, GOLD, ITEMS, LEASES, SILVER, TABLES, Table
from tests.spark.plain import Plain
from tests.spark.workload import Recorded, recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY = (EVENTS, *SILVER, *GOLD)
Rows = list[dict[str, Any]]

# Dozens of commits, which take minutes on a machine that has other work.
pytestmark = pytest.mark.timeout(1_800)


class Killed(Exception):
    """The process is no more."""


@pytest.fixture(scope="module")
def log() -> Recorded:
    return recorded("it's 007", seed=17, steps=120)


@pytest.fixture(scope="module")
def in_delta(whole_spark: SparkSession, log: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Everything in one run."""
    place = tmp_path_factory.mktemp("delta")
    write_segments(place / "segments", log, pieces=2)
    pipeline = Pipeline(whole_spark, str(place / "segments"), str(place / "lake"), "delta")
    assert pipeline.run().events == len(log.events)
    return pipeline


@pytest.fixture(scope="module")
def in_iceberg(whole_spark: SparkSession, log: Recorded, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Half of it, by a run that ends between two commits; then the rest."""
    place = tmp_path_factory.mktemp("iceberg")
    half = len(log.frames) // 2

    def pipeline(**how: Any) -> Pipeline:
        # By merges, as a log is kept that is not small; that in Delta is written whole.
        where = (str(place / "segments"), str(place / "lake"))
        return Pipeline(whole_spark, *where, "iceberg", few_events=0, **how)

    def killed(point: str) -> None:
        if point == "silver.items":
            raise Killed

    write_segments(place / "segments", log, last=half)
    with pytest.raises(Killed):
        pipeline(failpoint=killed).run()
    write_segments(place / "segments", log, first=half, pieces=2)
    again = pipeline()
    summary = again.run()
    assert summary.progress == {log.shard: len(log.events)}
    return again


def rows_in(pipeline: Pipeline, table: Table) -> list[tuple[Any, ...]]:
    frame = pipeline.tables.read(table)
    return sorted((tuple(row) for row in frame.select(*sorted(frame.columns)).collect()), key=repr)


def by_pyiceberg(pipeline: Pipeline, table: Table) -> Any:
    return StaticTable.from_metadata(pipeline.tables.path(table)).scan().to_arrow()


def in_order(rows: Rows, key: str) -> Rows:
    return sorted(rows, key=lambda row: row[key])


def test_a_run_that_was_cut_off_and_repeated_ends_like_a_clean_one_in_another_format(
    in_iceberg: Pipeline, in_delta: Pipeline
) -> None:
    for table in EVERY:
        expected = rows_in(in_delta, table)
        assert expected or table.name == "anomalies", f"{table.name} is empty, which proves nothing"
        assert rows_in(in_iceberg, table) == expected, table.name


def test_leases_and_items_are_what_a_plain_loop_over_the_events_makes_of_them(
    in_iceberg: Pipeline, in_delta: Pipeline, log: Recorded
) -> None:
    plain = Plain(log.shard, log.events)
    for table, key, expected in ((LEASES, "fence", plain.lease_rows()), (ITEMS, "item", plain.item_rows())):
        delta = DeltaTable(in_delta.tables.path(table)).to_pyarrow_table()
        for found in (by_pyiceberg(in_iceberg, table), delta):
            assert in_order(found.to_pylist(), key) == in_order(expected, key)


def test_others_read_the_tables(in_iceberg: Pipeline, log: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without it Polars warns of a quicker way, for which it takes another package.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    events = len(log.events)
    path = in_iceberg.tables.path(EVENTS)
    arrow = by_pyiceberg(in_iceberg, EVENTS)
    with duckdb.connect() as database:
        database.register("events", arrow)
        counted = database.execute("SELECT count(*), count(DISTINCT sequence), max(sequence) FROM events").fetchone()
    assert counted == (events, events, events)
    assert polars.scan_iceberg(StaticTable.from_metadata(path)).select("sequence").collect().height == events
    for table in EVERY:
        assert set(table.names) <= set(by_pyiceberg(in_iceberg, table).schema.names)


def test_a_run_with_nothing_new_commits_nothing(in_iceberg: Pipeline) -> None:
    def state() -> set[Path]:
        lake = Path(in_iceberg.tables.warehouse)
        return {path for path in lake.rglob("*") if path.suffix in (".json", ".avro", ".parquet")}

    before = state()
    assert not in_iceberg.run().changed
    assert state() == before


def test_upkeep_changes_no_row_and_the_next_run_knows_where_it_was(in_iceberg: Pipeline) -> None:
    chosen = (EVENTS, LEASES)
    before = [rows_in(in_iceberg, table) for table in chosen]
    in_iceberg.tables.optimize(chosen)
    in_iceberg.tables.vacuum(chosen, 0)
    assert [rows_in(in_iceberg, table) for table in chosen] == before
    assert not in_iceberg.run().changed
    assert {table.name for table in TABLES if not in_iceberg.tables.exists(table)} == {"quarantine"}
