"""The opinion of SQL: what happened to items, by window functions over the flat columns.

Every event that names an item becomes a row that says what the item is afterwards. Beside it stands what the item was
before, and most rules are a comparison of the two. The rows are folded into one per frame, which is what goes on from
here: how many of them are wrong, and by how much each frame changed the depth. Only when something is wrong are the
rows looked at again, to name them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from omnirelay.lakehouse.audit_kinds import (
    AFTER,
    ALLOWED,
    KINDS,
    LEASED,
    LISTED,
    NOT_THERE,
    NUMBERS,
    OWNED,
    PENDING,
    SINGLE,
    STATES,
)

OVERDUE_MS: Final = 60_000
"""How long the end of a lease may be overdue at the end of a log."""

_RESTORED: Final = (
    "ARRAY<STRUCT<sequenceId: BIGINT, weight: BIGINT, lastOwnershipToken: STRUCT<fence: BIGINT>, payload: STRUCT<"
    "resourceType: STRING, resourceId: STRING, partitionKey: STRING, attributes: STRING>>>"
)
_NAMES: Final = ("resource_type", "resource_id", "partition_key", "attributes", "weight")
"""What keys and limits are about; left out where there are none."""

RULE_OF: Final = {1: "one-lease", 2: "owner", 3: "life", 4: "fences", 5: "ends"}


def is_kind(*kinds: str) -> Column:
    """For events as they are read."""
    return F.col("event_type").isin(*kinds)


def is_number(*kinds: str) -> Column:
    """For rows of items, whose kinds are numbers: every row is asked many times, and goes through a shuffle."""
    return F.col("kind").isin(*(NUMBERS[kind] for kind in kinds))


def kind_name() -> Column:
    return F.element_at(F.array(*(F.lit(kind) for kind in KINDS)), F.col("kind") + 1)


def _of_kind(values: Sequence[int]) -> Column:
    return F.element_at(F.array(*(F.lit(value) for value in values)), F.col("kind") + 1)


def item_rows(events: DataFrame, kinds: Collection[str], *, named: bool) -> DataFrame:
    """A row for each item that an event names; with `named` also what keys and limits are about.

    `kinds` are the types of all events that there are: each way to name items is another scan of them.
    """
    ways = [_single(events, named)]
    if not set(LISTED).isdisjoint(kinds):
        ways.append(_listed(events, named))
    if "RestoreSnapshot" in kinds:
        ways.append(_restored(events, named))
    return reduce(DataFrame.unionByName, ways)


def _shaped(rows: DataFrame, named: bool, **given: Column) -> DataFrame:
    kinds = {"item": "BIGINT", "fence": "BIGINT", "lease": "BIGINT", "expires": "BIGINT"}
    if named:
        kinds |= dict.fromkeys(_NAMES[:-1], "STRING") | {"weight": "BIGINT"}
    number = reduce(lambda cases, kind: cases.when(is_kind(kind), NUMBERS[kind]), KINDS, F)
    shaped = [given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in kinds.items()]
    return rows.select("shard", "sequence", "frame_first", number.alias("kind"), *shaped)


def _single(events: DataFrame, named: bool) -> DataFrame:
    rows = events.where(is_kind(*SINGLE))
    return _shaped(
        rows,
        named,
        item=F.coalesce("ownership_sequence_id", "sequence_id"),
        fence=F.col("ownership_fence"),
        # Leases are only ever compared.
        lease=F.when(F.col("ownership_lease_id").isNotNull(), F.xxhash64("ownership_lease_id", "ownership_fence")),
        expires=F.unix_millis("expires_at"),
        resource_type=F.col("payload_resource_type"),
        resource_id=F.col("payload_resource_id"),
        partition_key=F.col("payload_partition_key"),
        attributes=F.when(F.col("payload_resource_id").isNotNull(), F.coalesce("payload_attributes", F.lit("{}"))),
        weight=F.when(is_kind("Enqueue"), F.coalesce("weight", F.lit(1))),
    )


def _listed(events: DataFrame, named: bool) -> DataFrame:
    rows = events.where(is_kind(*LISTED)).withColumn("id", F.explode(F.from_json("sequence_ids", "ARRAY<BIGINT>")))
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
    # Items first: rows are sorted by the beginning of the key, and that of a shard is the same for all of its rows.
    by_item = Window.partitionBy("item", "shard").orderBy("sequence")
    earlier = by_item.rowsBetween(Window.unboundedPreceding, -1)
    rows = rows.withColumn("state", _of_kind(AFTER)).withColumns(
        {
            "was": F.coalesce(F.lag("state").over(by_item), F.lit(NOT_THERE)),
            "was_lease": F.lag("lease").over(by_item),
            "was_fence": F.lag("fence").over(by_item),
            "highest": F.max("fence").over(earlier),
            "is_last": F.lead("sequence").over(by_item).isNull(),
        }
    )
    audited = F.col("sequence") >= F.col("first")
    return rows.join(F.broadcast(shards), "shard").withColumns(
        {"wrong": F.when(audited, _wrong()), "wrong_fence": F.when(audited & _fence_is_wrong(), F.lit(4))}
    )


def _wrong() -> Column:
    """The number of the rule that a row breaks; null when it is fine."""
    was = F.col("was")
    # What was before the segments begin, nobody knows.
    unknown = (was == NOT_THERE) & ~F.col("whole")
    allowed = _of_kind(ALLOWED)
    misplaced = allowed.bitwiseAND(F.element_at(F.array(*(F.lit(1 << state) for state in range(8))), was + 1)) == 0
    other_lease = ~F.coalesce(F.col("was_lease") == F.col("lease"), F.lit(False))
    return (
        F.when(unknown, F.lit(None))
        .when(is_number(*OWNED) & (misplaced | other_lease), 2)
        .when(misplaced & is_number("LeaseGranted") & (was == LEASED), 1)
        .when(misplaced, 3)
        .when(F.col("is_last") & (F.col("state") == LEASED) & _overdue(), 5)
    )


def _overdue() -> Column:
    moved = F.when(F.col("sequence") < F.col("leader"), F.col("shift_ms")).otherwise(F.lit(0))
    return F.col("expires") + moved + F.lit(OVERDUE_MS) < F.col("end_ms")


def _fence_is_wrong() -> Column:
    """A grant's own number is its fence, and above every fence its item ever had."""
    own = F.col("fence").eqNullSafe(F.col("sequence"))
    return is_number("LeaseGranted") & (~own | F.coalesce(F.col("highest") >= F.col("sequence"), F.lit(False)))


def per_frame(rows: DataFrame, *more: Column) -> DataFrame:
    """One row per frame: its change of depth, what is wrong in it, and the items that it is the last to speak of."""

    def change(state: int) -> Column:
        return F.sum((F.col("state") == state).cast("int") - (F.col("was") == state).cast("int"))

    last = [
        F.count(F.when(F.col("is_last") & (F.col("state") == state), 1)).alias(name) for state, name in STATES.items()
    ]
    return rows.groupBy("shard", "frame_first").agg(
        change(PENDING).alias("more_pending"),
        change(LEASED).alias("more_leased"),
        F.max("sequence").alias("last_row"),
        F.count("wrong").alias("wrong"),
        F.count("wrong_fence").alias("wrong_fence"),
        *last,
        *more,
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
            F.concat(kind_name(), F.lit(": "), what).alias("what"),
        )
    )
