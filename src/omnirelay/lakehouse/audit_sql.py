"""The opinion of SQL: what happened to items, by window functions over the flat columns.

Every event that names an item becomes a row that says what the item is afterwards. Beside it stands what the item was
before, and most rules are a comparison of the two. The rows are folded into one per frame, which is what goes on from
here: how many of them are wrong, and by how much each frame changed the depth. Only when something is wrong are the
rows looked at again, to name them.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

OVERDUE_MS: Final = 60_000
"""How long the end of a lease may be overdue at the end of a log."""

PENDING, LEASED, COMPLETED, DEAD, CANCELLED, DRAINED, PURGED = range(1, 8)
STATES: Final = {
    PENDING: "pending",
    LEASED: "leased",
    COMPLETED: "completed",
    DEAD: "dead",
    CANCELLED: "cancelled",
    DRAINED: "drained",
    PURGED: "purged",
}
_AFTER: Final = {
    "Enqueue": PENDING,
    "RestoreSnapshot": PENDING,
    "Redriven": PENDING,
    "LeaseGranted": LEASED,
    "Heartbeat": LEASED,
    "Failed": PENDING,
    "Released": PENDING,
    "Expired": PENDING,
    "Completed": COMPLETED,
    "DeadLettered": DEAD,
    "DeadLetterEdited": DEAD,
    "Cancelled": CANCELLED,
    "DrainSnapshot": DRAINED,
    "Purged": PURGED,
}
"""What an item is behind an event."""
_BEFORE: Final = {
    "LeaseGranted": (PENDING,),
    "DeadLettered": (PENDING,),
    "DrainSnapshot": (PENDING,),
    "Cancelled": (PENDING, LEASED),
    "Redriven": (DEAD,),
    "DeadLetterEdited": (DEAD,),
    "Purged": (DEAD,),
}
"""What it has to be before one. Those of a lease have a rule of their own."""
_OF_LEASES: Final = ("Heartbeat", "Completed", "Failed", "Released", "Expired")
_LISTED: Final = ("DrainSnapshot", "Redriven", "Purged")
_SINGLE: Final = tuple(kind for kind in _AFTER if kind not in (*_LISTED, "RestoreSnapshot"))
_RESTORED: Final = (
    "ARRAY<STRUCT<sequenceId: BIGINT, weight: BIGINT, lastOwnershipToken: STRUCT<fence: BIGINT>, payload: STRUCT<"
    "resourceType: STRING, resourceId: STRING, partitionKey: STRING, attributes: STRING>>>"
)
_COMMON: Final = ("shard", "sequence", "timestamp", "event_type", "frame_first", "queue_pending", "queue_active")
_NAMES: Final = ("resource_type", "resource_id", "partition_key", "attributes", "weight")
"""What keys and limits are about; left out where there are none."""

RULE_OF: Final = {1: "one-lease", 2: "owner", 3: "life", 4: "fences", 5: "ends"}


def is_kind(*kinds: str) -> Column:
    return F.col("event_type").isin(*kinds)


def item_rows(events: DataFrame, *, named: bool) -> DataFrame:
    """A row for each item that an event names; with `named` also what keys and limits are about."""
    return reduce(DataFrame.unionByName, (_single(events, named), _listed(events, named), _restored(events, named)))


def _shaped(rows: DataFrame, named: bool, **given: Column) -> DataFrame:
    kinds = {"item": "BIGINT", "fence": "BIGINT", "lease": "BIGINT", "expires": "BIGINT"}
    if named:
        kinds |= dict.fromkeys(_NAMES[:-1], "STRING") | {"weight": "BIGINT"}
    shaped = [given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in kinds.items()]
    return rows.select(*(name for name in _COMMON if name != "timestamp"), *shaped)


def _single(events: DataFrame, named: bool) -> DataFrame:
    rows = events.where(is_kind(*_SINGLE))
    return _shaped(
        rows,
        named,
        item=F.coalesce("ownership_sequence_id", "sequence_id"),
        fence=F.col("ownership_fence"),
        # The names of leases are only ever compared.
        lease=F.when(F.col("ownership_lease_id").isNotNull(), F.xxhash64("ownership_lease_id")),
        expires=F.unix_millis("expires_at"),
        resource_type=F.col("payload_resource_type"),
        resource_id=F.col("payload_resource_id"),
        partition_key=F.col("payload_partition_key"),
        attributes=F.when(F.col("payload_resource_id").isNotNull(), F.coalesce("payload_attributes", F.lit("{}"))),
        weight=F.when(is_kind("Enqueue"), F.coalesce("weight", F.lit(1))),
    )


def _listed(events: DataFrame, named: bool) -> DataFrame:
    rows = events.where(is_kind(*_LISTED)).withColumn("id", F.explode(F.from_json("sequence_ids", "ARRAY<BIGINT>")))
    return _shaped(rows, named, item=F.col("id"))


def _restored(events: DataFrame, named: bool) -> DataFrame:
    rows = events.where(is_kind("RestoreSnapshot")).withColumn("one", F.explode(F.from_json("items", _RESTORED)))
    one, payload = F.col("one"), F.col("one.payload")
    return _shaped(
        rows,
        named,
        item=one["sequenceId"],
        fence=one["lastOwnershipToken"]["fence"],
        resource_type=payload["resourceType"],
        resource_id=payload["resourceId"],
        partition_key=payload["partitionKey"],
        attributes=F.coalesce(payload["attributes"], F.lit("{}")),
        weight=F.coalesce(one["weight"], F.lit(1)),
    )


def followed(rows: DataFrame, shards: DataFrame) -> DataFrame:
    """Each row with what the item was before it, and what is wrong with that: `wrong` and `wrong_fence`, or null.

    `shards` has for each shard: `whole`, `first`, `end_ms`, `leader` (the last takeover) and `shift_ms` (how far
    takeovers moved leases in all).
    """
    by_item = Window.partitionBy("shard", "item").orderBy("sequence")
    earlier = by_item.rowsBetween(Window.unboundedPreceding, -1)
    after = F.create_map(*(F.lit(each) for pair in _AFTER.items() for each in pair))[F.col("event_type")]
    rows = (
        rows.withColumn("state", after)
        .withColumn("was", F.lag("state").over(by_item))
        .withColumn("was_fence", F.lag("fence").over(by_item))
        .withColumn("was_lease", F.lag("lease").over(by_item))
        .withColumn("highest", F.max("fence").over(earlier))
        .withColumn("is_last", F.lead("sequence").over(by_item).isNull())
        .join(F.broadcast(shards), "shard")
    )
    wrong = _wrong()
    return rows.withColumn("wrong", F.when(_audited(), wrong)).withColumn(
        "wrong_fence", F.when(_audited() & _fence_is_wrong(), F.lit(4))
    )


def _audited() -> Column:
    return F.col("sequence") >= F.col("first")


def _wrong() -> Column:
    """The number of the rule that a row breaks; null when it is fine."""
    was = F.col("was")
    # What was before the segments begin, nobody knows.
    unknown = was.isNull() & ~F.col("whole")
    came_in = is_kind("Enqueue", "RestoreSnapshot")
    still_there = was.isin(PENDING, LEASED, DEAD) | (is_kind("Enqueue") & was.isNotNull())
    same = (F.col("was_lease") == F.col("lease")) & F.col("was_fence").eqNullSafe(F.col("fence"))
    misplaced = reduce(
        lambda one, other: one | other,
        (is_kind(kind) & ~F.coalesce(was.isin(*states), F.lit(False)) for kind, states in _BEFORE.items()),
    )
    return (
        F.when(unknown, F.lit(None))
        .when(is_kind("LeaseGranted") & (was == LEASED), 1)
        .when(is_kind(*_OF_LEASES) & ~F.coalesce((was == LEASED) & same, F.lit(False)), 2)
        .when(came_in & still_there, 3)
        .when(misplaced, 3)
        .when(F.col("is_last") & (F.col("state") == LEASED) & _overdue(), 5)
    )


def _overdue() -> Column:
    moved = F.when(F.col("sequence") < F.col("leader"), F.col("shift_ms")).otherwise(F.lit(0))
    return F.col("expires") + moved + F.lit(OVERDUE_MS) < F.col("end_ms")


def _fence_is_wrong() -> Column:
    """A grant's own number is its fence, and above every fence its item ever had."""
    own = F.col("fence").eqNullSafe(F.col("sequence"))
    return is_kind("LeaseGranted") & (~own | F.coalesce(F.col("highest") >= F.col("sequence"), F.lit(False)))


