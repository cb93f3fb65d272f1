"""From stored events to Arrow columns, and from columns back to frames.

Columns are filled run by run: all enqueues of a call at once, then all grants, and only the fields that the type has.
Where runs are short they are filled type by type, and the rows are then brought into the order of the log by one
permutation. Either is several times quicker than going event by event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from typing import Any, Protocol, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple

from omnirelay.core.events import NO_PROGRESS, Event
from omnirelay.log.base import Frame
from omnirelay.log.frame import FrameRecord, decode_header
from omnirelay.segments.schema import FRAME_FIELDS, arrow_schema, own_columns
from omnirelay.segments.unknown import UnknownType, read_event
from omnirelay.wire.event_schema import snake

Row: TypeAlias = "Event | UnknownType"

_read_record = msgspec.json.Decoder(FrameRecord).decode
_read_events = msgspec.json.Decoder(list[Event]).decode
_encode = msgspec.json.Encoder().encode


class StoredEvent(Protocol):
    """An event as it is stored, and what its frame knows of it; a `ReplicatedEvent` is one."""

    @property
    def shard(self) -> str: ...
    @property
    def data(self) -> bytes: ...
    @property
    def region(self) -> str: ...
    @property
    def pending(self) -> int | None: ...
    @property
    def active(self) -> int | None: ...


def to_arrow(events: Sequence[StoredEvent]) -> pa.RecordBatch:
    """Events as Arrow, in the schema of segments. Columns about frames are null: there are none here."""
    rows = _Rows()
    text = b"[" + b",".join(event.data for event in events) + b"]"
    decoded = _all_known(_read_events, text)
    if decoded is None:
        for event in events:
            rows.add_raw(event.data)
    else:
        rows.events += decoded
    for event in events:
        rows.close_run(1, (event.shard, event.region, event.pending, event.active, None, None, None, None, None))
    return rows.batch()


def frames_to_arrow(frames: Sequence[Frame], region: str | None) -> pa.RecordBatch:
    """Whole frames as Arrow. Raises LogDamaged for bytes that are no frame."""
    rows = _Rows()
    for frame in frames:
        record: FrameRecord | Any = _all_known(_read_record, frame.data)
        if record is None:
            record = decode_header(frame.data)
            for raw in record.events:
                rows.add_raw(bytes(raw))
        else:
            rows.events += record.events
        count = len(record.events)
        rows.frames[len(rows.events) - count] = frame
        of_frame = (frame.first, frame.last, frame.epoch, frame.generation, frame.time_ms)
        rows.close_run(count, (record.shard, region, record.pending, record.active, *of_frame))
    return rows.batch()


def _all_known(read: Callable[[bytes], Any], data: bytes) -> Any:
    """Decoded into our own types, or None when they do not hold everything that stands there.

    The log writes what these types encode to, so equal bytes mean that nothing was passed over. That is a tenth of
    what looking at every field would cost.
    """
    try:
        decoded = read(data)
    except msgspec.DecodeError:
        return None
    return decoded if _encode(decoded) == data else None


_RUN_COLUMNS = (
    "shard",
    "region",
    "queue_pending",
    "queue_active",
    "frame_first",
    "frame_last",
    "frame_epoch",
    "frame_generation",
    "frame_time",
)

_RUN_ROWS_LEAST = 128
"""Where runs of one type are shorter, it is quicker to fill columns type by type and to bring the rows into order."""


class _Rows:
    """Rows in order, gathered until a batch is made of them."""

    def __init__(self) -> None:
        self.events: list[Row] = []
        self.extras: dict[int, str] = {}
        self.frames: dict[int, Frame] = {}
        """By the row of their first event."""
        self._ends: list[int] = []
        self._runs: list[tuple[Any, ...]] = []

    def add_raw(self, raw: bytes) -> None:
        event, extra = read_event(raw)
        if extra is not None:
            self.extras[len(self.events)] = extra
        self.events.append(event)

    def close_run(self, count: int, run: tuple[Any, ...]) -> None:
        """The next `count` rows have the same values in the columns that a frame gives them."""
        end = count + (self._ends[-1] if self._ends else 0)
        if self._runs and self._runs[-1] == run:
            self._ends[-1] = end
        else:
            self._ends.append(end)
            self._runs.append(run)

    def batch(self) -> pa.RecordBatch:
        schema = arrow_schema()
        columns = self._columns_of_types(schema)
        ends = pa.array(self._ends, pa.int32())
        for at, name in enumerate(_RUN_COLUMNS):
            values = pa.array([run[at] for run in self._runs], schema.field(name).type)
            columns[name] = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, values))
        columns["extra"] = self._sparse(self.extras, pa.string())
        columns["frame"] = self._sparse({row: frame.data for row, frame in self.frames.items()}, pa.binary())
        columns["chain"] = self._sparse({row: frame.chain for row, frame in self.frames.items()}, pa.binary())
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _sparse(self, values: dict[int, Any], kind: pa.DataType) -> pa.Array:
        if not values:
            return pa.nulls(len(self.events), kind)
        rows: list[Any] = [None] * len(self.events)
        for row, value in values.items():
            rows[row] = value
        return pa.array(rows, kind)

    def _columns_of_types(self, schema: pa.Schema) -> dict[str, pa.Array]:
        count = sum(1 for _ in groupby(self.events, type))
        if count * _RUN_ROWS_LEAST <= len(self.events):
            return _columns_of([(kind, list(run)) for kind, run in groupby(self.events, type)])
        kinds = [type(event) for event in self.events]
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        # Sorting keeps the order of those that are equal, and what sorts an order is what undoes it.
        order = pc.array_sort_indices(pa.array([numbers[kind] for kind in kinds], pa.int32()))
        permutation = pc.array_sort_indices(order)
        by_type = groupby(map(self.events.__getitem__, order.to_pylist()), type)
        columns = _columns_of([(kind, list(events)) for kind, events in by_type])
        return {
            name: column if column.null_count == len(column) else column.take(permutation)
            for name, column in columns.items()
        }


def _columns_of(runs: Sequence[tuple[type, list[Any]]]) -> dict[str, pa.Array]:
    """The columns that types have, of one run of each type after the other."""
    filled = [_filled(kind, events) for kind, events in runs]
    columns = {}
    for field in (*_IN_EVERY_EVENT, *(column for _, column in own_columns())):
        pieces, absent = [], 0
        for (_, events), of_run in zip(runs, filled, strict=True):
            values = of_run.get(field.name)
            if values is None:
                absent += len(events)
                continue
            pieces += [pa.nulls(absent, field.type), values] if absent else [values]
            absent = 0
        columns[field.name] = pa.concat_arrays([*pieces, pa.nulls(absent, field.type)])
    names = [
        pa.array([event.event_type for event in events])
        if kind is UnknownType
        else pa.repeat(pa.scalar(kind.__name__), len(events))
        for kind, events in runs
    ]
    columns["event_type"] = pa.concat_arrays(names) if names else pa.nulls(0, pa.string())
    return columns


def _filled(kind: type, events: list[Any]) -> dict[str, pa.Array]:
    members = _members(kind, events)
    filled = {}
    for column, path, is_plain in _fields_of(kind):
        if len(path) == 2 and path not in members:
            inside: Any = members[path[:1]]
            members |= {(path[0], *name): values for name, values in _members(type(inside[0]), inside).items()}
        filled[column.name] = _array(members[path], column.type, is_plain)
    return filled


def _members(kind: type, structs: Sequence[Any]) -> dict[tuple[str, ...], tuple[Any, ...]]:
    """The values of each field. All fields of a struct at once take a quarter of the time that each alone takes."""
    names = kind.__struct_fields__  # type: ignore[attr-defined]
    return {(name,): values for name, values in zip(names, zip(*map(astuple, structs), strict=True), strict=True)}


@cache
def _fields_of(kind: type) -> tuple[tuple[pa.Field, tuple[str, ...], bool], ...]:
    """The columns of one event type, where their values are, and whether these are stored as they are."""
    return (
        *((column, (name,), True) for column, name in zip(_IN_EVERY_EVENT, _EVERY_EVENT, strict=True)),
        *(
            (column, tuple(snake(each) for each in field.path), field.kind in _PLAIN)
            for field, column in own_columns()
            if kind.__name__ in field.types
        ),
    )


_EVERY_EVENT = ("sequence_number", "timestamp", "schema_version")
_IN_EVERY_EVENT = tuple(arrow_schema().field(name) for name in ("sequence", "timestamp", "schema_version"))
_PLAIN = frozenset({"text", "whole number", "yes or no", "instant", "bytes"})


def _array(values: Sequence[Any], kind: pa.DataType, is_plain: bool) -> pa.Array:
    first = values[0]
    # Much is the same in all events of a call, and most is not there.
    if first is values[-1] and values.count(first) == len(values):
        value = first if is_plain else _as_json(first)
        return pa.nulls(len(values), kind) if value is None else pa.repeat(pa.scalar(value, kind), len(values))
    return pa.array(values if is_plain else [_as_json(value) for value in values], kind)


def _as_json(value: Any) -> str | None:
    if value is None or value is NO_PROGRESS or (isinstance(value, msgspec.Raw) and not bytes(value)):
        return None
    return _encode(value).decode()


_FRAME_COLUMNS = [field.name for field in FRAME_FIELDS]


def frames_of_arrow(table: pa.Table) -> list[Frame]:
    """The frames of a segment; the number of events of each is the number of its rows."""
    columns = table.select(_FRAME_COLUMNS).combine_chunks()
    starts = pc.indices_nonzero(pc.is_valid(columns["frame"]))
    rows = columns.take(starts)
    at = starts.to_pylist()
    values = [rows[name].cast(pa.int64()) if name == "frame_time" else rows[name] for name in _FRAME_COLUMNS]
    return [
        Frame(first, last, end - start, epoch, generation, time_ms, data, chain)
        for start, end, first, last, epoch, generation, time_ms, data, chain in zip(
            at, [*at[1:], table.num_rows], *(each.to_pylist() for each in values), strict=True
        )
    ]
