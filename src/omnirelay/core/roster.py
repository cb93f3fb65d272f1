"""The ready items of a shard in the order they became ready, for counting and listing; granting looks elsewhere.

Appending is all that the hot path pays: an item that is no longer ready stays in the line until it reaches
the front or until such entries outnumber the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from omnirelay.core.items import READY, Item

_SLACK: Final = 1_024


class Roster:
    __slots__ = ("_line", "live")

    def __init__(self) -> None:
        self._line: deque[Item] = deque()
        """Holds an item twice when it was ready, was not, and is again."""
        self.live = 0

    def enter(self, item: Item) -> None:
        self._line.append(item)
        self.live += 1

    def left(self) -> None:
        """An item is about to be, or already is, in another state."""
        self.live = live = self.live - 1
        if len(self._line) > 2 * live + _SLACK:
            self._line = deque(self)

    def first(self) -> Item | None:
        """The one that has been ready for longest. Drops what it finds before it: nobody looks at that twice."""
        line = self._line
        while line and line[0].state != READY:
            line.popleft()
        return line[0] if line else None

    def __iter__(self) -> Iterator[Item]:
        seen: set[int] = set()
        for item in self._line:
            if item.state == READY and item.sequence_id not in seen:
                seen.add(item.sequence_id)
                yield item
