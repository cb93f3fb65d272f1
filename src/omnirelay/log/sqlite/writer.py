"""The one connection that writes: compare, insert, commit, and what to do when that fails.

    compare with the head row ──▶ frame + head ──▶ commit (flushes the WAL) ──▶ durable
      │ differs: fenced                              │ definite failure: rolled back, try again
      └ already this frame: done                     └ a flush failed: given up, marked suspect

All of it is one statement in the plain case and one transaction in any. That is how a log begins. One that is written
to often gets a redo file (see `omnirelay.log.sqlite.redo`), and from then on plain frames go there; `settle` brings
them into the database, many in one transaction. The directory's lock stands in for the compare with the head row
meanwhile: whoever wants to raise the epoch has to have it.

Synchronous; `SqliteLog` calls it from its threads or, for an inline append, from the caller's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

import apsw
import msgspec

from omnirelay.log.base import Acquired, Anchor, Frame, Head, LogStatistics, Position, SnapshotRecord
from omnirelay.log.chain import check_frame, check_generation, fenced, follow
from omnirelay.log.failpoints import hit, is_armed
from omnirelay.log.frame import chain_of
from omnirelay.log.retention import check_drop, check_snapshot, check_trim, fence_at
from omnirelay.log.sqlite.building import frame_row
from omnirelay.log.sqlite.checks import Examined
from omnirelay.log.sqlite.connection import BUSY_TIMEOUT_MS, PAGE_SIZE, keep_wal_on_close, transaction
from omnirelay.log.sqlite.guard import Guard
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.reader import read_view
from omnirelay.log.sqlite.redo_file import RedoFile, RedoPlan
from omnirelay.log.sqlite.rows import link_before, position_at, read_frames, read_head, read_snapshots
from omnirelay.log.sqlite.settling import Settling
from omnirelay.log.sqlite.statements import statement

CHECKPOINT_PAGES: Final = 512
"""Copy the WAL into the database when it has this many pages (8 MiB): a small WAL is overwritten in place, which
flushes faster than one that grows; a smaller one would copy too often.
"""

RESTART_PAGES: Final = 8 * CHECKPOINT_PAGES
"""From here on wait a moment for readers, whose overlapping reads can keep the WAL from ever starting over."""

RESTART_WAIT_MS: Final = 20

INLINE_NS_MAX = 1_000_000
"""Appends that take longer than this are made in the writer thread, so that the event loop goes on meanwhile. Not
final, which compiled code would make a constant of: a test on a slow disk needs another.
"""

PAGES_PER_COMMIT: Final = 2
"""What a commit writes besides the pages its frame fills: the page of the head and the one the frame begins on."""

JOURNAL_BYTES_MAX: Final = RESTART_PAGES * PAGE_SIZE
"""A WAL that a long reader let grow beyond this is cut back to it when it starts over."""

TRIM_SLICE_NS: Final = 4_000_000

_APPEND_FRAME: Final = statement("append_frame")
_ADVANCE_HEAD: Final = statement("advance_head")
_ADVANCE_HEAD_BY_ITSELF: Final = statement("advance_head_by_itself")
_INSERT_FRAME: Final = statement("insert_frame")
_ACQUIRE: Final = statement("acquire")
_PUT_SNAPSHOT: Final = statement("put_snapshot")
_MOVE_ANCHOR: Final = statement("move_anchor")
_TRIM_CANDIDATES: Final = statement("trim_candidates")
_DELETE_FRAMES: Final = statement("delete_frames")
_DELETE_SNAPSHOT: Final = statement("delete_snapshot")
_DELETE_SNAPSHOTS: Final = statement("delete_snapshots")


class Writer:
    """Owns the writing connection. Calls from several threads wait for each other."""

    def __init__(self, connection: apsw.Connection, paths: LogPaths, shard: str, examined: Examined) -> None:
        self.durable = examined.head.head
        """The end of the log as this object last made or saw it durable. Replaced whole: other threads read it."""
        self._connection = connection
        self._paths = paths
        self._shard = shard
        self._log_id = examined.log_id
        self._unproven = examined.unproven
        self._highest_known = examined.highest_known
        self._guard = Guard(connection, paths, shard)
        self._settling = Settling(connection, self._guard, paths, shard, examined.log_id)
        self._lock = threading.Lock()
        """Of the connection. Appends to the redo file do without it."""
        self._leads = False
        """`acquire` was called: the epoch is this writer's."""
        self._trim_frames = 4
        self._wal_pages = 0
        """How many pages wait in the WAL, by estimate: asking SQLite would cost every append another call."""
        self._wal_pages_seen = 0
        """How long the WAL really was when it was last copied."""
        self._checkpoint_at = CHECKPOINT_PAGES
        self._frames = self._events = self._bytes = self._checkpoints = 0
        self._append_ns_last = self._append_ns = self._hash_ns = self._checkpoint_ns = 0
        self._append_ns_usual = 0
        """Of the last few appends."""
        self._checkpoint_failures = 0
        connection.execute(_ADVANCE_HEAD_BY_ITSELF)

    # ------------------------------------------------------------------------------ append

    def append(self, frame: Frame, expected: Position, committing: Callable[[], None]) -> Position:
        """See `EventLog.append`. Waits for whoever is writing; calls `committing` when what is left is the disk's."""
        check_frame(frame, expected)
        if self._goes_to_redo(frame, expected):
            return self._append(frame, expected, True, committing)
        with self._lock:
            return self._append(frame, expected, False, committing)

    def is_held_up(self, frame: Frame, expected: Position) -> bool:
        """Somebody copies the WAL, settles or trims, and an append of this would have to wait for it."""
        return self._lock.locked() and not self._goes_to_redo(frame, expected)

    def append_if_quick(self, frame: Frame, expected: Position) -> Position | None:
        """The same, or None at once when the disk is slow, or a checkpoint or a trim is running: the event loop must
        not wait for it.
        """
        check_frame(frame, expected)
        if self._append_ns_usual > INLINE_NS_MAX or self._guard.out_of_room:
            return None
        if self._goes_to_redo(frame, expected):
            return self._append(frame, expected, True, None)
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._append(frame, expected, False, None)
        finally:
            self._lock.release()

    def _goes_to_redo(self, frame: Frame, expected: Position) -> bool:
        return self._settling.takes(frame, expected, self.durable)

    def _append(
        self, frame: Frame, expected: Position, to_redo: bool, committing: Callable[[], None] | None
    ) -> Position:
        """What does not go into the redo file needs the connection's lock."""
        self._check_usable()
        started = time.perf_counter_ns()
        position = Position(frame.last, chain_of(expected.chain, frame.data))
        hashed = time.perf_counter_ns()
        hit("log.append.begin")
        if committing is not None:
            committing()
        if to_redo:
            self._put(frame, position.chain)
            new = True
        else:
            new = self._guard.run(lambda: self._commit_at_once(frame, expected, position))
        if new:
            self._frames += 1
            self._events += frame.count
            self._bytes += len(frame.data)
        self.durable = Head(frame.epoch, frame.generation, position, frame.time_ms)
        hit("log.append.committed")
        self._append_ns_last = time.perf_counter_ns() - started
        self._append_ns_usual += (self._append_ns_last - self._append_ns_usual) // 8
        self._append_ns += self._append_ns_last
        self._hash_ns += hashed - started
        return position

    def _put(self, frame: Frame, chain: bytes) -> None:
        try:
            self._settling.put(frame, chain)
        except OSError as error:
            with self._lock:
                self._settling.give_up_after(error)
            self._check_usable()

    def _commit_at_once(self, frame: Frame, expected: Position, position: Position) -> bool:
        """Into the database, behind what the redo file has."""
        if self._guard.out_of_room:
            self._make_room()
        self._settle()
        new = self._commit(frame, expected, position)
        self._wal_pages += len(frame.data) // PAGE_SIZE + PAGES_PER_COMMIT
        if new:
            # One that was there already flushes nothing, and what was settled just now may still be lost.
            self._settling.flushed(position.sequence)
        return new

    def _commit(self, frame: Frame, expected: Position, position: Position) -> bool:
        """One transaction; False when the frame is there already."""
        connection = self._connection
        if frame.first == expected.sequence + 1 and frame.count == frame.last - frame.first + 1:
            if is_armed("log.append.before_commit"):
                connection.set_commit_hook(_before_commit)
            connection.execute(_APPEND_FRAME, (*frame_row(frame, position.chain), *_pair(expected)))
            if connection.changes():
                return True
        return self._commit_or_explain(frame, expected, position)

    def _commit_or_explain(self, frame: Frame, expected: Position, position: Position) -> bool:
        """The long way, for what is out of the ordinary: a new generation, a repeat, a writer that was fenced."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        row = read_head(connection)
        if row is None or row.epoch != frame.epoch or row.position != expected:
            head = read_view(connection, self._paths.database, self._shard).head
            connection.execute("ROLLBACK")
            if head.epoch == frame.epoch and head.position == position:
                return False
            raise fenced(self._shard, frame.epoch, expected, head.head)
        check_generation(frame, expected, row.generation, row.unproven, row.highest_known)
        connection.execute(
            _ADVANCE_HEAD,
            (frame.generation, *_pair(position), frame.time_ms, frame.epoch, *_pair(expected)),
        )
        connection.execute(_INSERT_FRAME, frame_row(frame, position.chain))
        connection.execute("COMMIT")
        return True

    # ------------------------------------------------------------- acquire, snapshots, trim

    def acquire(self, owner: str) -> Acquired:
        """Raise the epoch. What the opening could not prove is stored, so that a crash cannot make it forgotten."""
        with self._lock:
            self._check_usable()
            return self._guard.run(lambda: self._acquire(owner))

    def _acquire(self, owner: str) -> Acquired:
        self._settle()
        now = time.time_ns() // 1_000_000
        with transaction(self._connection):
            self._connection.execute(_ACQUIRE, (owner, now, self._unproven, self._highest_known))
            view = read_view(self._connection, self._paths.database, self._shard)
        head = view.head
        self.durable = head.head
        self._leads = True
        self._unproven = None
        known = max(head.highest_known, head.last, view.anchor.sequence, view.anchor.highest_fence)
        return Acquired(head.epoch, head.generation, head.position, head.time_ms, head.unproven, known)

    def add_snapshot(self, record: SnapshotRecord, epoch: int) -> None:
        with self._lock:
            self._check_usable()
            self._guard.run(lambda: self._add_snapshot(record, epoch))

    def _add_snapshot(self, record: SnapshotRecord, epoch: int) -> None:
        self._settle()
        with transaction(self._connection):
            anchor = self._anchor_for(epoch)
            check_snapshot(record, position_at(self._connection, record.sequence, anchor))
            self._connection.execute(_PUT_SNAPSHOT, msgspec.structs.astuple(record))

    def drop_snapshots(self, sequences: Sequence[int], epoch: int) -> None:
        with self._lock:
            self._check_usable()
            self._guard.run(lambda: self._drop_snapshots(sequences, epoch))

    def _drop_snapshots(self, sequences: Sequence[int], epoch: int) -> None:
        with transaction(self._connection):
            self._anchor_for(epoch)
            check_drop(sequences, read_snapshots(self._connection))
            for sequence in sequences:
                self._connection.execute(_DELETE_SNAPSHOT, (sequence,))

    def check_trim(self, below: int, epoch: int) -> None:
        """Refuse a trim that may not be, and one whose first kept frame does not fit the last dropped one."""
        with self._lock:
            self._check_usable()
            self._guard.run(lambda: self._check_trim(below, epoch))

    def _check_trim(self, below: int, epoch: int) -> None:
        self._settle()
        with transaction(self._connection, "DEFERRED"):
            anchor = self._anchor_for(epoch)
            check_trim(below, read_snapshots(self._connection))
            for kept in read_frames(self._connection, below, self.durable.position.sequence):
                # The chain of the last dropped frame becomes all that is left of it: prove it while it can be.
                link = link_before(self._connection, kept.last, anchor)
                follow(link, kept, shard=self._shard, log_id=self._log_id)
                break

    def trim_slice(self, below: int, epoch: int) -> tuple[Anchor, bool]:
        """Drop some frames; returns the anchor, and whether there may be more. Takes a few milliseconds."""
        with self._lock:
            self._check_usable()
            started = time.perf_counter_ns()
            anchor, dropped = self._guard.run(lambda: self._trim_slice(below, epoch))
            hit("log.trim.slice")
            more = dropped == self._trim_frames
            faster = time.perf_counter_ns() - started < TRIM_SLICE_NS // 2
            self._trim_frames = min(self._trim_frames * 2, 65_536) if faster else max(self._trim_frames // 2, 1)
            return anchor, more

    def _trim_slice(self, below: int, epoch: int) -> tuple[Anchor, int]:
        connection = self._connection
        with transaction(connection):
            anchor = self._anchor_for(epoch)
            rows = connection.execute(_TRIM_CANDIDATES, (below, self._trim_frames)).fetchall()
            if not rows:
                return anchor, 0
            last, chain, time_ms, generation = cast("tuple[int, bytes, int, int]", rows[-1])
            fence = fence_at(last, read_snapshots(connection), anchor.highest_fence)
            anchor = Anchor(last, chain, fence, time_ms, generation)
            connection.execute(_MOVE_ANCHOR, msgspec.structs.astuple(anchor))
            connection.execute(_DELETE_FRAMES, (last,))
            connection.execute(_DELETE_SNAPSHOTS, (last,))
        self._wal_pages, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        return anchor, len(rows)

    def _anchor_for(self, epoch: int) -> Anchor:
        """The anchor, after comparing the epoch."""
        view = read_view(self._connection, self._paths.database, self._shard)
        if view.head.epoch != epoch:
            raise fenced(self._shard, epoch, view.head.position, view.head.head)
        return view.anchor

    # ----------------------------------------------------------------------- the redo file

    @property
    def wants_redo(self) -> bool:
        """There is none yet, and there can be one."""
        guard = self._guard
        return self._leads and not self._settling.has_begun and guard.given_up is None and not guard.closed

    def begin_redo(self, file: RedoFile, plan: RedoPlan) -> None:
        """From now on plain frames go into this file, which is the one that the paths name."""
        with self._lock:
            try:
                self._check_usable()
                self._settling.begin(file, plan)
            except BaseException:
                file.close()
                raise

    @property
    def unsettled_bytes(self) -> int:
        """How much is in the redo file only."""
        return self._settling.unsettled_bytes

    def settle(self) -> None:
        """Bring into the database what is in the redo file only. Raises like `append`, LogFenced included."""
        with self._lock:
            if not self._guard.closed:
                self._check_usable()
                self._guard.run(self._settle)

    def _settle(self) -> None:
        size = self._settling.settle()
        if size:
            self._wal_pages += size // PAGE_SIZE + PAGES_PER_COMMIT

    # ----------------------------------------------------------------- checkpoints and the end

    @property
    def wants_checkpoint(self) -> bool:
        return self._wal_pages >= self._checkpoint_at or self._guard.out_of_room or self._settling.wants_flush

    def checkpoint(self) -> None:
        """Copy the WAL into the database, as far as readers allow. What needs the connection waits meanwhile.

        A failed flush gives the shard up like one in an append. Any other failure loses nothing: the WAL keeps
        everything, and the next try comes when it has grown by as much again.
        """
        with self._lock:
            if self._guard.closed or self._guard.given_up is not None or not self.wants_checkpoint:
                return
            started = time.perf_counter_ns()
            self._guard.out_of_room = False
            restart = self._wal_pages_seen + CHECKPOINT_PAGES >= RESTART_PAGES
            self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART if restart else apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._checkpoint_ns += time.perf_counter_ns() - started
            self._checkpoint_at = self._wal_pages + CHECKPOINT_PAGES

    def _make_room(self) -> None:
        """The database may have free pages where the disk has none: a checkpoint lets the WAL start over."""
        self._guard.out_of_room = False
        self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _checkpoint(self, mode: int) -> None:
        connection = self._connection
        connection.set_busy_timeout(RESTART_WAIT_MS)
        settled = self._settling.settled_up_to
        try:
            pages, copied = connection.wal_checkpoint(mode=mode)
            self._checkpoints += 1
            self._wal_pages_seen = pages
            # What was copied is overwritten by the next commits, if no reader still looks at it.
            self._wal_pages = pages - copied
            if copied == pages:
                # All of it was flushed, here or in the database. With a reader in its way SQLite may flush nothing.
                self._settling.flushed(settled)
        except apsw.BusyError:
            pass  # Readers are still in the WAL; what could be copied was.
        except apsw.Error as error:
            self._checkpoint_failures += 1
            self._guard.give_up_after(error)
        finally:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)

    def close(self) -> None:
        """Empty the WAL and let go. Everything appended was durable before."""
        with self._lock:
            if self._guard.closed:
                return
            self._guard.is_in_place()
            self._guard.closed = True
            self._settling.end()
            if self._guard.given_up is None:
                self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._connection.close()

    def check_in_place(self) -> bool:
        """Whether the database is still the file that is written. One that is not is given up."""
        with self._lock:
            return self._guard.is_in_place()

    def abandon(self) -> None:
        """Let go the way a killed process does: no checkpoint, nothing written."""
        with self._lock:
            if not self._guard.closed:
                self._guard.closed = True
                self._settling.abandon()
                keep_wal_on_close(self._connection)
                self._connection.close()

    def statistics(self) -> LogStatistics:
        try:
            wal_bytes = self._paths.wal.stat().st_size
        except FileNotFoundError:
            wal_bytes = 0
        return LogStatistics(
            frames=self._frames,
            events=self._events,
            bytes=self._bytes,
            append_ns_last=self._append_ns_last,
            append_ns_total=self._append_ns,
            hash_ns_total=self._hash_ns,
            checkpoints=self._checkpoints,
            checkpoint_failures=self._checkpoint_failures,
            checkpoint_ns_total=self._checkpoint_ns,
            wal_bytes=wal_bytes,
            given_up=self._guard.given_up,
        )

    def _check_usable(self) -> None:
        self._guard.check_usable(self.durable.position.sequence + 1)


def _pair(position: Position) -> tuple[int, bytes]:
    return position.sequence, position.chain


def _before_commit() -> bool:
    """A commit hook, set while a test has the failpoint armed; true would refuse the commit."""
    hit("log.append.before_commit")
    return False
