"""The state of one shard: what a replay of its log gives, and nothing else.

Only `evolve` writes here. Everything is indexed so that no rule looks at more than it changes:

    items      every item the shard knows, by sequence id
    ready      those that can be granted, in the order they became ready, for listings
    schedule   the same ones, in the order they will be granted
    delayed    those that wait for a time, by that time
    leased     those that are owned, by deadline
    finished   completed and cancelled ones, in the order they ended, until their memory runs out
    dead       dead letters, in the order they died
    ended      leases that are over, for repeated acknowledgements
    requests   request ids of enqueues, for repeated enqueues
    grants     live leases by the request id of the lease call, for repeated lease calls
    pauses     what grants nothing for now, by scope
    closures   what keeps intake closed besides how much is pending, by cause
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from omnirelay.core.closures import Closure
from omnirelay.core.deadlines import Deadlines
from omnirelay.core.ended import EndedLeases
from omnirelay.core.items import Item
from omnirelay.core.native import mypyc_attr
from omnirelay.core.options import QueueOptions
from omnirelay.core.ordered import OrderedQueue
from omnirelay.core.pauses import Pause
from omnirelay.core.roster import Roster
from omnirelay.core.schedule import Schedule


@mypyc_attr(acyclic=True)
class RequestRecord:
    """An enqueue that carried a request id. `ended_at` is 0 while its item lives."""

    __slots__ = ("ended_at", "payload_digest", "sequence_id")

    def __init__(self, sequence_id: int, payload_digest: bytes, ended_at: int = 0) -> None:
        self.sequence_id = sequence_id
        self.payload_digest = payload_digest
        self.ended_at = ended_at


class DeadLetters:
    """Dead items in the order they died; pages start anywhere in O(log n)."""

    __slots__ = ("_by_stamp", "_stamps", "bytes")

    def __init__(self) -> None:
        self._by_stamp: dict[int, Item] = {}
        self._stamps: list[int] = []
        """Stamps in order, with those of items that left still in it until they are half of it."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._by_stamp)

    def add(self, item: Item) -> None:
        self._by_stamp[item.stamp] = item
        self._stamps.append(item.stamp)
        self.bytes += item.size

    def remove(self, item: Item) -> None:
        del self._by_stamp[item.stamp]
        self.bytes -= item.size
        if len(self._stamps) > 2 * len(self._by_stamp) + 64:
            self._stamps = list(self._by_stamp)

    def after(self, stamp: int) -> Iterator[Item]:
        """Items that died after the given event, oldest first."""
        stamps = self._stamps
        for index in range(bisect_right(stamps, stamp), len(stamps)):
            item = self._by_stamp.get(stamps[index])
            if item is not None:
                yield item


class State:
    """See the module. `sequence` is the number of the last event, `time` its timestamp."""

    __slots__ = (
        "_high_mark",
        "_low_mark",
        "backpressure",
        "backpressure_at",
        "closures",
        "closures_at",
        "dead",
        "delayed",
        "ended",
        "ended_max",
        "finished",
        "finished_bytes",
        "generation",
        "grants",
        "items",
        "leased",
        "live_bytes",
        "next_sequence_id",
        "options",
        "pauses",
        "ready",
        "requests",
        "requests_ended",
        "schedule",
        "sequence",
        "time",
    )

    def __init__(self, options: QueueOptions | None = None) -> None:
        self.set_options(options or QueueOptions())
        self.sequence = 0
        self.time = 0
        self.generation = 1
        self.next_sequence_id = 1
        self.items: dict[int, Item] = {}
        self.ready = Roster()
        self.schedule = Schedule(self.options)
        self.delayed = OrderedQueue(by_time=True)
        self.leased = Deadlines()
        self.live_bytes = 0
        self.finished: deque[Item] = deque()
        self.finished_bytes = 0
        self.dead = DeadLetters()
        self.ended = EndedLeases()
        self.requests: dict[bytes, RequestRecord] = {}
        self.requests_ended: deque[tuple[bytes, RequestRecord]] = deque()
        """Oldest first; stands only while the key still has this very record."""
        self.grants: dict[str, dict[int, Item]] = {}
        self.pauses: dict[str, Pause] = {}
        self.backpressure = False
        """As many items are pending as the high watermark says, and not yet as few as the low one does."""
        self.backpressure_at: int | None = None
        """When it last changed."""
        self.closures: dict[str, Closure] = {}
        """What else keeps intake closed, by its name."""
        self.closures_at: int | None = None
        """When the last of them came or went."""

    def set_options(self, options: QueueOptions) -> None:
        self.options = options
        # Asked for with every lease that ends, or several times a frame.
        self.ended_max = options.ended_lease_max
        self._high_mark = options.high_mark
        self._low_mark = options.low_mark

    @property
    def pending_count(self) -> int:
        return self.ready.live + self.delayed.live

    @property
    def live_count(self) -> int:
        """What counts against capacity. Leased items do, so a retry never needs room."""
        return self.ready.live + self.delayed.live + self.leased.live

    def next_due(self) -> int | None:
        """When time itself will change something next: a lease, a delay or a memory runs out."""
        options = self.options
        due = [self.leased.first_key(), self.delayed.first_key()]
        if self.finished:
            due.append(self.finished[0].ended_at + options.result_retention_ms)
        if self.ended.order:
            due.append(self.ended.order[0].ended_at + options.ended_lease_retention_ms)
        if self.requests_ended:
            due.append(self.requests_ended[0][1].ended_at + options.request_id_retention_max_ms)
        due += [pause.until for pause in self.pauses.values()]
        due.append(self.backpressure_due())
        return min((moment for moment in due if moment is not None), default=None)

    def backpressure_due(self) -> int | None:
        """When backpressure has to change, given what is pending now; None when it is right as it is."""
        if self.backpressure:
            wanted = self.pending_count <= self._low_mark
        else:
            wanted = self.pending_count >= self._high_mark
        if not wanted:
            return None
        return 0 if self.backpressure_at is None else self.backpressure_at + self.options.backpressure_cooldown_ms

    def time_has_work(self, now_ms: int) -> bool:
        """Whether an AdvanceTime command would change anything (expiries are a command of their own)."""
        options = self.options
        delay = self.delayed.first_key()
        if delay is not None and delay <= now_ms:
            return True
        if self.finished and self.finished[0].ended_at + options.result_retention_ms <= now_ms:
            return True
        if self.ended.order and self.ended.order[0].ended_at + options.ended_lease_retention_ms <= now_ms:
            return True
        for pause in self.pauses.values():
            if pause.until is not None and pause.until <= now_ms:
                return True
        if not self.requests_ended:
            return False
        return self.requests_ended[0][1].ended_at + options.request_id_retention_max_ms <= now_ms

    def caps_exceeded(self) -> bool:
        options = self.options
        return (
            len(self.finished) > options.result_max
            or self.finished_bytes > options.result_bytes_max
            or len(self.dead) > options.dead_letter_max
            or self.dead.bytes > options.dead_letter_bytes_max
        )
