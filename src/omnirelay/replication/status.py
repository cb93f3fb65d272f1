"""How a sink is doing, in numbers and in one word."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final, Literal

import msgspec

from omnirelay.replication.done import Done
from omnirelay.telemetry.catalogue import REPLICATION_LAG
from omnirelay.telemetry.meters import Histogram

SinkState = Literal["starting", "running", "retrying", "stalled", "failed", "paused"]

_WINDOW_S: Final = 60.0


class FollowStatus(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True):
    """How a sink is doing. Only what there may be none of has a default: it is left out of answers then."""

    sink: str
    shard: str
    state: SinkState
    checkpoint: int
    lag_events: int
    lag_ms: int | None = None
    """Age of the oldest event that is not delivered yet. None before that was looked up, which takes a moment after a
    start or a reset.
    """
    events: int
    failures: int
    parked: int
    required: bool
    lag_bytes: int | None = None
    """Bytes of the log that are not delivered yet. None as above."""
    requirement_dropped: bool
    """It is required and holds back more of the log than it may: for now it counts as optional."""
    closes_intake: str | None = None
    """Why it keeps the intake of its shard closed, when it does."""
    rate_per_second: float
    """Events delivered per second over the last minute."""
    last_error: str | None = None


class DeliveryRate:
    """Deliveries of the last minute."""

    def __init__(self, now: float) -> None:
        self._started = now
        self._taken: deque[tuple[float, int]] = deque()

    def take(self, now: float, count: int) -> None:
        self._taken.append((now, count))
        self._forget(now)

    def per_second(self, now: float) -> float:
        self._forget(now)
        seconds = min(_WINDOW_S, now - self._started)
        return round(sum(count for _, count in self._taken) / max(seconds, 1.0), 1)

    def _forget(self, now: float) -> None:
        while self._taken and self._taken[0][0] < now - _WINDOW_S:
            self._taken.popleft()


class Delivered:
    """What a sink has taken since the node started, and how long that took."""

    def __init__(self, now: float) -> None:
        self.events: Counter[str] = Counter()
        self.lag = Histogram(REPLICATION_LAG.buckets)
        self._rate = DeliveryRate(now)

    def take(self, done: Done, now_ms: int, now: float) -> None:
        self.events.update(done.types)
        self._rate.take(now, done.count)
        self.lag.observe(max(0, now_ms - done.first_ms) / 1000)

    def per_second(self, now: float) -> float:
        return self._rate.per_second(now)
