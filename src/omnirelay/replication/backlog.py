"""`Backlog`: what a follower has not delivered yet, in events, bytes and age, without asking the log each time."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

STRETCHES_MAX: Final = 1_024
"""Beyond so many, neighbours are joined: a sink that is away for a week must not cost memory for every frame."""


class _Stretch(msgspec.Struct, gc=False):
    events: int
    bytes: int
    since_ms: int
    """When its first event happened, or a little before."""


class Backlog:
    """Stretches of the log, oldest first. Events are counted exactly. Of a stretch that is delivered in part the bytes
    go in proportion, and its age is that of the last event that was taken.
    """

    def __init__(self) -> None:
        self.events = 0
        self.bytes = 0
        self._stretches: deque[_Stretch] = deque()

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest event happened; None when there is none."""
        return self._stretches[0].since_ms if self._stretches else None

    def clear(self) -> None:
        self._stretches.clear()
        self.events = self.bytes = 0

    def add(self, events: int, size: int, since_ms: int) -> None:
        """The log grew."""
        self._stretches.append(_Stretch(events, size, since_ms))
        self.events += events
        self.bytes += size
        if len(self._stretches) > STRETCHES_MAX:
            self._join()

    def add_older(self, events: int, size: int, since_ms: int) -> None:
        """What was there before everything that was added."""
        if events > 0:
            self._stretches.appendleft(_Stretch(events, size, since_ms))
            self.events += events
            self.bytes += size

    def take(self, events: int, last_ms: int) -> None:
        """So many were delivered, the last of which happened at `last_ms`."""
        while events > 0 and self._stretches:
            oldest = self._stretches[0]
            if oldest.events <= events:
                self._stretches.popleft()
                done, size = oldest.events, oldest.bytes
            else:
                done, size = events, oldest.bytes * events // oldest.events
                oldest.events -= done
                oldest.bytes -= size
                oldest.since_ms = max(oldest.since_ms, last_ms)
            self.events -= done
            self.bytes -= size
            events -= done

    def _join(self) -> None:
        stretches = list(self._stretches)
        joined = [
            _Stretch(first.events + second.events, first.bytes + second.bytes, first.since_ms)
            for first, second in zip(stretches[::2], stretches[1::2], strict=False)
        ]
        if len(stretches) % 2:
            joined.append(stretches[-1])
        self._stretches = deque(joined)
