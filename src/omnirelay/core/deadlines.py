"""Leased items by deadline, and those of one deadline by id.

Leases of one call have one deadline and their ids are in any order, so there is a table of items per deadline, which is
put in order only when it is looked at. An item leaves by being taken out: nothing stale is left but deadlines.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, nsmallest
from typing import Final

from omnirelay.core.items import Item

_SLACK: Final = 64
"""Stale deadlines tolerated before a clean-up."""


class Deadlines:
    __slots__ = ("_by_deadline", "_deadline", "_items", "_order", "live")

    def __init__(self) -> None:
        self._by_deadline: dict[int, dict[int, Item]] = {}
        self._order: list[int] = []
        """A heap of deadlines. Those that nobody has any more are dropped when they are first or too many, and one that
        came back stands in it twice."""
        self._deadline = -1
        self._items: dict[int, Item] = {}
        """The deadline that was last asked for, and its table: one call's leases mostly come and go together."""
        self.live = 0

    def enter(self, deadline: int, item: Item) -> None:
        if deadline != self._deadline:
            items = self._by_deadline.get(deadline)
            if items is None:
                items = self._by_deadline[deadline] = {}
                heappush(self._order, deadline)
            self._deadline = deadline
            self._items = items
        self._items[item.sequence_id] = item
        self.live += 1

    def leave(self, deadline: int, item: Item) -> None:
        """The item is here under that deadline."""
        if deadline != self._deadline:
            self._items = self._by_deadline[deadline]
            self._deadline = deadline
        items = self._items
        del items[item.sequence_id]
        self.live -= 1
        if not items:
            del self._by_deadline[deadline]
            self._deadline = -1
            self._settle()

    def _settle(self) -> None:
        order = self._order
        while order and order[0] not in self._by_deadline:
            heappop(order)
        if len(order) > 2 * len(self._by_deadline) + _SLACK:
            self._order = sorted(self._by_deadline)

    def first_key(self) -> int | None:
        """The earliest deadline."""
        return self._order[0] if self._order else None

    def __iter__(self) -> Iterator[Item]:
        """All items in order, read lazily and without changing anything."""
        for deadline in self._in_order():
            items = self._by_deadline[deadline]
            for sequence_id in sorted(items):
                yield items[sequence_id]

    def up_to(self, deadline_max: int, count_max: int) -> list[Item]:
        """At most `count_max` items whose deadline is not above `deadline_max`, in order."""
        found: list[Item] = []
        for deadline in self._in_order():
            wanted = count_max - len(found)
            if deadline > deadline_max or wanted <= 0:
                break
            items = self._by_deadline[deadline]
            found += [items[sequence_id] for sequence_id in nsmallest(wanted, items)]
        return found

    def _in_order(self) -> Iterator[int]:
        """Deadlines that somebody has, each once: the heap walked from its root without taking it apart."""
        order = self._order
        frontier = [(order[0], 0)] if order else []
        last = -1
        while frontier:
            deadline, at = heappop(frontier)
            if deadline != last and deadline in self._by_deadline:
                last = deadline
                yield deadline
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(order):
                    heappush(frontier, (order[child], child))
