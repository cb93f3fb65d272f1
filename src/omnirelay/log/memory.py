"""A log in memory, for tests and for shards that need not outlive their process.

The bytes live in a `MemoryStorage` that survives its writer: `reopen()` is what a restart after a crash sees. Faults
that a disk has can be ordered: see `fail_next_append`.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from omnirelay.errors import InvalidArgument, LogOutcomeUnknown, LogUnavailable
from omnirelay.log.base import (
    FIRST_GENERATION,
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
from omnirelay.log.chain import Link, check_frame, check_generation, fenced, follow, missing_frame
from omnirelay.log.failpoints import hit
from omnirelay.log.files import make_directories, replace_file
from omnirelay.log.frame import chain_of, decode_frame, genesis_chain
from omnirelay.log.retention import check_drop, check_range, check_snapshot, check_trim, fence_at, trimmed

Fault = Literal["definite", "unknown-lost", "unknown-kept"]

RESTORED_BACKUP = "restored backup"


@dataclass
class MemoryStorage:
    """What would be on the disk. A test may alter it to see the damage found."""

    shard: str
    log_id: str
    head: Head
    anchor: Anchor
    frames: list[Frame] = field(default_factory=list)
    """In order, with their chains. Replaced, never changed in place but by appending."""
    snapshots: list[SnapshotRecord] = field(default_factory=list)
    """Newest first."""
    unproven: str | None = None
    highest_known: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    """Held for every compare-and-change: objects on one storage may race from several threads."""

    @classmethod
    def empty(cls, shard: str) -> MemoryStorage:
        log_id = secrets.token_hex(16)
        genesis = genesis_chain(shard, log_id)
        return cls(
            shard,
            log_id,
            Head(0, FIRST_GENERATION, Position(0, genesis), 0),
            Anchor(0, genesis, 0, 0),
        )


class _Backup(msgspec.Struct):
    shard: str
    log_id: str
    head: Head
    anchor: Anchor
    frames: list[Frame]
    snapshots: list[SnapshotRecord]
    highest_known: int


class MemoryLog:
    """`EventLog` over a `MemoryStorage`."""

    def __init__(self, shard: str, *, storage: MemoryStorage | None = None) -> None:
        self.storage = storage if storage is not None else MemoryStorage.empty(shard)
        self.shard = self.storage.shard
        self.log_id = self.storage.log_id
        self._faults: list[Fault] = []
        self._given_up: str | None = None
        self._closed = False
        self._counts = LogStatistics()

    def reopen(self) -> MemoryLog:
        """A new writer on the same storage, as after a crash of this one."""
        return MemoryLog(self.shard, storage=self.storage)

    @classmethod
    def from_backup(cls, path: Path) -> MemoryLog:
        """The log as `backup` left it at `path`."""
        copy = msgspec.msgpack.decode(path.read_bytes(), type=_Backup)
        storage = MemoryStorage(
            copy.shard,
            copy.log_id,
            copy.head,
            copy.anchor,
            copy.frames,
            copy.snapshots,
            RESTORED_BACKUP,
            copy.highest_known,
        )
        return cls(copy.shard, storage=storage)

    def fail_next_append(self, fault: Fault) -> None:
        """Order a fault; several queue up. `definite`: nothing is written. `unknown-…`: a flush failed, and the frame
        is lost or kept; this object gives the shard up either way.
        """
        self._faults.append(fault)

    async def acquire(self, owner: str) -> Acquired:
        self._check_open()
        storage = self.storage
        with storage.lock:
            head = msgspec.structs.replace(storage.head, epoch=storage.head.epoch + 1)
            storage.head = head
            known = max(
                head.position.sequence,
                storage.anchor.sequence,
                storage.anchor.highest_fence,
                storage.highest_known,
            )
            storage.highest_known = known
            return Acquired(head.epoch, head.generation, head.position, head.time_ms, storage.unproven, known)

    async def append(self, frame: Frame, expected: Position) -> Position:
        return self._add(frame, expected)

    def append_now(self, frame: Frame, expected: Position) -> Position | None:
        return self._add(frame, expected)

    def make_way(self) -> None:
        """There is no other thread."""

    def _add(self, frame: Frame, expected: Position) -> Position:
        self._check_open()
        if self._given_up is not None:
            raise LogOutcomeUnknown(self._given_up + "; reopen the log", shard=self.shard, sequence=frame.first)
        check_frame(frame, expected)
        started = time.perf_counter_ns()
        with self.storage.lock:
            if self._append(frame, expected):
                self._count(frames=1, events=frame.count, bytes=len(frame.data))
            position = self.storage.head.position
        hit("log.append.committed")
        spent = time.perf_counter_ns() - started
        self._count(append_ns_total=spent)
        self._counts = msgspec.structs.replace(self._counts, append_ns_last=spent)
        return position

    def _append(self, frame: Frame, expected: Position) -> bool:
        """Compare and write; False when the frame is there already."""
        storage = self.storage
        head = storage.head
        hit("log.append.begin")
        chain = chain_of(expected.chain, frame.data)
        if head.epoch != frame.epoch:
            raise fenced(self.shard, frame.epoch, expected, head)
        if head.position != expected:
            if head.position == Position(frame.last, chain):
                return False
            raise fenced(self.shard, frame.epoch, expected, head)
        check_generation(frame, expected, head.generation, storage.unproven, storage.highest_known)
        fault = self._faults.pop(0) if self._faults else None
        if fault == "definite":
            raise LogUnavailable("the write was refused and nothing was written; try the same frame again")
        hit("log.append.before_commit")
        if fault != "unknown-lost":
            self._write(frame, chain)
        if fault is not None:
            self._given_up = "a flush failed and nobody knows what was kept"
            raise LogOutcomeUnknown(self._given_up + "; reopen the log", shard=self.shard, sequence=frame.first)
        return True

    def _write(self, frame: Frame, chain: bytes) -> None:
        storage = self.storage
        storage.frames.append(msgspec.structs.replace(frame, chain=chain))
        storage.head = Head(frame.epoch, frame.generation, Position(frame.last, chain), frame.time_ms)
        storage.unproven = None

    async def read(self, from_sequence: int = 1, to_sequence: int | None = None) -> AsyncIterator[Frame]:
        self._check_open()
        check_range(from_sequence)
        with self.storage.lock:
            anchor, head = self.storage.anchor, self.storage.head
            start = bisect_left(self.storage.frames, from_sequence, key=_last)
            before = self.storage.frames[start - 1] if start > 0 else None
            frames = self.storage.frames[start:]
        if from_sequence <= anchor.sequence:
            raise trimmed(self.shard, from_sequence, anchor)
        link = Link.at_anchor(anchor) if before is None else Link(before.last, before.chain, before.generation)
        for frame in frames:
            if to_sequence is not None and frame.first > to_sequence:
                return
            link = follow(link, frame, shard=self.shard, log_id=self.log_id)
            yield frame
        if link.position != head.position:
            raise missing_frame(self.shard, link.sequence + 1, head.position.sequence)

    async def head(self) -> Head:
        self._check_open()
        return self.storage.head

    async def size_after(self, sequence: int, up_to: int | None = None) -> LogSize:
        self._check_open()
        with self.storage.lock:
            start = bisect_right(self.storage.frames, sequence, key=_last)
            end = None if up_to is None else bisect_right(self.storage.frames, up_to, key=_last)
            frames = self.storage.frames[start:end]
        return LogSize(
            sum(min(frame.count, frame.last - sequence) for frame in frames), sum(len(frame.data) for frame in frames)
        )

    async def anchor(self) -> Anchor:
        self._check_open()
        return self.storage.anchor

    async def snapshots(self) -> list[SnapshotRecord]:
        self._check_open()
        return list(self.storage.snapshots)

    async def add_snapshot(self, record: SnapshotRecord, epoch: int) -> None:
        self._check_open()
        storage = self.storage
        with storage.lock:
            self._compare_epoch(epoch)
            check_snapshot(record, self._position_at(record.sequence))
            others = [other for other in storage.snapshots if other.sequence != record.sequence]
            storage.snapshots = sorted([record, *others], key=lambda each: -each.sequence)

    async def drop_snapshots(self, sequences: Sequence[int], epoch: int) -> None:
        self._check_open()
        storage = self.storage
        with storage.lock:
            self._compare_epoch(epoch)
            check_drop(sequences, storage.snapshots)
            storage.snapshots = [record for record in storage.snapshots if record.sequence not in sequences]

    async def trim(self, below: int, epoch: int) -> Anchor:
        self._check_open()
        storage = self.storage
        with storage.lock:
            self._compare_epoch(epoch)
            check_trim(below, storage.snapshots)
            dropped = [frame for frame in storage.frames if frame.last < below]
            if not dropped:
                return storage.anchor
            last = dropped[-1]
            hit("log.trim.slice")
            fence = fence_at(last.last, storage.snapshots, storage.anchor.highest_fence)
            storage.anchor = Anchor(last.last, last.chain, fence, last.time_ms, last.generation)
            storage.frames = storage.frames[len(dropped) :]
            storage.snapshots = [each for each in storage.snapshots if each.sequence >= last.last]
            return storage.anchor

    async def verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        self._check_open()
        storage = self.storage
        anchor, total = storage.anchor, len(storage.frames)
        frames = events = size = 0
        last = Position(anchor.sequence, anchor.chain)
        async for frame in self.read(anchor.sequence + 1):
            events += len(decode_frame(frame, shard=self.shard, log_id=self.log_id))
            frames += 1
            size += len(frame.data)
            last = Position(frame.last, frame.chain)
            if progress is not None:
                progress(frames, total)
        for record in storage.snapshots:
            check_snapshot(record, self._position_at(record.sequence))
        return VerifyReport(anchor, last, frames, events, size, storage.head.generation, len(storage.snapshots), None)

    async def backup(self, destination: Path) -> None:
        """Write the storage to one file, for `from_backup`."""
        self._check_open()
        await asyncio.to_thread(self._write_backup, destination)

    def _write_backup(self, destination: Path) -> None:
        if destination.exists():
            raise InvalidArgument(f"{destination} exists already", field="destination", file=str(destination))
        storage = self.storage
        with storage.lock:
            copy = _Backup(
                storage.shard,
                storage.log_id,
                storage.head,
                storage.anchor,
                list(storage.frames),
                list(storage.snapshots),
                max(storage.highest_known, storage.head.position.sequence),
            )
        make_directories(destination.parent)
        hit("log.backup.copied")
        replace_file(destination, msgspec.msgpack.encode(copy))

    def statistics(self) -> LogStatistics:
        return msgspec.structs.replace(self._counts, given_up=self._given_up)

    async def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise LogUnavailable(f"this log of {self.shard!r} is closed", shard=self.shard)

    def _compare_epoch(self, epoch: int) -> None:
        head = self.storage.head
        if head.epoch != epoch:
            raise fenced(self.shard, epoch, head.position, head)

    def _position_at(self, sequence: int) -> Position | None:
        anchor = self.storage.anchor
        if sequence == anchor.sequence:
            return Position(anchor.sequence, anchor.chain)
        index = bisect_left(self.storage.frames, sequence, key=_last)
        if index < len(self.storage.frames) and self.storage.frames[index].last == sequence:
            return Position(sequence, self.storage.frames[index].chain)
        return None

    def _count(self, **more: int) -> None:
        counts = self._counts
        changed = {name: getattr(counts, name) + value for name, value in more.items()}
        self._counts = msgspec.structs.replace(counts, **changed)


def _last(frame: Frame) -> int:
    return frame.last
