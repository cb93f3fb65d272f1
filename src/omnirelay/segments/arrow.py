"""From stored events to Arrow columns, and from columns back to frames.

Columns are filled type by type: all enqueues at once, then all grants, and only the fields that the type has. The rows
are then brought into the order of the log by one permutation. That is several times quicker than going event by event.
Where a frame is plain, events of one type are not even made: Arrow parses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from omnirelay.core.events import NO_PROGRESS, Event
from omnirelay.log.base import Frame
from omnirelay.log.frame import FrameHeader, FrameRecord, decode_header
from omnirelay.segments.groups import Group, put_together
from omnirelay.segments.parsing import is_plain, parse, types_of
from omnirelay.segments.schema import FRAME_FIELDS, INSTANT, arrow_schema, own_columns
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
        rows.add_known(decoded)
    for event in events:
        rows.close_run(1, (event.shard, event.region, event.pending, event.active, None, None, None, None, None))
    return rows.batch()


def frames_to_arrow(frames: Sequence[Frame], region: str | None) -> pa.RecordBatch:
    """Whole frames as Arrow. Raises LogDamaged for bytes that are no frame."""
    rows = _Rows()
    for frame in frames:
        rows.frames[rows.count] = frame
        record = _add_frame(rows, frame)
        of_frame = (frame.first, frame.last, frame.epoch, frame.generation, frame.time_ms)
        rows.close_run(len(record.events), (record.shard, region, record.pending, record.active, *of_frame))
    return rows.batch()


def _add_frame(rows: _Rows, frame: Frame) -> FrameRecord | FrameHeader:
    if is_plain(frame.data):
        header = decode_header(frame.data)
        types = types_of(frame.data, header.events)
        if types is not None:
            rows.add_to_parse(types, header.events)
            return header
    record: FrameRecord | None = _all_known(_read_record, frame.data)
    if record is not None:
        rows.add_known(record.events)
        return record
    header = decode_header(frame.data)
    for raw in header.events:
        rows.add_raw(bytes(raw))
    return header


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


class _Rows:
    """Rows in order, gathered until a batch is made of them."""

    def __init__(self) -> None:
        self.count = 0
        self.frames: dict[int, Frame] = {}
        """By the row of their first event."""
        self._extras: dict[int, str] = {}
        self._known: dict[type, tuple[list[int], list[Any]]] = {}
        self._to_parse: dict[str, tuple[list[int], list[msgspec.Raw]]] = {}
        self._ends: list[int] = []
        self._runs: list[tuple[Any, ...]] = []

    def add_known(self, events: Sequence[Row]) -> None:
        for row, event in enumerate(events, self.count):
            self._add(row, event)
        self.count += len(events)

    def add_raw(self, raw: bytes) -> None:
        self._add_raw(self.count, raw)
        self.count += 1

    def add_to_parse(self, types: Sequence[str], events: Sequence[msgspec.Raw]) -> None:
        """Events of plain frames, with the type of each, or with the one that all have."""
        if len(types) == 1:
            rows, known = self._to_parse.setdefault(types[0], ([], []))
            rows += range(self.count, self.count + len(events))
            known += events
        else:
            for row, (name, event) in enumerate(zip(types, events, strict=True), self.count):
                rows, known = self._to_parse.setdefault(name, ([], []))
                rows.append(row)
                known.append(event)
        self.count += len(events)

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
        columns = put_together(self._groups())
        ends = pa.array(self._ends, pa.int32())
        for at, name in enumerate(_RUN_COLUMNS):
            values = pa.array([run[at] for run in self._runs], schema.field(name).type)
            columns[name] = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, values))
        columns["extra"] = self._sparse(self._extras, pa.string())
        columns["frame"] = self._sparse({row: frame.data for row, frame in self.frames.items()}, pa.binary())
        columns["chain"] = self._sparse({row: frame.chain for row, frame in self.frames.items()}, pa.binary())
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _sparse(self, values: dict[int, Any], kind: pa.DataType) -> pa.Array:
        if not values:
            return pa.nulls(self.count, kind)
        rows: list[Any] = [None] * self.count
        for row, value in values.items():
            rows[row] = value
        return pa.array(rows, kind)

    def _groups(self) -> list[Group]:
        groups = []
        for name, (rows, raws) in self._to_parse.items():
            columns = parse(name, raws)
            if columns is not None:
                groups.append(Group(rows, pa.array([name]), columns))
                continue
            for row, raw in zip(rows, raws, strict=True):
                self._add_raw(row, bytes(raw))
        for kind, (rows, events) in self._known.items():
            types = pa.array([event.event_type for event in events] if kind is UnknownType else [kind.__name__])
            groups.append(Group(rows, types, _filled(kind, events)))
        return groups

    def _add_raw(self, row: int, raw: bytes) -> None:
        event, extra = read_event(raw)
        if extra is not None:
            self._extras[row] = extra
        self._add(row, event)

    def _add(self, row: int, event: Row) -> None:
        try:
            rows, events = self._known[type(event)]
        except KeyError:
            rows, events = self._known[type(event)] = ([], [])
        rows.append(row)
        events.append(event)


def _filled(kind: type, events: list[Any]) -> dict[str, pa.Array]:
    return {name: fill(events) for name, fill in _fillers(kind)}


@cache
def _fillers(kind: type) -> tuple[tuple[str, Callable[[list[Any]], pa.Array]], ...]:
    """How the columns of one event type are filled."""
    own = [
        (column.name, _filler(".".join(snake(each) for each in field.path), field.kind, column.type))
        for field, column in own_columns()
        if kind.__name__ in field.types
    ]
    return (
        ("sequence", _filler("sequence_number", "whole number", pa.int64())),
        ("timestamp", _filler("timestamp", "instant", INSTANT)),
        ("schema_version", _filler("schema_version", "whole number", pa.int64())),
        *own,
    )


_PLAIN = frozenset({"text", "whole number", "yes or no", "instant", "bytes"})


def _filler(path: str, kind: str, arrow: pa.DataType) -> Callable[[list[Any]], pa.Array]:
    get = attrgetter(path)
    if kind in _PLAIN:
        return lambda events: pa.array(map(get, events), arrow, size=len(events))
    return lambda events: pa.array([_as_json(get(event)) for event in events], arrow)


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
