"""Silver `leases`: a row for every grant.

A lease is ended by its own event or by the cancellation of its item, which names no lease. Only live leases change, so
of the table only those are read.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from omnirelay.lakehouse.silver import OUTCOMES, in_shape, is_kind, last_of, millis
from omnirelay.lakehouse.tables import LEASES

_SAID_BY_GRANT = ("item", "resource_type", "resource_id", "principal", "granted_at", "wait_ms")
_SAID_LAST = ("attempt", "fence", "expires_at", "last_heartbeat_at")
_SAID_BY_END = ("ended_at", "outcome", "fail_mode", "undelivered", "error_code", "error_message", "table_version")


def fold_leases(changes: DataFrame, items: DataFrame | None, live: DataFrame | None) -> DataFrame:
    """The leases that these events concern, as they are now.

    `changes` are events of items; `items` and `live` are the items and the live leases before them, None for none.
    """
    told = _told(_with_past(changes, items))
    if live is not None:
        told = _continued(told, live.join(_keys(changes), on=["shard", "item"], how="left_semi"))
    ended = _cancelled(told, changes)
    return in_shape(ended.withColumn("work_ms", millis(F.col("granted_at"), F.col("ended_at"))), LEASES)


def _keys(changes: DataFrame) -> DataFrame:
    return changes.select("shard", "item").distinct()


def _with_past(changes: DataFrame, items: DataFrame | None) -> DataFrame:
    """Events of leases, each grant with what the item was by then and since when it could be leased."""
    rows = changes
    if items is not None:
        before = items.join(_keys(changes), on=["shard", "item"], how="left_semi").select(
            "shard", "item", F.lit(0).cast("bigint").alias("sequence"), "ready_at", "resource_type", "resource_id"
        )
        rows = rows.unionByName(before, allowMissingColumns=True)
    by_item = Window.partitionBy("shard", "item").orderBy("sequence")
    so_far = by_item.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    for name in ("ready_at", "resource_type", "resource_id"):
        rows = rows.withColumn(name, F.last(name, ignorenulls=True).over(so_far))
    return rows.where(F.col("lease_id").isNotNull())


def _told(rows: DataFrame) -> DataFrame:
    """What the events of each lease say."""
    granted = is_kind("LeaseGranted")
    heartbeat = is_kind("Heartbeat")
    end = is_kind(*OUTCOMES)
    outcome = F.create_map(*(F.lit(each) for pair in OUTCOMES.items() for each in pair))[F.col("kind")]
    return rows.groupBy("shard", "lease_id").agg(
        F.max("item").alias("item"),
        last_of(F.col("fence")).alias("fence"),
        F.max_by("attempt", F.when(granted | heartbeat, F.col("sequence"))).alias("attempt"),
        last_of(F.col("resource_type"), granted).alias("resource_type"),
        last_of(F.col("resource_id"), granted).alias("resource_id"),
        last_of(F.col("peer"), granted).alias("owner"),
        last_of(F.col("principal"), granted).alias("principal"),
        last_of(F.col("at"), granted).alias("granted_at"),
        last_of(F.col("expires_at")).alias("expires_at"),
        last_of(F.col("at"), heartbeat).alias("last_heartbeat_at"),
        F.count(F.when(heartbeat, 1)).alias("heartbeats"),
        last_of(F.col("at"), end).alias("ended_at"),
        last_of(outcome, end).alias("outcome"),
        last_of(F.col("fail_mode"), end).alias("fail_mode"),
        last_of(F.coalesce("undelivered", F.lit(False)), end).alias("undelivered"),
        last_of(F.col("error_code"), end).alias("error_code"),
        last_of(F.col("error_message"), end).alias("error_message"),
        last_of(F.greatest(millis(F.col("ready_at"), F.col("at")), F.lit(0)), granted).alias("wait_ms"),
        last_of(F.col("table_version"), end).alias("table_version"),
        F.max("sequence").alias("last_sequence"),
    )


def _continued(told: DataFrame, live: DataFrame) -> DataFrame:
    """What was known of leases and what is new, together."""
    new, old = told.alias("new"), live.alias("old")
    # Never both: the past of a lease ends where its new events begin.
    first_old = (*_SAID_BY_GRANT, "owner")
    values = [F.coalesce(f"old.{name}", f"new.{name}").alias(name) for name in first_old]
    values += [F.coalesce(f"new.{name}", f"old.{name}").alias(name) for name in (*_SAID_LAST, *_SAID_BY_END)]
    values.append((F.coalesce("old.heartbeats", F.lit(0)) + F.coalesce("new.heartbeats", F.lit(0))).alias("heartbeats"))
    values.append(F.coalesce("new.last_sequence", "old.last_sequence").alias("last_sequence"))
    return new.join(old, on=["shard", "lease_id"], how="full_outer").select("shard", "lease_id", *values)


def _cancelled(told: DataFrame, changes: DataFrame) -> DataFrame:
    """Leases that live on although their item was cancelled were ended by that."""
    ends = (
        changes.where(is_kind("Cancelled"))
        .groupBy("shard", "item")
        .agg(F.min_by("at", "sequence").alias("cancelled_at"), F.min("sequence").alias("cancelled"))
    )
    hit = F.col("ended_at").isNull() & (F.col("cancelled") > F.col("fence"))
    joined = told.join(ends, on=["shard", "item"], how="left")
    return (
        joined.withColumn("outcome", F.when(hit, F.lit("cancelled")).otherwise(F.col("outcome")))
        .withColumn("undelivered", F.when(hit, F.lit(False)).otherwise(F.col("undelivered")))
        .withColumn("last_sequence", F.when(hit, F.col("cancelled")).otherwise(F.col("last_sequence")))
        .withColumn("ended_at", F.when(hit, F.col("cancelled_at")).otherwise(F.col("ended_at")))
    )
