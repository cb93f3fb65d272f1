"""Silver `leases`: a row for every grant.

A lease is ended by its own event or by the cancellation of its item, which names no lease. Only live leases change, so
of the table only those are read.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from omnirelay.lakehouse.silver import OUTCOMES, in_shape, is_kind, last_of, millis
from omnirelay.lakehouse.tables import LEASES

_SAID_BY_GRANT = ("resource_type", "resource_id", "owner", "principal", "granted_at", "wait_ms")
_SAID_LAST = ("attempt", "fence", "expires_at", "last_heartbeat_at", "last_sequence")
_SAID_BY_END = ("ended_at", "outcome", "fail_mode", "undelivered", "error_code", "error_message", "table_version")


def fold_leases(changes: DataFrame, items: DataFrame | None, live: DataFrame | None) -> DataFrame:
    """The leases that these events concern, as they are now.

    `changes` are events of items; `items` and `live` are the items and the live leases before them, None for none.
    What was is put among the events as rows of its own, so that everything of an item meets in one place: no joins.
    """
    told = _told(_in_order(_with_past(changes, items, live)))
    whole = told if live is None else _continued(told)
    ended = _cancelled(whole)
    return in_shape(ended.withColumn("work_ms", millis(F.col("granted_at"), F.col("ended_at"))), LEASES)


def _with_past(changes: DataFrame, items: DataFrame | None, live: DataFrame | None) -> DataFrame:
    rows = changes.withColumn("new", F.lit(True))
    if items is not None:
        before = items.select(
            "shard", "item", F.lit(0).cast("bigint").alias("sequence"), "ready_at", "resource_type", "resource_id"
        )
        rows = rows.unionByName(before, allowMissingColumns=True)
    if live is not None:
        # It stands where it was granted, so that it ends before what comes after it.
        known = live.select(
            "shard", "item", "lease_id", F.col("fence").alias("sequence"), F.struct(*LEASES.names).alias("known")
        )
        rows = rows.unionByName(known, allowMissingColumns=True)
    return rows


def _in_order(rows: DataFrame) -> DataFrame:
    """Rows of leases, each with what its item was by then, since when it could be leased, and what cancelled it."""
    # Items first: rows are sorted by the beginning of the key, and that of a shard is the same for all of its rows.
    everything = Window.partitionBy("item", "shard")
    in_order = everything.orderBy("sequence")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    from_here = in_order.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    cancel = F.when(is_kind("Cancelled"), F.struct("sequence", "at"))
    told = ("ready_at", "resource_type", "resource_id")
    others = [F.col(name) for name in rows.columns if name not in told]
    ordered = rows.select(
        *others,
        *(F.last(name, ignorenulls=True).over(so_far).alias(name) for name in told),
        F.min(cancel).over(from_here).alias("cancel"),
        F.max("new").over(everything).alias("touched"),
    )
    return ordered.where("lease_id IS NOT NULL AND touched")


def _told(rows: DataFrame) -> DataFrame:
    """What the events of each lease say."""
    granted = is_kind("LeaseGranted")
    heartbeat = is_kind("Heartbeat")
    end = is_kind(*OUTCOMES)
    outcome = F.create_map(*(F.lit(each) for pair in OUTCOMES.items() for each in pair))[F.col("kind")]
    # greatest() passes over a null: an item that is older than the segments has waited nobody knows how long.
    wait = F.greatest(millis(F.col("ready_at"), F.col("at")), F.lit(0))
    known = [] if "known" not in rows.columns else [F.first("known", ignorenulls=True).alias("known")]
    # An event of a lease counts as new; the row of what is known does not.
    sequence = F.when(F.col("new"), F.col("sequence"))
    # What one event says stays together: a few structs are quicker to carry along than a column of each.
    of_grant = F.struct(
        "resource_type",
        "resource_id",
        F.col("peer").alias("owner"),
        "principal",
        F.col("at").alias("granted_at"),
        F.when(F.col("ready_at").isNotNull(), wait).alias("wait_ms"),
    )
    of_end = F.struct(
        F.col("at").alias("ended_at"),
        outcome.alias("outcome"),
        "fail_mode",
        F.coalesce("undelivered", F.lit(False)).alias("undelivered"),
        "error_code",
        "error_message",
        "table_version",
    )
    grouped = rows.groupBy("item", "lease_id", "shard").agg(
        *known,
        last_of(F.col("fence")).alias("fence"),
        F.max_by("attempt", F.when(granted | heartbeat, F.col("sequence"))).alias("attempt"),
        last_of(F.col("expires_at")).alias("expires_at"),
        last_of(F.col("at"), heartbeat).alias("last_heartbeat_at"),
        F.count(F.when(heartbeat, 1)).alias("heartbeats"),
        F.max(sequence).alias("last_sequence"),
        last_of(of_grant, granted).alias("grant"),
        last_of(of_end, end).alias("end"),
        F.min("cancel").alias("cancel"),
    )
    return grouped.select("*", "grant.*", "end.*").drop("grant", "end")


def _continued(told: DataFrame) -> DataFrame:
    """What was known of leases and what is new, together."""

    def old(name: str) -> Column:
        return F.col("known")[name]

    # Never both: the past of a lease ends where its new events begin.
    values = [F.coalesce(old(name), F.col(name)).alias(name) for name in _SAID_BY_GRANT]
    values += [F.coalesce(F.col(name), old(name)).alias(name) for name in (*_SAID_LAST, *_SAID_BY_END)]
    values.append((F.coalesce(old("heartbeats"), F.lit(0)) + F.col("heartbeats")).alias("heartbeats"))
    return told.select("shard", "item", "lease_id", "cancel", *values)


def _cancelled(told: DataFrame) -> DataFrame:
    """Leases that live on although their item was cancelled were ended by that."""
    cancel = F.col("cancel")
    hit = F.col("ended_at").isNull() & (cancel["sequence"] > F.col("fence"))
    instead = {
        "outcome": F.lit("cancelled"),
        "undelivered": F.lit(False),
        "last_sequence": cancel["sequence"],
        "ended_at": cancel["at"],
    }
    values = {name: F.when(hit, value).otherwise(F.col(name)) for name, value in instead.items()}
    return told.withColumns(values)
