"""Gold `anomalies`: what a person should look at, day by day.

owner_fails        a peer whose leases fail or run out far more often than those of the others
resource_expires   a resource whose leases keep running out
retry_storm        five minutes in which most leases ended badly, and many did
clock_skew         a frame whose time lies before that of the frame it follows
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from omnirelay.lakehouse.gold_windows import Span, within_dates
from omnirelay.lakehouse.silver import in_shape
from omnirelay.lakehouse.tables import ANOMALIES

OWNER_LEASES_MIN: Final = 5
OWNER_SHARE_MIN: Final = 0.5
OWNER_FACTOR: Final = 3.0
EXPIRIES_MIN: Final = 3
STORM_MIN: Final = 20
STORM_SHARE: Final = 0.5


def anomalies(frames: DataFrame, days: DataFrame, spans: Sequence[Span], known: DataFrame | None) -> DataFrame:
    """The anomalies of the days that are touched.

    `days` are those of `daily`, which hold the leases of each by owner, by resource and by five minutes. `frames` are
    the new ones, each as one event, and the last before them; what older frames said is in `known`, the table as it is.
    """
    rows = _of_leases(days.where(within_dates(spans))).unionByName(_clocks(frames))
    if known is not None:
        rows = rows.unionByName(known.where(within_dates(spans)).where(F.col("kind") == "clock_skew"))
    return in_shape(rows, ANOMALIES)


def _of_leases(days: DataFrame) -> DataFrame:
    """What leases that ended say of owners, of resources and of five minutes: a row for each of these."""
    day = ["shard", "date"]
    owners = days.select(*day, F.inline("by_peer")).where("ended > 0")
    resources = days.select(*day, F.inline("by_resource"))
    windows = days.select(*day, F.inline("by_window"))
    counted = owners.select(*day, F.col("peer").alias("owner"), F.col("ended").alias("all"), "bad")
    for more in (resources, windows.withColumnRenamed("ended", "all")):
        counted = counted.unionByName(more, allowMissingColumns=True)
    of_day = Window.partitionBy(*day)
    owner = F.col("owner").isNotNull()
    others_all = F.sum(F.when(owner, F.col("all"))).over(of_day) - F.col("all")
    others_bad = F.sum(F.when(owner, F.col("bad"))).over(of_day) - F.col("bad")
    rows = counted.withColumn("others", others_bad / F.nullif(others_all, F.lit(0)))
    return _told(rows.withColumn("share", F.col("bad") / F.col("all")))


def _told(rows: DataFrame) -> DataFrame:
    """Of subjects with their counts those that are out of the ordinary, in the shape of the table."""
    owner_fails = (
        F.col("owner").isNotNull()
        & (F.col("all") >= OWNER_LEASES_MIN)
        & (F.col("share") >= OWNER_SHARE_MIN)
        & (F.col("share") >= OWNER_FACTOR * F.col("others"))
    )
    resource_expires = F.col("resource").isNotNull() & (F.col("expired") >= EXPIRIES_MIN)
    storm = F.col("at").isNotNull() & (F.col("bad") >= STORM_MIN) & (F.col("bad") >= STORM_SHARE * F.col("all"))

    def either(owner: Column, resource: Column, window: Column) -> Column:
        return F.when(owner_fails, owner).when(resource_expires, resource).when(storm, window)

    found = rows.select(
        "shard",
        "date",
        either(F.lit("owner_fails"), F.lit("resource_expires"), F.lit("retry_storm")).alias("kind"),
        F.coalesce("owner", "resource", F.col("at").cast("string")).alias("subject"),
        either(F.col("share"), F.col("expired").cast("double"), F.col("bad").cast("double")).alias("value"),
        either(F.col("others"), F.lit(0.0), STORM_SHARE * F.col("all")).alias("expected"),
        either(
            F.format_string("%d of %d leases failed or ran out", "bad", "all"),
            F.format_string("%d leases ran out", "expired"),
            F.format_string("%d of %d leases ended badly", "bad", "all"),
        ).alias("detail"),
    )
    return found.where("kind IS NOT NULL")


def _clocks(frames: DataFrame) -> DataFrame:
    frames = frames.select("shard", "date", "sequence", F.unix_millis("frame_time").alias("ms"))
    before = F.lag("ms").over(Window.partitionBy("shard").orderBy("sequence"))
    rows = frames.withColumn("before", before).where("ms < before")
    detail = F.format_string("the frame is %d ms older than the one it follows", F.col("before") - F.col("ms"))
    return rows.select(
        "shard",
        "date",
        F.lit("clock_skew").alias("kind"),
        F.col("sequence").cast("string").alias("subject"),
        F.col("ms").cast("double").alias("value"),
        F.col("before").cast("double").alias("expected"),
        detail.alias("detail"),
    )
