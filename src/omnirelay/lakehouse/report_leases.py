"""The leases of a report: some drawn one by one with their owners, all of them as a graph of who worked on what."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from omnirelay.lakehouse.report_counts import Rows, before, bucket_of, top_and_totals, touching
from omnirelay.lakehouse.report_data import BAD, BARS_MAX, OWNERS_MAX, Bar, Gantt, OwnerRow, Span, clipped
from omnirelay.lakehouse.report_lanes import into_lanes, natural
from omnirelay.lakehouse.tables import LEASES

_DRAWN: Final = (
    "owner",
    "outcome",
    "shard",
    "resource_type",
    "resource_id",
    "item",
    "attempt",
    "fence",
    "wait_ms",
    "principal",
    "error_code",
    "error_message",
    "table_version",
)


def is_bad() -> Column:
    return F.coalesce(F.col("outcome").isin(*BAD), F.lit(False))


def gantt(rows: Rows, span: Span) -> Gantt:
    """Owners with most trouble first, then those with most leases; of each the longest leases, good and bad."""
    leases = rows(LEASES).where(F.col("granted_at").isNotNull() & touching("granted_at", "ended_at", span))
    by_owner = leases.groupBy("owner").agg(F.count("*").alias("leases"), F.sum(is_bad().cast("bigint")).alias("bad"))
    order = (F.desc("bad"), F.desc("leases"), F.col("owner"))
    chosen, totals = top_and_totals(by_owner, OWNERS_MAX, order, "leases")
    if not chosen:
        return Gantt()
    chosen.sort(key=lambda row: natural(row.owner))
    mine = leases.where(_among("owner", [row.owner for row in chosen]))
    places = {row.owner: at for at, row in enumerate(chosen)}
    whole = totals.leases <= BARS_MAX
    granted: dict[str | None, list[int]] = {} if whole else _granted(mine, span)
    owners = [
        OwnerRow(
            name=None if row.owner is None else clipped(row.owner),
            leases=row.leases,
            bad=row.bad,
            granted=granted.get(row.owner, []),
        )
        for row in chosen
    ]
    drawn = _longest(mine, BARS_MAX if whole else BARS_MAX // len(chosen) // 2, span)
    bars = [_bar(row, places[row.owner]) for row in drawn.collect()]
    return Gantt(*into_lanes(owners, bars, span), totals.groups, totals.leases)


def _among(name: str, values: list[str | None]) -> Column:
    there = F.col(name).isin([value for value in values if value is not None])
    return there | F.col(name).isNull() if None in values else there


def _granted(leases: DataFrame, span: Span) -> dict[str | None, list[int]]:
    counted = (
        leases.where(~before("granted_at", span.from_ms))
        .groupBy("owner", bucket_of("granted_at", span).alias("bucket"))
        .count()
    )
    found: dict[str | None, list[int]] = {}
    for owner, bucket, count in counted.collect():
        found.setdefault(owner, [0] * span.buckets)[bucket] = count
    return found


def _longest(leases: DataFrame, each: int, span: Span) -> DataFrame:
    """So many leases of each owner that ended badly, and so many of the others."""
    end = F.coalesce(F.unix_millis("ended_at"), F.lit(span.to_ms))
    length = end - F.unix_millis("granted_at")
    order = Window.partitionBy("owner", is_bad()).orderBy(length.desc(), F.col("fence"))
    ranked = leases.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= each)
    return ranked.select(
        *_DRAWN, F.unix_millis("granted_at").alias("start_ms"), F.unix_millis("ended_at").alias("end_ms")
    )


def _bar(row: Row, place: int) -> Bar:
    error = row.error_message if row.error_message is not None else row.error_code
    return Bar(
        row=place,
        start_ms=row.start_ms,
        end_ms=row.end_ms,
        outcome=row.outcome,
        shard=clipped(row.shard),
        resource=clipped(resource_name(row.resource_type, row.resource_id)),
        item=row.item,
        attempt=row.attempt,
        fence=row.fence,
        wait_ms=row.wait_ms,
        principal=None if row.principal is None else clipped(row.principal),
        error=None if error is None else clipped(error),
        version=None if row.table_version is None else clipped(row.table_version),
    )


def resource_name(kind: str | None, name: str | None) -> str:
    if kind is None:
        return "not known"
    return f"{kind}/{name or ''}"
