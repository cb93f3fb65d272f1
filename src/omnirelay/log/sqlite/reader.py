"""Reading a log that somebody may be writing: short read transactions, every frame checked.

A long read transaction would keep the writer from reusing its WAL, so frames are read in batches, and each batch sees
head, anchor and frames of one instant.
"""

from __future__ import annotations

import threading
from pathlib import Path

import apsw
import msgspec

from omnirelay.errors import LogDamaged
from omnirelay.log.base import Anchor, Frame
from omnirelay.log.chain import Link, follow, missing_frame
from omnirelay.log.retention import trimmed
from omnirelay.log.sqlite.connection import connect_reader, transaction, translate, translated
from omnirelay.log.sqlite.rows import HeadRow, link_before, read_anchor, read_frames, read_head
from omnirelay.log.sqlite.statements import statement

BATCH_BYTES = 4 * 1024 * 1024
BATCH_FRAMES = 512

_COUNT_FRAMES = statement("count_frames")


class View(msgspec.Struct, frozen=True):
    """Head and anchor of one instant."""

    head: HeadRow
    anchor: Anchor


def read_view(connection: apsw.Connection, path: Path, shard: str) -> View:
    """Both rows, which every log has. MUST run inside a transaction when frames are read with it."""
    head, anchor = read_head(connection), read_anchor(connection)
    if head is None or anchor is None:
        row = "head" if head is None else "anchor"
        raise LogDamaged(
            f"the {row} row of {path} is missing; restore a backup, or accept the loss (omnirelay log recover)",
            shard=shard,
            file=str(path),
        )
    return View(head, anchor)


class FrameReader:
    """Reads checked frames in batches. Close it; that waits for the batch another thread is reading."""

    def __init__(
        self,
        path: Path,
        shard: str,
        log_id: str,
        from_sequence: int,
        to_sequence: int | None,
        vfs: str | None,
    ) -> None:
        self._path = path
        self._shard = shard
        self._log_id = log_id
        self._next = from_sequence
        self._to = to_sequence
        self._link: Link | None = None
        self._end: int | None = None
        self._done = False
        self._failure: LogDamaged | None = None
        self._lock = threading.Lock()
        with translated(path, shard):
            self._connection = connect_reader(path, vfs=vfs)

    def frames_ahead(self) -> int:
        """How many frames there are to read, if nothing is trimmed meanwhile."""
        with translated(self._path, self._shard), transaction(self._connection, "DEFERRED"):
            view = read_view(self._connection, self._path, self._shard)
            count = self._connection.execute(_COUNT_FRAMES, (self._next - 1, view.head.last)).get
            return count if isinstance(count, int) else 0

    def batch(self) -> list[Frame]:
        """The next frames; none when the end is reached.

        The end is the head at the first batch. Raises LogTrimmed, and LogDamaged once every frame before the damage
        was returned.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            return [] if self._done else self._batch()

    def _batch(self) -> list[Frame]:
        with translated(self._path, self._shard), transaction(self._connection, "DEFERRED"):
            view = read_view(self._connection, self._path, self._shard)
            if self._next <= view.anchor.sequence:
                raise trimmed(self._shard, self._next, view.anchor)
            if self._end is None:
                self._end = view.head.last
            if self._link is None:
                self._link = self._start(view)
            return self._read(view, self._link, self._end)

    def close(self) -> None:
        with self._lock:
            self._done = True
            self._connection.close()

    def _start(self, view: View) -> Link:
        """What the first frame must link to: the end of the frame before it."""
        first = next(read_frames(self._connection, self._next, view.head.last), None)
        if first is None:
            if self._next <= view.head.last:
                raise missing_frame(self._shard, self._next, view.head.last)
            return Link.at_head(view.head.head)
        return link_before(self._connection, first.last, view.anchor)

    def _read(self, view: View, link: Link, end: int) -> list[Frame]:
        frames: list[Frame] = []
        size = 0
        rows = read_frames(self._connection, self._next, end)
        try:
            for frame in rows:
                if self._to is not None and frame.first > self._to:
                    self._done = True
                    break
                link = follow(link, frame, shard=self._shard, log_id=self._log_id)
                frames.append(frame)
                size += len(frame.data)
                if size >= BATCH_BYTES or len(frames) >= BATCH_FRAMES:
                    break
            else:
                self._check_end(view, link, end)
                self._done = True
        except (LogDamaged, apsw.Error) as error:
            damage = error if isinstance(error, LogDamaged) else translate(error, self._path, self._shard)
            if not frames or not isinstance(damage, LogDamaged):
                raise
            self._failure = damage
        finally:
            rows.close()
        self._link, self._next = link, link.sequence + 1
        return frames

    def _check_end(self, view: View, link: Link, end: int) -> None:
        """The rows ran out; the head says whether they ran out too early, or to another history."""
        if link.sequence < end:
            raise missing_frame(self._shard, link.sequence + 1, view.head.last)
        if link.sequence == view.head.last and link.chain != view.head.chain:
            raise LogDamaged(
                f"the head row of {self._path} has another chain than the last frame;"
                " restore a backup, or accept the loss (omnirelay log recover)",
                shard=self._shard,
                file=str(self._path),
                sequence=link.sequence,
            )
