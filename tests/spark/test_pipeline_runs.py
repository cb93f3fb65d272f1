"""From a real log to every table: at once, in small runs that are cut off after every commit, and read by others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec
import polars
import pytest
from deltalake import DeltaTable

from omnirelay.errors import DataLoss, InvalidArgument, OmniRelayError
from omnirelay.lakehouse.errors import SparkUnusable
from omnirelay.lakehouse.formats import open_tables
from omnirelay.lakehouse.gold import changed_since
from omnirelay.lakehouse.pipeline import Pipeline
from omnirelay.lakehouse.progress import Progress
from omnirelay.lakehouse.segment_files import read_segments
from omnirelay.lakehouse.sizing import FEW_EVENTS
from omnirelay.lakehouse.tables import (
    BACKPRESSURE,
    DAILY,
    EVENTS,
    ITEMS,
    LEASES,
    LINEAGE,
    PEERS,
    RESOURCE_HEALTH,
    SILVER,
    SLO,
    TABLES,
    Table,
)
from tests.property.strategies import LONG
from tests.spark.pipeline_process import EVERY, in_order, rows_in
from tests.spark.plain import Plain
from tests.spark.plain_gold import daily_rows, health_rows, lineage_rows, slo_rows
from tests.spark.plain_intervals import backpressure_rows, peer_rows
from tests.spark.workload import MIDNIGHT_MS, Recorded, recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from omnirelay.lakehouse.formats import TableStore

Rows = list[dict[str, Any]]

pytestmark = pytest.mark.timeout(3_600 if LONG else 1_800)
long_form = pytest.mark.skipif(not LONG, reason="dozens of commits, which take minutes: make spark-test")


class Killed(Exception):
    """The process is no more."""


@pytest.fixture(scope="module")
def logs() -> list[Recorded]:
    """The first one crosses midnight among its last forty frames, which some tests take in by themselves."""
    return [
        recorded("jobs", seed=17, steps=300, start_ms=MIDNIGHT_MS - 1_160_000),
        recorded("it's 007", seed=4, steps=60),
    ]


@pytest.fixture(scope="module")
def clean(whole_spark: SparkSession, logs: list[Recorded], tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Everything in one run. Who opened the session lives where days begin at other times than in the tables."""
    place = tmp_path_factory.mktemp("clean")
    for log in logs:
        write_segments(place / "segments", log, pieces=3)
    session = whole_spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    pipeline = Pipeline(session, str(place / "segments"), str(place / "warehouse"))
    summary = pipeline.run()
    assert summary.events == sum(len(log.events) for log in logs)
    assert summary.progress == {log.shard: len(log.events) for log in logs}
    assert len(summary.steps) == len(EVERY)
    return pipeline


def rows_of(pipeline: Pipeline, table: Table) -> list[str]:
    """The rows of a table in any format, in an order that depends on nothing else."""
    if (Path(pipeline.tables.path(table)) / "_delta_log").exists():
        return rows_in(Path(pipeline.tables.warehouse), table)
    return in_order(pipeline.tables.read(table).toArrow())


def assert_same_tables(one: Pipeline, other: Pipeline) -> None:
    for table in EVERY:
        expected = rows_of(other, table)
        assert expected or table.name == "anomalies", f"{table.name} is empty, which proves nothing"
        assert rows_of(one, table) == expected, table.name


def assert_holds(tables: TableStore, table: Table, expected: Rows) -> None:
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in table.keys)

    found = DeltaTable(tables.path(table)).to_pyarrow_table().to_pylist()
    assert len(found) == len(expected)
    for row, wanted in zip(sorted(found, key=key), sorted(expected, key=key), strict=True):
        assert _rounded(row) == _rounded(wanted)


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}


def test_bronze_holds_every_column_of_the_segments_by_shard_and_day(clean: Pipeline, logs: list[Recorded]) -> None:
    bronze = DeltaTable(clean.tables.path(EVENTS))
    assert bronze.metadata().partition_columns == ["shard", "date"]
    rows = bronze.to_pyarrow_table().to_pylist()
    segments = read_segments(clean.tables.spark, str(Path(clean.tables.warehouse).parent / "segments"))
    expected = [row | {"date": row["timestamp"].date()} for row in segments.toArrow().to_pylist()]

    def place(row: dict[str, Any]) -> tuple[str, int]:
        return row["shard"], row["sequence"]

    assert sorted(rows, key=place) == sorted(expected, key=place)
    assert len(rows) == sum(len(log.events) for log in logs)
    assert {row["region"] for row in rows} == {"eu"}
    kept = {(part["shard"], str(part["date"])) for part in bronze.partitions()}
    assert kept == {("it's 007", "2023-11-14"), ("jobs", "2023-11-14"), ("jobs", "2023-11-15")}


