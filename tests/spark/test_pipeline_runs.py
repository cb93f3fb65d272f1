"""From a real log to every table: at once, in small runs that are cut off after every commit, and read by others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable

from omnirelay.errors import InvalidArgument, OmniRelayError, Unimplemented
from omnirelay.lakehouse.pipeline import Pipeline
from omnirelay.lakehouse.tables import EVENTS, GOLD, ITEMS, LEASES, SILVER, TABLES, Table
from tests.spark.plain import Plain
from tests.spark.workload import Recorded, recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY = (EVENTS, *SILVER, *GOLD)
Rows = list[tuple[Any, ...]]

# Dozens of Delta commits in one test, which take minutes on a machine with two cores.
pytestmark = [
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(os.environ.get("OMNIRELAY_LONG") != "1", reason="the long form only: make spark-test"),
]


class Killed(Exception):
    """The process is no more."""


@pytest.fixture(scope="module")
def quick_spark(whole_spark: SparkSession) -> SparkSession:
    """A session for a few hundred rows: nothing to spread over tasks, and nothing to adapt to."""
    session = whole_spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return session


@pytest.fixture(scope="module")
def logs() -> list[Recorded]:
    return [recorded("jobs", seed=17, steps=300), recorded("it's 007", seed=4, steps=60)]


@pytest.fixture(scope="module")
def clean(quick_spark: SparkSession, logs: list[Recorded], tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Everything in one run."""
    place = tmp_path_factory.mktemp("clean")
    for log in logs:
        write_segments(place / "segments", log, pieces=3)
    pipeline = Pipeline(quick_spark, str(place / "segments"), str(place / "warehouse"))
    summary = pipeline.run()
    assert summary.events == sum(len(log.events) for log in logs)
    assert summary.progress == {log.shard: len(log.events) for log in logs}
    assert len(summary.steps) == len(EVERY)
    return pipeline


def rows_of(pipeline: Pipeline, table: Table) -> Rows:
    frame = pipeline.tables.read(table)
    names = sorted(frame.columns)
    rows = [tuple(row) for row in frame.select(*names).collect()]
    return sorted(rows, key=repr)


def assert_same_tables(one: Pipeline, other: Pipeline) -> None:
    for table in EVERY:
        expected = rows_of(other, table)
        assert expected or table.name == "anomalies", f"{table.name} is empty, which proves nothing"
        assert rows_of(one, table) == expected, table.name


def test_leases_and_items_are_what_a_plain_loop_over_the_events_makes_of_them(
    clean: Pipeline, logs: list[Recorded]
) -> None:
    plain = [Plain(log.shard, log.events) for log in logs]
    outcomes = {row["outcome"] for each in plain for row in each.lease_rows()}
    assert outcomes == {"completed", "failed", "released", "expired", "cancelled", None}
    states = {row["state"] for each in plain for row in each.item_rows()}
    assert states == {"pending", "leased", "completed", "dead", "cancelled", "drained"}
    for table, key, expected in (
        (LEASES, "fence", [row for each in plain for row in each.lease_rows()]),
        (ITEMS, "item", [row for each in plain for row in each.item_rows()]),
    ):
        found = DeltaTable(clean.tables.path(table)).to_pyarrow_table().to_pylist()
        assert len(found) == len(expected)
        in_order = sorted(expected, key=lambda row: (row["shard"], row[key]))
        for row, wanted in zip(sorted(found, key=lambda row: (row["shard"], row[key])), in_order, strict=True):
            assert row == wanted


def test_many_runs_that_are_cut_off_after_every_commit_end_like_one(
    clean: Pipeline, quick_spark: SparkSession, logs: list[Recorded], tmp_path: Path
) -> None:
    segments, warehouse = tmp_path / "segments", str(tmp_path / "warehouse")
    killed: list[str] = []

    def once_each(point: str) -> None:
        if point not in killed:
            killed.append(point)
            raise Killed(point)

    def run(**how: Any) -> Pipeline:
        pipeline = Pipeline(quick_spark, str(segments), warehouse, **how)
        pipeline.run()
        return pipeline

    jobs, other = logs
    half = len(jobs.frames) // 2
    write_segments(segments, jobs, last=half - 40)
    run()
    # Each run is killed behind its first commit that no other was killed behind; and meanwhile the log goes on.
    write_segments(segments, jobs, first=half - 40, last=half, pieces=2)
    for table in EVERY:
        if table is SILVER[1]:
            write_segments(segments, jobs, first=half, last=half + 30)
        with pytest.raises(Killed):
            run(failpoint=once_each)
    assert killed == [f"{table.layer}.{table.name}" for table in EVERY]
    write_segments(segments, jobs, first=half + 30, pieces=2)
    write_segments(segments, other, pieces=3)
    assert_same_tables(run(), clean)


def test_a_run_with_nothing_new_commits_nothing(clean: Pipeline) -> None:
    before = {table.name: clean.tables.version(table) for table in TABLES}
    summary = clean.run()
    assert not summary.changed
    assert (summary.events, summary.segments, summary.refused) == (0, 0, [])
    assert {table.name: clean.tables.version(table) for table in TABLES} == before


def test_parquet_tables_hold_the_same(
    clean: Pipeline, quick_spark: SparkSession, logs: list[Recorded], tmp_path: Path
) -> None:
    pipeline = Pipeline(quick_spark, str(tmp_path / "segments"), str(tmp_path / "warehouse"), "parquet")
    jobs, other = logs
    write_segments(tmp_path / "segments", jobs, last=200)
    pipeline.run()
    write_segments(tmp_path / "segments", jobs, first=200)
    write_segments(tmp_path / "segments", other)
    pipeline.run()
    assert_same_tables(pipeline, clean)
    assert not pipeline.run().changed
    pipeline.tables.optimize(TABLES)
    pipeline.tables.vacuum(TABLES, 0)
    assert not pipeline.run().changed
    assert_same_tables(pipeline, clean)


def test_others_read_the_tables(clean: Pipeline, logs: list[Recorded]) -> None:
    leases = sum(len(Plain(log.shard, log.events).leases) for log in logs)
    path = clean.tables.path(LEASES)
    table = DeltaTable(path).to_pyarrow_table()
    assert table.num_rows == leases
    assert polars.read_delta(path).height == leases
    with duckdb.connect() as database:
        database.register("leases", table)
        counted = database.execute("SELECT count(*), count(DISTINCT (shard, fence)) FROM leases").fetchone()
    assert counted == (leases, leases)
    for each in EVERY:
        assert set(each.names) <= set(DeltaTable(clean.tables.path(each)).to_pyarrow_table().schema.names)


def test_upkeep_changes_no_row_and_the_next_run_knows_where_it_was(clean: Pipeline) -> None:
    before = rows_of(clean, EVENTS)
    clean.tables.optimize((EVENTS, LEASES))
    clean.tables.vacuum((EVENTS, LEASES), 0)
    assert rows_of(clean, EVENTS) == before
    assert not clean.run().changed


@pytest.mark.parametrize(
    ("kind", "error", "named"),
    [("iceberg", Unimplemented, "Iceberg"), ("csv", InvalidArgument, "'csv'")],
)
def test_formats_that_there_are_not_are_refused(
    quick_spark: SparkSession, kind: str, error: type[OmniRelayError], named: str
) -> None:
    with pytest.raises(error, match=named):
        Pipeline(quick_spark, "/nowhere", "/nowhere", kind)


def test_a_source_without_segments_is_named(quick_spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OmniRelayError, match="there are no segments in"):
        Pipeline(quick_spark, str(tmp_path), str(tmp_path / "warehouse")).run()
