"""From stored events to Arrow columns, and from columns back to frames.

Columns are filled run by run: all enqueues of a call at once, then all grants, and only the fields that the type has.
Where runs are short they are filled type by type, and the rows are then brought into the order of the log by one
permutation. Either is several times quicker than going event by event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain, groupby
from operator import sub
from typing import Any, Protocol, TypeAlias

import msgspec
import pyarrow as pa
from msgspec.structs import astuple

from omnirelay.core.events import NO_PROGRESS, Event
from omnirelay.log.base import Frame
from omnirelay.log.frame import FrameRecord, decode_header
from omnirelay.segments.schema import FRAME_FIELDS, arrow_schema, own_columns
from omnirelay.segments.strict import strict
from omnirelay.segments.unknown import UnknownType, read_event
from omnirelay.wire.event_schema import snake

Row: TypeAlias = "Event | UnknownType"

_read_record = msgspec.json.Decoder(strict(FrameRecord)).decode
_read_events = msgspec.json.Decoder(list[strict(Event)]).decode  # type: ignore[misc]
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
    decoded = _all_known(_read_events, b"[" + b",".join(event.data for event in events) + b"]")
    if decoded is None:
        rows.add_raw([event.data for event in events])
    else:
        rows.add(decoded)
    for event in events:
        rows.close_run(1, (event.shard, event.region, event.pending, event.active, None, None, None, None, None))
    return rows.batch()


def frames_to_arrow(frames: Sequence[Frame], region: str | None, types: Counter[str] | None = None) -> pa.RecordBatch:
    """Whole frames as Arrow. Raises LogDamaged for bytes that are no frame.

    How many events of each type there are is added to `types`.
    """
    rows = _Rows()
    for frame in frames:
        rows.frames[rows.count] = frame
        record: Any = _all_known(_read_record, frame.data)
        if record is None:
            record = decode_header(frame.data)
            rows.add_raw([bytes(raw) for raw in record.events])
        else:
            rows.add(record.events)
        of_frame = (frame.first, frame.last, frame.epoch, frame.generation, frame.time_ms)
        rows.close_run(len(record.events), (record.shard, region, record.pending, record.active, *of_frame))
    batch = rows.batch()
    if types is not None:
        types.update(rows.types)
    return batch


def _all_known(read: Callable[[bytes], Any], data: bytes) -> Any:
    """Decoded into our own types, or None when they do not hold everything that stands there."""
    try:
        return read(data)
    except msgspec.DecodeError:
        return None


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


_FLUSHED_ROWS = 1_024
"""So many are made columns of at once: while they are few enough to be still in the processor's cache."""


class _Run(msgspec.Struct, frozen=True, gc=False):
    """Columns of rows of one type, as far as the type has them."""

    types: Sequence[str]
    count: int
    columns: dict[str, pa.Array]


class _Rows:
    """Rows in order, gathered until a batch is made of them."""

    def __init__(self) -> None:
        self.count = 0
        self.frames: dict[int, Frame] = {}
        """By the row of their first event."""
        self.types: Counter[str] = Counter()
        self._extras: dict[int, str] = {}
        self._waiting: list[Row] = []
        self._runs: list[_Run] = []
        self._places: list[Sequence[int]] = []
        """Where rows stand among those of the runs, for as many as were made columns of at once."""
        self._in_order = True
        self._flushed = 0
        self._ends: list[int] = []
        self._of_runs: list[tuple[Any, ...]] = []

    def add(self, events: Sequence[Row]) -> None:
        self._waiting += events
        self.count += len(events)
        if len(self._waiting) >= _FLUSHED_ROWS:
            self._flush()

    def add_raw(self, stored: Sequence[bytes]) -> None:
        events = []
        for at, raw in enumerate(stored, self.count):
            event, extra = read_event(raw)
            if extra is not None:
                self._extras[at] = extra
            events.append(event)
        self.add(events)

    def close_run(self, count: int, run: tuple[Any, ...]) -> None:
        """The next `count` rows have the same values in the columns that a frame gives them."""
        end = count + (self._ends[-1] if self._ends else 0)
        if self._of_runs and self._of_runs[-1] == run:
            self._ends[-1] = end
        else:
            self._ends.append(end)
            self._of_runs.append(run)

    def batch(self) -> pa.RecordBatch:
        self._flush()
        schema = arrow_schema()
        columns = _joined(self._runs)
        if not self._in_order:
            permutation = pa.array(chain.from_iterable(self._places), pa.int32())
            # Most columns are empty, and an empty one is in any order.
            columns = {
                name: column if column.null_count == len(column) else column.take(permutation)
                for name, column in columns.items()
            }
        for at, name in enumerate(_RUN_COLUMNS):
            columns[name] = _spread([run[at] for run in self._of_runs], self._ends, schema.field(name).type)
        columns["extra"] = self._sparse(self._extras, pa.string())
        columns["frame"] = self._sparse({row: frame.data for row, frame in self.frames.items()}, pa.binary())
        columns["chain"] = self._sparse({row: frame.chain for row, frame in self.frames.items()}, pa.binary())
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _sparse(self, values: dict[int, Any], kind: pa.DataType) -> pa.Array:
        """Values of single rows, in the order of these."""
        if len(values) * _RUN_ROWS_LEAST <= self.count:
            pieces, at = [], 0
            for row, value in values.items():
                pieces += [pa.nulls(row - at, kind), pa.array([value], kind)]
                at = row + 1
            return pa.concat_arrays([*pieces, pa.nulls(self.count - at, kind)])
        rows = [None] * self.count
        for row, value in values.items():
            rows[row] = value
        return pa.array(rows, kind)

    def _flush(self) -> None:
        """Make columns of the rows that wait for it."""
        events, self._waiting = self._waiting, []
        if not events:
            return
        before = self._flushed
        self._flushed += len(events)
        kinds = list(map(type, events))
        self._places.append(range(before, before + len(events)))
        if kinds.count(kinds[0]) == len(kinds):
            self._add_run(kinds[0], events)
            return
        runs = [(kind, list(run)) for kind, run in groupby(events, type)]
        if len(runs) * _RUN_ROWS_LEAST > len(events):
            groups: dict[type, list[int]] = {kind: [] for kind in kinds}
            for row, kind in enumerate(kinds):
                groups[kind].append(row)
            places = [0] * len(events)
            for at, row in enumerate(chain.from_iterable(groups.values()), before):
                places[row] = at
            self._places[-1] = places
            self._in_order = False
            runs = [(kind, [events[row] for row in rows]) for kind, rows in groups.items()]
        for kind, of_kind in runs:
            self._add_run(kind, of_kind)

    def _add_run(self, kind: type, events: list[Any]) -> None:
        types = [event.event_type for event in events] if kind is UnknownType else [kind.__name__]
        self._runs.append(_Run(types, len(events), _filled(kind, events)))
        self.types.update(types if kind is UnknownType else {kind.__name__: len(events)})


