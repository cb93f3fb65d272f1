"""Those that wait under a key: by class, and within a class by age.

There is a queue per class that somebody waits in. Most hold one item, which costs no entry and no comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from omnirelay.core.items import Item
from omnirelay.core.ordered import OrderedQueue

CLASSES: Final = 10


class Waiting:
    __slots__ = ("_first", "_queues", "live")

    def __init__(self) -> None:
        self._queues: list[OrderedQueue | None] = [None] * CLASSES
        self._first = 0
        """The first class that somebody waits in."""
        self.live = 0

    def push(self, level: int, item: Item) -> None:
        queue = self._queues[level]
        if queue is None:
            queue = self._queues[level] = OrderedQueue()
        queue.push(item)
        if not self.live or level < self._first:
            self._first = level
        self.live += 1

    def left(self, level: int, item: Item) -> None:
        """The item has a new stamp."""
        queue = self._queues[level]
        assert queue is not None, "what does not stand waits"
        queue.left(item)
        self._shrunk(level, queue)

    def take_first(self) -> None:
        """Take the first item out although its stamp stays the same."""
        queue = self._queues[self._first]
        assert queue is not None
        queue.take_first()
        self._shrunk(self._first, queue)

    def _shrunk(self, level: int, queue: OrderedQueue) -> None:
        self.live = live = self.live - 1
        if queue.live:
            return
        self._queues[level] = None
        if live and level == self._first:
            while self._queues[level] is None:
                level += 1
            self._first = level

    def first(self) -> Item | None:
        queue = self._queues[self._first]
        return None if queue is None else queue.first()

    def __iter__(self) -> Iterator[Item]:
        """In order, without changing anything."""
        for queue in self._queues:
            if queue is not None:
                yield from queue
