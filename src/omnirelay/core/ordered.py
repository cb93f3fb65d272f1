"""A queue in order that is O(1) when items arrive in order, and O(log n) otherwise.

Items mostly come in order: ids rise, and so do the ends of delays. Those go to the end of a list, the run, and the one
before them is not even looked at: where there are many queues, it lies cold. What belongs to the front of the run or
near its end is put there. Anything else that is out of order (a retry, a released item, a shorter delay) goes to a heap
beside it; the first of the queue is the smaller of the two heads. Nothing is searched for: an item that leaves from the
middle stays where it is in the run, marked as left behind, and is dropped when it reaches the head or when those
outnumber the others. Its entry in a heap is known to be stale by the item's stamp, which has changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heapify, heappop, heappush, merge
from itertools import islice
from typing import Any, Final, TypeAlias

from omnirelay.core.items import Item

Entry: TypeAlias = tuple[Any, ...]
"""(key, sequence id, stamp, item), in a heap. Live while the item bears this stamp; no two entries share the first
three. The type says no more, because compiled code would take every entry apart that it only looks at."""

_BY_ORDER: Final = 1
_BY_TIME: Final = 4
"""What marks an item that is in the run of such a queue. The next bit marks one that a run still holds although it
left; until it is dropped there, it goes to heaps, or the run would take it for one that is in."""

_SLACK: Final = 64
"""Stale entries tolerated before a clean-up, so that small queues never pay for one."""

_NEAR: Final = 16
"""So many places from the end of a run something that is out of order may go …"""

_MOVED_MAX: Final = 1_024
"""… and so many items may have to move for one that goes to the front."""

# What most pushes and takes ask for; compiled code would look a name up in its module each time.
_heappop: Final = heappop
_heappush: Final = heappush


class OrderedQueue:
    """By the order of items, or by the time they are delayed to. `push` when an item enters the place, `left` right
    after its stamp has changed. An item is in at most one queue of each sort.

    An item that is alone has no entry: there are thousands of queues, and most never hold a second one.
    """

    __slots__ = ("_alone", "_heap", "_last", "_mark", "_run", "_start", "live")

    def __init__(self, *, by_time: bool = False) -> None:
        self._mark = _BY_TIME if by_time else _BY_ORDER
        self._alone: Item | None = None
        self._run: list[Any] | None = None
        """Items in order from `_start` on, of which the first is in the queue. Where keys have queues there are too
        many for a deque in each."""
        self._start = 0
        self._last = 0
        """No key in the run is above this."""
        self._heap: list[Entry] | None = None
        self.live = 0

    def _key(self, item: Item) -> int:
        if self._mark == _BY_ORDER:
            return item.order
        time = item.not_before
        assert time is not None, "only what is delayed is in a queue by time"
        return time

    def _precedes(self, one: Item, other: Item) -> bool:
        key = self._key(one)
        limit = self._key(other)
        return key < limit or (key == limit and one.sequence_id < other.sequence_id)

    # -- coming --------------------------------------------------------------------------------

    def push(self, item: Item) -> None:
        live = self.live
        self.live = live + 1
        if not live:
            self._alone = item
            return
        alone = self._alone
        if alone is not None:
            self._alone = None
            self._line_up(alone)
        self._line_up(item)

    def _line_up(self, item: Item) -> None:
        mark = self._mark
        if item.place & (mark << 1):
            self._put_in_heap(item)
            return
        run = self._run
        key = self._key(item)
        if run is None:
            self._run = [item]
            self._last = key
        elif key > self._last:
            run.append(item)
            self._last = key
        elif not self._fit_in(run, item):
            self._put_in_heap(item)
            return
        item.place |= mark

    def _fit_in(self, run: list[Any], item: Item) -> bool:
        """Put an item that is out of order into the run, if its place is the front or near the end."""
        start = self._start
        first: Item = run[start]
        if self._precedes(item, first):
            if start:
                self._start = start = start - 1
                run[start] = item
            elif len(run) <= _MOVED_MAX:
                run.insert(0, item)
            else:
                return False
            return True
        mark = self._mark
        at = len(run)
        stop = at - _NEAR if at - _NEAR > start else start
        while at > stop:
            other: Item = run[at - 1]
            if other.place & mark and self._precedes(other, item):
                run.insert(at, item)
                return True
            at -= 1
        return False

    def _put_in_heap(self, item: Item) -> None:
        entry: Entry = (self._key(item), item.sequence_id, item.stamp, item)
        if self._heap is None:
            self._heap = [entry]
        else:
            _heappush(self._heap, entry)

    # -- leaving -------------------------------------------------------------------------------

    def left(self, item: Item) -> None:
        """The item has a new stamp: drop it if it was first, and stale heads, so that readers need not look."""
        self.live = live = self.live - 1
        if self._alone is not None:
            self._alone = None
            return
        run = self._run
        mark = self._mark
        place = item.place
        if run is not None and place & mark:
            start = self._start
            if run[start] is item:
                run[start] = None
                item.place = place & ~mark
                self._start = start = start + 1
                if 2 * start > len(run):
                    self._trim(run)
                elif self._heap is None and len(run) - start == live:
                    return
            else:
                item.place = (place & ~mark) | (mark << 1)
        self._settle(live)

    def take_first(self) -> None:
        """Take the first item out although its stamp stays the same."""
        self.live = live = self.live - 1
        if self._alone is not None:
            self._alone = None
            return
        run, heap = self._run, self._heap
        if run is not None and not (heap is not None and self._heap_is_first(heap, run)):
            self._drop_first(run, self._mark)
        elif heap is not None:
            _heappop(heap)
            if not heap:
                self._heap = None
        self._settle(live)

    def _heap_is_first(self, heap: list[Entry], run: list[Any]) -> bool:
        first: Item = run[self._start]
        limit = self._key(first)
        entry = heap[0]
        key: int = entry[0]
        number: int = entry[1]
        return key < limit or (key == limit and number < first.sequence_id)

    def _drop_first(self, run: list[Any], mark: int) -> None:
        """Take the first out of the run, and what marks it off the item."""
        start = self._start
        first: Item = run[start]
        first.place &= ~mark
        run[start] = None
        self._start = start = start + 1
        if 2 * start > len(run):
            self._trim(run)

    def _trim(self, run: list[Any]) -> None:
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
        mark = self._mark
        while run is not None:
            first: Item = run[self._start]
            if first.place & mark:
                break
            self._drop_first(run, mark << 1)
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

    def _compact(self) -> None:
        mark = self._mark
        behind = mark << 1
        run: list[Any] = []
        for item in islice(self._run or (), self._start, None):
            if item.place & mark:
                run.append(item)
            else:
                item.place &= ~behind
        heap = [entry for entry in self._heap or () if not _is_stale(entry)]
        if len(heap) > len(run):
            # Mostly out of order by now (a mass retry, say): sorting once makes the rest O(1) again.
            run += [entry[3] for entry in heap if not entry[3].place & behind]
            run.sort(key=self._place)
            for item in run:
                item.place |= mark
            heap = [entry for entry in heap if entry[3].place & behind]
        heapify(heap)
        self._run = run or None
        self._start = 0
        self._last = self._key(run[-1]) if run else 0
        self._heap = heap or None

    def _place(self, item: Item) -> tuple[int, int]:
        return self._key(item), item.sequence_id

    # -- looking -------------------------------------------------------------------------------

    def first(self) -> Item | None:
        run = self._run
        heap = self._heap
        first: Item
        if heap is None:
            if run is None:
                return self._alone
            first = run[self._start]
        elif run is None or self._heap_is_first(heap, run):
            first = heap[0][3]
        else:
            first = run[self._start]
        return first

    def first_key(self) -> int | None:
        """The smallest key, or None when the queue is empty."""
        first = self.first()
        return None if first is None else self._key(first)

    def __iter__(self) -> Iterator[Item]:
        """Items in order, read lazily and without changing anything: O(log n) for each one taken."""
        alone = self._alone
        if alone is not None:
            return iter([alone])
        items = iter(()) if self._run is None else self._in_run(self._run)
        if self._heap is None:
            return items
        return merge(items, _in_order(self._heap), key=self._place)

    def _in_run(self, run: list[Any]) -> Iterator[Item]:
        mark = self._mark
        for item in islice(run, self._start, None):
            if item.place & mark:
                yield item

    def count_below(self, key: int) -> int | None:
        """How many items have a smaller key; None where they would have to be looked at one by one."""
        alone = self._alone
        if alone is not None:
            return 1 if self._key(alone) < key else 0
        run = self._run
        if run is None or self._heap is not None or len(run) - self._start != self.live:
            return None
        return bisect_left(run, key, self._start, key=self._key) - self._start

    def up_to(self, key: int, count_max: int) -> list[Item]:
        """At most `count_max` items whose key is not above `key`, in order."""
        found: list[Item] = []
        for item in self:
            if self._key(item) > key or len(found) >= count_max:
                break
            found.append(item)
        return found


def _is_stale(entry: Entry) -> bool:
    item: Item = entry[3]
    stamp: int = entry[2]
    return item.stamp != stamp


def _in_order(heap: list[Entry]) -> Iterator[Item]:
    """Walk a heap from its root, smallest first, without taking it apart."""
    frontier = [(heap[0], 0)]
    while frontier:
        entry, at = heappop(frontier)
        if not _is_stale(entry):
            yield entry[3]
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(frontier, (heap[child], child))
