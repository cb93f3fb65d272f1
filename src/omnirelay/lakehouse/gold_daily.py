"""Gold `daily`: the days of a shard. A run adds what is new to what its days hold, and looks at nothing else.

Next to what people read, a row holds what the next run adds to: the leases of the day by owner, by resource, by five
minutes, and by how long they waited and took. `anomalies` is made from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from omnirelay.lakehouse.gold import GRANTED_NOW
from omnirelay.lakehouse.gold_windows import Span, window_of, within_dates
from omnirelay.lakehouse.silver import in_shape
from omnirelay.lakehouse.tables import DAILY
from omnirelay.lakehouse.tallies import FINE_BITS, percentiles, rounded, tally

_DAY: Final = ("shard", "date")
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
_COUNTS: Final = ("events", *_COUNTED)

_PART: Final = ("part", "name", "at", "ms", "all", "ended", "bad")
"""Leases of a day that have something in common: which of the five parts of a row tells of them, what they have in
common (a name, five minutes or a length of time), and how many they are.
"""
_KNOWN: Final = {
    "peer": ("by_peer", "each.peer", "NULL", "NULL", "each.granted", "each.ended", "each.bad"),
    "resource": ("by_resource", "each.resource", "NULL", "NULL", "0L", "0L", "each.expired"),
    "window": ("by_window", "NULL", "each.at", "NULL", "0L", "each.ended", "each.bad"),
    "wait": ("wait_times", "NULL", "NULL", "each.ms", "each.leases", "0L", "0L"),
    "work": ("work_times", "NULL", "NULL", "each.ms", "each.leases", "0L", "0L"),
}
"""How each part of a row is taken apart again: its column, and the values behind `part`."""


def daily(events: DataFrame, changed: DataFrame, spans: Sequence[Span], known: DataFrame | None) -> DataFrame:
    """The days that are touched. `events` are the new ones only, and `changed` the leases that they concern, as
    `changed_since` has them: what came before is in `known`, the table as it is.
    """
    happened = events.groupBy(*_DAY).agg(
        F.count("*").alias("events"),
        *(F.count(F.when(F.col("event_type") == kind, 1)).alias(name) for name, kind in _COUNTED.items()),
    )
    parts = _granted(changed).unionByName(_ended(changed))
    if known is not None:
        known = known.where(within_dates(spans))
        happened = happened.unionByName(known.select(*_DAY, *_COUNTS))
        parts = parts.unionByName(_taken_apart(known))
    told = _put_together(parts)
    names = [name for name in told.columns if name not in _DAY]
    grouped = (
        happened.unionByName(told, allowMissingColumns=True)
        .groupBy(*_DAY)
        .agg(
            *(F.sum(name).alias(name) for name in _COUNTS),
            *(F.first(name, ignorenulls=True).alias(name) for name in names),
        )
    )
    lists = {column: F.coalesce(column, F.array()) for column, *_ in _KNOWN.values()}
    lists["owners"] = F.coalesce("owners", F.lit(0))
    return in_shape(grouped.withColumns(lists), DAILY)


def _part(part: str, *, all: str = "0L", ended: str = "0L", bad: str = "0L", **common: str) -> str:
    values = {"name": "NULL", "at": "NULL", "ms": "NULL", **common}
    return (
        f"struct('{part}' AS part, CAST({values['name']} AS STRING) AS name, CAST({values['at']} AS TIMESTAMP) AS at,"
        f" CAST({values['ms']} AS BIGINT) AS ms, {all} AS all, {ended} AS ended, {bad} AS bad)"
    )


def _granted(changed: DataFrame) -> DataFrame:
    """What leases that were granted since say of the day of their grant."""
    leases = changed.where(F.col(GRANTED_NOW) & F.col("granted_at").isNotNull()).select(
        "shard", F.to_date("granted_at").alias("date"), "owner", rounded("wait_ms", FINE_BITS).alias("wait")
    )
    parts = (_part("peer", name="owner", all="1L"), _part("wait", ms="wait", all="1L"))
    return leases.select(*_DAY, F.expr(f"inline(array({', '.join(parts)}))"))


def _ended(changed: DataFrame) -> DataFrame:
    """What leases that ended since say of the day of their end."""
    bad = F.when(F.col("outcome").isin("failed", "expired"), 1).otherwise(0).cast("bigint")
    leases = changed.where("ended_at IS NOT NULL").select(
        "shard",
        F.to_date("ended_at").alias("date"),
        "owner",
        F.when(
            (F.col("outcome") == "expired") & F.col("resource_id").isNotNull(),
            F.concat_ws("/", "resource_type", "resource_id"),
        ).alias("ran_out"),
        window_of("ended_at").alias("at"),
        bad.alias("bad"),
        rounded("work_ms", FINE_BITS).alias("work"),
    )
    parts = (
        _part("peer", name="owner", ended="1L", bad="bad"),
        _part("resource", name="ran_out", bad="1L"),
        _part("window", at="at", ended="1L", bad="bad"),
        _part("work", ms="work", all="1L"),
    )
    return leases.select(*_DAY, F.expr(f"inline(array({', '.join(parts)}))"))


def _taken_apart(known: DataFrame) -> DataFrame:
    lists = []
    for part, (column, name, at, ms, *counts) in _KNOWN.items():
        numbers = dict(zip(("all", "ended", "bad"), counts, strict=True))
        each = _part(part, name=name, at=at, ms=ms, **numbers)
        lists.append(f"transform({column}, each -> {each})")
    return known.select(*_DAY, F.expr(f"inline(concat({', '.join(lists)}))"))


def _put_together(parts: DataFrame) -> DataFrame:
    """A row for each day with its parts, and what they come to. Leases that share nothing there count nowhere."""
    common = ("part", "name", "at", "ms")
    counted = (
        parts.where("coalesce(name, string(at), string(ms)) IS NOT NULL")
        .groupBy(*_DAY, *common)
        .agg(*(F.sum(name).alias(name) for name in ("all", "ended", "bad")))
    )

    def listed(part: str, column: str, *values: Column) -> Column:
        # In order of what they have in common, which is first.
        return F.array_sort(F.collect_list(F.when(F.col("part") == part, F.struct(*values)))).alias(column)

    def times(part: str, shares: Sequence[int]) -> list[Column]:
        ms = F.when(F.col("part") == part, F.col("ms"))
        return [tally(ms, F.col("all")).alias(f"{part}_times"), *percentiles(ms, F.col("all"), part, shares)]

    rows = counted.groupBy(*_DAY).agg(
        listed(
            "peer", "by_peer", F.col("name").alias("peer"), F.col("all").alias("granted"), F.col("ended"), F.col("bad")
        ),
        listed("resource", "by_resource", F.col("name").alias("resource"), F.col("bad").alias("expired")),
        listed("window", "by_window", F.col("at"), F.col("ended"), F.col("bad")),
        *times("wait", (50, 95)),
        *times("work", (50, 95)),
    )
    return rows.withColumn("owners", F.expr("size(filter(by_peer, each -> each.granted > 0))").cast("bigint"))
