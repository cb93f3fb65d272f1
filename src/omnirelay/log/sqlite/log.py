"""The log in one SQLite file per shard: the embedded default.

    DIR/{namespace}/leases.db         frames, head, anchor, snapshot records; any SQLite shell may read it (mode=ro)
                    leases.db-wal     commits that are not in leases.db yet: part of the log, never delete it
                    leases.redo       frames that are not in leases.db yet, while there is a writer: the same
                    leases.lock       held by the one writer
                    leases.witness    how far the log had come about a second ago
                    snapshots/        see omnirelay.log.snapshots

`append` runs on a thread of its own; reading, verifying and backups run on others with their own connections and never
block it. What is in the redo file only is brought into the database by one more (see `omnirelay.log.sqlite.upkeep`):
after a moment, or before anything is read through this object.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar, get_args

import apsw
import msgspec

from omnirelay.errors import InvalidArgument, LogLocked, LogUnavailable, OmniRelayError
from omnirelay.log.base import (
    Acquired,
    Anchor,
    Frame,
    Head,
    LogSize,
    LogStatistics,
    Position,
    SnapshotRecord,
    VerifyReport,
)
from omnirelay.log.files import WriterLock, make_directories
from omnirelay.log.retention import check_range
from omnirelay.log.sqlite.backup import write_backup
from omnirelay.log.sqlite.bringing_in import bring_in_if_left, wait_for_readers
from omnirelay.log.sqlite.checks import check_identity
from omnirelay.log.sqlite.connection import (
    Synchronous,
    check_version,
    connect_reader,
    transaction,
    translated,
)
from omnirelay.log.sqlite.opening import open_writer
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.reader import FrameReader, View, read_view
from omnirelay.log.sqlite.redo_file import RedoPlan
from omnirelay.log.sqlite.rows import read_size, read_snapshots
from omnirelay.log.sqlite.upkeep import DEFAULT_REDO, Upkeep
from omnirelay.log.sqlite.verification import Verification
from omnirelay.log.sqlite.writer import Writer
from omnirelay.log.witness import Witness, write_witness

WITNESS_INTERVAL_S: Final = 0.8
"""Longest time from an append to the witness of it, the writing itself not counted."""

READER_THREADS: Final = 4

HANDOVER_S_MAX: Final = 0.0005
"""How long the event loop waits for the writer thread at once. A frame that is hashed by then is the disk's without
having to ask a busy loop for the interpreter, which takes as long; of a larger one the loop does not wait for the hash.
"""

MAKE_WAY_S_MAX: Final = 0.005
"""Longest wait of the event loop for the writer thread. Hashing a large frame takes about as long."""

T = TypeVar("T")


class SqliteLog:
    """`EventLog` in a directory. Get one from `open`, and close it."""

    def __init__(
        self,
        paths: LogPaths,
        shard: str,
        log_id: str,
        *,
        writer: Writer | None,
        lock: WriterLock | None,
        vfs: str | None,
        redo: RedoPlan | None = None,
    ) -> None:
        self.shard = shard
        self.log_id = log_id
        self.directory = paths.directory
        """Where the paths of snapshot records start from."""
        self._paths = paths
        self._maybe_writer = writer
        self._lock = lock
        self._vfs = vfs
        self._closed = False
        self._begun: threading.Event | None = None
        """Set as soon as the append in the writer thread does without the interpreter."""
        # One thread: appends stay in order.
        self._writing = ThreadPoolExecutor(1, thread_name_prefix=f"log-write-{shard}")
        self._upkeep = Upkeep(writer, paths, shard, vfs, redo) if writer is not None else None
        self._reading = ThreadPoolExecutor(READER_THREADS, thread_name_prefix=f"log-read-{shard}")
        self._witness_timer: asyncio.TimerHandle | None = None
        self._witness_loop: asyncio.AbstractEventLoop | None = None
        self._witness_lock = threading.Lock()
        self._witnessed: Position | None = None
        self._witness_writes = 0
        self._witness_failures = 0

    @classmethod
    def open(
        cls,
        directory: Path | str,
        namespace: str,
        *,
        shard: str | None = None,
        read_only: bool = False,
        accept_loss: bool = False,
        witness: Path | None = None,
        vfs: str | None = None,
        synchronous: Synchronous = "FULL",
        lock: bool = True,
        redo: RedoPlan | None = DEFAULT_REDO,
    ) -> SqliteLog:
        """Open `directory/namespace`, creating the log if there is none. Blocks: a recovery reads the whole log.

        `shard` defaults to the namespace. `witness` puts the witness elsewhere, best on another disk. `read_only`
        takes no lock and checks only what it reads; a damaged log can be read up to the damage. It writes nothing, but
        what a crash left in the redo file is brought into the database.
        `accept_loss` is the operator's word: whatever is missing or damaged is given up, the valid prefix is kept, and
        the log is `unproven`. `vfs`, `synchronous` and `lock` are for tests; anything but FULL or EXTRA loses
        acknowledged events when the power fails, and without the lock only the compare in `append` protects. `redo`
        says when frames go through a redo file; there is none with None, and none without the lock, which is what keeps
        others from writing between its frames.

        Raises LogLocked, LogDamaged, LogRegressed, LogSchemaTooNew (all: nothing was altered), LogUnavailable.
        """
        if synchronous not in get_args(Synchronous):
            raise InvalidArgument(
                f"synchronous is {synchronous!r}, must be one of {', '.join(get_args(Synchronous))}",
                field="synchronous",
            )
        paths = LogPaths.of(Path(directory), namespace, witness)
        shard = shard if shard is not None else namespace
        try:
            if read_only:
                return cls._open_read_only(paths, shard, vfs)
            make_directories(paths.directory)
            held = _lock(paths) if lock or paths.redo.exists() else None
            try:
                writer, log_id = open_writer(paths, shard, accept_loss=accept_loss, vfs=vfs, synchronous=synchronous)
            except BaseException:
                if held is not None:
                    held.release()
                raise
        except OSError as error:
            raise LogUnavailable(
                f"the log in {paths.directory} cannot be opened: {error}",
                shard=shard,
                file=str(paths.directory),
            ) from error
        safe = lock and synchronous in ("FULL", "EXTRA")
        return cls(paths, shard, log_id, writer=writer, lock=held, vfs=vfs, redo=redo if safe else None)

    @classmethod
    def _open_read_only(cls, paths: LogPaths, shard: str, vfs: str | None) -> SqliteLog:
        if not paths.database.exists():
            raise LogUnavailable(f"there is no log at {paths.database}", shard=shard, file=str(paths.database))
        bring_in_if_left(paths, shard, vfs)
        with translated(paths.database, shard):
            connection = connect_reader(paths.database, vfs=vfs)
            try:
                check_version(connection, paths.database)
                log_id = check_identity(connection, paths, shard)
            finally:
                connection.close()
        return cls(paths, shard, log_id, writer=None, lock=None, vfs=vfs)

    # ------------------------------------------------------------------------------ writing

    async def acquire(self, owner: str) -> Acquired:
        return await self._write(self._writer.acquire, owner)

    def append(self, frame: Frame, expected: Position) -> asyncio.Future[Position]:
        try:
            writer = self._writer
            appended = self._hand_over(writer, frame, expected)
        except OmniRelayError as error:
            refused: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused
        # Also when the caller was cancelled or the append refused: it costs nothing when nothing is new.
        appended.add_done_callback(lambda _: self._look_after())
        return appended

    def append_now(self, frame: Frame, expected: Position) -> Position | None:
        writer = self._writer
        try:
            return writer.append_if_quick(frame, expected)
        finally:
            self._look_after()

    def make_way(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.wait(MAKE_WAY_S_MAX)

    def _look_after(self) -> None:
        """What an append leaves to be done behind it, where nobody waits for it."""
        self._expect_witness()
        if self._upkeep is not None:
            self._upkeep.after_append()

    async def _settled(self) -> None:
        if self._upkeep is not None:
            self._check_open()
            await self._upkeep.settled()

    def _hand_over(self, writer: Writer, frame: Frame, expected: Position) -> asyncio.Future[Position]:
        """Append in the writer thread, which hashes the frame without the interpreter and then needs it once more,
        to leave it for SQLite. A loop that decides the next frame hardly lets go of it, and compiled code never does;
        see `make_way`.
        """
        self._check_open()
        begun = threading.Event()
        # Behind a checkpoint or a trim there is nothing to wait for: it may take long, and needs no interpreter.
        self._begun = None if writer.is_held_up(frame, expected) else begun
        appended = self._writing.submit(writer.append, frame, expected, begun.set)
        appended.add_done_callback(lambda _: begun.set())
        if self._begun is not None:
            begun.wait(HANDOVER_S_MAX)
        return asyncio.wrap_future(appended)

    async def add_snapshot(self, record: SnapshotRecord, epoch: int) -> None:
        await self._write(self._writer.add_snapshot, record, epoch)

    async def drop_snapshots(self, sequences: Sequence[int], epoch: int) -> None:
        await self._write(self._writer.drop_snapshots, sequences, epoch)

    async def trim(self, below: int, epoch: int) -> Anchor:
        writer = self._writer
        await self._write(writer.check_trim, below, epoch)
        # A witness from before the horizon could no longer be compared with any frame.
        await self._read(self._write_witness)
        while True:
            anchor, more = await self._write(writer.trim_slice, below, epoch)
            if self._upkeep is not None:
                self._upkeep.after_write()
            if not more:
                return anchor

    # ------------------------------------------------------------------------------ reading

    async def read(self, from_sequence: int = 1, to_sequence: int | None = None) -> AsyncIterator[Frame]:
        check_range(from_sequence)
        await self._settled()
        reader = await self._read(self._frame_reader, from_sequence, to_sequence)
        try:
            ahead = self._read_ahead(reader)
            while batch := await asyncio.wrap_future(ahead):
                # The next batch is read and hashed while the caller works on this one.
                ahead = self._read_ahead(reader)
                for frame in batch:
                    yield frame
        finally:
            self._let_go(reader)

    async def head(self) -> Head:
        await self._settled()
        return (await self._read(self._view)).head.head

    async def size_after(self, sequence: int, up_to: int | None = None) -> LogSize:
        await self._settled()
        return await self._read(self._query, lambda connection: read_size(connection, sequence, up_to))

    async def anchor(self) -> Anchor:
        return (await self._read(self._view)).anchor

    async def snapshots(self) -> list[SnapshotRecord]:
        return await self._read(self._query, read_snapshots)

    async def verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        await self._settled()
        anchor = await self.anchor()
        reader = await self._read(self._frame_reader, anchor.sequence + 1, None)
        try:
            total = await self._read(reader.frames_ahead)
            verification = Verification(self.shard, self.log_id, anchor)
            while await self._read(verification.take, reader):
                if progress is not None:
                    progress(verification.frames, max(total, verification.frames))
        finally:
            self._let_go(reader)
        report: VerifyReport = await self._read(
            self._query, lambda connection: verification.finish(connection, self._paths)
        )
        await self._read(verification.check_snapshot_files, self._paths.directory)
        return report

    async def backup(self, destination: Path) -> None:
        """Copy to a new directory that `open` takes as DIR/{namespace}: database and snapshots, no witness."""
        await self._settled()
        await self._read(write_backup, self._paths, self.shard, destination, self._vfs)

    def statistics(self) -> LogStatistics:
        counts = self._maybe_writer.statistics() if self._maybe_writer is not None else LogStatistics()
        return msgspec.structs.replace(
            counts, witness_writes=self._witness_writes, witness_failures=self._witness_failures
        )

    # ------------------------------------------------------------------------------ the end

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._forget_timers()
        await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        try:
            self._writing.shutdown()
            if self._upkeep is not None:
                self._upkeep.shut_down()
            if self._maybe_writer is not None:
                self._maybe_writer.close()
                self._write_witness()
            self._reading.shutdown()
        finally:
            if self._lock is not None:
                self._lock.release()

    def abandon(self) -> None:
        """Let go the way a killed process does, for tests: no checkpoint, no witness, only the locks are free."""
        self._closed = True
        self._forget_timers()
        self._writing.shutdown(cancel_futures=True)
        if self._upkeep is not None:
            self._upkeep.shut_down(cancel=True)
        self._reading.shutdown(cancel_futures=True)
        if self._maybe_writer is not None:
            self._maybe_writer.abandon()
        if self._lock is not None:
            self._lock.release()

    # ------------------------------------------------------------------------------ witness

    def _expect_witness(self) -> None:
        """Have the witness written soon. One timer covers every append until it fires."""
        loop = asyncio.get_running_loop()
        if self._closed or (self._witness_timer is not None and self._witness_loop is loop):
            return
        self._witness_loop = loop
        self._witness_timer = loop.call_later(WITNESS_INTERVAL_S, self._witness_due)

    def _witness_due(self) -> None:
        self._witness_timer = None
        if not self._closed:
            self._reading.submit(self._write_witness)

    def _write_witness(self) -> None:
        """Write down the end of the log if it moved. A failure is counted and tried again with the next append.

        An append must not fail because of it: the frame is durable, and the old witness is still true.
        """
        writer = self._writer
        with self._witness_lock:
            head = writer.durable
            if head.position == self._witnessed or not writer.check_in_place():
                return
            try:
                writer.settle()  # Else whoever reads the log now would find it behind its witness.
            except OmniRelayError:
                if writer.unsettled_bytes and not self._closed:
                    return
            witness = Witness(
                self.shard,
                self.log_id,
                head.generation,
                head.position.sequence,
                head.position.chain.hex(),
                head.time_ms,
            )
            try:
                write_witness(self._paths.witness, witness)
            except OSError:
                self._witness_failures += 1
                return
            self._witnessed = head.position
            self._witness_writes += 1

    def _forget_timers(self) -> None:
        if self._witness_timer is not None:
            self._witness_timer.cancel()
            self._witness_timer = None
        if self._upkeep is not None:
            self._upkeep.stop()

    # ------------------------------------------------------------------------------ threads

    @property
    def _writer(self) -> Writer:
        if self._maybe_writer is None:
            raise LogUnavailable(f"this log of {self.shard!r} was opened read-only", shard=self.shard)
        return self._maybe_writer

    async def _write(self, call: Callable[..., T], *arguments: object) -> T:
        self._check_open()
        assert self._upkeep is not None, "whoever writes has a writer"
        return await self._upkeep.run(call, *arguments)

    async def _read(self, call: Callable[..., T], *arguments: object) -> T:
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._reading, call, *arguments)

    def _read_ahead(self, reader: FrameReader) -> Future[list[Frame]]:
        self._check_open()
        return self._reading.submit(reader.batch)

    def _check_open(self) -> None:
        if self._closed:
            raise LogUnavailable(f"this log of {self.shard!r} is closed", shard=self.shard)

    def _frame_reader(self, from_sequence: int, to_sequence: int | None) -> FrameReader:
        return FrameReader(self._paths.database, self.shard, self.log_id, from_sequence, to_sequence, self._vfs)

    def _let_go(self, reader: FrameReader) -> None:
        """Close a reader without waiting for the batch it may still be reading."""
        try:
            self._reading.submit(reader.close)
        except RuntimeError:  # The pool was shut down: every batch has ended.
            reader.close()

    def _view(self) -> View:
        return self._query(lambda connection: read_view(connection, self._paths.database, self.shard))

    def _query(self, call: Callable[[apsw.Connection], T]) -> T:
        """Run a question in a read transaction of its own."""
        with translated(self._paths.database, self.shard):
            connection = connect_reader(self._paths.database, vfs=self._vfs)
            try:
                with transaction(connection, "DEFERRED"):
                    return call(connection)
            finally:
                connection.close()


def _lock(paths: LogPaths) -> WriterLock:
    try:
        return WriterLock(paths.lock)
    except LogLocked:
        wait_for_readers(paths)
    return WriterLock(paths.lock)
