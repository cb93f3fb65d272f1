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
    if items is None:
        told = _told(changes)
    else:
        # What was is a row of its own among the events, so that nothing has to be joined.
        known = items.select("shard", "item", F.struct(*ITEMS.names).alias("known"))
        together = changes.withColumn("new", F.lit(True)).unionByName(known, allowMissingColumns=True)
        told = _continued(_told(together, F.first("known", ignorenulls=True).alias("known"), F.max("new").alias("new")))
    # A reason for giving up counts as the error only when no attempt left one.
    error = F.coalesce("error", "given_up")
    whole = told.select(
        "*", "payload.*", error["error_code"].alias("error_code"), error["error_message"].alias("error_message")
    )
    return in_shape(whole.withColumn("life_ms", millis(F.col("enqueued_at"), F.col("ended_at"))), ITEMS)


def _told(changes: DataFrame, *more: Column) -> DataFrame:
    """What the events of each item say."""
    came = is_kind("Enqueue", "RestoreSnapshot")
    granted = is_kind("LeaseGranted")
    states = is_kind(*STATES)
    state = F.create_map(*(F.lit(each) for pair in STATES.items() for each in pair))[F.col("kind")]
    # An end counts only while nothing came after it.
    became = F.struct(state.alias("state"), F.when(is_kind(*_ENDS), F.col("at")).alias("ended_at"))
    error = F.struct("error_code", "error_message")
    restored_error = is_kind("RestoreSnapshot") & F.col("error_message").isNotNull()
    return (
        changes.groupBy("item", "shard")
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
            last_of(became, states).alias("became"),
            last_of(F.col("attempt"), granted | is_kind("RestoreSnapshot")).alias("attempt"),
            F.count(F.when(granted, 1)).alias("leases"),
            F.count(F.when(is_kind("Failed"), 1)).alias("failures"),
            F.count(F.when(is_kind("Expired"), 1)).alias("expiries"),
            last_of(error, is_kind("Failed", "Expired") | restored_error).alias("error"),
            last_of(error, is_kind("DeadLettered")).alias("given_up"),
            F.min("sequence").alias("first_sequence"),
            F.max("sequence").alias("last_sequence"),
            *more,
        )
        .select("*", "became.*")
        .drop("became")
    )


def _continued(told: DataFrame) -> DataFrame:
    def old(name: str) -> Column:
        return F.col("known")[name]

    def old_struct(*names: str) -> Column:
        return F.struct(*(old(name).alias(name) for name in names))

    values = [F.coalesce(old(name), F.col(name)).alias(name) for name in _FIRST]
    values += [F.coalesce(F.col(name), old(name)).alias(name) for name in _LAST]
    values += [(F.coalesce(old(name), F.lit(0)) + F.col(name)).alias(name) for name in _COUNTED]
    changed = F.col("state").isNotNull()
    values += [
        F.coalesce("payload", F.when(old("resource_type").isNotNull(), old_struct(*_PAYLOAD))).alias("payload"),
        F.coalesce(F.col("state"), old("state")).alias("state"),
        F.when(changed, F.col("ended_at")).otherwise(old("ended_at")).alias("ended_at"),
        F.coalesce("error", F.when(old("error_message").isNotNull(), old_struct("error_code", "error_message"))).alias(
            "error"
        ),
        F.col("given_up"),
    ]
    return told.where("new").select("shard", "item", *values)
