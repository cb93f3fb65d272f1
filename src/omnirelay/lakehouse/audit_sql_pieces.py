"""The log in pieces of up to 64 events, each one row: what SQL asks of numbers and of frames as such is asked of these.

A piece is what one frame has of 64 numbers. That is few rows, made in one scan without sorting events: numbers are bits
of a word, so a gap or a number that came twice shows in it, and only where something shows are events looked at one by
one.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

RARE: Final = ("OptionsChanged", "LeaderElected", "GenerationStarted", "RestoreSnapshot", "DrainSnapshot", "Redriven",
               "Purged")  # fmt: skip
"""Types that are asked for in a way of their own, where there are any."""
_STARTS: Final = 1 << RARE.index("GenerationStarted")


def begins_frame() -> Column:
    """That a row is one with the bytes of its frame, without reading them: they are most of a segment."""
    return F.col("chain").isNotNull() | (F.col("sequence") == F.col("frame_first"))


def bucket() -> Column:
    """Which 64 numbers an event is one of."""
    return F.expr("shiftright(sequence, 6)")


def kinds_in(mask: int) -> set[str]:
    return {kind for at, kind in enumerate(RARE) if mask >> at & 1}


def pieces(events: DataFrame) -> DataFrame:
    """A row for each frame and each 64 numbers; `bits` are the numbers, and the bits of `kinds` the rare types."""
    kind = F.lit(0)
    for at, name in reversed(list(enumerate(RARE))):
        kind = F.when(F.col("event_type") == name, F.lit(1 << at)).otherwise(kind)
    begins = begins_frame()
    rows = events.select(
        "shard",
        "frame_first",
        "sequence",
        "frame_generation",
        bucket().alias("bucket"),
        F.unix_millis("timestamp").alias("time"),
        kind.alias("kind"),
        F.when(begins, F.col("queue_pending")).alias("pending"),
        F.when(begins, F.coalesce("queue_active", F.lit(0))).alias("active"),
    )
    return rows.groupBy("shard", "frame_first", "bucket").agg(
        F.count("*").alias("events"),
        F.bit_or(F.expr("shiftleft(1L, CAST(sequence & 63 AS INT))")).alias("bits"),
        F.min("sequence").alias("low"),
        F.max("sequence").alias("high"),
        F.min("frame_generation").alias("generation_low"),
        F.max("frame_generation").alias("generation_high"),
        F.bit_or("kind").alias("kinds"),
        F.max("time").alias("time"),
        F.max("pending").alias("told_pending"),
        F.max("active").alias("told_leased"),
    )


def told_depth(of_pieces: DataFrame) -> DataFrame:
    """The depth that each frame tells, where it tells one."""
    return (
        of_pieces.where(F.col("told_pending").isNotNull())
        .groupBy("shard", "frame_first")
        .agg(F.max("told_pending").alias("told_pending"), F.max("told_leased").alias("told_leased"))
    )


def odd_buckets(of_pieces: DataFrame, shards: DataFrame) -> DataFrame:
    """Numbers, 64 at a time, among which something may be out of line; `judged` is false for those before them.

    `shards` has for each shard `anchor` (the event before the segments) and `anchor_generation`.
    """
    by_shard = Window.partitionBy("shard").orderBy("bucket")
    rows = (
        of_pieces.groupBy("shard", "bucket")
        .agg(
            F.sum("events").alias("events"),
            F.bit_or("bits").alias("bits"),
            F.bit_or("kinds").alias("kinds"),
            F.min("low").alias("low"),
            F.max("high").alias("high"),
            F.min("generation_low").alias("generation_low"),
            F.max("generation_high").alias("generation_high"),
        )
        .withColumn("before", F.lag("high").over(by_shard))
        .withColumn("generation_before", F.lag("generation_high").over(by_shard))
        .join(F.broadcast(shards), "shard")
    )
    in_line = (
        (F.col("low") == F.coalesce("before", "anchor") + 1)
        & (F.col("high") - F.col("low") + 1 == F.col("events"))
        & (F.bit_count("bits") == F.col("events"))
        & (F.col("kinds").bitwiseAND(F.lit(_STARTS)) == 0)
        & (F.col("generation_low") == F.col("generation_high"))
        & (F.col("generation_low") >= F.coalesce("generation_before", "anchor_generation"))
    )
    return (
        rows.withColumn("judged", ~F.coalesce(in_line, F.lit(False)))
        .withColumn("leads", F.coalesce(F.lead("judged").over(by_shard), F.lit(False)))
        .where(F.col("judged") | F.col("leads"))
        .select("shard", "bucket", "judged", "low", "high")
    )