def test_the_log_crosses_midnight_and_so_do_leases(logs: list[Recorded]) -> None:
    """What the other tests compare has days and windows on both sides, and work that began on one and ended on the
    other, also in a run that takes in only what is last.
    """
    jobs = logs[0]
    assert jobs.frames[-40].time_ms < MIDNIGHT_MS < jobs.frames[-1].time_ms
    leases = Plain(jobs.shard, jobs.events).leases.values()
    assert any(each["granted_at"] < MIDNIGHT_MS <= (each["ended_at"] or 0) for each in leases)
    assert [row["date"].day for row in daily_rows(jobs)] == [14, 15]
    assert {row["window_start"].day for row in slo_rows(jobs)} == {14, 15}


def test_leases_and_items_are_what_a_plain_loop_over_the_events_makes_of_them(
    clean: Pipeline, logs: list[Recorded]
) -> None:
    plain = [Plain(log.shard, log.events) for log in logs]
    leases = [row for each in plain for row in each.lease_rows()]
    items = [row for each in plain for row in each.item_rows()]
    assert {row["outcome"] for row in leases} == {"completed", "failed", "released", "expired", "cancelled", None}
    assert {row["state"] for row in items} == {"pending", "leased", "completed", "dead", "cancelled", "drained"}
    assert_holds(clean.tables, LEASES, leases)
    assert_holds(clean.tables, ITEMS, items)


def test_peers_and_backpressure_are_what_a_plain_loop_over_the_events_makes_of_them(
    clean: Pipeline, logs: list[Recorded]
) -> None:
    peers = [row for log in logs for row in peer_rows(log.shard, log.events)]
    closed = [row for log in logs for row in backpressure_rows(log.shard, log.events)]
    assert {row["reason"] for row in peers} == {None, "its lease ran out", "it never answered to a grant"}
    assert {row["cause"] for row in closed} == {"pending", "sink"}
    assert any(row["until_at"] is None for row in peers)
    assert_holds(clean.tables, PEERS, peers)
    assert_holds(clean.tables, BACKPRESSURE, closed)


@pytest.mark.parametrize(
    ("table", "rows"), [(LINEAGE, lineage_rows), (SLO, slo_rows), (RESOURCE_HEALTH, health_rows), (DAILY, daily_rows)]
)
def test_gold_is_what_plain_loops_over_the_events_make_of_it(
    clean: Pipeline, logs: list[Recorded], table: Table, rows: Callable[[Recorded], Rows]
) -> None:
    expected = [row for log in logs for row in rows(log)]
    assert expected
    assert_holds(clean.tables, table, expected)


@long_form
def test_many_runs_that_are_cut_off_after_every_commit_end_like_one(
    clean: Pipeline, whole_spark: SparkSession, logs: list[Recorded], tmp_path: Path
) -> None:
    segments, warehouse = tmp_path / "segments", str(tmp_path / "warehouse")
    killed: list[str] = []

    def once_each(point: str) -> None:
        if point not in killed:
            killed.append(point)
            raise Killed(point)

    def run(**how: Any) -> Pipeline:
        # As with many events: the clean run, of few, reads and writes whole tables.
        pipeline = Pipeline(whole_spark, str(segments), warehouse, few_events=0, **how)
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


def test_few_new_events_among_many_end_in_the_same_tables(
    clean: Pipeline, whole_spark: SparkSession, logs: list[Recorded], tmp_path: Path
) -> None:
    """The rows that steps share are then kept; after a kill behind leases the tables tell what those have changed. And
    upkeep before it makes no difference.
    """
    segments, warehouse = tmp_path / "segments", str(tmp_path / "warehouse")
    jobs, other = logs
    write_segments(segments, jobs, last=-40)
    first = Pipeline(whole_spark, str(segments), warehouse)
    before = first.run().events
    first.tables.optimize(TABLES)
    new = len(jobs.events) + len(other.events) - before

    def behind_leases(point: str) -> None:
        if point == "silver.leases":
            raise Killed(point)

    write_segments(segments, jobs, first=-40, pieces=2)
    write_segments(segments, other)
    assert new < before
    pipeline = Pipeline(whole_spark, str(segments), warehouse, few_events=new, failpoint=behind_leases)
    with pytest.raises(Killed):
        pipeline.run()
    pipeline = Pipeline(whole_spark, str(segments), warehouse, few_events=new)
    assert len(pipeline.run().steps) == len(EVERY) - 2
    assert_same_tables(pipeline, clean)


