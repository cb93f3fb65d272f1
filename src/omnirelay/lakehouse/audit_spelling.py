"""Whether the columns of a segment, written as the frames they were made of, give the very bytes of these frames.

To make columns of frames again takes a Python object for every event. To write columns as JSON takes none: all events
of a type are written at once, each member from its column, and what comes out is compared as a whole. When it is the
same, reading the frames would give these columns, since every member that is written here can be read in one way only:
numbers are digits, texts are escaped, and JSON within JSON is written again to see that it is one value as it stands.

When it is not the same, nothing is known: another version may spell a frame otherwise. Who asks has to make the columns
of the frames then, and to look where they differ.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, TypeAlias, get_args, get_origin

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnirelay.core.events import Event
from omnirelay.log.base import Frame
from omnirelay.log.frame import header_prefix
from omnirelay.segments.schema import FRAME_FIELDS, arrow_schema, own_columns

Piece: TypeAlias = str | pa.Array
"""A part of the text of events: the same in all of them, or one for each."""

_OF_THE_FRAME: Final = ("frame_first", "frame_last", "frame_epoch", "frame_generation", "frame_time")
_TOLD: Final = ("shard", "queue_pending", "queue_active", *_OF_THE_FRAME)
"""Columns that say the same in all rows of a frame."""
_OF_EVERY_EVENT: Final[dict[tuple[str, ...], str]] = {
    ("sequenceNumber",): "sequence",
    ("timestamp",): "timestamp",
    ("schemaVersion",): "schema_version",
}
_NOT_OF_EVENTS: Final = {"event_type", "region", "extra", *_TOLD, *(field.name for field in FRAME_FIELDS)}
_NO_DEFAULT: Final = msgspec.NODEFAULT
_encode = msgspec.json.Encoder().encode


class _Unlike(Exception):
    """The columns cannot be what frames of this version make."""


def spell_their_frames(table: pa.Table, frames: Sequence[Frame], shard: str, log_id: str) -> bool:
    """Whether these rows are what their frames make, region and `extra` aside. False says nothing."""
    try:
        _check_shape(table, frames)
        # Most of a segment are the bytes of its frames, which are here already.
        rows = table.select([*_TOLD, "event_type", *_event_columns()]).combine_chunks()
        _check_told(rows, frames, shard)
        _check_links(table, frames)
        expected = _frames_of(rows, _events_of(rows), frames, shard, log_id)
    except (_Unlike, msgspec.MsgspecError, UnicodeDecodeError, KeyError, pa.ArrowException):
        return False
    return bool(expected.equals(pa.array([frame.data for frame in frames], pa.binary())))


def _check_shape(table: pa.Table, frames: Sequence[Frame]) -> None:
    if not frames or sum(frame.count for frame in frames) != table.num_rows:
        raise _Unlike
    types = dict(zip(table.schema.names, table.schema.types, strict=True))
    if any(types.get(field.name) != field.type for field in arrow_schema()):
        raise _Unlike


def _check_told(rows: pa.Table, frames: Sequence[Frame], shard: str) -> None:
    """What every row says of its frame is what the first of them says."""
    counts = np.array([frame.count for frame in frames])
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    if not pc.all(pc.equal(_only(rows["shard"]), shard), min_count=0).as_py() or rows["shard"].null_count:
        raise _Unlike
    for name in _TOLD[1:]:
        column = _only(rows[name])
        if column.null_count and name in _OF_THE_FRAME:
            raise _Unlike
        there = column.is_valid().to_numpy(zero_copy_only=False)
        numbers = column.cast(pa.int64()).fill_null(0).to_numpy()
        if not np.array_equal(there, there[firsts]) or not np.array_equal(numbers, numbers[firsts]):
            raise _Unlike


def _check_links(table: pa.Table, frames: Sequence[Frame]) -> None:
    """A frame and its link stand beside its first event, and nowhere else."""
    counts = np.array([frame.count for frame in frames])
    starts = np.cumsum(counts) - counts
    for name in ("frame", "chain"):
        if not np.array_equal(np.flatnonzero(table[name].is_valid().to_numpy()), starts):
            raise _Unlike


def _frames_of(rows: pa.Table, events: pa.Array, frames: Sequence[Frame], shard: str, log_id: str) -> pa.Array:
    """Whole frames, as bytes, of the texts of their events."""
    ends = np.cumsum([frame.count for frame in frames])
    starts = pa.array(np.append([0], ends[:-1]))
    told = [_only(rows[name]).take(starts).to_pylist() for name in ("queue_pending", "queue_active")]
    heads = [header_prefix(frame, shard, log_id) for frame in frames]
    tails = [
        f"]{_depth('pending', pending)}{_depth('active', active)}}}" for pending, active in zip(*told, strict=True)
    ]
    lists = pa.ListArray.from_arrays(pa.array(np.append([0], ends), pa.int32()), events)
    joined = pc.binary_join(lists, ",")
    whole = pc.binary_join_element_wise(pa.array(heads, pa.binary()).cast(pa.string()), joined, pa.array(tails), "")
    return whole.cast(pa.binary())


def _depth(name: str, value: int | None) -> str:
    return "" if value is None else f',"{name}":{value}'


# -- events ----------------------------------------------------------------------------------------


def _events_of(rows: pa.Table) -> pa.Array:
    """The text of each event. Raises _Unlike where a column says something that its event does not have."""
    types = _only(rows["event_type"]).dictionary_encode()
    if types.null_count:
        raise _Unlike
    codes = types.indices.to_numpy(zero_copy_only=False)
    said = dict.fromkeys(_event_columns(), 0)
    texts, places = [], []
    for code, name in enumerate(types.dictionary.to_pylist()):
        kind = _kinds().get(name)
        if kind is None:
            raise _Unlike
        at = np.flatnonzero(codes == code)
        speller = _Speller(rows, None if len(at) == len(codes) else pa.array(at), said)
        texts.append(_joined(speller.event(kind), len(at)))
        places.append(at)
    if any(rows.num_rows - rows[name].null_count != count for name, count in said.items()):
        raise _Unlike
    if len(texts) == 1:
        return texts[0]
    order = np.empty(rows.num_rows, np.int64)
    order[np.concatenate(places)] = np.arange(rows.num_rows)
    return pa.concat_arrays(texts).take(pa.array(order))


class _Speller:
    """Writes the events of one type, which stand `at` some rows. `said` counts the values it writes, by column."""

    def __init__(self, rows: pa.Table, at: pa.Array | None, said: dict[str, int]) -> None:
        self._rows = rows
        self._at = at
        self._said = said

    def _values(self, column: str) -> pa.Array:
        values = _only(self._rows[column])
        if self._at is None:
            return values
        # What is empty everywhere is so here, too.
        return values[: len(self._at)] if values.null_count == len(values) else values.take(self._at)

    def event(self, kind: type[msgspec.Struct]) -> Iterator[Piece]:
        yield f'{{"eventType":"{kind.__name__}"'
        yield from self._members(kind, kind.__name__, (), begun=True)
        yield "}"

    def _members(self, kind: Any, of_type: str, path: tuple[str, ...], *, begun: bool) -> Iterator[Piece]:
        for field in _fields(kind):
            own = (*path, field.encode_name)
            comma = "," if begun else ""
            begun = True
            column = _column_at(of_type, own)
            if column is None:
                yield f'{comma}"{field.encode_name}":{{'
                yield from self._members(field.type, of_type, own, begun=False)
                yield "}"
            else:
                yield from self._member(f'{comma}"{field.encode_name}":', column, field)

    def _member(self, name: str, column: str, field: msgspec.structs.FieldInfo) -> Iterator[Piece]:
        values = self._values(column)
        count = len(values) - values.null_count
        self._said[column] += count
        # Raw JSON that is missing is an empty value, and null in its column.
        optional = field.default is None or field.type is msgspec.Raw
        if not optional and count < len(values):
            raise _Unlike
        if not count:
            return
        default = _NO_DEFAULT if optional else field.default
        same = _same(values)
        if same is not None:
            # Most members are the same in all events of a call: these become part of the text between others.
            text = _text(same.as_py(), field.type)
            yield "" if same.as_py() == default else name + text
        elif default is _NO_DEFAULT and not values.null_count:
            yield name
            yield from _spelled(values, field.type)
        else:
            yield _member_or_nothing(name, values, field.type, default)


def _joined(pieces: Iterator[Piece], count: int) -> pa.Array:
    merged: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    if len(merged) == 1:
        return pa.repeat(pa.scalar(merged[0], pa.string()), count)
    return pc.binary_join_element_wise(*merged, "")


def _same(values: pa.Array) -> pa.Scalar | None:
    """The value that all of them are."""
    if values.null_count or values[0] != values[-1]:
        return None
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    first = values[0]
    return first if pc.all(pc.equal(values, first)).as_py() else None


# -- values ----------------------------------------------------------------------------------------


def _spelled(values: pa.Array, kind: Any) -> Iterator[Piece]:
    """Values, none of which is null, in JSON."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    if pa.types.is_int64(values.type):
        yield values.cast(pa.string())
    elif _is_plain_text(values, kind):
        yield '"'
        yield values
        yield '"'
    else:
        encoded = values.dictionary_encode()
        texts = [_text(value, kind) for value in encoded.dictionary.to_pylist()]
        yield pa.array(texts, pa.string()).take(encoded.indices)


