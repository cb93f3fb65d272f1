"""Frames that are durable in the redo file, and how they become rows of the database.

Rows are committed without a flush, many at once: the redo file has them for as long as that takes. So a record may be
written over only when the database was flushed behind it, which a checkpoint of the whole WAL does, or a commit that
flushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import apsw

from omnirelay.errors import OmniRelayError
from omnirelay.log.base import Frame, Head, Position
from omnirelay.log.chain import fenced
from omnirelay.log.failpoints import hit
from omnirelay.log.files import remove_file
from omnirelay.log.sqlite.building import frame_row
from omnirelay.log.sqlite.connection import say_redo
from omnirelay.log.sqlite.guard import Guard
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.reader import read_view
from omnirelay.log.sqlite.redo import Redo
from omnirelay.log.sqlite.redo_file import RedoFile, RedoPlan
from omnirelay.log.sqlite.rows import read_head
from omnirelay.log.sqlite.statements import statement

_INSERT_FRAME: Final = statement("insert_frame")
_ROW: Final = _INSERT_FRAME[_INSERT_FRAME.index("(?") :]
_INSERT_FRAMES: Final = tuple((rows, _INSERT_FRAME + f", {_ROW}" * (rows - 1)) for rows in (64, 8, 1))
"""Statements that insert so many frames: the thread that settles asks for the interpreter once for each."""


class Settling:
    """The writer's redo file, if it has one. `put` is for whoever appends, everything that touches the database for
    whoever has the connection's lock.
    """

    def __init__(self, connection: apsw.Connection, guard: Guard, paths: LogPaths, shard: str, log_id: str) -> None:
        self._connection = connection
        self._guard = guard
        self._paths = paths
        self._shard = shard
        self._log_id = log_id
        self._redo: Redo | None = None
        self._frame_bytes_max = 0
        self._settled_up_to = 0
        """The last event that went from the redo file into the database."""
        self._behind = False
        """The database could not take what is in the redo file, the last time it was tried."""

    @property
    def has_begun(self) -> bool:
        return self._redo is not None

    def begin(self, file: RedoFile, plan: RedoPlan) -> None:
        """From now on plain frames may go into this file, which is the one that the paths name."""
        self._guard.run(lambda: say_redo(self._connection, there=True))
        self._guard.watch(self._paths.redo)
        self._frame_bytes_max = plan.frame_bytes_max
        self._redo = Redo(file, plan.half_bytes, self._log_id)

    # ------------------------------------------------------------------------------ appending

    def takes(self, frame: Frame, expected: Position, durable: Head) -> bool:
        """Whether this frame may go into the redo file: it is a plain and not a large one that follows what is
        durable, there is room, and the database keeps up.
        """
        redo = self._redo
        return (
            redo is not None
            and not self._behind
            and len(frame.data) <= self._frame_bytes_max
            and frame.epoch == durable.epoch
            and frame.generation == durable.generation
            and expected == durable.position
            and frame.first == expected.sequence + 1
            and frame.count == frame.last - frame.first + 1
            and redo.has_room(len(frame.data))
        )

    def put(self, frame: Frame, chain: bytes) -> None:
        """Make a frame durable that `takes` was true of. Raises OSError; see `give_up_after`."""
        redo = self._redo
        assert redo is not None, "takes() said that there is one"
        hit("log.append.before_commit")
        redo.put(frame, chain)

    def give_up_after(self, error: OSError) -> None:
        """Whatever failed in `put`, nobody knows what the disk has."""
        self._guard.give_up(
            f"a flush of {self._paths.redo} failed: {error}; nobody knows what the disk holds."
            " Check the disk, then reopen the log: it reads everything back"
        )

    # ------------------------------------------------------------------------------ the database

    @property
    def unsettled_bytes(self) -> int:
        """How much is in the redo file only."""
        return 0 if self._redo is None else self._redo.unsettled_bytes

    def settle(self) -> int:
        """Bring into the database what is in the redo file only; how many bytes of frames that were. Raises LogFenced
        and errors of SQLite.
        """
        redo = self._redo
        frames = [] if redo is None else redo.unsettled()
        if redo is None or not frames:
            return 0
        try:
            self._commit(frames)
        except BaseException:
            # The next append comes here and learns of it, in place of adding to the file. Until it is known to fail,
            # appends go on: the file does not care who reads it.
            self._behind = True
            raise
        self._behind = False
        redo.settled(frames[-1].last)
        self._settled_up_to = frames[-1].last
        hit("log.redo.settled")
        return sum(len(frame.data) for frame in frames)

    def _commit(self, frames: Sequence[Frame]) -> None:
        connection = self._connection
        connection.execute("PRAGMA synchronous = NORMAL")
        try:
            connection.execute("BEGIN IMMEDIATE")
            row = read_head(connection)
            first = frames[0]
            if row is None or (row.epoch, row.generation, row.last) != (first.epoch, first.generation, first.first - 1):
                head = read_view(connection, self._paths.database, self._shard).head
                raise fenced(self._shard, first.epoch, Position(first.first - 1, b""), head.head)
            start = 0
            for rows, insert in _INSERT_FRAMES:
                while len(frames) - start >= rows:
                    values: list[Any] = []
                    for frame in frames[start : start + rows]:
                        values.extend(frame_row(frame, frame.chain))
                    connection.execute(insert, values)
                    start += rows
            hit("log.redo.settling")
            connection.execute("COMMIT")
        finally:
            self._guard.roll_back()
            connection.execute("PRAGMA synchronous = FULL")

    @property
    def wants_flush(self) -> bool:
        """The half that is filled next has records that the database could still lose, and it is soon its turn."""
        return self._redo is not None and self._redo.wants_flush

    @property
    def settled_up_to(self) -> int:
        return self._settled_up_to

    def flushed(self, last: int) -> None:
        """The database has everything up to there, and a power cut does not take it back."""
        if self._redo is not None:
            self._redo.flushed(last)

    def end(self) -> None:
        """Empty the file and remove it. What cannot be settled stays there for the next opening."""
        redo = self._redo
        if redo is None:
            return
        try:
            if self._guard.given_up is not None:
                return
            self._guard.run(self.settle)
            self._guard.run(lambda: say_redo(self._connection, there=False))
        except OmniRelayError:
            return
        finally:
            redo.close()
        with suppress(OSError):  # The next opening finds nothing in it that the database lacks.
            remove_file(self._paths.redo)

    def abandon(self) -> None:
        if self._redo is not None:
            self._redo.close()
