"""Gold over hand-made silver: anomalies where there are any, shares of time, and the health of resources."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from omnirelay.lakehouse.formats_delta import DeltaTables
from omnirelay.lakehouse.gold import GRANTED_NOW, changed_since, resource_health
from omnirelay.lakehouse.gold_anomalies import anomalies
from omnirelay.lakehouse.gold_daily import daily
from omnirelay.lakehouse.gold_windows import Span, slo
from omnirelay.lakehouse.progress import End
from omnirelay.lakehouse.tables import BACKPRESSURE, LEASES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
MINUTE = timedelta(minutes=1)


def leases(spark: SparkSession, *ends: tuple[str, str, str | None]) -> DataFrame:
    """Leases of a minute each, one after the other: owner, resource and outcome."""
    rows: list[tuple[Any, ...]] = []
    for number, (owner, resource, outcome) in enumerate(ends):
        values: dict[str, Any] = dict.fromkeys(LEASES.names)
        granted = START + number * timedelta(seconds=1)
        values |= {"shard": "jobs", "lease_id": f"l{number}", "fence": number + 1, "item": number, "owner": owner}
        values |= {"resource_type": "table", "resource_id": resource, "granted_at": granted, "outcome": outcome}
        values |= {"wait_ms": 10 * number, "last_sequence": number + 1}
        if outcome is not None:
            values |= {"ended_at": granted + MINUTE, "work_ms": 60_000}
        rows.append(tuple(values[name] for name in LEASES.names))
    return spark.createDataFrame(rows, LEASES.ddl)


def frames(spark: SparkSession, *seconds: int) -> DataFrame:
    """Frames of one event each, at these times."""
    rows = [
        ("jobs", at + 1, at + 1, "Enqueue", START + timedelta(seconds=second), START + timedelta(seconds=second))
        for at, second in enumerate(seconds)
    ]
    ddl = "shard STRING, sequence BIGINT, frame_first BIGINT, event_type STRING"
    ddl += ", timestamp TIMESTAMP, frame_time TIMESTAMP"
    return spark.createDataFrame(rows, ddl).selectExpr("*", "to_date(timestamp) AS date")


SPAN = [Span("jobs", START_MS, START_MS + 600_000)]


def found(spark: SparkSession, ended: DataFrame, events: DataFrame) -> set[tuple[str, str]]:
    days = daily(events, ended.withColumn(GRANTED_NOW, F.lit(True)), SPAN, None)
    return {(row.kind, row.subject) for row in anomalies(events, days, SPAN, None).collect()}


def test_nothing_is_out_of_the_ordinary_when_a_few_leases_fail(spark: SparkSession) -> None:
    ends = [(owner, "a", outcome) for owner in ("ada", "bob") for outcome in ("completed", "completed", "failed") * 2]
    assert found(spark, leases(spark, *ends), frames(spark, 0, 1, 1, 2)) == set()


def test_each_anomaly_is_found(spark: SparkSession) -> None:
    well = [("ada", f"r{number}", "completed") for number in range(10)]
    bad = [("bob", f"r{number}", "failed") for number in range(21)]
    worn = [("cid", "worn", outcome) for outcome in ("expired", "expired", "completed", "completed", "expired")]
    kinds = found(spark, leases(spark, *well, *bad, *worn), frames(spark, 5, 6, 3))
    storm = START.strftime("%Y-%m-%d %H:%M:%S")
    assert kinds == {
        ("owner_fails", "bob"),
        ("resource_expires", "table/worn"),
        ("retry_storm", storm),
        ("clock_skew", "3"),
    }


def closed(cause: str, begin: float, end: float | None, shard: str = "jobs") -> tuple[Any, ...]:
    """A time of closed intake, in minutes from the start."""
    values: dict[str, Any] = dict.fromkeys(BACKPRESSURE.names)
    until = None if end is None else START + end * MINUTE
    values |= {"shard": shard, "cause": cause, "from_at": START + begin * MINUTE, "until_at": until}
    return tuple(values[name] for name in BACKPRESSURE.names)


def test_overlapping_causes_count_once_and_an_open_one_reaches_to_the_end_of_the_log(spark: SparkSession) -> None:
    times = [closed("pending", 0, 2), closed("sink", 1, 3), closed("sink", 4, 6), closed("disk", 9, None)]
    rows = slo(
        frames(spark, 0, 301, 600),
        leases(spark, ("ada", "a", "completed"), ("ada", "a", "expired"), ("ada", "a", None)),
        spark.createDataFrame(times, BACKPRESSURE.ddl),
        SPAN,
        None,
    )
    first, second, third = rows.orderBy("window_start").collect()
    assert [round(row.backpressure_share, 6) for row in (first, second, third)] == [0.8, 0.4, 0.0]
    assert (first.granted, first.ended, first.expiry_rate, first.wait_p50_ms) == (3, 2, 0.5, 10.0)
    assert (second.granted, second.ended, second.expiry_rate) == (0, 0, None)


def test_times_of_closed_intake_that_were_over_are_not_read_again(few_spark: SparkSession, tmp_path: Path) -> None:
    store = DeltaTables(few_spark, str(tmp_path / "lake"))
    files = (
        [closed("pending", -600, -599), closed("sink", -60, -1)],
        [closed("sink", 15, 16), closed("sink", 16, None)],
        [closed("pending", 0, 5, shard="other")],
        [closed("pending", -600, 1)],
        [closed("sink", -700, None)],
    )
    for number, times in enumerate(files, 1):
        rows = store.spark.createDataFrame(times, BACKPRESSURE.ddl).coalesce(1)
        store.append(BACKPRESSURE, rows, {"": End(number)})
    rows = slo(frames(few_spark, 0, 301, 600), leases(few_spark), store.read(BACKPRESSURE), SPAN, None)
    assert len(rows.inputFiles()) == 2
    assert [row.backpressure_share for row in rows.orderBy("window_start").collect()] == [1.0, 1.0, 0.0]


def test_a_resource_is_unwell_after_three_in_a_row(spark: SparkSession) -> None:
    ends: list[tuple[str, str, str | None]] = [
        ("ada", "new", None),
        ("ada", "well", "failed"),
        ("ada", "well", "completed"),
    ]
    ends += [("bob", "failing", outcome) for outcome in ("completed", "failed", "expired", "failed")]
    ends += [("bob", "expiring", outcome) for outcome in ("failed", "expired", "expired", "expired", None)]
    all_leases = leases(spark, *ends)
    found = resource_health(changed_since(all_leases, {}, {"jobs": End(len(ends))}), None)
    rows = {row.resource_id: row for row in found.collect()}
    assert {name: row.health for name, row in rows.items()} == {
        name: name if name != "well" else "healthy" for name in ("new", "well", "failing", "expiring")
    }
    assert (rows["expiring"].failures_in_a_row, rows["expiring"].expiries_in_a_row, rows["expiring"].live) == (4, 3, 1)