def _member_or_nothing(name: str, values: pa.Array, kind: Any, default: Any) -> pa.Array:
    """The member, or an empty text where it is left out."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    encoded = values.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    texts = ["" if value == default else name + _text(value, kind) for value in distinct]
    return pa.array([*texts, ""], pa.string()).take(encoded.indices.fill_null(len(texts)))


def _is_plain_text(values: pa.Array, kind: Any) -> bool:
    """Whether texts stand in JSON as they are."""
    if not pa.types.is_string(values.type) or kind not in (str, str | None):
        return False
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    text = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
    return not bool(_NOT_PLAIN[text].any())


_NOT_PLAIN: Final = np.array([byte < 0x20 or byte > 0x7E or byte in b'"\\' for byte in range(256)])
"""Bytes that are escaped, or may not be text."""


def _text(value: Any, kind: Any) -> str:
    """A value of a column in JSON. Raises _Unlike for one that no event has."""
    if isinstance(value, bytes):
        return f'"{b64encode(value).decode()}"'
    if isinstance(value, str) and not _is_text(kind):
        # JSON already, as long as it is what its own type makes of it.
        inside = msgspec.json.decode(value, type=kind)
        if inside is None or _encode(inside).decode() != value:
            raise _Unlike
        return value
    return _encode(msgspec.convert(value, kind)).decode()


@cache
def _is_text(kind: Any) -> bool:
    """Texts, or some of them only."""
    return any(each is str or isinstance(each, str) for each in (kind, *get_args(kind))) and get_origin(kind) not in (
        dict,
        list,
    )


# -- what there is ---------------------------------------------------------------------------------


@cache
def _kinds() -> dict[str, type[msgspec.Struct]]:
    return {kind.__name__: kind for kind in get_args(Event)}


@cache
def _event_columns() -> tuple[str, ...]:
    return tuple(name for name in arrow_schema().names if name not in _NOT_OF_EVENTS)


@cache
def _by_path() -> dict[tuple[str, tuple[str, ...]], str]:
    return {(kind, field.path): column.name for field, column in own_columns() for kind in field.types}


def _column_at(of_type: str, path: tuple[str, ...]) -> str | None:
    """The column of a member; None when it has members of its own."""
    return _OF_EVERY_EVENT.get(path) or _by_path().get((of_type, path))


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _only(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
