"""`LogCursor`: where a follower reads. It keeps what it fetched and has not handed out, up to a bound.

A frame may hold tens of thousands of events and a delivery a thousand of them. Without the cursor the frame would be
read, checked and decoded once per delivery, and in one go, while the event loop stands still.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, cast

import msgspec

from omnirelay.errors import OmniRelayError
from omnirelay.log.base import Frame
from omnirelay.replication.commits import Commits
from omnirelay.replication.events import FrameEvents, ReplicatedEvent
from omnirelay.replication.sources import LogSource

SLICE_EVENTS: Final = 500
"""So many are decoded before the event loop gets its turn: about a millisecond. Finding where the events of a frame
begin is one step that cannot be cut up; with 20,000 of them it takes a few.
"""

FETCH_BYTES: Final = 2 * 1024 * 1024
"""Frames are fetched until they have so many bytes together; one frame more may be held than that. The log reads on
meanwhile, by one batch of its own.
"""

_NOWHERE: Final = -1


class _Slice(msgspec.Struct, gc=False):
    """Events that were decoded together. Counting their bytes once is quicker than with every delivery."""

    events: list[ReplicatedEvent]
    bytes: int

    @classmethod
    def of(cls, events: list[ReplicatedEvent]) -> _Slice:
        return cls(events, sum([len(event.data) for event in events]))


class LogCursor:
    """Reads the log of a shard from any event on. Cheap to go on with, costs a fetch to jump.

    Calls must not overlap. Close it; it can be read again afterwards.
    """

    def __init__(self, shard: LogSource, region: str) -> None:
        self._shard = shard
        self._region = region
        self._frames: deque[Frame] = deque()
        self._opened: FrameEvents | None = None
        self._slices: deque[_Slice] = deque()
        self._at = 0
        """The last event that was handed out: what is held follows it."""
        self._decoded = 0
        """The last event that was decoded."""
        self._reading: AsyncGenerator[Frame, None] | None = None
        """What is still to come of the log, while there is some: opening it anew would read and hash twice what the
        log reads ahead."""
        self._reading_to = self._read_to = 0
        """The last event of it, and the last one that came."""

    async def close(self) -> None:
        """Let go of the log's reader. Safe to call twice."""
        await self._end_reading()

    async def read(self, after: int, events_max: int, bytes_max: int) -> list[ReplicatedEvent]:
        """At least one durable event behind `after`, and more while they fit; none when there is none.

        Raises LogTrimmed, and LogDamaged once everything before the damage was handed out.
        """
        if after != self._at:
            self._forget(after)
        self._at = _NOWHERE  # Until this has come to its end: who is interrupted has taken something out.
        events: list[ReplicatedEvent] = []
        while len(events) < events_max:
            try:
                if not self._slices and not await self._refill():
                    break
            except OmniRelayError:
                if not events:
                    raise
                break  # It is there for the next one who asks.
            fitting = self._take(events_max - len(events), bytes_max, at_least=0 if events else 1)
            if not fitting.events:
                break
            events += fitting.events
            bytes_max -= fitting.bytes
        self._at = events[-1].sequence if events else after
        return events

    async def read_ahead(self, events_max: int, bytes_max: int) -> None:
        """Decode what `read` will be asked for next, while a sink is busy with what it got. Raises nothing: whatever
        is wrong is there for `read`, too.
        """
        try:
            held = sum(len(each.events) for each in self._slices)
            size = sum(each.bytes for each in self._slices)
            while held < events_max and size < bytes_max and await self._refill():
                held += len(self._slices[-1].events)
                size += self._slices[-1].bytes
        except OmniRelayError:
            return

    async def read_commits(self, after: int, events_max: int, bytes_max: int) -> Commits:
        """The commits behind `after`: at least one, and more while they fit; none when there is none.

        Raises as `read` does.
        """
        if after != self._at or self._slices or self._opened is not None:
            self._forget(after)
        self._at = _NOWHERE
        frames: list[Frame] = []
        events = size = 0
        while events < events_max and size < bytes_max:
            try:
                if not self._frames and not await self._fetch():
                    break
            except OmniRelayError:
                if not frames:
                    raise
                break
            events += self._frames[0].count
            size += len(self._frames[0].data)
            if frames and (events > events_max or size > bytes_max):
                break
            frames.append(self._frames.popleft())
            self._decoded = frames[-1].last
        self._at = frames[-1].last if frames else after
        return Commits(frames, self._region, after)

    def put_back(self, commits: Commits) -> None:
        """Take back what `read_commits` has just handed out: it will be read again, with what has come behind it."""
        self._frames.extendleft(reversed(commits.frames))
        self._at = self._decoded = commits.after

    def _forget(self, after: int) -> None:
        self._frames.clear()
        self._slices.clear()
        self._opened = None
        self._at = self._decoded = after

    def _take(self, events_max: int, bytes_max: int, *, at_least: int) -> _Slice:
        """The first slice, or as much of it as fits."""
        first = self._slices[0]
        if len(first.events) <= events_max and first.bytes <= bytes_max:
            return self._slices.popleft()
        count = size = 0
        for event in first.events[:events_max]:
            if size + len(event.data) > bytes_max and count >= at_least:
                break
            count += 1
            size += len(event.data)
        taken = _Slice(first.events[:count], size)
        rest = _Slice(first.events[count:], first.bytes - size)
        if rest.events:
            self._slices[0] = rest
        else:
            self._slices.popleft()
        return taken

    async def _refill(self) -> bool:
        """Decode the next few events, fetching frames when none are left; false at the end of the log."""
        while True:
            if self._opened is None:
                if not self._frames and not await self._fetch():
                    return False
                self._opened = FrameEvents(self._frames.popleft(), self._region, self._decoded)
            await asyncio.sleep(0)
            events = self._opened.take(SLICE_EVENTS)
            if self._opened.done:
                self._opened = None
            if events:
                self._decoded = events[-1].sequence
                self._slices.append(_Slice.of(events))
                return True

    async def _fetch(self) -> bool:
        """Fetch more frames behind those that are held; false at the end of the log."""
        last, held = self._shard.last_sequence, len(self._frames)
        known = self._frames[-1].last if held else self._decoded
        if last <= known:
            return False
        if self._reading is None or self._read_to != known:
            await self._end_reading()
            self._reading = cast(AsyncGenerator[Frame, None], self._shard.log.read(known + 1, last))
            self._reading_to = last
        more = False
        try:
            more = await self._take_frames(self._reading)
        except OmniRelayError:
            if len(self._frames) == held:
                raise
        finally:
            if not more:
                await self._end_reading()
        return len(self._frames) > held

    async def _take_frames(self, reading: AsyncGenerator[Frame, None]) -> bool:
        """Whether there is more to come."""
        size = 0
        async for frame in reading:
            self._frames.append(frame)
            self._read_to = frame.last
            size += len(frame.data)
            if size >= FETCH_BYTES:
                return frame.last < self._reading_to
        return False

    async def _end_reading(self) -> None:
        # Here and now: left to the collector it would keep the log's reader for a while.
        reading, self._reading = self._reading, None
        if reading is not None:
            await reading.aclose()
