"""A queue ordered by key that is O(1) when keys arrive in order, and O(log n) otherwise.

Items mostly come in order: ids rise, deadlines rise. Those go to the end of a list. What comes
out of order (a retry, a released item, a shorter lease) goes to a heap beside it; the first of
the queue is the smaller of the two heads. Nothing is searched for: an item that leaves from the
middle just changes its `stamp`, which makes its entry stale, and stale entries are dropped when
they reach a head or when they outnumber the live ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from typing import Any, Final, TypeAlias

from omnirelay.core.items import Item

Entry: TypeAlias = tuple[Any, ...]
"""(key, sequence id, stamp, item). Live while the item bears this stamp; no two entries share the first three. The type
says no more, because compiled code would take every entry apart that it only looks at."""

_SLACK: Final = 64
"""Stale entries tolerated before a clean-up, so that small queues never pay for one."""

_GONE: Final[Entry] = ()
"""In the place of an entry that was first."""

# What most pushes and takes ask for; compiled code would look a name up in its module each time.
_heappop: Final = heappop
_heappush: Final = heappush


class OrderedQueue:
    """`push` when an item enters the place, `left` right after its stamp has changed.

    An item that is alone has no entry: there are thousands of queues, and most never hold a second one.
    """

    __slots__ = ("_alone", "_alone_key", "_heap", "_run", "_start", "live")

    def __init__(self) -> None:
        self._alone: Item | None = None
        self._alone_key = 0
        self._run: list[Entry] | None = None
        """Entries in order from `_start` on. Where keys have queues there are too many for a deque in each."""
        self._start = 0
        self._heap: list[Entry] | None = None
        self.live = 0

    def push(self, key: int, item: Item) -> None:
        live = self.live
        self.live = live + 1
        if not live:
            self._alone = item
            self._alone_key = key
            return
        number: Any = key
        same = key == item.sequence_id  # In a lane, mostly; compiled code would make two objects of it.
        entry: Entry = (number, number if same else item.sequence_id, item.stamp, item)
        run = self._run
        if run is None:
            alone = self._alone
            if alone is None:
                self._run = [entry]
                return
            run = self._run = [(self._alone_key, alone.sequence_id, alone.stamp, alone)]
            self._alone = None
        last = run[-1]
        last_key: int = last[0]
        if last_key < key or last < entry:
            run.append(entry)
        else:
            self._push_aside(run, entry)

    def _push_aside(self, run: list[Entry], entry: Entry) -> None:
        """Out of order: one of the two goes to the heap. When only the last of the run is in the way, it is that one
        (a delay that is longer than most, say), or all that come after it would be out of order too."""
        if len(run) - self._start == 1 or run[-2] < entry:
            last = run[-1]
            run[-1] = entry
            entry = last
        if self._heap is None:
            self._heap = [entry]
        else:
            _heappush(self._heap, entry)

    def left(self, item: Item) -> None:
        """The item has a new stamp: drop it if it was first, and stale heads, so that readers need not look."""
        self.live = live = self.live - 1
        run = self._run
        if run is not None:
            start = self._start
            first: Item = run[start][3]
            if first is item:
                run[start] = _GONE
                self._start = start = start + 1
                if 2 * start > len(run):
                    self._trim(run)
                elif self._heap is None and len(run) - start == live:
                    return
        elif self._alone is not None:
            self._alone = None
            return
        self._settle(live)

    def take_first(self) -> None:
        """Take the first item out although its stamp stays the same."""
        self.live = live = self.live - 1
        if self._alone is not None:
            self._alone = None
            return
        run, heap = self._run, self._heap
        if run is not None and not (heap is not None and heap[0] < run[self._start]):
            self._drop_first(run)
        elif heap is not None:
            _heappop(heap)
            if not heap:
                self._heap = None
        self._settle(live)

    def _drop_first(self, run: list[Entry]) -> None:
        start = self._start
        run[start] = _GONE
        self._start = start = start + 1
        if 2 * start > len(run):
            self._trim(run)

    def _trim(self, run: list[Entry]) -> None:
        """Half of the run is gone."""
        start = self._start
        if start == len(run):
            self._run = None
            self._start = 0
        elif start > _SLACK:
            del run[:start]
            self._start = 0

    def _settle(self, live: int) -> None:
        """If there are stale entries, take them off the heads, and clean up when they outnumber the live ones."""
        run, heap = self._run, self._heap
        entries = 0 if run is None else len(run) - self._start
        if heap is not None:
            entries += len(heap)
        if entries == live:
            return
        while run is not None and _is_stale(run[self._start]):
            self._drop_first(run)
            run = self._run
            entries -= 1
        if heap is not None:
            while heap and _is_stale(heap[0]):
                _heappop(heap)
                entries -= 1
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
            first = run[self._start][3]
        elif run is None or heap[0] < run[self._start]:
            first = heap[0][3]
        else:
            first = run[self._start][3]
        return first

    def first_key(self) -> int | None:
        """The smallest key, or None when the queue is empty."""
        for entry in self._in_order():
            key: int = entry[0]
            return key
        return None

    def __iter__(self) -> Iterator[Item]:
        """Live items in order, read lazily and without changing anything: O(log n) for each one taken."""
        for entry in self._in_order():
            if not _is_stale(entry):
                yield entry[3]

    def up_to(self, key: int, count_max: int) -> list[Item]:
        """At most `count_max` live items whose key is not above `key`, in order."""
        found: list[Item] = []
        for entry in self._in_order():
            if entry[0] > key or len(found) >= count_max:
                break
            if not _is_stale(entry):
                found.append(entry[3])
        return found

    def _in_order(self) -> Iterator[Entry]:
        """All entries, stale ones among them."""
        alone = self._alone
        if alone is not None:
            return iter([(self._alone_key, alone.sequence_id, alone.stamp, alone)])
        entries: Iterator[Entry] = iter(()) if self._run is None else islice(self._run, self._start, None)
        return entries if self._heap is None else merge(entries, _in_order(self._heap))

    def _compact(self) -> None:
        entries = list(islice(self._run or (), self._start, None))
        run = [entry for entry in entries if not _is_stale(entry)]
        heap = [entry for entry in self._heap or () if not _is_stale(entry)]
        if len(heap) > len(run):
            # Mostly out of order by now (a mass retry, say): sorting once makes the rest O(1) again.
            run = sorted(run + heap)
            heap = []
        heapify(heap)
        self._run = run or None
        self._start = 0
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
