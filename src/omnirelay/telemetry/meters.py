"""What is counted while events and calls go by. Cheap to count, read only when somebody scrapes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from omnirelay.core import events as ev
from omnirelay.core.items import Item
from omnirelay.telemetry import catalogue
from omnirelay.telemetry.catalogue import CALL_DURATION, CALL_SECONDS, SECONDS

LEASES_FOLLOWED_MAX = 1_000_000


class Histogram:
    """Counts by bucket, with the sum. `observe` takes the unit of its buckets."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """The value came `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them."""
        total = 0
        pairs = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            pairs.append(("+Inf" if bound == float("inf") else str(float(bound)), float(total)))
        return pairs


class ShardMeter:
    """Counts the durable events of one shard."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.transitions: Counter[str] = Counter()
        self.wait = Histogram(SECONDS)
        self.lease_time = Histogram(SECONDS)
        self.attempts = Histogram(catalogue.ATTEMPTS.buckets)
        self.frame_bytes = Histogram(catalogue.FRAME_BYTES.buckets)
        self.frame_events = Histogram(catalogue.FRAME_EVENTS.buckets)
        self.commit = Histogram(CALL_SECONDS)
        self._granted: dict[int, int] = {}
        """When each live lease was granted, by its item. Leases of before the start are not followed."""
        self._seen = (0, 0, 0)

    def take(self, events: Sequence[ev.Event], items: dict[int, Item]) -> None:
        """Count a batch of durable events; `items` are those of the shard now.

        Times are in milliseconds, so those of one batch are much alike: each is counted once, with how often it came.
        """
        self.frame_events.observe(len(events))
        granted = self._granted
        kinds: dict[type[ev.Event], int] = {}
        waits: dict[int, int] = {}
        lease_times: dict[int, int] = {}
        attempts: dict[int, int] = {}
        for event in events:
            kind = type(event)
            kinds[kind] = kinds.get(kind, 0) + 1
            if kind is ev.LeaseGranted:
                token = event.ownership  # type: ignore[union-attr]
                sequence_id = token.sequence_id
                if len(granted) < LEASES_FOLLOWED_MAX:
                    granted[sequence_id] = event.timestamp
                item = items.get(sequence_id)
                if item is not None and token.attempt == 1:
                    due = item.enqueued_at if item.not_before is None else max(item.enqueued_at, item.not_before)
                    wait = max(0, event.timestamp - due)
                    waits[wait] = waits.get(wait, 0) + 1
            elif kind is ev.Completed or kind is ev.Failed or kind is ev.Released or kind is ev.Expired:
                token = event.ownership  # type: ignore[union-attr]
                at = granted.pop(token.sequence_id, None)
                if at is not None:
                    lease_time = event.timestamp - at
                    lease_times[lease_time] = lease_times.get(lease_time, 0) + 1
                if kind is ev.Completed:
                    attempts[token.attempt] = attempts.get(token.attempt, 0) + 1
            elif kind is ev.Cancelled:
                granted.pop(event.sequence_id, None)  # type: ignore[union-attr]
            elif kind is ev.BackpressureChanged:
                if not event.others:  # type: ignore[union-attr]
                    self.transitions["closed" if event.active else "open"] += 1  # type: ignore[union-attr]
        for kind, count in kinds.items():
            self.events[kind.__name__] += count
        for wait, count in waits.items():
            self.wait.observe(wait / 1000, count)
        for lease_time, count in lease_times.items():
            self.lease_time.observe(lease_time / 1000, count)
        for attempt, count in attempts.items():
            self.attempts.observe(attempt, count)

    def take_log(self, frames: int, written: int, append_ns: int) -> None:
        """Totals of the log after a batch: what has come since the last call was one frame, or a few alike."""
        seen_frames, seen_bytes, seen_ns = self._seen
        new = frames - seen_frames
        if new > 0:
            for _ in range(new):
                self.frame_bytes.observe((written - seen_bytes) / new)
                self.commit.observe((append_ns - seen_ns) / new / 1e9)
            self._seen = (frames, written, append_ns)


class CallMeter:
    """Counts the calls of a dispatcher."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str, str]] = Counter()
        self.durations: dict[tuple[str, str], Histogram] = {}

    def take(self, procedure: str, transport: str, status: str, seconds: float) -> None:
        self.calls[procedure, transport, status] += 1
        durations = self.durations.get((procedure, transport))
        if durations is None:
            durations = self.durations[procedure, transport] = Histogram(CALL_DURATION.buckets)
        durations.observe(seconds)
