"""A queue ordered by key that is O(1) when keys arrive in order, and O(log n) otherwise.

Items mostly come in order: ids rise, deadlines rise. Those go to the end of a deque. What comes
out of order (a retry, a released item, a shorter lease) goes to a heap beside it; the first of
the queue is the smaller of the two heads. Nothing is searched for: an item that leaves from the
middle just changes its `stamp`, which makes its entry stale, and stale entries are dropped when
they reach a head or when they outnumber the live ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, merge
from typing import TypeAlias

from omnirelay.core.items import Item

Entry: TypeAlias = tuple[int, int, int, Item]
"""(key, sequence id, stamp, item). Live while the item bears this stamp; no two entries share the first three."""

_SLACK = 64
"""Stale entries tolerated before a clean-up, so that small queues never pay for one."""


class OrderedQueue:
    """`push` when an item enters the place, `left` right after its stamp has changed."""

    __slots__ = ("_heap", "_run", "live")

    def __init__(self) -> None:
        self._run: deque[Entry] = deque()
        self._heap: list[Entry] = []
        self.live = 0

    def push(self, key: int, item: Item) -> None:
        run = self._run
        entry = (key, item.sequence_id, item.stamp, item)
        if not run or run[-1] < entry:
            run.append(entry)
        else:
            heappush(self._heap, entry)
        self.live += 1

    def left(self, item: Item) -> None:
        """The item has a new stamp: drop it if it was first, and stale heads, so that readers need not look."""
        self.live = live = self.live - 1
        run = self._run
        if run and run[0][3] is item:
            run.popleft()
        if len(run) + len(self._heap) != live:
            self._settle(live)

    def take_first(self) -> None:
        """Take the first item out although its stamp stays the same."""
        run, heap = self._run, self._heap
        if run and not (heap and heap[0] < run[0]):
            run.popleft()
        else:
            heappop(heap)
        self.live -= 1
        self._settle(self.live)

    def _settle(self, live: int) -> None:
        """There are stale entries: take them off the heads, and clean up when they outnumber the live ones."""
        run = self._run
        while run and (entry := run[0])[3].stamp != entry[2]:
            run.popleft()
        heap = self._heap
        while heap and (entry := heap[0])[3].stamp != entry[2]:
            heappop(heap)
        if len(run) + len(heap) > 2 * live + _SLACK:
            self._compact()

    def first(self) -> Item | None:
        heap = self._heap
        if heap:
            run = self._run
            if not run or heap[0] < run[0]:
                return heap[0][3]
            return run[0][3]
        run = self._run
        return run[0][3] if run else None

    def first_key(self) -> int | None:
        """The smallest key, or None when the queue is empty."""
        if self._heap:
            if self._run and self._run[0][0] < self._heap[0][0]:
                return self._run[0][0]
            return self._heap[0][0]
        return self._run[0][0] if self._run else None

    def __iter__(self) -> Iterator[Item]:
        """Live items in order, read lazily and without changing anything: O(log n) for each one taken."""
        entries: Iterator[Entry] = iter(self._run)
        if self._heap:
            entries = merge(entries, self._heap_in_order())
        for entry in entries:
            if entry[3].stamp == entry[2]:
                yield entry[3]

    def up_to(self, key: int, count_max: int) -> list[Item]:
        """At most `count_max` live items whose key is not above `key`, in order."""
        found: list[Item] = []
        entries: Iterator[Entry] = iter(self._run)
        if self._heap:
            entries = merge(entries, self._heap_in_order())
        for entry in entries:
            if entry[0] > key or len(found) >= count_max:
                break
            if entry[3].stamp == entry[2]:
                found.append(entry[3])
        return found

    def _heap_in_order(self) -> Iterator[Entry]:
        """Walk the heap from its root, smallest first, without taking it apart."""
        heap = self._heap
        frontier = [(heap[0], 0)]
        while frontier:
            entry, at = heappop(frontier)
            yield entry
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heappush(frontier, (heap[child], child))

    def _compact(self) -> None:
        self._run = deque(entry for entry in self._run if entry[3].stamp == entry[2])
        self._heap = [entry for entry in self._heap if entry[3].stamp == entry[2]]
        heapify(self._heap)
        if len(self._heap) > len(self._run):
            # Mostly out of order by now (a mass retry, say): sorting once makes the rest O(1) again.
            self._run = deque(merge(self._run, sorted(self._heap)))
            self._heap = []
