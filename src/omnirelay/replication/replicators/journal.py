"""`Journal`: the log of a replicator, where events get their numbers and wait until everybody has them.

It is a log as a shard has one, in memory or in SQLite: one writer, numbers given by the commit, a chain, frames that
are read again after a crash. Only the rules of leasing are not applied to what stands in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from omnirelay.core.rules.upkeep import GENERATION_JUMP
from omnirelay.errors import FailedPrecondition, InvalidArgument, LogUnavailable, ResourceExhausted
from omnirelay.log.base import EventLog, Frame, Position, SnapshotRecord
from omnirelay.log.frame import header_prefix
from omnirelay.log.memory import MemoryLog
from omnirelay.log.sqlite import SqliteLog
from omnirelay.replication.confirmed import check_confirmed
from omnirelay.replication.events import ReplicatedEvent, events_of_frame
from omnirelay.replication.replicators.base import Publishable, numbered
from omnirelay.replication.sources import Happened

Listener = Callable[[Sequence[Happened]], None]


class _Happened(msgspec.Struct, gc=False):
    sequence_number: int
    timestamp: int


class Journal:
    """A `LogSource`. Open with `open`, which may be called again after `close`."""

    def __init__(self, shard: str, directory: Path | None, region: str) -> None:
        self.shard = shard
        self._directory = directory
        self._region = region
        self._memory = None if directory is not None else MemoryLog(shard)
        self._log: EventLog | None = None
        self._epoch = 0
        self._generation = 0
        self._position = Position(0, b"")
        self._trimmable = Position(0, b"")
        """The end of the frame before the last one."""
        self._unsettled: tuple[Frame, list[ReplicatedEvent]] | None = None
        """A commit of which nobody knows whether it came to be. It is made again before any other."""
        self._one_at_a_time = asyncio.Lock()
        self._listeners: list[Listener] = []
        self._closed_by: dict[str, str] = {}
        """Members that are too far behind and required, each with its reason."""

    @property
    def log(self) -> EventLog:
        if self._log is None:
            raise FailedPrecondition(f"the replicator of {self.shard!r} is not started")
        return self._log

    @property
    def last_sequence(self) -> int:
        return self._position.sequence

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def add_event_listener(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def close_intake(self, cause: str, reason: str) -> bool:
        news = cause not in self._closed_by
        self._closed_by[cause] = reason
        return news

    async def open_intake(self, cause: str, reason: str | None = None) -> bool:
        return self._closed_by.pop(cause, None) is not None

    async def open(self) -> None:
        """Raises LogLocked when another process has it, LogDamaged naming the place, LogRegressed."""
        if self._memory is not None:
            self._memory = self._memory.reopen()
            self._log = self._memory
        else:
            # In a thread: a recovery reads the whole log.
            self._log = await asyncio.to_thread(_opened, self._directory or Path(), self.shard)
        acquired = await self._log.acquire("replicator")
        self._epoch, self._generation = acquired.epoch, acquired.generation
        self._position = self._trimmable = acquired.position
        self._unsettled = None
        if acquired.unproven is not None:
            await self._start_generation(acquired.highest_known + GENERATION_JUMP, acquired.unproven)

    async def _start_generation(self, sequence: int, reason: str) -> None:
        """The history is not proven complete: go on where no number was ever given."""
        started = {
            "eventType": "GenerationStarted",
            "generation": self._generation + 1,
            "reason": reason,
            "nextSequenceId": 1,
        }
        [event] = numbered([started], self.shard, sequence - 1, self.now_ms(), self._region)
        await self._commit(self._frame_of([event], self._generation + 1), [event])

    async def publish(self, events: Sequence[Publishable]) -> list[ReplicatedEvent]:
        """Durable when it returns. After a failure with unknown outcome the next call learns what became of it."""
        async with self._one_at_a_time:
            if self._closed_by:
                raise ResourceExhausted("; ".join(self._closed_by.values()), retry_after_ms=1_000)
            if self._unsettled is not None:
                await self._commit(*self._unsettled)
            new = numbered(events, self.shard, self.last_sequence, self.now_ms(), self._region)
            # How deep the queue was is known of events of a log, and kept once per frame. New ones are one commit.
            for _, run in groupby(new, key=lambda event: (event.pending, event.active)):
                part = list(run)
                jumps = part[-1].sequence - self.last_sequence != len(part)
                await self._commit(self._frame_of(part, self._generation + jumps), part)
            return new

    def _frame_of(self, events: list[ReplicatedEvent], generation: int) -> Frame:
        first, last = events[0].sequence, events[-1].sequence
        frame = Frame(first, last, len(events), self._epoch, generation, self.now_ms(), b"")
        depth = b"".join(
            b',"%b":%d' % (name, value)
            for name, value in ((b"pending", events[0].pending), (b"active", events[0].active))
            if value is not None
        )
        stored = b",".join(event.data for event in events)
        data = header_prefix(frame, self.shard, self.log.log_id) + stored + b"]" + depth + b"}"
        return Frame(first, last, len(events), self._epoch, generation, frame.time_ms, data)

    async def _commit(self, frame: Frame, events: list[ReplicatedEvent]) -> None:
        self._unsettled = (frame, events)
        try:
            position = await self.log.append(frame, self._position)
        except (LogUnavailable, InvalidArgument):
            self._unsettled = None  # Nothing was written, so that no number is used up.
            raise
        self._unsettled = None
        self._trimmable, self._position = self._position, position
        self._generation = frame.generation
        happened = [_Happened(event.sequence, event.timestamp) for event in events]
        for listener in self._listeners:
            listener(happened)

    async def read(self, after: int, most: int) -> list[ReplicatedEvent]:
        """Events behind `after`, at least one when there is one. Raises LogTrimmed."""
        events: list[ReplicatedEvent] = []
        if after >= self.last_sequence:
            return events
        async for frame in self.log.read(after + 1, self.last_sequence):
            events += events_of_frame(frame, self._region, events[-1].sequence if events else after)
            if len(events) >= most:
                break
        return events[:most]

    async def trim(self, below: int) -> None:
        """Drop frames that end before `below`, except the last two."""
        end = self._trimmable
        if not 0 < end.sequence < self.last_sequence:
            return
        # A log is trimmed up to the second-newest of its snapshots. There is no state to keep here but the numbers,
        # and those are in the log's own anchor: a snapshot of a journal is empty.
        for position in (end, self._position):
            record = SnapshotRecord(position.sequence, position.chain, "", "", self.now_ms(), 0, 0, position.sequence)
            await self.log.add_snapshot(record, self._epoch)
        await self.log.trim(min(below, end.sequence), self._epoch)

    async def close(self) -> None:
        log, self._log = self._log, None
        self._listeners.clear()
        self._closed_by.clear()
        if log is not None:
            await log.close()


def _opened(directory: Path, shard: str) -> SqliteLog:
    check_confirmed(directory, shard)
    return SqliteLog.open(directory, shard)