def per_frame(rows: DataFrame) -> DataFrame:
    """One row per frame: its change of depth, what is wrong in it, and the items that it is the last to speak of."""
    leased = F.col("was") == LEASED
    pending = F.coalesce(F.col("was") == PENDING, F.lit(False))
    now_pending, now_leased = F.col("state") == PENDING, F.col("state") == LEASED
    last = [
        F.count(F.when(F.col("is_last") & (F.col("state") == state), 1)).alias(name) for state, name in STATES.items()
    ]
    return rows.groupBy("shard", "frame_first").agg(
        F.sum(now_pending.cast("bigint") - pending.cast("bigint")).alias("more_pending"),
        F.sum(now_leased.cast("bigint") - F.coalesce(leased, F.lit(False)).cast("bigint")).alias("more_leased"),
        F.max("sequence").alias("last_row"),
        F.max("queue_pending").alias("queue_pending"),
        F.max("queue_active").alias("queue_active"),
        F.count("wrong").alias("wrong"),
        F.count("wrong_fence").alias("wrong_fence"),
        *last,
    )


def named_rows(rows: DataFrame) -> DataFrame:
    """The rows that are wrong, with the rule and what is wrong about each."""
    states = F.create_map(*(F.lit(each) for pair in STATES.items() for each in pair))
    was = F.coalesce(states[F.col("was")], F.lit("not there"))
    rules = F.create_map(*(F.lit(each) for pair in RULE_OF.items() for each in pair))
    what = (
        F.when(F.col("broken") == 1, F.concat(F.lit("the lease with fence "), F.col("was_fence"), F.lit(" is live")))
        .when(
            (F.col("broken") == 2) & (F.col("was") == LEASED),
            F.concat(F.lit("it names fence "), F.col("fence"), F.lit(", live is "), F.col("was_fence")),
        )
        .when(
            F.col("broken") == 4,
            F.concat_ws(
                "", F.lit("its fence is "), F.col("fence"), F.lit(", the item's highest before "), F.col("highest")
            ),
        )
        .when(F.col("broken") == 5, F.lit("its lease ran out long before the end and was never expired"))
        .otherwise(F.concat(F.lit("the item is "), was))
    )
    return (
        rows.where(F.col("wrong").isNotNull() | F.col("wrong_fence").isNotNull())
        .withColumn("broken", F.explode(F.array_compact(F.array("wrong", "wrong_fence"))))
        .select(
            rules[F.col("broken")].alias("rule"),
            "shard",
            "sequence",
            "item",
            F.concat(F.col("event_type"), F.lit(": "), what).alias("what"),
        )
    )
