"""What is counted while events and calls go by. Cheap to count, read only when somebody scrapes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from omnirelay.core import events as ev
from omnirelay.core import spans
from omnirelay.core.items import Item
from omnirelay.telemetry import catalogue
from omnirelay.telemetry.catalogue import CALL_DURATION, CALL_SECONDS, SECONDS

LEASES_FOLLOWED_MAX = 1_000_000
FEW = 8
"""So many are looked at more quickly than they are counted."""


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

    def observe_all(self, values: list[int], per_unit: int = 1) -> None:
        """Values of one batch, which are much alike: each is looked at once, with how often it came."""
        if len(values) < FEW:
            for value in values:
                self.observe(value / per_unit)
        else:
            for value, count in Counter(values).items():
                self.observe(value / per_unit, count)

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
        self._due: dict[int, int] = {}
        """From when items could run that were delayed, handed back or restored, by id; others can as they come."""
        self._seen = (0, 0, 0)

    def take_delayed(self, items: Iterable[Item]) -> None:
        """These were delayed when the shard started."""
        for item in items:
            if item.not_before is not None and item.attempt == 1:
                self._put_off(item.sequence_id, item.not_before)

    def take(self, events: Sequence[ev.Event], items: dict[int, Item]) -> None:
        """Count a batch of durable events; `items` are those of the shard now."""
        self.frame_events.observe(len(events))
        waits: list[int] = []
        lease_times: list[int] = []
        attempts: list[int] = []
        # Those of one kind mostly come one behind the other.
        for kind, same in groupby(events, type):
            run: list[Any] = list(same)
            self.events[kind.__name__] += len(run)
            if kind is ev.LeaseGranted:
                room = max(0, LEASES_FOLLOWED_MAX - len(self._granted))
                waits += spans.waits(run, items, self._due, self._granted, room)
            elif kind is ev.Enqueue:
                for event in run:
                    if event.not_before is not None:
                        self._put_off(event.sequence_id, event.not_before)
            elif kind is ev.Completed or kind is ev.Failed or kind is ev.Released or kind is ev.Expired:
                lease_times += spans.lease_times(run, self._granted)
                if kind is ev.Completed:
                    attempts += [event.ownership.attempt for event in run]
                else:
                    for event in run:
                        if event.ownership.attempt == 1 and _handed_back(event):
                            self._put_off(event.ownership.sequence_id, event.not_before or event.timestamp)
            elif kind is ev.Cancelled or kind is ev.DeadLettered:
                for event in run:
                    self._granted.pop(event.sequence_id, None)
                    self._due.pop(event.sequence_id, None)
            elif kind is ev.RestoreSnapshot:
                for event in run:
                    for item in event.items:
                        if item.attempt == 1:
                            self._put_off(item.sequence_id, max(item.not_before or 0, event.timestamp))
            elif kind is ev.DrainSnapshot:
                for event in run:
                    for sequence_id in event.sequence_ids:
                        self._due.pop(sequence_id, None)
            elif kind is ev.BackpressureChanged:
                for event in run:
                    if not event.others:
                        self.transitions["closed" if event.active else "open"] += 1
        self.wait.observe_all(waits, 1000)
        self.lease_time.observe_all(lease_times, 1000)
        self.attempts.observe_all(attempts)

    def _put_off(self, sequence_id: int, due: int) -> None:
        if len(self._due) < LEASES_FOLLOWED_MAX:
            self._due[sequence_id] = due

    def take_log(self, frames: int, written: int, append_ns: int) -> None:
        """Totals of the log after a batch: what has come since the last call was one frame, or a few alike."""
        seen_frames, seen_bytes, seen_ns = self._seen
        new = frames - seen_frames
        if new > 0:
            for _ in range(new):
                self.frame_bytes.observe((written - seen_bytes) / new)
                self.commit.observe((append_ns - seen_ns) / new / 1e9)
            self._seen = (frames, written, append_ns)


def _handed_back(event: ev.Failed | ev.Released | ev.Expired) -> bool:
    """The attempt was not burned: the same one is granted again."""
    if isinstance(event, ev.Failed):
        return event.mode == "release"
    return isinstance(event, ev.Released) or event.undelivered


class _Calls:
    """Those of one procedure over one transport that ended in one way."""

    __slots__ = ("count", "durations")

    def __init__(self, durations: Histogram) -> None:
        self.count = 0
        self.durations = durations


class CallMeter:
    """Counts the calls of a dispatcher."""

    def __init__(self) -> None:
        self.durations: dict[tuple[str, str], Histogram] = {}
        self._calls: dict[tuple[str, str, str], _Calls] = {}

    @property
    def calls(self) -> Counter[tuple[str, str, str]]:
        """How many there were, by procedure, transport and status."""
        return Counter({named: calls.count for named, calls in self._calls.items()})

    def take(self, procedure: str, transport: str, status: str, seconds: float) -> None:
        named = (procedure, transport, status)
        calls = self._calls.get(named)
        if calls is None:
            durations = self.durations.setdefault((procedure, transport), Histogram(CALL_DURATION.buckets))
            calls = self._calls[named] = _Calls(durations)
        calls.count += 1
        calls.durations.observe(seconds)
