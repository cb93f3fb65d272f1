"""The opinion of SQL on the log as such: the numbers of events, generations, the chain, and the depth of frames."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from omnirelay.lakehouse.audit_sql_pieces import begins_frame, bucket

LINKS_MAX: Final = 500_000
"""The links of so many frames are sent to every task."""


def out_of_line(events: DataFrame, odd: DataFrame, shards: DataFrame) -> DataFrame:
    """Events that do not follow the one before them, and generations that do not rise.

    `odd` are the `odd_buckets`: events of others are in line. `shards` has for each shard `first`, `anchor` (the event
    before the segments) and `anchor_generation`.
    """
    by_shard = Window.partitionBy("shard").orderBy("sequence")
    rows = (
        events.select("shard", "sequence", "event_type", "generation", "frame_generation", bucket().alias("bucket"))
        .join(F.broadcast(odd.select("shard", "bucket", "judged")), ["shard", "bucket"])
        .withColumn("before", F.lag("sequence").over(by_shard))
        .withColumn("generation_before", F.lag("frame_generation").over(by_shard))
        .where("judged")
        .join(F.broadcast(shards), "shard")
        .withColumn("before", F.coalesce("before", "anchor"))
        .withColumn("generation_before", F.coalesce("generation_before", "anchor_generation"))
    )
    starts = F.col("event_type") == "GenerationStarted"
    step = F.col("sequence") - F.col("before")
    gap = ~((step == 1) | (starts & (step > 1)))
    # The frame that a generation begins in may have its number from its first event on.
    falls = F.col("frame_generation") < F.col("generation_before")
    stays = starts & (F.col("generation") > F.col("frame_generation"))
    follows = F.concat(F.lit("it follows event "), "before")
    grows = F.concat(F.lit("generation "), "frame_generation", F.lit(" follows generation "), "generation_before")
    told = F.when(gap, _told("contiguity", follows)).when(falls | stays, _told("fences", grows))
    return (
        rows.where(F.col("sequence") >= F.col("first"))
        .withColumn("told", told)
        .where(F.col("told").isNotNull())
        .select("told.rule", "shard", "sequence", F.lit(None).cast("bigint").alias("item"), "told.what")
    )


def _told(rule: str, what: Column) -> Column:
    return F.struct(F.lit(rule).alias("rule"), what.alias("what"))


def off_chain(events: DataFrame, shards: DataFrame, count: int) -> DataFrame:
    """Frames whose chain is not the hash of the chain before them and their bytes. `shards`: `first`, `begin_chain`.

    `count` is how many frames there are.
    """
    frames = events.where(F.col("frame").isNotNull())
    links = (
        events.where(begins_frame())
        .select("shard", "frame_first", "chain")
        .withColumn("before", F.lag("chain").over(Window.partitionBy("shard").orderBy("frame_first")))
        .join(F.broadcast(shards), "shard")
        .select("shard", "frame_first", "first", F.coalesce("before", "begin_chain").alias("before"))
    )
    # The bytes stay where they are: only the links go around.
    links = F.broadcast(links) if count <= LINKS_MAX else links
    rows = frames.select("shard", "frame_first", "frame_last", "frame", "chain").join(links, ["shard", "frame_first"])
    hashed = F.unhex(F.sha2(F.concat("before", "frame"), 256))
    return rows.where(
        F.col("before").isNotNull() & (F.col("frame_last") >= F.col("first")) & ~hashed.eqNullSafe(F.col("chain"))
    ).select(
        F.lit("chain").alias("rule"),
        "shard",
        F.col("frame_first").alias("sequence"),
        F.lit(None).cast("bigint").alias("item"),
        F.concat(F.lit("frame "), "frame_first", F.lit(" does not continue the chain")).alias("what"),
    )


def off_depth(frames: DataFrame, shards: DataFrame, room: Column) -> DataFrame:
    """Frames that tell another depth than the events up to them give, and those that go beyond the capacity."""
    rows = with_depth(frames, shards, room).where(F.size("told") > 0).withColumn("told", F.explode("told"))
    return rows.select(
        "told.rule", "shard", F.col("last_row").alias("sequence"), F.lit(None).cast("bigint").alias("item"), "told.what"
    )


def with_depth(frames: DataFrame, shards: DataFrame, room: Column) -> DataFrame:
    """Each frame with what is wrong about the depth behind it: `told`, empty where nothing is.

    `frames` is what `per_frame` makes of events, with what frames tell (`told_depth`), `room` how many items there may
    be behind one of them. Only shards that are there from their first event on are looked at. `shards`: `whole`,
    `first`, `cut` (the last frame is not all there).
    """
    by_shard = Window.partitionBy("shard").orderBy("frame_first")
    so_far = by_shard.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # Both are asked of one row: bringing frames into their order is most of what either question costs.
    rows = (
        frames.withColumn("pending_now", F.sum("more_pending").over(so_far))
        .withColumn("leased_now", F.sum("more_leased").over(so_far))
        .withColumn("is_final", F.lead("frame_first").over(by_shard).isNull())
        .join(F.broadcast(shards), "shard")
        .withColumn("room", room)
    )
    looked_at = F.col("whole") & (F.col("last_row") >= F.col("first"))
    differs = (F.col("pending_now") != F.col("told_pending")) | (F.col("leased_now") != F.col("told_leased"))
    says = F.concat(F.lit("the frame says "), "told_pending", F.lit(" pending and "), "told_leased", F.lit(" leased, "))
    gives = F.concat(F.lit("its events and those before it give "), "pending_now", F.lit(" and "), "leased_now")
    told = F.when(looked_at & differs & ~(F.col("is_final") & F.col("cut")), _told("depth", F.concat(says, gives)))
    # Only of a frame that brought some: the capacity may have been lowered.
    live = F.col("pending_now") + F.col("leased_now")
    brought = F.col("more_pending") + F.col("more_leased") > 0
    full = F.concat(live, F.lit(" items are live, there is room for "), F.col("room"))
    beyond = F.when(looked_at & brought & (live > F.col("room")), _told("limits", full))
    return rows.withColumn("told", F.array_compact(F.array(told, beyond)))
