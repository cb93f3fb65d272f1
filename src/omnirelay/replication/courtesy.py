"""`Courtesy`: when a sink that catches up holds back, so that callers of the node need not wait for it.

A call waits until the log has flushed it, and on one disk that flush waits for what a sink flushes. A delivery of nine
megabytes has the calls of that moment wait for all of it, so those that are flushed here are smaller while somebody
calls: four flushes of two megabytes let the log's own in between.

With a delivery under way, the next one read and the one behind it made, a sink keeps three processors busy. Where there
are only two, every thread of the node that has just been woken, be it to take a call or to write the log, has to wait
until one of them is taken from whoever is at it. Linux does that when its clock ticks, every 4 ms at usual settings and
whatever priority the others have, and a call takes several such steps. One thing at a time leaves a processor free, and
is still many times as quick as callers make events.
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


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Courtesy:
    """Of one follower. `now` counts seconds."""

    def __init__(self, now: Callable[[], float], *, among: int | None = None) -> None:
        self._now = now
        self._is_needed = (processors() if among is None else among) < PROCESSORS_LEAST
        self._called_at: float | None = None

    def called(self) -> None:
        """Somebody has just had something committed."""
        self._called_at = self._now()

    @property
    def is_called(self) -> bool:
        return self._called_at is not None and self._now() - self._called_at < CALLED_S

    @property
    def one_at_a_time(self) -> bool:
        return self._is_needed and self.is_called
