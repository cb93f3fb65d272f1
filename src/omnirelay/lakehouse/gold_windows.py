"""The time that new events fall into, and gold `slo`, which is made anew for it: windows of five minutes.

Gold by time is replaced from the first window that is touched to the last, shard by shard. New events are behind older
ones in time, too, so these are the last few windows; the last one before them is among them because it was not over
yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from omnirelay.lakehouse.formats import NO_ROW
from omnirelay.lakehouse.progress import Progress
from omnirelay.lakehouse.silver import GOING_ON, Ranges, in_shape, named_item, quoted
from omnirelay.lakehouse.tables import SLO

WINDOW_MS: Final = 300_000
DAY_MS: Final = 86_400_000
OF_LEASES: Final = ("shard", "granted_at", "ended_at", "outcome", "wait_ms", "work_ms")
"""What `slo` looks at of a lease."""


class Span(msgspec.Struct, frozen=True):
    """The time that new events of a shard fall into."""

    shard: str
    first_ms: int
    last_ms: int

    @property
    def of_shard(self) -> str:
        return f"shard = {quoted(self.shard)}"

    def windows(self, width_ms: int) -> tuple[int, int]:
        """Where the windows of this width begin and end that this span touches."""
        return self.first_ms // width_ms * width_ms, (self.last_ms // width_ms + 1) * width_ms

    def condition(self, column: str, width_ms: int) -> str:
        """That an instant is in a window of this width which this span touches."""
        begin, end = self.windows(width_ms)
        at = f"`{column}`"
        return f"({self.of_shard} AND {at} >= timestamp_millis({begin}) AND {at} < timestamp_millis({end}))"


class News(msgspec.Struct, frozen=True):
    """What is to be known of new events before anything is made of them, found out in one pass."""

    spans: list[Span]
    """With the last event before them, whose window was not over yet."""
    kinds: frozenset[str]
    """Their types, without that one's: what it did is in the tables already."""
    going_on: Ranges
    """Of items that they concern each by itself, and that were there and had not ended."""


def news_of(events: DataFrame, after: Progress) -> News:
    """Of events behind `after` and the last one before them: a few numbers and names for each shard."""
    ms = F.unix_millis("timestamp")
    old: Column = F.lit(False)
    for shard, end in after.items():
        old = old | ((F.col("shard") == shard) & (F.col("sequence") <= end.sequence))
    kinds = F.collect_set(F.when(~old, F.col("event_type")))
    item = F.when(~old & F.col("event_type").isin(*GOING_ON), named_item())
    found = events.groupBy("shard").agg(F.min(ms), F.max(ms), kinds, F.min(item), F.max(item)).collect()
    spans = [Span(row[0], row[1], row[2]) for row in found]
    spans.sort(key=lambda span: span.shard)
    return News(
        spans,
        frozenset(kind for row in found for kind in row[3]),
        {row[0]: (int(row[4]), int(row[5])) for row in found if row[4] is not None},
    )


def within(spans: Sequence[Span], column: str, width_ms: int) -> str:
    return " OR ".join(span.condition(column, width_ms) for span in spans) or NO_ROW


def granted_or_ended(spans: Sequence[Span]) -> str:
    """That a lease was granted or ended in a window that is touched."""
    return " OR ".join(within(spans, column, WINDOW_MS) for column in ("granted_at", "ended_at"))


def closed_within(spans: Sequence[Span]) -> str:
    """That intake was closed in a window that is touched, said of the columns as they are stored: so files that have no
    such time are passed over.
    """
    parts = []
    for span in spans:
        begin, end = span.windows(WINDOW_MS)
        since = f"(until_at IS NULL OR until_at > timestamp_millis({begin}))"
        parts.append(f"({span.of_shard} AND from_at < timestamp_millis({end}) AND {since})")
    return " OR ".join(parts) or NO_ROW


def within_dates(spans: Sequence[Span]) -> str:
    """The same for a column `date`; text of a form that a replaced part of a table may be told by."""
    parts = []
    for span in spans:
        days = [f"date_add(DATE'1970-01-01', {ms // DAY_MS})" for ms in (span.first_ms, span.last_ms)]
        parts.append(f"({span.of_shard} AND `date` >= {days[0]} AND `date` <= {days[1]})")
    return " OR ".join(parts) or NO_ROW


def window_of(column: str) -> Column:
    return F.timestamp_millis(F.floor(F.unix_millis(column) / WINDOW_MS) * WINDOW_MS)


