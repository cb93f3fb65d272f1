"""`LogCursor`: where a follower reads. It keeps what it fetched and has not handed out, up to a bound.

A frame may hold tens of thousands of events and a delivery a thousand of them. Without the cursor the frame would be
read, checked and decoded once per delivery, and in one go, while the event loop stands still.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, cast

from omnirelay.errors import OmniRelayError
from omnirelay.log.base import Frame
from omnirelay.replication.events import FrameEvents, ReplicatedEvent
from omnirelay.replication.sources import LogSource

SLICE_EVENTS: Final = 500
"""So many are decoded before the event loop gets its turn: about a millisecond. Finding where the events of a frame
begin is one step that cannot be cut up; with 20,000 of them it takes a few.
"""

FETCH_BYTES: Final = 2 * 1024 * 1024
"""Frames are fetched until they have so many bytes together; one frame more may be held than that."""


class LogCursor:
    """Reads the log of a shard from any event on. Cheap to go on with, costs a fetch to jump."""

    def __init__(self, shard: LogSource, region: str) -> None:
        self._shard = shard
        self._region = region
        self._frames: deque[Frame] = deque()
        self._opened: FrameEvents | None = None
        self._events: deque[ReplicatedEvent] = deque()
        self._at = 0
        """The last event that was handed out: what is held follows it."""
        self._decoded = 0
        """The last event that was decoded."""

    async def read(
        self, after: int, events_max: int, bytes_max: int, *, whole_frames: bool = False
    ) -> list[ReplicatedEvent]:
        """At least one durable event behind `after`, and more while they fit; none when there is none.

        With `whole_frames` it ends where a frame ends. Raises LogTrimmed, and LogDamaged once everything before the
        damage was handed out.
        """
        if after != self._at:
            self._forget(after)
        events: list[ReplicatedEvent] = []
        while whole_frames or len(events) < events_max:
            try:
                if not self._events and not await self._refill():
                    break
            except OmniRelayError:
                if not events:
                    raise
                break  # It is there for the next one who asks.
            event = self._events[0]
            bytes_max -= len(event.data)
            full = len(events) >= events_max or bytes_max < 0
            if events and full and not (whole_frames and event.frame is events[-1].frame):
                break
            events.append(self._events.popleft())
        if events:
            self._at = events[-1].sequence
        return events

    def _forget(self, after: int) -> None:
        self._frames.clear()
        self._events.clear()
        self._opened = None
        self._at = self._decoded = after

    async def _refill(self) -> bool:
        """Decode the next few events, fetching frames when none are left; false at the end of the log."""
        while not self._events:
            if self._opened is None:
                if not self._frames and not await self._fetch():
                    return False
                self._opened = FrameEvents(self._frames.popleft(), self._region, self._decoded)
            await asyncio.sleep(0)
            self._events.extend(self._opened.take(SLICE_EVENTS))
            if self._events:
                self._decoded = self._events[-1].sequence
            if self._opened.done:
                self._opened = None
        return True

    async def _fetch(self) -> bool:
        last = self._shard.last_sequence
        if last <= self._decoded:
            return False
        size = 0
        # Closed here and now: left to the collector it would keep the log's reader for a while.
        reading = cast(AsyncGenerator[Frame, None], self._shard.log.read(self._decoded + 1, last))
        try:
            async with aclosing(reading) as frames:
                async for frame in frames:
                    self._frames.append(frame)
                    size += len(frame.data)
                    if size >= FETCH_BYTES:
                        break
        except OmniRelayError:
            if not self._frames:
                raise
        return bool(self._frames)
