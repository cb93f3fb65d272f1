"""Silver `items`: a row for every item."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from omnirelay.lakehouse.silver import STATES, first_of, in_shape, is_kind, last_of, millis
from omnirelay.lakehouse.tables import ITEMS

_FIRST = ("enqueued_at", "first_granted_at", "first_sequence", "parent", "peer", "principal", "priority")
_LAST = ("ready_at", "last_granted_at", "attempt", "last_sequence")
_PAYLOAD = ("resource_type", "resource_id", "partition_key")
_COUNTED = ("leases", "failures", "expiries")
_ENDS = ("Completed", "DeadLettered", "Cancelled", "DrainSnapshot")


def fold_items(changes: DataFrame, items: DataFrame | None) -> DataFrame:
    """The items that these events concern, as they are now; `items` are those before them."""
    told = _told(changes)
    if items is not None:
        told = _continued(told, items)
    # A reason for giving up counts as the error only when no attempt left one.
    error = F.coalesce("error", "given_up")
    whole = told.select(
        "*", "payload.*", error["error_code"].alias("error_code"), error["error_message"].alias("error_message")
    )
    return in_shape(whole.withColumn("life_ms", millis(F.col("enqueued_at"), F.col("ended_at"))), ITEMS)


def _told(changes: DataFrame) -> DataFrame:
    """What the events of each item say."""
    came = is_kind("Enqueue", "RestoreSnapshot")
    granted = is_kind("LeaseGranted")
    states = is_kind(*STATES)
    state = F.create_map(*(F.lit(each) for pair in STATES.items() for each in pair))[F.col("kind")]
    # An end counts only while nothing came after it; the struct keeps a null of its own apart from having none.
    ended = F.struct(F.when(is_kind(*_ENDS), F.col("at")).alias("at"))
    error = F.struct("error_code", "error_message")
    restored_error = is_kind("RestoreSnapshot") & F.col("error_message").isNotNull()
    return (
        changes.groupBy("shard", "item")
        .agg(
            last_of(F.struct(*_PAYLOAD), F.col("resource_type").isNotNull()).alias("payload"),
            first_of("priority", came),
            first_of("parent", came),
            first_of("peer", is_kind("Enqueue")),
            first_of("principal", is_kind("Enqueue")),
            first_of("enqueued_at", came),
            last_of(F.col("ready_at")).alias("ready_at"),
            F.min_by("at", F.when(granted, F.col("sequence"))).alias("first_granted_at"),
            last_of(F.col("at"), granted).alias("last_granted_at"),
            last_of(state, states).alias("state"),
            last_of(ended, states).alias("ended"),
            last_of(F.col("attempt"), granted | is_kind("RestoreSnapshot")).alias("attempt"),
            F.count(F.when(granted, 1)).alias("leases"),
            F.count(F.when(is_kind("Failed"), 1)).alias("failures"),
            F.count(F.when(is_kind("Expired"), 1)).alias("expiries"),
            last_of(error, is_kind("Failed", "Expired") | restored_error).alias("error"),
            last_of(error, is_kind("DeadLettered")).alias("given_up"),
            F.min("sequence").alias("first_sequence"),
            F.max("sequence").alias("last_sequence"),
        )
        .withColumn("ended_at", F.col("ended.at"))
    )


def _continued(told: DataFrame, items: DataFrame) -> DataFrame:
    new, old = told.alias("new"), items.alias("old")
    values = [F.coalesce(f"old.{name}", f"new.{name}").alias(name) for name in _FIRST]
    values += [F.coalesce(f"new.{name}", f"old.{name}").alias(name) for name in _LAST]
    values += [(F.coalesce(f"old.{name}", F.lit(0)) + F.col(f"new.{name}")).alias(name) for name in _COUNTED]
    changed = F.col("new.state").isNotNull()
    values += [
        F.coalesce("new.payload", F.when(F.col("old.resource_type").isNotNull(), _old(*_PAYLOAD))).alias("payload"),
        F.coalesce("new.state", "old.state").alias("state"),
        F.when(changed, F.col("new.ended_at")).otherwise(F.col("old.ended_at")).alias("ended_at"),
        F.coalesce(
            "new.error", F.when(F.col("old.error_message").isNotNull(), _old("error_code", "error_message"))
        ).alias("error"),
        F.col("new.given_up").alias("given_up"),
    ]
    return new.join(old, on=["shard", "item"], how="left").select("shard", "item", *values)


def _old(*names: str) -> Column:
    return F.struct(*(F.col(f"old.{name}").alias(name) for name in names))
