"""Those that wait under a key: by class, and within a class by age.

There is a queue per class that more than one waits in. Whoever is the only one of a class needs none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from omnirelay.core.items import Item
from omnirelay.core.ordered import OrderedQueue

CLASSES: Final = 10


class Waiting:
    """`live` counts them. Compiled, what inherits this has it within: one place in memory less to wait for."""

    __slots__ = ("_classes", "_first", "live")

    def __init__(self) -> None:
        self._classes: list[Any] | None = None
        """An `OrderedQueue`, the only item, or None; made when somebody comes."""
        self._first = 0
        """The first class that somebody waits in."""
        self.live = 0

    def push(self, level: int, item: Item) -> None:
        classes = self._classes
        if classes is None:
            classes = self._classes = [None] * CLASSES
        there = classes[level]
        if there is None:
            classes[level] = item
        elif isinstance(there, OrderedQueue):
            there.push(item)
        else:
            queue = OrderedQueue()
            queue.push(there)
            queue.push(item)
            classes[level] = queue
        if not self.live or level < self._first:
            self._first = level
        self.live += 1

    def left(self, level: int, item: Item) -> None:
        """The item has a new stamp."""
        classes = self._classes
        assert classes is not None, "what does not stand waits"
        there = classes[level]
        if isinstance(there, OrderedQueue):
            there.left(item)
            self._shrunk(classes, level, there.live)
        else:
            self._shrunk(classes, level, 0)

    def take_first(self) -> None:
        """Take the first item out although its stamp stays the same."""
        classes = self._classes
        assert classes is not None
        there = classes[self._first]
        if isinstance(there, OrderedQueue):
            there.take_first()
            self._shrunk(classes, self._first, there.live)
        else:
            self._shrunk(classes, self._first, 0)

    def _shrunk(self, classes: list[Any], level: int, left: int) -> None:
        self.live = live = self.live - 1
        if left:
            return
        classes[level] = None
        if live and level == self._first:
            while classes[level] is None:
                level += 1
            self._first = level

    def first(self) -> Item | None:
        classes = self._classes
        if classes is None:
            return None
        there = classes[self._first]
        if isinstance(there, OrderedQueue):
            return there.first()
        only: Item | None = there
        return only

    def in_order(self) -> Iterator[Item]:
        """All of them, without changing anything."""
        for there in self._classes or ():
            if isinstance(there, OrderedQueue):
                yield from there
            elif there is not None:
                yield there
