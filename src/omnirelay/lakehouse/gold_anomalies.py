"""Gold `anomalies`: what a person should look at, day by day.

owner_fails        a peer whose leases fail or run out far more often than those of the others
resource_expires   a resource whose leases keep running out
retry_storm        five minutes in which most leases ended badly, and many did
clock_skew         a frame whose time lies before that of the frame it follows
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from omnirelay.lakehouse.gold_windows import DAY_MS, Span, window_of, within, within_dates
from omnirelay.lakehouse.silver import in_shape
from omnirelay.lakehouse.tables import ANOMALIES

OWNER_LEASES_MIN: Final = 5
OWNER_SHARE_MIN: Final = 0.5
OWNER_FACTOR: Final = 3.0
EXPIRIES_MIN: Final = 3
STORM_MIN: Final = 20
STORM_SHARE: Final = 0.5


def anomalies(events: DataFrame, leases: DataFrame, spans: Sequence[Span]) -> DataFrame:
    ended = leases.where(within(spans, "ended_at", DAY_MS)).select(
        "shard",
        F.to_date("ended_at").alias("date"),
        "ended_at",
        "owner",
        "resource_type",
        "resource_id",
        "outcome",
        F.when(F.col("outcome").isin("failed", "expired"), 1).otherwise(0).alias("bad"),
    )
    kinds = (_owners(ended), _resources(ended), _storms(ended), _clocks(events.where(within_dates(spans))))
    return in_shape(reduce(DataFrame.unionByName, kinds), ANOMALIES)


def _found(rows: DataFrame, kind: str, subject: Column, value: Column, expected: Column, detail: Column) -> DataFrame:
    return rows.select(
        "shard",
        "date",
        F.lit(kind).alias("kind"),
        subject.cast("string").alias("subject"),
        value.cast("double").alias("value"),
        expected.cast("double").alias("expected"),
        detail.alias("detail"),
    )


def _owners(ended: DataFrame) -> DataFrame:
    each = (
        ended.where("owner IS NOT NULL")
        .groupBy("shard", "date", "owner")
        .agg(F.count("*").alias("all"), F.sum("bad").alias("bad"))
    )
    day = Window.partitionBy("shard", "date")
    others_all = F.sum("all").over(day) - F.col("all")
    others_bad = F.sum("bad").over(day) - F.col("bad")
    rows = each.withColumn("others", others_bad / F.nullif(others_all, F.lit(0))).withColumn(
        "share", F.col("bad") / F.col("all")
    )
    rows = rows.where(
        (F.col("all") >= OWNER_LEASES_MIN)
        & (F.col("share") >= OWNER_SHARE_MIN)
        & (F.col("share") >= OWNER_FACTOR * F.col("others"))
    )
    detail = F.format_string("%d of %d leases failed or ran out", "bad", "all")
    return _found(rows, "owner_fails", F.col("owner"), F.col("share"), F.col("others"), detail)


def _resources(ended: DataFrame) -> DataFrame:
    rows = (
        ended.where((F.col("outcome") == "expired") & F.col("resource_id").isNotNull())
        .groupBy("shard", "date", "resource_type", "resource_id")
        .agg(F.count("*").alias("expiries"))
        .where(F.col("expiries") >= EXPIRIES_MIN)
    )
    subject = F.concat_ws("/", "resource_type", "resource_id")
    detail = F.format_string("%d leases ran out", "expiries")
    return _found(rows, "resource_expires", subject, F.col("expiries"), F.lit(0), detail)


def _storms(ended: DataFrame) -> DataFrame:
    rows = (
        ended.groupBy("shard", "date", window_of("ended_at").alias("at"))
        .agg(F.count("*").alias("all"), F.sum("bad").alias("bad"))
        .where((F.col("bad") >= STORM_MIN) & (F.col("bad") >= STORM_SHARE * F.col("all")))
    )
    detail = F.format_string("%d of %d leases ended badly", "bad", "all")
    return _found(rows, "retry_storm", F.col("at"), F.col("bad"), STORM_SHARE * F.col("all"), detail)


def _clocks(events: DataFrame) -> DataFrame:
    frames = events.where(F.col("sequence") == F.col("frame_first")).select(
        "shard", "date", "sequence", F.unix_millis("frame_time").alias("ms")
    )
    before = F.lag("ms").over(Window.partitionBy("shard", "date").orderBy("sequence"))
    rows = frames.withColumn("before", before).where("ms < before")
    detail = F.format_string("the frame is %d ms older than the one it follows", F.col("before") - F.col("ms"))
    return _found(rows, "clock_skew", F.col("sequence"), F.col("ms"), F.col("before"), detail)
