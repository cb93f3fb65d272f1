"""What silver is folded from: the events of items, one row for each item that an event names.

Silver tables are brought forward, never made anew: rows of the table that new events concern are read, the events are
folded into them, and the outcome is merged back. What a fold needs of the past therefore stands in the rows themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from omnirelay.core.evolve import EXPIRED_ERROR
from omnirelay.lakehouse.formats import NO_ROW
from omnirelay.lakehouse.tables import Table

_LISTED: Final = ("DrainSnapshot", "Redriven")
_RESTORED: Final = "RestoreSnapshot"
_SINGLE: Final = (
    "Enqueue",
    "LeaseGranted",
    "Heartbeat",
    "Completed",
    "Failed",
    "Expired",
    "DeadLettered",
    "Released",
    "Cancelled",
    "DeadLetterEdited",
)
STATES: Final = {
    "Enqueue": "pending",
    "RestoreSnapshot": "pending",
    "Redriven": "pending",
    "LeaseGranted": "leased",
    "Failed": "pending",
    "Released": "pending",
    "Expired": "pending",
    "Completed": "completed",
    "DeadLettered": "dead",
    "Cancelled": "cancelled",
    "DrainSnapshot": "drained",
}
"""What an item is after an event. A delay is not told from being ready: when it ends is no event of the item."""
OUTCOMES: Final = {"Completed": "completed", "Failed": "failed", "Released": "released", "Expired": "expired"}
_RESTORED_ITEM: Final = (
    "ARRAY<STRUCT<sequenceId: BIGINT, attempt: BIGINT, enqueuedAt: BIGINT, priority: BIGINT, notBefore: BIGINT,"
    " parentSequenceId: BIGINT, lastError: STRUCT<message: STRING, code: STRING>,"
    " payload: STRUCT<resourceType: STRING, resourceId: STRING, partitionKey: STRING>>>"
)
_DEFAULT_PRIORITY: Final = 5
COMING_BACK: Final = frozenset({"Redriven", "RestoreSnapshot", "DeadLetterEdited"})
"""The events that concern items which had ended. All others concern items that have not."""
DRAINED: Final = frozenset({"DrainSnapshot"})
"""The events that concern items which have not ended, and name them in a list."""
GOING_ON: Final = frozenset(_SINGLE) - COMING_BACK - {"Enqueue"}
"""The events that concern one item, which has not ended and was there before."""
Ranges: TypeAlias = Mapping[str, tuple[int, int]]
"""Of shards the first and the last item that something is said of."""

_SHAPE: Final = (
    ("shard", "STRING"),
    ("item", "BIGINT"),
    ("sequence", "BIGINT"),
    ("at", "TIMESTAMP"),
    ("kind", "STRING"),
    ("lease_id", "STRING"),
    ("fence", "BIGINT"),
    ("attempt", "BIGINT"),
    ("peer", "STRING"),
    ("principal", "STRING"),
    ("expires_at", "TIMESTAMP"),
    ("ready_at", "TIMESTAMP"),
    ("enqueued_at", "TIMESTAMP"),
    ("resource_type", "STRING"),
    ("resource_id", "STRING"),
    ("partition_key", "STRING"),
    ("priority", "BIGINT"),
    ("parent", "BIGINT"),
    ("error_code", "STRING"),
    ("error_message", "STRING"),
    ("fail_mode", "STRING"),
    ("undelivered", "BOOLEAN"),
    ("table_version", "STRING"),
)


CHANGES_NAMES: Final = tuple(name for name, _ in _SHAPE)
CHANGES_DDL: Final = ", ".join(f"{name} {kind}" for name, kind in _SHAPE)
"""What `item_events` has: the shape that folds take."""


def item_events(events: DataFrame, kinds: Collection[str]) -> DataFrame:
    """Events that name items, in one shape.

    `kinds` are the types of all events that there are: each way to name items is another scan of them.
    """
    ways = [_single(events)]
    if not set(_LISTED).isdisjoint(kinds):
        ways.append(_listed(events))
    if _RESTORED in kinds:
        ways.append(_restored(events))
    return reduce(DataFrame.unionByName, ways)


def _shaped(rows: DataFrame, **given: Column) -> DataFrame:
    values = {
        "shard": F.col("shard"),
        "sequence": F.col("sequence"),
        "at": F.col("timestamp"),
        "kind": _kind(),
        **given,
    }
    return rows.select(*(values.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in _SHAPE))


def _kind() -> Column:
    return F.col("event_type")


def is_kind(*kinds: str) -> Column:
    return F.col("kind").isin(*kinds)


def _single(events: DataFrame) -> DataFrame:
    rows = events.where(_kind().isin(*_SINGLE))
    came_back = _kind().isin("Enqueue", "Failed", "Released", "Expired")
    expired = _kind() == "Expired"
    is_json = F.col("result_encoding").contains("json")
    return _shaped(
        rows,
        item=named_item(),
        lease_id=F.col("ownership_lease_id"),
        fence=F.when(_kind() == "LeaseGranted", F.col("sequence")).otherwise(F.col("ownership_fence")),
        attempt=F.coalesce("next_attempt", "ownership_attempt"),
        peer=F.col("peer_id"),
        principal=F.col("principal"),
        expires_at=F.col("expires_at"),
        # greatest() passes over a null.
        ready_at=F.when(came_back, F.greatest("timestamp", "not_before")),
        enqueued_at=F.when(_kind() == "Enqueue", F.col("timestamp")),
        resource_type=F.col("payload_resource_type"),
        resource_id=F.col("payload_resource_id"),
        partition_key=F.col("payload_partition_key"),
        priority=F.when(_kind() == "Enqueue", F.coalesce("priority", F.lit(_DEFAULT_PRIORITY))),
        parent=F.col("parent_sequence_id"),
        error_code=F.when(expired, F.lit(EXPIRED_ERROR.code)).otherwise(F.col("error_code")),
        error_message=F.when(expired, F.lit(EXPIRED_ERROR.message)).otherwise(F.col("error_message")),
        fail_mode=F.col("mode"),
        undelivered=F.col("undelivered"),
        table_version=F.when(is_json, F.get_json_object(F.col("result").cast("string"), "$.tableVersion")),
    )


def named_item() -> Column:
    """The item that an event in bronze names by itself."""
    return F.coalesce("ownership_sequence_id", "sequence_id")


def _listed(events: DataFrame) -> DataFrame:
    rows = events.where(_kind().isin(*_LISTED)).select(
        "shard",
        "sequence",
        "timestamp",
        "event_type",
        F.from_json("not_before_each", "ARRAY<BIGINT>").alias("delays"),
        F.posexplode(F.from_json("sequence_ids", "ARRAY<BIGINT>")).alias("place", "id"),
    )
    delayed = F.timestamp_millis(F.get("delays", F.col("place")))
    redriven = _kind() == "Redriven"
    return _shaped(rows, item=F.col("id"), ready_at=F.when(redriven, F.greatest("timestamp", delayed)))


def _restored(events: DataFrame) -> DataFrame:
    rows = events.where(_kind() == _RESTORED).select(
        "shard", "sequence", "timestamp", "event_type", F.explode(F.from_json("items", _RESTORED_ITEM)).alias("one")
    )
    one = F.col("one")
    return _shaped(
        rows,
        item=one["sequenceId"],
        attempt=F.coalesce(one["attempt"], F.lit(1)),
        ready_at=F.greatest(F.col("timestamp"), F.timestamp_millis(one["notBefore"])),
        enqueued_at=F.timestamp_millis(F.coalesce(one["enqueuedAt"], F.lit(0))),
        resource_type=one["payload"]["resourceType"],
        resource_id=one["payload"]["resourceId"],
        partition_key=one["payload"]["partitionKey"],
        priority=F.coalesce(one["priority"], F.lit(_DEFAULT_PRIORITY)),
        parent=one["parentSequenceId"],
        error_code=one["lastError"]["code"],
        error_message=one["lastError"]["message"],
    )


def last_of(value: Column, condition: Column | None = None) -> Column:
    """In a group: the value of the last event that meets the condition; None when no event does."""
    if condition is None:
        condition = value.isNotNull()
    return F.max_by(value, F.when(condition, F.col("sequence")))


def first_of(name: str, condition: Column) -> Column:
    """In a group: the first value of a column that there is among the events that meet the condition."""
    there = condition & F.col(name).isNotNull()
    return F.min_by(name, F.when(there, F.col("sequence"))).alias(name)


def millis(begin: Column, end: Column) -> Column:
    return F.unix_millis(end) - F.unix_millis(begin)


def in_shape(rows: DataFrame, table: Table) -> DataFrame:
    """Only the columns of a table, of its types, in its order."""
    return rows.select(*(F.col(column.name).cast(column.type) for column in table.columns))


def ranges_of(changes: DataFrame, kinds: Collection[str]) -> Ranges:
    """For each shard where events of these types name any, the first and the last item that they name.

    Between them all have to be looked at. So what happens all the time must not be among what is rare and reaches far:
    a sign of life of an item from long ago says nothing of those behind it.
    """
    mine = changes.where(is_kind(*kinds) & F.col("item").isNotNull())
    found = mine.groupBy("shard").agg(F.min("item"), F.max("item")).collect()
    return {shard: (int(first), int(last)) for shard, first, last in found}


def both(one: Ranges, other: Ranges) -> Ranges:
    """From the first to the last of either."""
    each = {shard: (one.get(shard), other.get(shard)) for shard in {*one, *other}}
    there = {shard: [part for part in parts if part is not None] for shard, parts in each.items()}
    return {shard: (min(first for first, _ in parts), max(last for _, last in parts)) for shard, parts in there.items()}


def open_or_back(going_on: Ranges, back: Ranges, table: str = "") -> str:
    """That a row is of an item that has not ended among those that go on, or of any among those that come back. `table`
    is what the table is called, with a dot.

    Every shard counts its items by itself: what comes back in one says nothing of the others. Of a long queue only what
    goes on is looked at.
    """
    parts = [f"({between} AND {table}ended_at IS NULL)" for between in _between(going_on, table)]
    parts += [f"({between})" for between in _between(back, table)]
    return f"({' OR '.join(parts)})" if parts else NO_ROW


def _between(items: Ranges, table: str) -> list[str]:
    return [
        f"{table}shard = {quoted(shard)} AND {table}item >= {first} AND {table}item <= {last}"
        for shard, (first, last) in sorted(items.items())
    ]


def of_shards(shards: Collection[str], table: str = "") -> str:
    """That a row is of one of these shards."""
    return f"{table}shard IN ({', '.join(map(quoted, sorted(shards)))})" if shards else NO_ROW


def quoted(text: str) -> str:
    """A text as SQL has it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
