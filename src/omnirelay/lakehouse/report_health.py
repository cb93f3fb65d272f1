"""What was out of order in a report: peers without signs of life, closed intake, anomalies, resources that fail."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from omnirelay.lakehouse import report_data
from omnirelay.lakehouse.report_counts import Rows, top_and_totals, touching
from omnirelay.lakehouse.report_data import (
    Anomalies,
    Anomaly,
    Backpressure,
    CauseRow,
    Interval,
    PeerRow,
    Peers,
    Resources,
    Span,
    Unwell,
    clipped,
)
from omnirelay.lakehouse.report_lanes import natural
from omnirelay.lakehouse.report_leases import resource_name
from omnirelay.lakehouse.tables import ANOMALIES, BACKPRESSURE, PEERS, RESOURCE_HEALTH

_ENDS: Final = ("from_ms", "until_ms", "reason")


def _within(rows: DataFrame, span: Span) -> DataFrame:
    """Times that reach into the span, with the part of their length that lies in it."""
    begin = F.greatest(F.unix_millis("from_at"), F.lit(span.from_ms))
    end = F.least(F.coalesce(F.unix_millis("until_at"), F.lit(span.to_ms)), F.lit(span.to_ms))
    return rows.where(touching("from_at", "until_at", span)).select(
        "*",
        F.unix_millis("from_at").alias("from_ms"),
        F.unix_millis("until_at").alias("until_ms"),
        begin.alias("begin_ms"),
        F.greatest(end, begin).alias("end_ms"),
        F.greatest(end - begin, F.lit(0)).alias("length_ms"),
    )


def _longest(rows: DataFrame, keys: list[str], places: dict[tuple[str, str], int]) -> list[Interval]:
    """The longest times of the rows that have a place, in the order of time."""
    if not places:
        return []
    chosen: Column = F.lit(False)
    for values in places:
        same: Column = F.lit(True)
        for name, value in zip(keys, values, strict=True):
            same = same & (F.col(name) == F.lit(value))
        chosen = chosen | same
    # Of many that are equally long not the first: they would all be at one place.
    order = (F.desc("length_ms"), F.xxhash64("from_ms"), F.col("from_ms"))
    found = rows.where(chosen).orderBy(*order).limit(report_data.INTERVALS_MAX)
    intervals = [
        Interval(places[row[0], row[1]], row.from_ms, row.until_ms, None if row.reason is None else clipped(row.reason))
        for row in found.select(*keys, *_ENDS).collect()
    ]
    return sorted(intervals, key=lambda each: (each.row, each.from_ms))


def peers(rows: Rows, span: Span) -> Peers:
    keys = ["shard", "peer"]
    times = _within(rows(PEERS), span)
    unwell = times.where("NOT healthy")
    each = times.groupBy(*keys).agg(
        F.min("from_ms").alias("from_ms"),
        F.max(F.unix_millis("last_seen_at")).alias("last_seen_ms"),
        F.sum(F.when(~F.col("healthy"), F.col("length_ms")).otherwise(0)).alias("unwell_ms"),
        F.sum("length_ms").alias("known_ms"),
        F.sum("signs").alias("signs"),
        F.sum("expiries").alias("expiries"),
        F.count(F.when(~F.col("healthy"), 1)).alias("times"),
    )
    order = (F.desc("unwell_ms"), F.desc("signs"), F.col("peer"), F.col("shard"))
    chosen, totals = top_and_totals(each, report_data.PEERS_MAX, order, "times")
    chosen.sort(key=lambda row: (natural(row.peer), row.shard))
    drawn = [
        PeerRow(
            shard=clipped(row.shard),
            name=clipped(row.peer),
            from_ms=row.from_ms,
            last_seen_ms=row.last_seen_ms,
            unwell_ms=row.unwell_ms,
            known_ms=row.known_ms,
            signs=row.signs,
            expiries=row.expiries,
        )
        for row in chosen
    ]
    places = {(row.shard, row.peer): at for at, row in enumerate(chosen)}
    return Peers(drawn, _longest(unwell, keys, places), totals.groups, totals.times or 0)


def backpressure(rows: Rows, span: Span, shards: int) -> tuple[Backpressure, float]:
    """With the share of the time in which any cause kept intake closed, over all shards."""
    keys = ["shard", "cause"]
    times = _within(rows(BACKPRESSURE), span)
    each = (
        _with_new(times)
        .groupBy(*keys)
        .agg(F.count("*").alias("times"), F.sum("length_ms").alias("closed_ms"), F.sum("new_ms").alias("new_ms"))
    )
    order = (F.desc("closed_ms"), F.col("shard"), F.col("cause"))
    chosen, totals = top_and_totals(each, report_data.CAUSES_MAX, order, "times", "new_ms")
    if not chosen:
        return Backpressure(), 0.0
    chosen.sort(key=lambda row: (-row.closed_ms, row.shard, row.cause))
    places = {(row.shard, row.cause): at for at, row in enumerate(chosen)}
    drawn = [CauseRow(clipped(row.shard), clipped(row.cause), row.times, row.closed_ms) for row in chosen]
    share = totals.new_ms / ((span.to_ms - span.from_ms) * max(1, shards))
    return Backpressure(drawn, _longest(times, keys, places), totals.groups, totals.times), min(1.0, share)


def _with_new(times: DataFrame) -> DataFrame:
    """Times of closed intake with `new_ms`, the part that no earlier one of any cause covers: causes overlap."""
    earlier = Window.partitionBy("shard").orderBy("begin_ms", "end_ms").rowsBetween(Window.unboundedPreceding, -1)
    covered = F.coalesce(F.max("end_ms").over(earlier), F.col("begin_ms"))
    new = F.greatest(F.col("end_ms") - F.greatest(F.col("begin_ms"), covered), F.lit(0))
    return times.withColumn("new_ms", new)


def anomalies(rows: Rows, span: Span) -> Anomalies:
    """The newest of each kind: a thousand of one kind must not hide the only one of another."""
    first, last = (datetime.fromtimestamp(ms / 1000, UTC).date() for ms in (span.from_ms, span.to_ms - 1))
    there = rows(ANOMALIES).where(F.col("date").between(first, last))
    of_kind = Window.partitionBy("kind")
    order = of_kind.orderBy(F.desc("date"), F.desc(F.abs(F.col("value"))), "shard", "subject")
    ranked = there.withColumn("rank", F.row_number().over(order)).withColumn("all", F.count("*").over(of_kind))
    chosen = ranked.where(F.col("rank") <= report_data.ANOMALIES_OF_A_KIND_MAX).orderBy("kind", "rank").collect()
    found = [
        Anomaly(
            row.kind,
            clipped(row.shard),
            row.date.isoformat(),
            clipped(row.subject or ""),
            row.value,
            row.expected,
            clipped(row.detail or ""),
        )
        for row in chosen
    ]
    return Anomalies(found, {row.kind: row["all"] for row in chosen})


def resources(rows: Rows) -> Resources:
    table = rows(RESOURCE_HEALTH).withColumn("last_ended_ms", F.unix_millis("last_ended_at"))
    counts = table.groupBy("health").agg(F.count("*").alias("number"))
    unwell = table.where(F.col("health").isin("failing", "expiring"))
    worst = unwell.orderBy(F.desc("failures_in_a_row"), "shard", "resource_type", "resource_id")
    both = worst.limit(report_data.UNWELL_MAX).unionByName(counts, allowMissingColumns=True).collect()
    found = [
        Unwell(
            clipped(row.shard),
            clipped(resource_name(row.resource_type, row.resource_id)),
            row.health,
            max(row.failures_in_a_row, row.expiries_in_a_row),
            row.leases,
            row.owners,
            row.last_ended_ms,
        )
        for row in both
        if row.number is None
    ]
    found.sort(key=lambda each: (-each.in_a_row, each.shard, each.resource))
    return Resources(found, {row.health: row.number for row in both if row.number is not None})
