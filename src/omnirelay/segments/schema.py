"""Events as Arrow columns: one flat schema, generated from the definition of the events.

Every event is a row. What the event has stands in columns of its own (`payload_resource_id`, `ownership_fence`), lists
and maps as JSON text. What this version does not know of an event goes into `extra`, as JSON text too: the unknown
fields, or the whole event when its type is unknown. The raw bytes of a frame stand beside its first event.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import pyarrow as pa

from omnirelay.wire.event_schema import FieldKind, FlatField, flat_fields

COLUMN_SCHEMA_VERSION: Final = 1

INSTANT: Final = pa.timestamp("ms", tz="UTC")

_ARROW: Final[dict[FieldKind, pa.DataType]] = {
    "text": pa.string(),
    "whole number": pa.int64(),
    "yes or no": pa.bool_(),
    "instant": INSTANT,
    "bytes": pa.binary(),
}

_NAMES: Final = {"sequence_number": "sequence"}
"""Columns that are called otherwise than their field."""

# What every row says: which event it is, and where it is from.
_ROW: Final = (
    pa.field("sequence", pa.int64(), nullable=False),
    pa.field("event_type", pa.string(), nullable=False),
    pa.field("timestamp", INSTANT, nullable=False),
    pa.field("schema_version", pa.int64()),
    pa.field("shard", pa.string(), nullable=False),
    pa.field("region", pa.string()),
    pa.field("queue_pending", pa.int64()),
    pa.field("queue_active", pa.int64()),
)

FRAME_FIELDS: Final = (
    pa.field("frame_first", pa.int64()),
    pa.field("frame_last", pa.int64()),
    pa.field("frame_epoch", pa.int64()),
    pa.field("frame_generation", pa.int64()),
    pa.field("frame_time", INSTANT),
    pa.field("frame", pa.binary()),
    pa.field("chain", pa.binary()),
)
"""Which commit the event was part of. `frame` and `chain` are set on the first row of a frame only."""

REPEATING: Final = ("event_type", "shard", "region", "schema_version", "mode", "reason", "peer_id", "principal")
"""Columns with few different values, for which a dictionary pays."""


@cache
def own_columns() -> tuple[tuple[FlatField, pa.Field], ...]:
    """The columns that not every event has, each with the field of the event it is filled from."""
    every_row = {field.name for field in _ROW}
    columns = []
    for field in flat_fields():
        name = _NAMES.get(field.column, field.column)
        if name not in every_row:
            columns.append((field, pa.field(name, _ARROW.get(field.kind, pa.string()))))
    return tuple(columns)


@cache
def arrow_schema() -> pa.Schema:
    """The schema of a segment. Columns are only ever added, so that old and new segments are read together."""
    fields = [*_ROW, *(column for _, column in own_columns()), pa.field("extra", pa.string()), *FRAME_FIELDS]
    return pa.schema(fields, metadata={"omnirelay.columns": str(COLUMN_SCHEMA_VERSION)})


_MEANINGS: Final = {
    "sequence": "Place in the log of the shard.",
    "event_type": "Name of the type.",
    "timestamp": "When it happened.",
    "schema_version": "Version of the event schema it was written in.",
    "shard": "The shard.",
    "region": "The node's region.",
    "queue_pending": "Items ready or delayed after the commit.",
    "queue_active": "Live leases after the commit.",
    "extra": "JSON: the fields this version does not know, or the whole event when its type is unknown.",
    "frame_first": "First event of the commit.",
    "frame_last": "Last event of the commit.",
    "frame_epoch": "Epoch of the writer that made it.",
    "frame_generation": "Generation of the log.",
    "frame_time": "Time of the commit.",
    "frame": "The stored bytes of the commit; only beside its first event.",
    "chain": "SHA-256 over the chain before it and `frame`; only beside its first event.",
}


def column_meanings() -> dict[str, str]:
    """Every column with what it says, in order."""
    meanings = {column.name: field.meaning for field, column in own_columns()} | _MEANINGS
    return {field.name: meanings[field.name] for field in arrow_schema()}


def column_rows() -> list[str]:
    """Rows of the table in the documentation: column, type and meaning."""
    types = {field.name: field.type for field in arrow_schema()}
    return [f"| `{name}` | {types[name]} | {meaning} |" for name, meaning in column_meanings().items()]
