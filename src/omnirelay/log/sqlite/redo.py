"""The redo file: frames that are durable and not in the database yet.

    append ──▶ record in leases.redo, flushed ──▶ acknowledged
                     │ a moment later, many at once
                     ▼
               rows in leases.db, for readers
                     │ with the next checkpoint, or the next commit that flushes
                     ▼
               flushed there, too ──▶ the place of the record may be written over

A commit of SQLite writes whole pages, checks them and adds to a file that is then copied into another: several times
what a flush of the same bytes costs in a file that has its size already. So small and middling frames are made durable
here, and the database gets them in large transactions that nobody waits for. The database stays the log: everything is
read from there, and whoever reads in the writer's process has it brought up to date first.

The file has two halves of one size, filled in turn. Nothing in here is ever erased: what counts is what continues the
chain from the end of the database. A half is written over when the database has all of it.
"""

from __future__ import annotations

import threading
from typing import Final

from omnirelay.log.base import Frame
from omnirelay.log.sqlite.redo_file import RedoFile
from omnirelay.log.sqlite.redo_layout import BLOCK_BYTES, HEADER_BYTES, header_of, log_mark, padded

_ZEROS: Final = bytes(BLOCK_BYTES)


class Redo:
    """The writer's end of the file: where the next record goes, and what the database still lacks.

    `put` is for whoever appends, one at a time; everything else may be called from any thread.
    """

    def __init__(self, file: RedoFile, half_bytes: int, log_id: str) -> None:
        self._file = file
        self._half_bytes = half_bytes
        self._mark = log_mark(log_id)
        self._half = 0
        self._offset = 0
        """Within the half."""
        self._ends = [0, 0]
        """The last sequence in each half."""
        self._lock = threading.Lock()
        self._unsettled: list[Frame] = []
        self._unsettled_bytes = 0
        self._safe = 0
        """The last sequence that the database has flushed: up to there records may be written over."""

    def has_room(self, size: int) -> bool:
        """Whether a frame of that size may be put, without writing over one that the database could lose."""
        taken = padded(size)
        if taken > self._half_bytes:
            return False
        return self._offset + taken <= self._half_bytes or self._ends[1 - self._half] <= self._safe

    @property
    def wants_flush(self) -> bool:
        """The half in use is half full, and the other one may not be written over yet."""
        return self._offset * 2 >= self._half_bytes and self._ends[1 - self._half] > self._safe

    def put(self, frame: Frame, chain: bytes) -> None:
        """Make a frame durable. There MUST be room. Raises OSError; then nobody knows whether it is."""
        size = len(frame.data)
        taken = padded(size)
        if self._offset + taken > self._half_bytes:
            self._half, self._offset = 1 - self._half, 0
        header = header_of(self._mark, frame, chain)
        padding = _ZEROS[: taken - HEADER_BYTES - size]
        self._file.write(self._half * self._half_bytes + self._offset, (header, frame.data, padding))
        self._offset += taken
        self._ends[self._half] = frame.last
        durable = Frame(
            frame.first, frame.last, frame.count, frame.epoch, frame.generation, frame.time_ms, frame.data, chain
        )
        with self._lock:
            self._unsettled.append(durable)
            self._unsettled_bytes += size

    @property
    def unsettled_bytes(self) -> int:
        """How much the database lacks; 0 only when it lacks nothing."""
        return self._unsettled_bytes

    def unsettled(self) -> list[Frame]:
        """What the database lacks, in order, with its chains."""
        with self._lock:
            return self._unsettled[:]

    def flushed(self, last: int) -> None:
        """The database has everything up to there, and a power cut does not take it back."""
        self._safe = max(self._safe, last)

    def settled(self, last: int) -> None:
        """The database has everything up to there, for whoever reads it."""
        with self._lock:
            kept = [frame for frame in self._unsettled if frame.last > last]
            self._unsettled = kept
            self._unsettled_bytes = sum(len(frame.data) for frame in kept)

    def close(self) -> None:
        self._file.close()
