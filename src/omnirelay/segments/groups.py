"""Rows that were gathered type by type, put together in the order of the log by one permutation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from omnirelay.segments.schema import arrow_schema, of_events


class Group(msgspec.Struct, gc=False):
    """Events of one type, or of types that nobody knows."""

    rows: Sequence[int]
    """Where each of them belongs."""
    types: pa.Array
    """The name of each; only one when all have the same."""
    columns: dict[str, pa.Array]
    """Those of their fields that any of them has, in the order of the rows."""


def put_together(groups: Sequence[Group]) -> dict[str, pa.Array]:
    """Every column that an event fills, by name."""
    order = [row for group in groups for row in group.rows]
    if order == list(range(len(order))):
        permutation = None  # As they are: most commits are of one type.
    else:
        place = [0] * len(order)
        for at, row in enumerate(order):
            place[row] = at
        permutation = pa.array(place, pa.int32())

    def ordered(pieces: list[pa.Array]) -> pa.Array:
        whole = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
        return whole if permutation is None else whole.take(permutation)

    columns = {}
    schema = arrow_schema()
    for name in of_events():
        kind = schema.field(name).type
        if any(name in group.columns for group in groups):
            columns[name] = ordered([group.columns.get(name, pa.nulls(len(group.rows), kind)) for group in groups])
        else:
            columns[name] = pa.nulls(len(order), kind)
    names = [
        group.types if len(group.types) == len(group.rows) else pa.repeat(group.types[0], len(group.rows))
        for group in groups
    ]
    columns["event_type"] = ordered(names) if names else pa.nulls(0, pa.string())
    return columns
