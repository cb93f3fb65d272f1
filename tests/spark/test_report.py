"""What a report counts, over tables made by hand and, in the long form, over those of a whole pipeline."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from omnirelay.errors import InvalidArgument
from omnirelay.lakehouse import report_data
from omnirelay.lakehouse.errors import TablesMissing
from omnirelay.lakehouse.formats import TableStore, open_tables
from omnirelay.lakehouse.pipeline import Pipeline
from omnirelay.lakehouse.progress import End
from omnirelay.lakehouse.report import NEEDED, Wanted, make_report
from omnirelay.lakehouse.report_data import Report
from omnirelay.lakehouse.report_page import render
from omnirelay.lakehouse.tables import (
    ANOMALIES,
    BACKPRESSURE,
    ITEMS,
    LEASES,
    LINEAGE,
    PEERS,
    RESOURCE_HEALTH,
    SLO,
    Table,
)
from tests.spark.test_pipeline_commands import lakehouse
from tests.spark.workload import recorded, write_segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
LONG = os.environ.get("OMNIRELAY_LONG") == "1"
# The first test starts Spark and makes the tables for all.
pytestmark = pytest.mark.timeout(1200)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def ms(seconds: float) -> int:
    return START_MS + int(seconds * 1000)


def write(tables: TableStore, rows: dict[Table, list[dict[str, Any]]]) -> None:
    """All tables that a report needs; a column that a row leaves out is null, the shard is jobs."""
    for table in NEEDED:
        given = [tuple({"shard": "jobs", **row}.get(name) for name in table.names) for row in rows.get(table, [])]
        frame = tables.spark.createDataFrame(given, table.ddl)
        tables.append(table, frame, {"jobs": End(40), "more": End(7)})


def lease(number: int, owner: str | None, granted: float, ended: float | None, outcome: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"lease_id": f"l{number}", "fence": number, "item": number, "attempt": 1, "owner": owner}
    row |= {
        "resource_type": "table",
        "resource_id": f"r{number % 2}",
        "granted_at": at(granted),
        "wait_ms": 1_000 * number,
    }
    if ended is not None:
        row |= {"ended_at": at(ended), "work_ms": int((ended - granted) * 1000)}
    return {**row, "outcome": outcome, "heartbeats": 0, "last_sequence": number}


def lineage_of(lease: dict[str, Any], version: str | None = None) -> dict[str, Any]:
    return {**lease, "peer": lease["owner"], "started_at": lease["granted_at"], "table_version": version}


def item(number: int, came: float | None, ended: float | None, state: str) -> dict[str, Any]:
    times = {"enqueued_at": None if came is None else at(came), "ended_at": None if ended is None else at(ended)}
    return {"item": number, "state": state, **times}


GRANTED = [
    lease(1, "ada", 10, 20, "completed"),
    lease(2, "ada", 12, 40, "failed"),
    lease(3, "bob", 30, 90, "expired"),
    lease(4, "bob", 100, None, None),
    lease(5, None, 50, 60, "completed"),
]
ROWS: dict[Table, list[dict[str, Any]]] = {
    LEASES: GRANTED,
    LINEAGE: [lineage_of(each, "7" if each["fence"] == 1 else None) for each in GRANTED],
    ITEMS: [
        item(1, 0, 20, "completed"),
        item(2, 0, 40, "dead"),
        item(3, 1, None, "pending"),
        item(4, 2, None, "leased"),
        item(5, 3, 60, "completed"),
        item(6, -9e6, None, "pending"),  # Restored: it came in long before this log began.
        item(7, None, 70, "cancelled"),  # Older than the segments.
        {**item(8, 5, None, "pending"), "shard": "more"},
    ],
    SLO: [{"window_start": at(0), "events": 40}],
    PEERS: [
        {"peer": "ada", "from_at": at(10), "until_at": None, "healthy": True, "signs": 4, "expiries": 0},
        {"peer": "bob", "from_at": at(30), "until_at": at(90), "healthy": True, "signs": 1, "expiries": 0},
        {"peer": "bob", "from_at": at(90), "healthy": False, "signs": 0, "expiries": 1, "reason": "its lease ran out"},
    ],
    BACKPRESSURE: [
        {"cause": "pending", "from_sequence": 1, "from_at": at(10), "until_at": at(30), "reason": "full"},
        {"cause": "sink", "from_sequence": 2, "from_at": at(20), "until_at": at(40), "reason": "behind"},
        {"cause": "sink", "from_sequence": 3, "from_at": at(90), "until_at": None, "reason": "behind"},
    ],
    RESOURCE_HEALTH: [
        {"resource_type": "table", "resource_id": f"r{number}", "health": health, "failures_in_a_row": number}
        | {"expiries_in_a_row": 0, "leases": 9, "owners": 1}
        for number, health in enumerate(["healthy", "new", "failing", "failing", "expiring"])
    ],
    ANOMALIES: [
        {"date": date(2026, 3, 1), "kind": "clock_skew", "subject": str(number), "value": float(number), "detail": "d"}
        for number in range(30)
    ]
    + [
        {
            "date": date(2026, 3, 1),
            "kind": "owner_fails",
            "subject": "bob",
            "value": 0.5,
            "expected": 0.1,
            "detail": "d",
        }
    ]
    + [{"date": date(2026, 2, 1), "kind": "retry_storm", "subject": "before", "value": 1.0, "detail": "d"}],
}


@pytest.fixture(scope="module")
def tables(whole_spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> TableStore:
    tables = open_tables(whole_spark, str(tmp_path_factory.mktemp("lake")), "parquet")
    write(tables, ROWS)
    return tables


@pytest.fixture(scope="module")
def report(tables: TableStore) -> Report:
    return make_report(tables, "parquet", now_ms=5)


def test_a_report_counts_what_the_tables_hold(report: Report) -> None:
    head, series = report.headline, report.series
    # From the first item to the grant that was last; what was restored came in before.
    assert (report.span.from_ms, report.span.to_ms) == (ms(0), ms(100) + 1)
    assert report.span.buckets == len(series.waiting) == len(series.wait) <= report_data.BUCKETS_MAX
    assert (head.came_in, head.completed, head.dead, head.cancelled, head.drained) == (6, 2, 1, 1, 0)
    assert (head.granted, head.ended, head.failed, head.expired, head.running) == (5, 4, 1, 1, 1)
    assert head.waiting == 3, "items 3, 6 and 8; item 4 is leased"
    assert (head.wait.p50, head.wait.p99, head.work.p50, head.work.p99) == (3_000, 5_000, 10_000, 60_000)
    # Closed from 10 to 40 by two causes together, and from 90 on, in one of two shards.
    assert head.closed_share == pytest.approx((30_000 + 10_001) / (2 * 100_001))

    def bucket(second: float) -> int:
        return (ms(second) - report.span.first_ms) // report.span.bucket_ms

    assert (series.waiting[bucket(0)], series.running[bucket(0)]) == (3, 0), "items 1, 2 and the restored one"
    assert (series.waiting[bucket(15)], series.running[bucket(15)]) == (5, 2)
    assert series.ended["expired"][bucket(90)] == 1
    assert sum(map(sum, series.ended.values())) == 4
    assert series.wait[bucket(30)] == report_data.Percentiles(3_000, 3_000, 3_000)
    assert series.wait[bucket(80)] == report_data.Percentiles()

    assert [row.name for row in report.gantt.rows] == ["ada", "bob", None]
    assert (report.gantt.leases, report.gantt.owners, len(report.gantt.bars)) == (5, 3, 5)
    drawn = {(report.gantt.rows[bar.row].name, bar.fence, bar.lane, bar.outcome) for bar in report.gantt.bars}
    assert drawn >= {("ada", 1, 0, "completed"), ("ada", 2, 1, "failed"), ("bob", 4, 0, None)}
    assert not any(row.granted for row in report.gantt.rows), "every lease is drawn"

    assert {(row.name, row.unwell_ms) for row in report.peers.rows} == {("ada", 0), ("bob", 10_001)}
    [unwell] = report.peers.unwell
    assert (unwell.from_ms, unwell.until_ms, unwell.reason) == (ms(90), None, "its lease ran out")
    assert [(row.cause, row.times) for row in report.backpressure.rows] == [("sink", 2), ("pending", 1)]
    assert len(report.backpressure.intervals) == report.backpressure.times == 3

    assert report.anomalies.counts == {"clock_skew": 30, "owner_fails": 1}
    kinds = Counter(each.kind for each in report.anomalies.found)
    assert kinds == {"clock_skew": report_data.ANOMALIES_OF_A_KIND_MAX, "owner_fails": 1}
    assert report.resources.counts == {"healthy": 1, "new": 1, "failing": 2, "expiring": 1}
    assert [(each.resource, each.in_a_row) for each in report.resources.unwell] == [
        ("table/r4", 4),
        ("table/r3", 3),
        ("table/r2", 2),
    ]
    assert [(shard.name, shard.last_event) for shard in report.shards] == [("jobs", 40), ("more", 7)]


def test_the_graph_has_every_lease_in_every_column(report: Report) -> None:
    graph = report.lineage
    for column in ("principal", "peer", "resource", "outcome"):
        assert sum(node.leases for node in graph.nodes if node.column == column) == 5, column
    assert sum(edge.leases for edge in graph.edges) == 15
    ends = {(node.label, node.kind): node.leases for node in graph.nodes if node.column == "outcome"}
    assert ends == {
        ("completed", "completed"): 1,
        ("failed", "failed"): 1,
        ("expired", "expired"): 1,
        ("running", "running"): 1,
        ("table/r1 version 7", "version"): 1,
    }
    names = [node.label if node.kind == "named" else node.kind for node in graph.nodes]
    flows = {(names[edge.source], names[edge.target]): (edge.leases, edge.bad) for edge in graph.edges}
    assert flows["unknown", "ada"] == (2, 1)
    assert flows["bob", "table/r1"] == (1, 1)
    assert (graph.principals, graph.peers, graph.resources, graph.versions) == (1, 3, 2, 1)


def test_a_report_on_a_part_of_the_time_and_of_the_shards(tables: TableStore) -> None:
    part = Wanted(from_ms=ms(35), to_ms=ms(65), shards=["jobs"])
    report = make_report(tables, "parquet", part)
    assert (report.span.from_ms, report.span.to_ms, report.shard_count) == (ms(35), ms(65), 1)
    assert (report.headline.came_in, report.headline.completed, report.headline.dead) == (0, 1, 1)
    assert (report.headline.granted, report.headline.ended, report.headline.running) == (1, 2, 1)
    assert {bar.fence for bar in report.gantt.bars} == {2, 3, 5}
    assert report.headline.closed_share == pytest.approx(5_000 / 30_000)


@pytest.mark.skipif(not LONG, reason="the long form only: make spark-test")
def test_a_time_in_which_nothing_happened_makes_an_empty_report(tables: TableStore) -> None:
    nothing = make_report(tables, "parquet", Wanted(from_ms=ms(-500), to_ms=ms(-400), shards=["more"]))
    assert nothing.headline == report_data.Headline()
    assert (nothing.gantt.bars, nothing.lineage.nodes, nothing.peers.rows) == ([], [], [])


def test_what_cannot_be_reported_is_refused_with_its_name(
    tables: TableStore, whole_spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match="from must be before to"):
        make_report(tables, "parquet", Wanted(from_ms=ms(1_000)))
    with pytest.raises(InvalidArgument, match="shard 'other' is not in the tables; there are: jobs, more"):
        make_report(tables, "parquet", Wanted(shards=["other"]))
    empty = open_tables(whole_spark, str(tmp_path), "parquet")
    with pytest.raises(TablesMissing, match=r"no silver\.leases, .* omnirelay lakehouse run --source"):
        make_report(empty, "parquet")


def test_what_cannot_be_asked_for_is_refused_before_spark_starts(tmp_path: Path) -> None:
    where = ("report", "--warehouse", str(tmp_path / "lake"), "--out")
    turned = lakehouse(*where, str(tmp_path / "r.html"), "--from", "2026-03-02", "--to", "2026-03-01")
    assert (turned.returncode, turned.stdout) == (2, "")
    assert "from must be before to" in turned.stderr
    assert "Spark" not in turned.stderr
    directory = lakehouse(*where, str(tmp_path))
    assert directory.returncode == 2
    assert "is a directory; name a file in it" in directory.stderr
    no_time = lakehouse(*where, str(tmp_path / "r.html"), "--to", "yesterday")
    assert no_time.returncode == 2
    assert "--to" in no_time.stderr


@pytest.mark.skipif(not LONG, reason="the long form only: make spark-test")
def test_the_command_writes_the_page_and_prints_its_path(tables: TableStore, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    where = ("--warehouse", tables.warehouse, "--format", "parquet", "--master", "local[1]")
    done = lakehouse("report", *where, "--out", str(out))
    assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
    assert out.read_text().startswith("<!doctype html>")
    assert [each.name for each in out.parent.iterdir()] == [out.name]


@pytest.mark.skipif(not LONG, reason="the long form only: make spark-test")
@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_report_on_a_whole_pipeline_agrees_with_its_tables(
    whole_spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    for shard, seed in (("jobs", 5), ("more", 6)):
        write_segments(tmp_path / "segments", recorded(shard, seed=seed))
    pipeline = Pipeline(whole_spark, str(tmp_path / "segments"), str(tmp_path / "lake"), kind)
    pipeline.run()
    report = make_report(pipeline.tables, kind)
    leases = pipeline.tables.read(LEASES).collect()
    items = pipeline.tables.read(ITEMS).collect()
    assert len(leases) > 20, "the log is too small to tell anything"
    assert report.headline.granted == len(leases) == report.gantt.leases
    assert report.headline.running == sum(row.ended_at is None for row in leases)
    states = Counter(row.state for row in items)
    head = report.headline
    assert (head.completed, head.dead, head.cancelled, head.drained) == tuple(
        states[state] for state in ("completed", "dead", "cancelled", "drained")
    )
    assert head.waiting == states["pending"]
    outcomes = Counter(row.outcome for row in leases if row.outcome is not None)
    assert {name: sum(each) for name, each in report.series.ended.items() if sum(each)} == outcomes
    peers = pipeline.tables.read(PEERS).collect()
    assert report.peers.intervals == sum(not row.healthy for row in peers)
    assert report.backpressure.times == pipeline.tables.read(BACKPRESSURE).count()
    assert sum(report.anomalies.counts.values()) == pipeline.tables.read(ANOMALIES).count()
    assert len(render(report).encode()) < 300_000


@pytest.mark.skipif(not LONG, reason="the long form only: make spark-test")
def test_a_report_on_very_many_leases_stays_small(whole_spark: SparkSession, tmp_path: Path) -> None:
    tables = open_tables(whole_spark, str(tmp_path), "parquet")
    many_leases(tables, 300_000)
    report = make_report(tables, "parquet")
    assert report.gantt.leases == 300_000
    assert len(report.gantt.bars) <= report_data.BARS_MAX
    assert len(report.gantt.rows) == report_data.OWNERS_MAX
    assert sum(node.leases for node in report.lineage.nodes if node.column == "resource") == 300_000
    assert len(report.peers.unwell) == report_data.INTERVALS_MAX < report.peers.intervals
    assert len(render(report).encode()) < 700_000


def many_leases(tables: TableStore, number: int) -> None:
    """Tables as a log of about three times as many events leaves them: a day, 60 owners, 5,000 resources."""
    spark = tables.spark
    spark.range(number).createOrReplaceTempView("numbers")
    spark.sql(
        f"""
        SELECT id, concat('worker-', hash(id) % 30 + 30) AS owner, pmod(hash(id, 1), 5000) AS resource,
            timestamp_millis({START_MS} + id * 86400000 DIV {number}) AS enqueued_at,
            CAST(exp(4 + 3 * rand(1) + 2 * sin(id * 6.28 / {number})) AS BIGINT) AS wait_ms,
            CAST(exp(5 + 4 * rand(2)) AS BIGINT) AS work_ms,
            CASE WHEN rand(3) < 0.93 THEN 'completed' WHEN rand(4) < 0.5 THEN 'failed'
                 WHEN rand(5) < 0.6 THEN 'expired' WHEN rand(6) < 0.7 THEN 'released' ELSE 'cancelled' END AS outcome
        FROM numbers
        """
    ).createOrReplaceTempView("work")
    granted = "enqueued_at + make_dt_interval(0, 0, 0, wait_ms / 1000)"
    ended = f"{granted} + make_dt_interval(0, 0, 0, work_ms / 1000)"
    who = "IF(resource % 3 = 0, NULL, concat('team-', resource % 11))"
    common = f"'jobs' AS shard, concat('l', id) AS lease_id, id AS fence, id AS item, {who} AS principal,"
    common += (
        f" 'table' AS resource_type, concat('sales.orders_', resource) AS resource_id, outcome, {ended} AS ended_at"
    )
    end: dict[Table, str] = {
        LEASES: f"SELECT {common}, 1 AS attempt, owner, {granted} AS granted_at, wait_ms, work_ms FROM work",
        LINEAGE: f"""SELECT {common}, owner AS peer, {granted} AS started_at,
            IF(outcome = 'completed' AND id % 50 = 0, CAST(id AS STRING), NULL) AS table_version FROM work""",
        ITEMS: f"""SELECT 'jobs' AS shard, id AS item, enqueued_at, {ended} AS ended_at,
            IF(outcome IN ('failed', 'expired'), 'dead', 'completed') AS state FROM work""",
        SLO: f"""SELECT DISTINCT 'jobs' AS shard, window(at, '5 minutes').start AS window_start
            FROM (SELECT explode(array(enqueued_at, {ended})) AS at FROM work)""",
        PEERS: f"""SELECT 'jobs' AS shard, owner AS peer, id AS from_sequence, {granted} AS from_at,
            {granted} + INTERVAL 2 MINUTES AS until_at, false AS healthy, 'its lease ran out' AS reason,
            1 AS signs, 1 AS expiries FROM work WHERE outcome = 'expired'""",
        BACKPRESSURE: f"""SELECT 'jobs' AS shard, 'pending' AS cause, id AS from_sequence, enqueued_at AS from_at,
            enqueued_at + INTERVAL 3 MINUTES AS until_at FROM work WHERE id % {number // 40} = 0""",
    }
    for table in NEEDED:
        empty = spark.createDataFrame([], table.ddl)
        rows = empty.unionByName(spark.sql(end[table]), allowMissingColumns=True) if table in end else empty
        tables.append(table, rows, {"jobs": End(number * 3)})
