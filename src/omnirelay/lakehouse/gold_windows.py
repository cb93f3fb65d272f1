"""Gold by time: `slo`, `daily` and `anomalies`, made anew for the windows that new events fall into.

A table is replaced from the first window that is touched to the last, shard by shard. New events are behind older ones
in time, too, so these are the last few windows; the last one before them is among them because it was not over yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from omnirelay.lakehouse.silver import in_shape
from omnirelay.lakehouse.tables import DAILY, SLO

WINDOW_MS: Final = 300_000
DAY_MS: Final = 86_400_000


class Span(msgspec.Struct, frozen=True):
    """The time that new events of a shard fall into."""

    shard: str
    first_ms: int
    last_ms: int

    def condition(self, column: str, width_ms: int) -> str:
        """That an instant is in a window of this width which this span touches."""
        begin = self.first_ms // width_ms * width_ms
        end = (self.last_ms // width_ms + 1) * width_ms
        at = f"`{column}`"
        shard = self.shard.replace("\\", "\\\\").replace("'", "\\'")
        return f"(shard = '{shard}' AND {at} >= timestamp_millis({begin}) AND {at} < timestamp_millis({end}))"


def spans_of(events: DataFrame) -> list[Span]:
    """What time new events, and the last one before them, take up: two numbers for each shard."""
    ms = F.unix_millis("timestamp")
    found = events.groupBy("shard").agg(F.min(ms), F.max(ms)).collect()
    return [Span(*row) for row in sorted(found)]


def within(spans: Sequence[Span], column: str, width_ms: int) -> str:
    return " OR ".join(span.condition(column, width_ms) for span in spans) or "false"


def within_dates(spans: Sequence[Span]) -> str:
    """The same for a column `date`; text of a form that a replaced part of a table may be told by."""
    parts = []
    for span in spans:
        shard = span.shard.replace("\\", "\\\\").replace("'", "\\'")
        days = [f"date_add(DATE'1970-01-01', {ms // DAY_MS})" for ms in (span.first_ms, span.last_ms)]
        parts.append(f"(shard = '{shard}' AND `date` >= {days[0]} AND `date` <= {days[1]})")
    return " OR ".join(parts) or "false"


def window_of(column: str) -> Column:
    return F.timestamp_millis(F.floor(F.unix_millis(column) / WINDOW_MS) * WINDOW_MS)


def _percentiles(column: str, name: str, *shares: int) -> list[Column]:
    return [F.percentile(column, share / 100).alias(f"{name}_p{share}_ms") for share in shares]


# -- slo ---------------------------------------------------------------------------------------


def slo(events: DataFrame, leases: DataFrame, closed: DataFrame, spans: Sequence[Span]) -> DataFrame:
    """Windows of five minutes; `closed` are the times of closed intake."""
    keys = ["shard", "window_start"]
    happened = (
        events.where(within(spans, "timestamp", WINDOW_MS))
        .groupBy("shard", window_of("timestamp").alias("window_start"))
        .agg(
            F.count("*").alias("events"),
            F.count(F.when(F.col("event_type") == "Enqueue", 1)).alias("enqueued"),
            F.max(F.unix_millis("frame_time") - F.unix_millis("timestamp")).alias("commit_lag_max_ms"),
        )
    )
    granted = (
        leases.where(within(spans, "granted_at", WINDOW_MS))
        .groupBy("shard", window_of("granted_at").alias("window_start"))
        .agg(F.count("*").alias("granted"), *_percentiles("wait_ms", "wait", 50, 95, 99))
    )
    ended = (
        leases.where(within(spans, "ended_at", WINDOW_MS))
        .groupBy("shard", window_of("ended_at").alias("window_start"))
        .agg(
            F.count("*").alias("ended"),
            *_percentiles("work_ms", "lease_age", 50, 95),
            F.max("work_ms").alias("lease_age_max_ms"),
            F.avg(F.when(F.col("outcome") == "expired", 1.0).otherwise(0.0)).alias("expiry_rate"),
        )
    )
    rows = happened.join(granted, on=keys, how="left").join(ended, on=keys, how="left")
    rows = rows.join(_closed_share(happened.select(*keys), closed, spans), on=keys, how="left")
    counts = ("granted", "ended", "backpressure_share")
    return in_shape(rows.na.fill(0, list(counts)), SLO)


def _closed_share(windows: DataFrame, closed: DataFrame, spans: Sequence[Span]) -> DataFrame:
    """The share of each window that any cause takes up: causes overlap, so their times are put together first."""
    begin = F.unix_millis("window_start")
    # A time without an end reaches to where the log ends.
    log_end: Column = F.lit(None).cast("bigint")
    for span in spans:
        log_end = F.when(F.col("shard") == span.shard, F.lit(span.last_ms)).otherwise(log_end)
    times = closed.select(
        "shard",
        F.unix_millis("from_at").alias("from_ms"),
        F.coalesce(F.unix_millis("until_at"), log_end).alias("until_ms"),
    )
    clipped = (
        windows.join(times, on="shard")
        .withColumn("from_ms", F.greatest("from_ms", begin))
        .withColumn("until_ms", F.least(F.col("until_ms"), begin + WINDOW_MS))
        .where("until_ms > from_ms")
    )
    together = """
        aggregate(parts, struct(0L AS sum, 0L AS reached),
            (acc, part) -> struct(
                acc.sum + greatest(0L, part.until_ms - greatest(part.from_ms, acc.reached)) AS sum,
                greatest(acc.reached, part.until_ms) AS reached),
            acc -> acc.sum)
    """
    parts = clipped.groupBy("shard", "window_start").agg(
        F.array_sort(F.collect_list(F.struct("from_ms", "until_ms"))).alias("parts")
    )
    share = F.expr(together) / WINDOW_MS
    return parts.select("shard", "window_start", share.alias("backpressure_share"))


# -- daily -------------------------------------------------------------------------------------

_COUNTED: Final = {
    "enqueued": "Enqueue",
    "granted": "LeaseGranted",
    "heartbeats": "Heartbeat",
    "completed": "Completed",
    "failed": "Failed",
    "expired": "Expired",
    "released": "Released",
    "cancelled": "Cancelled",
    "dead": "DeadLettered",
}


def daily(events: DataFrame, leases: DataFrame, spans: Sequence[Span]) -> DataFrame:
    keys = ["shard", "date"]
    happened = (
        events.where(within_dates(spans))
        .groupBy(*keys)
        .agg(
            F.count("*").alias("events"),
            *(F.count(F.when(F.col("event_type") == kind, 1)).alias(name) for name, kind in _COUNTED.items()),
        )
    )
    granted = (
        leases.where(within(spans, "granted_at", DAY_MS))
        .groupBy("shard", F.to_date("granted_at").alias("date"))
        .agg(F.countDistinct("owner").alias("owners"), *_percentiles("wait_ms", "wait", 50, 95))
    )
    ended = (
        leases.where(within(spans, "ended_at", DAY_MS))
        .groupBy("shard", F.to_date("ended_at").alias("date"))
        .agg(*_percentiles("work_ms", "work", 50, 95))
    )
    rows = happened.join(granted, on=keys, how="left").join(ended, on=keys, how="left")
    return in_shape(rows.na.fill(0, ["owners"]), DAILY)
