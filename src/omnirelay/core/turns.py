"""Taking turns by virtual time: the member with the lowest time is next, and a turn costs it time.

A member that comes back joins at the lowest time of those that are in, or at its own if that is later:
being away neither saves up turns nor loses any. Members that have nothing to offer are not in; what they are
remembered by is their time, and once everybody else has passed that, nothing is left to remember.
Ties are broken by name, so the order follows from names and times alone.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Final

SCALE: Final = 1 << 20
"""What one turn of weight 1 costs: large enough that a share of a thousandth is still exact."""

_SLACK: Final = 16
"""Stale entries tolerated before a clean-up."""


class Member:
    """Something that takes turns. `ticket` tells its present entry from those it left behind."""

    __slots__ = ("name", "offering", "ticket", "time")

    def __init__(self, name: str) -> None:
        self.name = name
        self.time = 0
        self.ticket = 0
        self.offering = False


class Turns:
    """A heap of (time, name, ticket, member) whose first entry is always a live one.

    A member that is alone has its turns without touching the heap: the time in its entry is made good when somebody
    joins.
    """

    __slots__ = ("_tickets", "floor", "heap", "highest", "live")

    def __init__(self) -> None:
        self.heap: list[tuple[int, str, int, Any]] = []
        """The members are lanes or shares; whoever takes one out says which."""
        self._tickets = 0
        """Counts entries: one that is forgotten and comes back must not be taken for what it left behind."""
        self.live = 0
        self.floor = 0
        """The time of the last turn: where a member joins when nobody is in."""
        self.highest = 0
        """The latest time any member has had."""

    def least(self) -> int:
        """The time at which somebody would join now."""
        return self.heap[0][3].time if self.heap else self.floor

    def join(self, member: Member) -> None:
        least = self.least()
        if member.time < least:
            member.time = least
        self.put(member)

    def put(self, member: Member) -> None:
        """Let a member in at the time it has: for a state that is being loaded."""
        member.offering = True
        self._tickets += 1
        member.ticket = self._tickets
        self.live += 1
        heap = self.heap
        if len(heap) == 1:
            alone: Member = heap[0][3]
            heap[0] = (alone.time, alone.name, alone.ticket, alone)
        heappush(heap, (member.time, member.name, member.ticket, member))

    def leave(self, member: Member) -> None:
        member.offering = False
        member.ticket = 0
        self.live -= 1
        self._settle()

    def charge(self, member: Member, cost: int) -> None:
        """The member has its turn."""
        heap = self.heap
        self.floor = heap[0][3].time
        member.time += cost
        if member.time > self.highest:
            self.highest = member.time
        if len(heap) == 1:
            return
        if heap[0][3] is member:
            heapreplace(heap, (member.time, member.name, member.ticket, member))
        else:
            self._tickets += 1
            member.ticket = self._tickets
            heappush(heap, (member.time, member.name, member.ticket, member))
        self._settle()

    def _settle(self) -> None:
        heap = self.heap
        while heap and heap[0][2] != heap[0][3].ticket:
            heappop(heap)
        if len(heap) > 2 * self.live + _SLACK:
            self.heap = [entry for entry in heap if entry[2] == entry[3].ticket]
            heapify(self.heap)

    def start_over(self) -> None:
        """Everybody is gone. Who comes next owes nobody anything, and nobody's past has to be remembered."""
        self.floor = self.highest
