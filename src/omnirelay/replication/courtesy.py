"""`Courtesy`: when a sink that catches up holds back, so that callers of the node need not wait for it.

A call waits until the log has flushed it, and on one disk that flush waits for what a sink flushes. A delivery of nine
megabytes has the calls of that moment wait for all of it, so those that are flushed here are smaller while somebody
calls: many flushes of half a megabyte let the log's own in between.

With a delivery under way, the next one read and the one behind it made, a sink keeps three processors busy. Where there
are only two, every thread of the node that has just been woken, be it to take a call or to write the log, has to wait
until one of them is taken from whoever is at it. Linux does that when its clock ticks, every 4 ms at usual settings and
whatever priority the others have, and a call takes several such steps. One thing at a time leaves a processor free, and
is still many times as quick as callers make events.

Whatever it does, a call that comes while a delivery is read, made or written may wait a little longer for the disk or
for a processor. So a sink that is far behind rests between deliveries while somebody calls: it goes at several times
the rate at which events come in, which is enough to catch up, and leaves the machine alone for the rest of the time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

CALLED_S: Final = 1.0
"""So long after a commit there may be another one any moment."""

FLUSHED_EVENTS: Final = 4_000
"""Of a delivery that is flushed to a disk of this machine while there are callers."""

PROCESSORS_LEAST: Final = 4
"""With so many there is one left for callers, whatever a sink does."""


TIMES_CALLERS: Final = 3
"""A sink that catches up beside callers takes so many events for each that they make: who was away for an hour is back
half an hour later, at the latest, and the log is never trimmed as fast as the sink goes on."""

EVENTS_PER_SECOND_LEAST: Final = 50_000
"""So many it takes in any case."""

REST_S_MAX: Final = 1.0
"""Of one rest. Callers may be gone behind it."""


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Courtesy:
    """Of one follower. `now` counts seconds."""

    def __init__(self, now: Callable[[], float], *, among: int | None = None) -> None:
        self.now = now
        self._is_needed = (processors() if among is None else among) < PROCESSORS_LEAST
        self._called_at: float | None = None
        self._counting_since = 0.0
        self._counted = 0
        self._rate = 0.0
        """Events per second, when they were last counted."""

    def called(self, events: int) -> None:
        """Somebody has just had so many events committed."""
        now = self.now()
        if not self.is_called:
            self._counting_since, self._counted, self._rate = now, 0, 0.0
        elif now - self._counting_since >= CALLED_S:
            self._rate = self._counted / (now - self._counting_since)
            self._counting_since, self._counted = now, 0
        self._counted += events
        self._called_at = now

    @property
    def is_called(self) -> bool:
        return self._called_at is not None and self.now() - self._called_at < CALLED_S

    @property
    def one_at_a_time(self) -> bool:
        return self._is_needed and self.is_called

    @property
    def events_per_second(self) -> float:
        """What callers make, and a little more while that grows."""
        return max(self._rate, self._counted / CALLED_S) if self.is_called else 0.0

    def rest_s(self, events: int, took_s: float) -> float:
        """How long to leave the node to its callers after a delivery of so many events, which took so long."""
        if not self.is_called:
            return 0.0
        rate = max(EVENTS_PER_SECOND_LEAST, TIMES_CALLERS * self.events_per_second)
        return min(REST_S_MAX, max(0.0, events / rate - took_s))
