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
from typing import Any, TypeAlias

from omnirelay.core.items import Item

Entry: TypeAlias = tuple[Any, ...]
"""(key, sequence id, stamp, item). Live while the item bears this stamp; no two entries share the first three. The type
says no more, because compiled code would take every entry apart that it only looks at."""

_SLACK = 64
"""Stale entries tolerated before a clean-up, so that small queues never pay for one."""


class OrderedQueue:
    """`push` when an item enters the place, `left` right after its stamp has changed.

    An item that is alone has no entry: there are thousands of queues, and most never hold a second one.
    """

    __slots__ = ("_alone", "_alone_key", "_heap", "_run", "live")

    def __init__(self) -> None:
        self._alone: Item | None = None
        self._alone_key = 0
        self._run: deque[Entry] | None = None
        self._heap: list[Entry] | None = None
        self.live = 0

    def push(self, key: int, item: Item) -> None:
        if not self.live:
            self._alone = item
            self._alone_key = key
            self.live = 1
            return
        entry: Entry = (key, item.sequence_id, item.stamp, item)
        run = self._run
        if run is None:
            run = self._entries()
        if run is None:
            self._run = deque((entry,))
        elif run[-1] < entry:
            run.append(entry)
        else:
            self._push_aside(run, entry)
        self.live += 1

    def _push_aside(self, run: deque[Entry], entry: Entry) -> None:
        """Out of order: one of the two goes to the heap. When only the last of the run is in the way, it is that one
        (a lease that is longer than most, say), or all that come after it would be out of order too."""
        if len(run) == 1 or run[-2] < entry:
            last = run.pop()
            run.append(entry)
            entry = last
        if self._heap is None:
            self._heap = [entry]
        else:
            heappush(self._heap, entry)

    def _entries(self) -> deque[Entry] | None:
        """The run, begun by whoever was alone so far."""
        alone = self._alone
        if alone is not None:
            self._run = deque(((self._alone_key, alone.sequence_id, alone.stamp, alone),))
            self._alone = None
        return self._run

    def left(self, item: Item) -> None:
        """The item has a new stamp: drop it if it was first, and stale heads, so that readers need not look."""
        self.live = live = self.live - 1
        run = self._run
        if run is not None:
            first: Item = run[0][3]
            if first is item:
                run.popleft()
                if not run:
                    self._run = None
            if self._heap is None and len(run) == live:
                return
        elif self._alone is not None:
            self._alone = None
            return
        self._settle(live)

    def take_first(self) -> None:
        """Take the first item out although its stamp stays the same."""
        if self._alone is not None:
            self._alone = None
            self.live = 0
            return
        run, heap = self._run, self._heap
        if run is not None and not (heap is not None and heap[0] < run[0]):
            run.popleft()
            if not run:
                self._run = None
        elif heap is not None:
            heappop(heap)
            if not heap:
                self._heap = None
        self.live -= 1
        self._settle(self.live)

    def _settle(self, live: int) -> None:
        """There may be stale entries: take them off the heads, and clean up when they outnumber the live ones."""
        entries = 0
        run = self._run
        if run is not None:
            while run and _is_stale(run[0]):
                run.popleft()
            entries = len(run)
            if not entries:
                self._run = None
        heap = self._heap
        if heap is not None:
            while heap and _is_stale(heap[0]):
                heappop(heap)
            entries += len(heap)
            if not heap:
                self._heap = None
        if entries > 2 * live + _SLACK:
            self._compact()

    def first(self) -> Item | None:
        run = self._run
        heap = self._heap
        first: Item
        if heap is None:
            if run is None:
                return self._alone
            first = run[0][3]
        elif run is None or heap[0] < run[0]:
            first = heap[0][3]
        else:
            first = run[0][3]
        return first

    def first_key(self) -> int | None:
        """The smallest key, or None when the queue is empty."""
        run = self._run
        heap = self._heap
        key: int
        if heap is None:
            if run is None:
                return None if self._alone is None else self._alone_key
            key = run[0][0]
        elif run is None or heap[0] < run[0]:
            key = heap[0][0]
        else:
            key = run[0][0]
        return key

    def __iter__(self) -> Iterator[Item]:
        """Live items in order, read lazily and without changing anything: O(log n) for each one taken."""
        for entry in self._in_order():
            if entry[3].stamp == entry[2]:
                yield entry[3]

    def up_to(self, key: int, count_max: int) -> list[Item]:
        """At most `count_max` live items whose key is not above `key`, in order."""
        found: list[Item] = []
        for entry in self._in_order():
            if entry[0] > key or len(found) >= count_max:
                break
            if entry[3].stamp == entry[2]:
                found.append(entry[3])
        return found

    def _in_order(self) -> Iterator[Entry]:
        """All entries, stale ones among them."""
        alone = self._alone
        if alone is not None:
            return iter([(self._alone_key, alone.sequence_id, alone.stamp, alone)])
        entries: Iterator[Entry] = iter(self._run or ())
        return entries if self._heap is None else merge(entries, _in_order(self._heap))

    def _compact(self) -> None:
        run = [entry for entry in self._run or () if entry[3].stamp == entry[2]]
        heap = [entry for entry in self._heap or () if entry[3].stamp == entry[2]]
        if len(heap) > len(run):
            # Mostly out of order by now (a mass retry, say): sorting once makes the rest O(1) again.
            run = sorted(run + heap)
            heap = []
        heapify(heap)
        self._run = deque(run) if run else None
        self._heap = heap or None


def _is_stale(entry: Entry) -> bool:
    item: Item = entry[3]
    stamp: int = entry[2]
    return item.stamp != stamp


def _in_order(heap: list[Entry]) -> Iterator[Entry]:
    """Walk a heap from its root, smallest first, without taking it apart."""
    frontier = [(heap[0], 0)]
    while frontier:
        entry, at = heappop(frontier)
        yield entry
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(frontier, (heap[child], child))