@pytest.mark.skipif(not LONG, reason="every table of two runs, one by one: make spark-test")
def test_leases_that_had_ended_are_not_read_again(
    whole_spark: SparkSession, logs: list[Recorded], tmp_path: Path
) -> None:
    """What gold adds to its rows comes from leases that were granted or live since, however many had ended."""
    segments, jobs = tmp_path / "segments", logs[0]

    def run() -> Progress:
        pipeline = Pipeline(whole_spark, str(segments), str(tmp_path / "warehouse"), few_events=0)
        pipeline.run()
        return pipeline.tables.progress(LEASES)

    write_segments(segments, jobs, last=-40)
    after = run()
    tables = open_tables(whole_spark, str(tmp_path / "warehouse"), "delta")
    ended = set(tables.read(LEASES).where("ended_at IS NOT NULL").inputFiles())
    write_segments(segments, jobs, first=-40)
    read = changed_since(tables.read(LEASES), after, run()).inputFiles()
    assert ended
    assert read
    assert ended.isdisjoint(read)


@pytest.mark.parametrize("few_events", [0, FEW_EVENTS])
def test_gold_that_was_made_before_rows_held_what_is_added_to_is_made_anew(
    clean: Pipeline, whole_spark: SparkSession, logs: list[Recorded], tmp_path: Path, few_events: int
) -> None:
    segments = Path(clean.tables.warehouse).parent / "segments"
    shutil.copytree(clean.tables.warehouse, tmp_path / "lake")
    pipeline = Pipeline(whole_spark, str(segments), str(tmp_path / "lake"), few_events=few_events)
    for table in (DAILY, RESOURCE_HEALTH):
        place = pipeline.tables.progress(table)
        last = next(number for number, column in enumerate(table.columns) if column.type.startswith("ARRAY"))
        before = msgspec.structs.replace(table, columns=table.columns[:last])
        rows = pipeline.tables.read(table).select(*before.names).localCheckpoint()
        pipeline.tables.drop(table)
        pipeline.tables.append(before, rows, place)
    assert {step.table for step in pipeline.run().steps} == {"gold.daily", "gold.resource_health"}
    assert_same_tables(pipeline, clean)


def test_a_run_with_nothing_new_commits_nothing(clean: Pipeline) -> None:
    before = {table.name: clean.tables.version(table) for table in TABLES}
    summary = clean.run()
    assert not summary.changed
    assert (summary.events, summary.segments, summary.refused) == (0, 0, [])
    assert {table.name: clean.tables.version(table) for table in TABLES} == before


@long_form
def test_parquet_tables_hold_the_same(
    clean: Pipeline, whole_spark: SparkSession, logs: list[Recorded], tmp_path: Path
) -> None:
    where = (str(tmp_path / "segments"), str(tmp_path / "warehouse"), "parquet")
    pipeline = Pipeline(whole_spark, *where, few_events=200)
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


def test_a_table_that_was_removed_is_named_and_nothing_is_counted_again(
    whole_spark: SparkSession, clean: Pipeline, tmp_path: Path
) -> None:
    """One that is ahead of what it is made of would otherwise go back to it, and count twice what lies between."""
    lake = tmp_path / "lake"
    shutil.copytree(clean.tables.warehouse, lake)
    shutil.rmtree(lake / "silver" / "leases")
    before = rows_in(lake, ITEMS)
    with pytest.raises(DataLoss, match="lakehouse rebuild"):
        Pipeline(whole_spark, str(Path(clean.tables.warehouse).parent / "segments"), str(lake)).run()
    assert rows_in(lake, ITEMS) == before


def test_tables_of_another_format_are_not_mixed_with(whole_spark: SparkSession, clean: Pipeline) -> None:
    with pytest.raises(InvalidArgument, match="are delta, not parquet; say --format delta"):
        open_tables(whole_spark, clean.tables.warehouse, "parquet")


def test_upkeep_changes_no_row_and_the_next_run_knows_where_it_was(clean: Pipeline) -> None:
    before = rows_of(clean, EVENTS)
    clean.tables.optimize((EVENTS, LEASES))
    clean.tables.vacuum((EVENTS, LEASES), 0)
    assert rows_of(clean, EVENTS) == before
    assert not clean.run().changed


@pytest.mark.parametrize(
    ("kind", "error", "named"),
    [("iceberg", SparkUnusable, "Iceberg"), ("csv", InvalidArgument, "'csv'")],
)
def test_formats_that_there_are_not_are_refused(
    whole_spark: SparkSession, kind: str, error: type[OmniRelayError], named: str
) -> None:
    with pytest.raises(error, match=named):
        Pipeline(whole_spark, "/nowhere", "/nowhere", kind)


def test_a_source_without_segments_is_named(whole_spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(OmniRelayError, match="there are no segments in"):
        Pipeline(whole_spark, str(tmp_path), str(tmp_path / "warehouse")).run()
