"""What a report counts over time: how much waits and runs, how leases end, percentiles of waiting and working.

Rows are grouped in Spark; only groups come here, at most one for each bucket and name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any, Final, TypeAlias

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from omnirelay.lakehouse.gold_windows import WINDOW_MS
from omnirelay.lakehouse.report_data import OUTCOMES, Headline, Percentiles, Series, Span
from omnirelay.lakehouse.tables import ITEMS, LEASES, SLO, Table

Rows: TypeAlias = Callable[[Table], DataFrame]
"""The rows of a table that a report is about."""

_BEFORE: Final = -1
"""The bucket of everything before the time span."""
_SHARES: Final = (0.5, 0.95, 0.99)


def extent(rows: Rows) -> tuple[int, int] | None:
    """The first instant of the log and the one behind its last; None when there is none.

    Items that were restored may have come in long before the log began, so that its windows say where to look.
    """
    windows = rows(SLO).agg(
        F.min(F.unix_millis("window_start")).alias("low"),
        (F.max(F.unix_millis("window_start")) + WINDOW_MS).alias("high"),
    )
    instants = [
        rows(table).select(F.unix_millis(name).alias("ms"))
        for table, names in (
            (LEASES, ("granted_at", "last_heartbeat_at", "ended_at")),
            (ITEMS, ("enqueued_at", "ended_at")),
        )
        for name in names
    ]
    # The windows are one row, which goes to the instants; an outer join would send the instants to it.
    inside = reduce(DataFrame.union, instants).crossJoin(F.broadcast(windows)).where("ms >= low AND ms < high")
    whole = inside.union(windows.select(F.lit(None).cast("bigint"), "low", "high"))
    found = whole.agg(F.min("ms"), F.max("ms"), F.max("low"), F.max("high")).first()
    if found is None or found[2] is None:
        return None
    first, last, low, high = found
    return (low, high) if first is None else (first, last + 1)


def top_and_totals(groups: DataFrame, number: int, order: Sequence[Column], *sums: str) -> tuple[list[Row], Row]:
    """The first groups of an order, as they come, and over all groups their number (`groups`) and sums of columns.

    One question instead of two: what both are made of is computed once.
    """
    top = groups.orderBy(*order).limit(number).withColumn("groups", F.lit(None).cast("bigint"))
    totals = groups.agg(F.count("*").alias("groups"), *(F.sum(name).alias(name) for name in sums))
    found = top.unionByName(totals, allowMissingColumns=True).collect()
    [total] = [row for row in found if row.groups is not None]
    return [row for row in found if row.groups is None], total


def bucket_of(column: str, span: Span) -> Column:
    """The number of the bucket that an instant is in."""
    ms = F.unix_millis(column)
    number = F.floor((ms - F.lit(span.first_ms)) / F.lit(span.bucket_ms))
    return F.when(ms < span.from_ms, _BEFORE).otherwise(number).cast("int")


def before(column: str, ms: int) -> Column:
    return F.unix_millis(column) < ms


def touching(begin: str, end: str, span: Span) -> Column:
    """That a time from one column to another, or without an end, reaches into the span."""
    return before(begin, span.to_ms) & (F.col(end).isNull() | ~before(end, span.from_ms))


class Changes:
    """How often what happened in which bucket: the keys are ("lease", "expired") and the like."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._counts: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)

    def add(self, kind: str, name: str, bucket: int, count: int) -> None:
        self._counts[kind, name][bucket] = self._counts[kind, name].get(bucket, 0) + count

    def each(self, *keys: tuple[str, str]) -> list[int]:
        """In every bucket of the span."""
        buckets = range(self._span.buckets)
        return [sum(self._counts[key].get(bucket, 0) for key in keys if key in self._counts) for bucket in buckets]

    def total(self, *keys: tuple[str, str]) -> int:
        return sum(self.each(*keys))

    def level(self, up: Iterable[tuple[str, str]], down: Iterable[tuple[str, str]]) -> list[int]:
        """What is there at the end of every bucket, if some keys add to it and others take away."""
        up, down = list(up), list(down)
        first = sum(self._counts[key].get(_BEFORE, 0) for key in up if key in self._counts)
        first -= sum(self._counts[key].get(_BEFORE, 0) for key in down if key in self._counts)
        steps = [more - less for more, less in zip(self.each(*up), self.each(*down), strict=True)]
        return list(accumulate(steps, initial=first))[1:]

    def named(self, kind: str) -> list[tuple[str, str]]:
        return [key for key in self._counts if key[0] == kind]