def _percentiles(column: str, name: str, *shares: int) -> list[Column]:
    return [F.percentile(column, share / 100).alias(f"{name}_p{share}_ms") for share in shares]


# -- slo ---------------------------------------------------------------------------------------


def slo(
    events: DataFrame, leases: DataFrame, closed: DataFrame, spans: Sequence[Span], known: DataFrame | None
) -> DataFrame:
    """Windows of five minutes. `events` are the new ones only: what older ones counted is in `known`, the table as it
    is; `closed` are the times of closed intake.

    What happened is counted first, as there are many events; the rest is put beside it and grouped once, not joined.
    """
    keys = ["shard", "window_start"]
    lag = "commit_lag_max_ms"
    happened = events.groupBy("shard", window_of("timestamp").alias("window_start")).agg(
        F.count("*").alias("events"),
        F.count(F.when(F.col("event_type") == "Enqueue", 1)).alias("enqueued"),
        F.max(F.unix_millis("frame_time") - F.unix_millis("timestamp")).alias(lag),
    )
    if known is not None:
        counted = known.where(within(spans, "window_start", WINDOW_MS)).select(*keys, "events", "enqueued", lag)
        happened = happened.unionByName(counted)
    granted = leases.where(within(spans, "granted_at", WINDOW_MS)).select(
        "shard", window_of("granted_at").alias("window_start"), F.lit(1).alias("grant"), "wait_ms"
    )
    ended = leases.where(within(spans, "ended_at", WINDOW_MS)).select(
        "shard",
        window_of("ended_at").alias("window_start"),
        "work_ms",
        F.when(F.col("outcome") == "expired", 1.0).otherwise(0.0).alias("ran_out"),
    )
    rows = happened
    for more in (granted, ended, _closed_parts(closed, spans)):
        rows = rows.unionByName(more, allowMissingColumns=True)
    grouped = rows.groupBy(*keys).agg(
        *(F.sum(name).alias(name) for name in ("events", "enqueued")),
        F.max(lag).alias(lag),
        F.count("grant").alias("granted"),
        *_percentiles("wait_ms", "wait", 50, 95, 99),
        F.count("ran_out").alias("ended"),
        *_percentiles("work_ms", "lease_age", 50, 95),
        F.max("work_ms").alias("lease_age_max_ms"),
        F.avg("ran_out").alias("expiry_rate"),
        F.array_sort(F.collect_list("part")).alias("parts"),
    )
    share = F.expr(_TOGETHER) / WINDOW_MS
    return in_shape(grouped.where("events > 0").withColumn("backpressure_share", share), SLO)


_TOGETHER: Final = """
    aggregate(parts, struct(0L AS sum, 0L AS reached),
        (acc, part) -> struct(
            acc.sum + greatest(0L, part.until_ms - greatest(part.from_ms, acc.reached)) AS sum,
            greatest(acc.reached, part.until_ms) AS reached),
        acc -> acc.sum)
"""
"""The length of parts of time that may overlap, in the order in which they begin."""


def _closed_parts(closed: DataFrame, spans: Sequence[Span]) -> DataFrame:
    """For every window that is touched the parts of it in which a cause kept intake closed."""

    def of_shard(number: Callable[[Span], int]) -> Column:
        values = [each for span in spans for each in (F.lit(span.shard), F.lit(number(span)).cast("bigint"))]
        return F.create_map(*values)[F.col("shard")] if values else F.lit(None).cast("bigint")

    first = of_shard(lambda span: span.windows(WINDOW_MS)[0])
    last = of_shard(lambda span: span.windows(WINDOW_MS)[1])
    # A time without an end reaches to where the log ends.
    until = F.coalesce(F.unix_millis("until_at"), of_shard(lambda span: span.last_ms))
    # greatest() and least() pass over nulls, so that shards without a span have to be left out first.
    times = closed.where(closed_within(spans)).select(
        "shard",
        F.greatest(F.unix_millis("from_at"), first).alias("from_ms"),
        F.least(until, last).alias("until_ms"),
    )
    begins = f"sequence(from_ms - from_ms % {WINDOW_MS}, until_ms - 1 - (until_ms - 1) % {WINDOW_MS}, {WINDOW_MS}L)"
    windows = times.where("until_ms > from_ms").select("*", F.explode(F.expr(begins)).alias("begin"))
    part = F.struct(
        F.greatest("from_ms", "begin").alias("from_ms"),
        F.least(F.col("until_ms"), F.col("begin") + WINDOW_MS).alias("until_ms"),
    )
    return windows.select("shard", F.timestamp_millis("begin").alias("window_start"), part.alias("part"))
