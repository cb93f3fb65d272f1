"""Silver `peers` and `backpressure`: times in which something was so, from events that say that it changed."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from omnirelay.lakehouse.silver import in_shape, is_kind
from omnirelay.lakehouse.tables import BACKPRESSURE, PEERS

_SIGNS: Final = ("LeaseGranted", "Heartbeat", "Completed", "Failed", "Released")
TOLD_OF_PEERS: Final = (*_SIGNS, "Expired")
CLOSED_OR_OPENED: Final = "BackpressureChanged"
PENDING: Final = "pending"
"""The cause of backpressure that events leave unnamed."""


def _islands(new: DataFrame, seeds: DataFrame | None, keys: tuple[str, ...], flag: str) -> DataFrame:
    """Number, for each key, the runs of rows in which the flag stays the same.

    `seeds` are the intervals that were last, as rows; those of keys that nothing new is said of are left out.
    """
    rows = new.withColumn("new", F.lit(True))
    if seeds is not None:
        rows = rows.unionByName(seeds, allowMissingColumns=True)
    # What differs most comes first, as rows are sorted by that.
    of_key = Window.partitionBy(*reversed(keys))
    in_order = of_key.orderBy("sequence")
    before = F.lag(flag).over(in_order)
    begins = F.when(before.isNull() | (before != F.col(flag)), 1).otherwise(0)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = rows.withColumn("begins", begins).withColumn("touched", F.max("new").over(of_key))
    return rows.where("touched").withColumn("island", F.sum("begins").over(so_far))


def _until_next(rows: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    in_order = Window.partitionBy(*keys).orderBy("from_sequence")
    return rows.withColumn("until_at", F.lead("from_at").over(in_order))


# -- peers -------------------------------------------------------------------------------------


def fold_peers(changes: DataFrame, leases: DataFrame, last: DataFrame | None) -> DataFrame:
    """The intervals that these events concern. `leases` tell whose an event is, `last` are intervals without an end."""
    keys = ("shard", "peer")
    owners = leases.where("owner IS NOT NULL").select("shard", "lease_id", F.col("owner").alias("name"))
    # Hashed, not sorted: a task holds the leases of as many events as it would have had to sort.
    mine = changes.where(is_kind(*TOLD_OF_PEERS)).join(owners.hint("shuffle_hash"), on=["lease_id", "shard"])
    healthy = is_kind(*_SIGNS)
    never = F.coalesce("undelivered", F.lit(False))
    signs = mine.select(
        "shard",
        F.col("name").alias("peer"),
        "sequence",
        "at",
        healthy.alias("healthy"),
        F.when(
            ~healthy, F.when(never, F.lit("it never answered to a grant")).otherwise(F.lit("its lease ran out"))
        ).alias("reason"),
        F.when(healthy, 1).otherwise(0).cast("bigint").alias("signs"),
        F.when(healthy, 0).otherwise(1).cast("bigint").alias("expiries"),
        F.when(healthy, F.col("at")).alias("last_seen_at"),
        F.col("sequence").alias("last_sequence"),
    )
    seeds = None
    if last is not None:
        seeds = last.select(
            *keys,
            F.col("from_sequence").alias("sequence"),
            F.col("from_at").alias("at"),
            "healthy",
            "reason",
            "signs",
            "expiries",
            "last_seen_at",
            "last_sequence",
        )
    grouped = (
        _islands(signs, seeds, keys, "healthy")
        .groupBy(*keys, "island")
        .agg(
            F.min("sequence").alias("from_sequence"),
            F.min_by("at", "sequence").alias("from_at"),
            F.first("healthy").alias("healthy"),
            F.min_by("reason", "sequence").alias("reason"),
            F.sum("signs").alias("signs"),
            F.sum("expiries").alias("expiries"),
            F.max("last_seen_at").alias("last_seen_at"),
            F.max("last_sequence").alias("last_sequence"),
        )
    )
    return in_shape(_until_next(grouped, keys), PEERS)


# -- backpressure ------------------------------------------------------------------------------


def fold_backpressure(events: DataFrame, last: DataFrame | None) -> DataFrame:
    """The times of closed intake that these events concern; `last` are those that have no end yet."""
    keys = ("shard", "cause")
    rows = events.where(F.col("event_type") == CLOSED_OR_OPENED).select(
        "shard",
        F.coalesce("cause", F.lit(PENDING)).alias("cause"),
        "sequence",
        F.col("timestamp").alias("at"),
        "active",
        "reason",
        "pending",
        "high_watermark",
        F.col("sequence").alias("last_sequence"),
    )
    seeds = None
    if last is not None:
        seeds = last.select(
            *keys,
            F.col("from_sequence").alias("sequence"),
            F.col("from_at").alias("at"),
            F.lit(True).alias("active"),
            "reason",
            "pending",
            "high_watermark",
            "last_sequence",
        )
    grouped = (
        _islands(rows, seeds, keys, "active")
        .groupBy(*keys, "island")
        .agg(
            F.min("sequence").alias("from_sequence"),
            F.min_by("at", "sequence").alias("from_at"),
            F.first("active").alias("active"),
            F.min_by("reason", "sequence").alias("reason"),
            F.min_by("pending", "sequence").alias("pending"),
            F.min_by("high_watermark", "sequence").alias("high_watermark"),
            F.max("last_sequence").alias("last_sequence"),
        )
    )
    return in_shape(_until_next(grouped, keys).where("active"), BACKPRESSURE)