def changes(rows: Rows, span: Span) -> Changes:
    """One pass over items and leases, as many groups as there are buckets and names."""
    # Whose beginning is older than the segments has an end only, and must not be taken away from a level.
    parts = [
        _instants(rows(ITEMS), "enqueued_at", F.lit("item"), F.lit("in"), span),
        _instants(rows(ITEMS), "ended_at", _known("enqueued_at", "item end"), F.col("state"), span),
        _instants(rows(LEASES), "granted_at", F.lit("lease"), F.lit("granted"), span),
        _instants(rows(LEASES), "ended_at", _known("granted_at", "lease end"), F.col("outcome"), span),
    ]
    counted = reduce(DataFrame.union, parts).groupBy("kind", "name", "bucket").count()
    found = Changes(span)
    for kind, name, bucket, count in counted.collect():
        found.add(kind, name, bucket, count)
    return found


def _known(begin: str, kind: str) -> Column:
    return F.when(F.col(begin).isNotNull(), F.lit(kind)).otherwise(F.lit(f"{kind} alone"))


def _instants(table: DataFrame, at: str, kind: Column, name: Column, span: Span) -> DataFrame:
    there = table.where(F.col(at).isNotNull() & before(at, span.to_ms))
    return there.select(kind.alias("kind"), name.alias("name"), bucket_of(at, span).alias("bucket"))


def percentiles(rows: Rows, value: str, at: str, span: Span) -> tuple[Percentiles, list[Percentiles]]:
    """Over the whole span, and in every bucket."""
    there = rows(LEASES).where(~before(at, span.from_ms) & before(at, span.to_ms) & F.col(value).isNotNull())
    grouped = there.rollup(bucket_of(at, span).alias("bucket")).agg(
        F.percentile_approx(value, list(_SHARES), 10_000).alias("values")
    )
    found: dict[int | None, Percentiles] = {}
    for bucket, values in grouped.collect():
        if values:
            found[bucket] = Percentiles(*values)
    nothing = Percentiles()
    return found.get(None, nothing), [found.get(bucket, nothing) for bucket in range(span.buckets)]


def series_and_headline(rows: Rows, span: Span, closed_share: float) -> tuple[Series, Headline]:
    counted = changes(rows, span)
    wait, wait_each = percentiles(rows, "wait_ms", "granted_at", span)
    work, work_each = percentiles(rows, "work_ms", "ended_at", span)
    inside = counted.level([("item", "in")], counted.named("item end"))
    running = _not_negative(counted.level([("lease", "granted")], counted.named("lease end")))
    waiting = _not_negative([all_of - some for all_of, some in zip(inside, running, strict=True)])
    series = Series(
        waiting=waiting,
        running=running,
        came_in=counted.each(("item", "in")),
        wait=wait_each,
        work=work_each,
        ended={name: counted.each(*_ends("lease", name)) for name in OUTCOMES},
    )

    def items(state: str) -> int:
        return counted.total(*_ends("item", state))

    headline = Headline(
        came_in=sum(series.came_in),
        completed=items("completed"),
        dead=items("dead"),
        cancelled=items("cancelled"),
        drained=items("drained"),
        waiting=waiting[-1] if waiting else 0,
        running=running[-1] if running else 0,
        granted=counted.total(("lease", "granted")),
        ended=sum(sum(each) for each in series.ended.values()),
        expired=sum(series.ended["expired"]),
        failed=sum(series.ended["failed"]),
        wait=wait,
        work=work,
        closed_share=closed_share,
    )
    return series, headline


def _ends(kind: str, name: str) -> list[tuple[str, str]]:
    return [(f"{kind} end", name), (f"{kind} end alone", name)]


def _not_negative(values: Sequence[Any]) -> list[int]:
    """Clocks that go back can put the end of a lease before its beginning."""
    return [max(0, value) for value in values]
