"""Rows of the database as values. Every function reads through the connection it is given and nothing else."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple

import apsw

from omnirelay.errors import LogDamaged
from omnirelay.log.base import Anchor, Frame, Head, LogSize, Position, SnapshotRecord
from omnirelay.log.chain import Link
from omnirelay.log.sqlite.statements import statement

_READ_META = statement("read_meta")
_READ_HEAD = statement("read_head")
_READ_ANCHOR = statement("read_anchor")
_READ_FRAMES = statement("read_frames")
_READ_LAST_FRAME = statement("read_last_frame")
_LINK_BEFORE = statement("link_before")
_CHAIN_AT = statement("chain_at")
_READ_SNAPSHOTS = statement("read_snapshots")
_READ_SIZE = statement("read_size")

_FRAME_TYPES: Final = (int, int, int, int, int, int, bytes, bytes)
_HEAD_TYPES: Final = (int, int, int, bytes, int, (str, type(None)), int)
_ANCHOR_TYPES: Final = (int, bytes, int, int, int)
_LINK_TYPES: Final = (int, bytes, int)
_END: Final = (1 << 63) - 1
_SIZE_TYPES: Final = (int, int)
_SNAPSHOT_TYPES: Final = (int, bytes, str, str, int, int, int, int)


class HeadRow(NamedTuple):
    """The head row as it is stored."""

    epoch: int
    generation: int
    last: int
    chain: bytes
    time_ms: int
    unproven: str | None
    highest_known: int

    @property
    def head(self) -> Head:
        return Head(self.epoch, self.generation, self.position, self.time_ms)

    @property
    def position(self) -> Position:
        return Position(self.last, self.chain)


def read_meta(connection: apsw.Connection) -> dict[str, str]:
    return {str(key): str(value) for key, value in _rows(connection, _READ_META)}


def read_head(connection: apsw.Connection) -> HeadRow | None:
    row = next(_rows(connection, _READ_HEAD), None)
    return None if row is None else HeadRow(*_typed(row, _HEAD_TYPES, "the head row"))


def read_anchor(connection: apsw.Connection) -> Anchor | None:
    row = next(_rows(connection, _READ_ANCHOR), None)
    return None if row is None else Anchor(*_typed(row, _ANCHOR_TYPES, "the anchor row"))


def read_frames(connection: apsw.Connection, from_sequence: int, to_last: int) -> Generator[Frame, None, None]:
    """Frames whose last sequence lies in the range, in order, unchecked."""
    for row in _rows(connection, _READ_FRAMES, (from_sequence, to_last)):
        yield Frame(*_typed(row, _FRAME_TYPES, f"the frame that ends at {row[1]}"))


def read_last_frame(connection: apsw.Connection) -> Frame | None:
    row = next(_rows(connection, _READ_LAST_FRAME), None)
    return None if row is None else Frame(*_typed(row, _FRAME_TYPES, f"the frame that ends at {row[1]}"))


def link_before(connection: apsw.Connection, last: int, anchor: Anchor) -> Link:
    """The end of the frame before the one that ends at `last`, as stored; the anchor when there is none."""
    row = next(_rows(connection, _LINK_BEFORE, (last,)), None)
    return Link.at_anchor(anchor) if row is None else Link(*_typed(row, _LINK_TYPES, f"the frame before {last}"))


def position_at(connection: apsw.Connection, sequence: int, anchor: Anchor) -> Position | None:
    """The stored position where a frame ends at `sequence`, or the anchor; None when no frame ends there."""
    if sequence == anchor.sequence:
        return Position(anchor.sequence, anchor.chain)
    row = next(_rows(connection, _CHAIN_AT, (sequence,)), None)
    return None if row is None else Position(sequence, row[0])


def read_size(connection: apsw.Connection, after: int, up_to: int | None) -> LogSize:
    """How many events are behind one, and the bytes of their frames."""
    row = next(_rows(connection, _READ_SIZE, (after, _END if up_to is None else up_to)))
    return LogSize(*_typed(row, _SIZE_TYPES, "the size of the log"))


def read_snapshots(connection: apsw.Connection) -> list[SnapshotRecord]:
    return [
        SnapshotRecord(*_typed(row, _SNAPSHOT_TYPES, "a snapshot record")) for row in _rows(connection, _READ_SNAPSHOTS)
    ]


def _rows(
    connection: apsw.Connection, query: str, arguments: tuple[int, ...] = ()
) -> Generator[tuple[Any, ...], None, None]:
    """What a query finds. A text that is no UTF-8 any more is damage like any other."""
    cursor = connection.execute(query, arguments)
    try:
        yield from cursor
    except UnicodeDecodeError as error:
        file = connection.db_filename("main")
        raise LogDamaged(
            f"a text in {file} cannot be read: {error}; restore a backup, or accept the loss (omnirelay log recover)",
            file=file,
        ) from error
    finally:
        cursor.close()


def _typed(row: tuple[Any, ...], types: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    """STRICT tables keep types out that do not belong, but a flipped bit in a record's header does not ask them."""
    for value, expected in zip(row, types, strict=True):
        if not isinstance(value, expected):
            raise LogDamaged(
                f"{what} holds a {type(value).__name__} where another type belongs; restore a backup",
                row=what,
            )
    return row
