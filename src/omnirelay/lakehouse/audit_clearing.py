"""Items that SQL need not follow, because one segment shows their whole life, and it is in order.

Most items come in, are leased and end within one segment. For these a look at the segment's columns, as arrays and
without Spark, is enough: each event finds the item as it has to be, names the live lease, and the last one is an end
that nothing follows. What is left are the rows of all other items, which SQL follows from segment to segment, and for
each frame what the cleared items changed in it.

Nothing is judged here. What is not plainly in order is left to SQL: an item with all of its rows; and the whole shard
where numbers, frames or columns are not as they should be, or items may have come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from omnirelay.lakehouse.audit_kinds import (
    AFTER,
    ALLOWED,
    CANCELLED,
    COMPLETED,
    DRAINED,
    KINDS,
    LEASED,
    LISTED,
    NOT_THERE,
    NUMBERS,
    OWNED,
    PENDING,
    PURGED,
    SINGLE,
    STATES,
)
from omnirelay.segments.schema import arrow_schema

Numbers: TypeAlias = npt.NDArray[np.int64]
Truths: TypeAlias = npt.NDArray[np.bool_]
Places: TypeAlias = npt.NDArray[np.intp]

ROWS: Final = pa.schema(
    {
        "sequence": pa.int64(),
        "frame_first": pa.int64(),
        "kind": pa.int32(),
        "item": pa.int64(),
        "fence": pa.int64(),
        "lease_id": pa.string(),
        "expires": pa.int64(),
    }
)
"""A row of an item that was not cleared."""
FRAMES: Final = pa.schema(
    dict.fromkeys(("frame_first", "more_pending", "more_leased", "last_row", "told_pending", "told_leased"), pa.int64())
)
"""A frame: what cleared items changed in it, the last row about one of them, and the depth that it tells."""

_NO: Final = -1
"""Stands for null. No event, item or fence has such a number, and one that has clears nothing."""
_CHANGES: Final = ("OptionsChanged", "LeaderElected")
_AFTER: Final = np.array(AFTER, np.int8)
_ALLOWED: Final = np.array(ALLOWED, np.int16)
_IS_OWNED: Final = np.array([kind in OWNED for kind in KINDS])
_IS_END: Final = np.isin(np.arange(len(STATES) + 1), (COMPLETED, CANCELLED, DRAINED, PURGED))
_read_ids = msgspec.json.Decoder(list[int]).decode


class Change(msgspec.Struct, frozen=True):
    """New options, or a takeover, as it stands in the columns."""

    sequence: int
    options: str | None
    ms: int | None
    """For how long nobody led."""


class Cleared(msgspec.Struct, frozen=True):
    """What is to be known of a segment whose numbers and frames are in order, besides what is left of it."""

    generations: tuple[int, int] | None
    """Of its first and its last frame; None when it has no event of the stretch."""
    end_ms: int
    enqueued: tuple[int, int] | None
    """The lowest and the highest item that came in."""
    left: int
    """Rows that SQL has to follow."""
    frames: int
    told: int
    """Frames that say something of cleared items."""
    states: dict[str, int]
    """Cleared items by how they ended."""
    changes: list[Change]


class Left(msgspec.Struct, frozen=True):
    """What SQL goes on from, as `ROWS` and `FRAMES`."""

    rows: pa.RecordBatch
    frames: pa.RecordBatch


class _Odd(Exception):
    """The segment is not one that can be cleared."""


def clear(table: pa.Table, shard: str, before: int, last: int) -> tuple[Cleared, Left] | None:
    """Clear the items of a segment that follows event `before`, as far as event `last`, with which it may end.

    None when SQL has to look at all of the shard.
    """
    try:
        columns = _Columns(table, shard, last)
        if not len(columns.sequence) and last <= before:
            return Cleared(None, 0, None, 0, 0, 0, {}, []), Left(_batch(ROWS), _batch(FRAMES))
        _check_numbers(columns, before, last)
        return _cleared(columns)
    except (_Odd, msgspec.DecodeError, OverflowError, pa.ArrowException):
        return None


class _Columns:
    """The columns of a segment as arrays."""

    def __init__(self, table: pa.Table, shard: str, last: int) -> None:
        self._table = table
        self.sequence = self.numbers("sequence")
        if bool(np.any(self.sequence > last)):
            self._table = table.filter(pc.less_equal(table["sequence"], last))
            self.sequence = self.numbers("sequence")
        names = self.column("shard")
        if names.null_count or not pc.all(pc.equal(names, shard), min_count=0).as_py():
            raise _Odd
        types = self.column("event_type").dictionary_encode()
        self._types: dict[str | None, int] = {name: code for code, name in enumerate(types.dictionary.to_pylist())}
        self._codes: npt.NDArray[np.int32] = types.indices.fill_null(_NO).to_numpy(zero_copy_only=False)
        self.frame = self.numbers("frame_first")

    def column(self, name: str) -> pa.Array:
        kind = arrow_schema().field(name).type
        if name not in self._table.column_names:
            return pa.nulls(self._table.num_rows, kind)
        column = self._table[name]
        if column.type != kind:
            raise _Odd
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def numbers(self, name: str) -> Numbers:
        column = self.column(name)
        plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        found: Numbers = plain.fill_null(_NO).to_numpy(zero_copy_only=False)
        return found

    def of_types(self, *names: str) -> Places:
        """Where there are events of these types."""
        codes = [self._types[name] for name in names if name in self._types]
        return np.flatnonzero(np.isin(self._codes, codes)) if codes else np.empty(0, np.intp)

    def has(self, name: str) -> bool:
        return name in self._types

    def kinds(self) -> npt.NDArray[np.int8]:
        """The number of the type of each event, below 0 where it does not name one item."""
        of_code = [NUMBERS[name] if name in SINGLE else _NO for name in self._types]
        return np.array([*of_code, _NO], np.int8)[self._codes]


def _check_numbers(columns: _Columns, before: int, last: int) -> None:
    """Raises _Odd unless events and frames are in their order without a gap, and generations only rise.

    Generations of other segments are compared elsewhere.
    """
    if not len(columns.sequence) or columns.has("RestoreSnapshot"):
        raise _Odd
    sequence, frame, generation = columns.sequence, columns.frame, columns.numbers("frame_generation")
    starts = np.zeros(len(sequence), np.bool_)
    starts[columns.of_types("GenerationStarted")] = True
    steps = np.diff(sequence, prepend=before)
    own = columns.numbers("generation")
    in_order = (
        bool(np.all((steps == 1) | (starts & (steps > 1))))
        and int(sequence[-1]) == last
        and bool(np.all(np.diff(generation) >= 0))
        and bool(np.all(own[starts] <= generation[starts]))
        and int(generation.min()) >= 0
        and int(frame.min()) >= 0
        and bool(np.all(np.diff(frame) >= 0))
    )
    if not in_order:
        raise _Odd


class _Rows(msgspec.Struct, frozen=True):
    """A row for each item that an event names. `at` is the place of the event, `single` whether it names but one."""

    at: Places
    item: Numbers
    kind: npt.NDArray[np.int8]
    single: Truths


def _rows(columns: _Columns) -> _Rows:
    """By item, and by event within it."""
    kinds = columns.kinds()
    at = np.flatnonzero(kinds >= 0)
    owned = columns.numbers("ownership_sequence_id")[at]
    item = np.where(owned == _NO, columns.numbers("sequence_id")[at], owned)
    kind, single = kinds[at], np.ones(len(at), np.bool_)
    for name in LISTED:
        for place in columns.of_types(name).tolist():
            text = columns.column("sequence_ids")[place].as_py()
            ids = [] if text is None else _read_ids(text)
            at = np.append(at, np.full(len(ids), place, at.dtype))
            item = np.append(item, np.array(ids, np.int64))
            kind = np.append(kind, np.full(len(ids), NUMBERS[name], kind.dtype))
            single = np.append(single, np.zeros(len(ids), np.bool_))
    if len(item) and int(item.min()) < 0:
        raise _Odd
    # Those of one event each stand in the order of the log already.
    order = np.argsort(item, kind="stable") if single.all() else np.lexsort((at, item))
    return _Rows(at[order], item[order], kind[order], single[order])


def _cleared(columns: _Columns) -> tuple[Cleared, Left]:
    rows = _rows(columns)
    begins = np.ones(len(rows.item), np.bool_)
    begins[1:] = rows.item[1:] != rows.item[:-1]
    state = _AFTER[rows.kind]
    was = np.where(begins, np.int8(NOT_THERE), np.roll(state, 1))
    sequence = columns.sequence[rows.at]
    fence = np.where(rows.single, columns.numbers("ownership_fence")[rows.at], _NO)
    good = _in_order(columns, rows, was, sequence, fence)
    firsts = np.flatnonzero(begins)
    ends = state[np.append(firsts[1:], len(state)) - 1] if len(firsts) else state[:0]
    clear_items = _IS_END[ends] & (np.logical_and.reduceat(good, firsts) if len(firsts) else np.empty(0, np.bool_))
    is_clear = np.repeat(clear_items, np.diff(firsts, append=len(state)))
    left = np.flatnonzero(~is_clear)
    enqueued = rows.item[rows.kind == NUMBERS["Enqueue"]]
    generations = columns.numbers("frame_generation")
    frames = _frames(columns, rows.at[is_clear], state[is_clear], was[is_clear])
    facts = Cleared(
        generations=(int(generations[0]), int(generations[-1])),
        end_ms=int(columns.numbers("timestamp").max()),
        enqueued=(int(enqueued[0]), int(enqueued[-1])) if len(enqueued) else None,
        left=len(left),
        frames=frames.num_rows,
        told=frames.num_rows - frames["last_row"].null_count,
        states={name: int(np.count_nonzero(ends[clear_items] == number)) for number, name in STATES.items()},
        changes=_changes(columns),
    )
    return facts, Left(_left(columns, rows, left), frames)


def _in_order(columns: _Columns, rows: _Rows, was: npt.NDArray[np.int8], sequence: Numbers, fence: Numbers) -> Truths:
    """Rows that nothing stands against: at least as strict as what SQL asks of them."""
    leases = columns.column("ownership_lease_id").dictionary_encode().indices.fill_null(_NO)
    lease = np.where(rows.single, leases.to_numpy(zero_copy_only=False)[rows.at], _NO)
    allowed = (_ALLOWED[rows.kind] >> was) & 1 == 1
    same = (lease == np.roll(lease, 1)) & (fence == np.roll(fence, 1)) & (lease != _NO) & (fence != _NO)
    own = (rows.kind != NUMBERS["LeaseGranted"]) | (fence == sequence)
    # With no fence above the number of its event, none before a grant is above the grant.
    good: Truths = allowed & own & (same | ~_IS_OWNED[rows.kind]) & (fence <= sequence)
    return good


def _frames(columns: _Columns, at: Places, state: npt.NDArray[np.int8], was: npt.NDArray[np.int8]) -> pa.RecordBatch:
    """A row of each frame; the rows of cleared items are given."""
    frame = columns.frame
    begins = np.ones(len(frame), np.bool_)
    begins[1:] = frame[1:] != frame[:-1]
    number = np.cumsum(begins) - 1
    count = int(number[-1]) + 1
    tells = columns.column("chain").is_valid().to_numpy(zero_copy_only=False) | (columns.sequence == frame)
    if not np.array_equal(tells, begins):
        raise _Odd
    place = number[at]
    last = np.full(count, _NO, np.int64)
    in_log = np.sort(at)
    last[number[in_log]] = columns.sequence[in_log]
    told = pa.array(np.flatnonzero(begins))

    def change(of: int) -> Numbers:
        more = np.bincount(place[state == of], minlength=count) - np.bincount(place[was == of], minlength=count)
        return more.astype(np.int64)

    return _batch(
        FRAMES,
        frame[begins],
        change(PENDING),
        change(LEASED),
        pa.array(last, mask=last == _NO),
        columns.column("queue_pending").take(told),
        columns.column("queue_active").take(told).fill_null(0),
    )


def _left(columns: _Columns, rows: _Rows, left: Places) -> pa.RecordBatch:
    at, single = pa.array(rows.at[left]), pa.array(rows.single[left])

    def taken(name: str) -> pa.Array:
        """A column, of rows whose event names but one item: others have none of their own."""
        values = columns.column(name).take(at)
        return pc.if_else(single, values, pa.scalar(None, values.type))

    return _batch(
        ROWS,
        columns.sequence[rows.at[left]],
        columns.frame[rows.at[left]],
        rows.kind[left].astype(np.int32),
        rows.item[left],
        taken("ownership_fence"),
        taken("ownership_lease_id"),
        taken("expires_at").cast(pa.int64()),
    )


def _changes(columns: _Columns) -> list[Change]:
    places = columns.of_types(*_CHANGES)
    at = pa.array(places)
    times = [columns.column(name).take(at).cast(pa.int64()).to_pylist() for name in ("timestamp", "down_from")]
    options = columns.column("options").take(at).to_pylist()
    return [
        Change(int(columns.sequence[place]), each, None if since is None else now - since)
        for place, each, now, since in zip(places, options, *times, strict=True)
    ]


def _batch(schema: pa.Schema, *columns: object) -> pa.RecordBatch:
    """Without columns an empty one."""
    given: Sequence[Any] = columns or [[]] * len(schema)
    arrays = (each if isinstance(each, pa.Array) else pa.array(each) for each in given)
    typed = [each.cast(field.type) for each, field in zip(arrays, schema, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=schema)