def _spread(values: Sequence[Any], ends: Sequence[int], kind: pa.DataType) -> pa.Array:
    """Each value as often as it takes to the row where its run ends."""
    if not ends:
        return pa.nulls(0, kind)
    if len(ends) * _RUN_ROWS_LEAST > ends[-1]:
        runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values, kind))
        return _compute().run_end_decode(runs)
    counts = map(sub, ends, (0, *ends))
    return pa.concat_arrays([_repeated(value, count, kind) for value, count in zip(values, counts, strict=True)])


def _repeated(value: Any, count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def _compute() -> Any:
    """Arrow's functions. Importing all of them takes as long as the rest of Arrow, and most segments need none."""
    from pyarrow import compute

    return compute


def _joined(runs: Sequence[_Run]) -> dict[str, pa.Array]:
    """The columns that types have, of one run after the other."""
    columns = {}
    for field in (*_IN_EVERY_EVENT, *(column for _, column in own_columns())):
        pieces, absent = [], 0
        for run in runs:
            values = run.columns.get(field.name)
            if values is None:
                absent += run.count
                continue
            pieces += [pa.nulls(absent, field.type), values] if absent else [values]
            absent = 0
        columns[field.name] = pa.concat_arrays([*pieces, pa.nulls(absent, field.type)])
    names = [_repeated(run.types[0], run.count, _TEXT) if len(run.types) == 1 else pa.array(run.types) for run in runs]
    columns["event_type"] = pa.concat_arrays([*names, pa.nulls(0, _TEXT)])
    return columns


_TEXT = pa.string()


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
    # Much is the same in all events of a call, and most is not there. What is to be JSON may be equal and yet another
    # text.
    is_same = first == values[-1] if is_plain else first is values[-1]
    if is_same and values.count(first) == len(values):
        value = first if is_plain else _as_json(first)
        return _repeated(value, len(values), kind)
    return pa.array(values if is_plain else [_as_json(value) for value in values], kind)


def _as_json(value: Any) -> str | None:
    if value is None or value is NO_PROGRESS or (isinstance(value, msgspec.Raw) and not bytes(value)):
        return None
    return _encode(value).decode()


_FRAME_COLUMNS = [field.name for field in FRAME_FIELDS]
_BESIDE_FRAMES = [name for name in _FRAME_COLUMNS if name != "frame"]


def frames_of_arrow(table: pa.Table) -> list[Frame]:
    """The frames of a segment; the number of events of each is the number of its rows. Raises ValueError where
    something of a frame is missing.
    """
    starts = _compute().indices_nonzero(table["frame"].is_valid())
    rows = table.select(_BESIDE_FRAMES).take(starts)
    for name in _BESIDE_FRAMES:
        if rows[name].null_count:
            raise ValueError(f"a frame without {name}")
    at = starts.to_pylist()
    values = [rows[name].cast(pa.int64()) if name == "frame_time" else rows[name] for name in _BESIDE_FRAMES]
    of_frames = zip(*(each.to_pylist() for each in values), strict=True)
    return [
        Frame(first, last, end - start, epoch, generation, time_ms, data, chain)
        for start, end, data, (first, last, epoch, generation, time_ms, chain) in zip(
            at, [*at[1:], table.num_rows], _bytes_in(table["frame"]), of_frames, strict=True
        )
    ]


def _bytes_in(column: pa.ChunkedArray) -> list[bytes]:
    """The values that are there. They are most of a segment, so they are copied once and by nothing but slicing."""
    if column.type != pa.binary():
        return column.drop_null().to_pylist()  # type: ignore[no-any-return]
    found: list[bytes] = []
    for chunk in column.chunks:
        _, offsets, data = chunk.buffers()
        ends = memoryview(offsets).cast("i")[chunk.offset :]
        text = memoryview(data or b"")  # Without a byte there is no buffer.
        found += [
            bytes(text[ends[row] : ends[row + 1]]) for row in _compute().indices_nonzero(chunk.is_valid()).to_pylist()
        ]
    return found
