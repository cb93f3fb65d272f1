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
        self.heap: list[tuple[Any, ...]] = []
        """The members are lanes or shares; whoever takes one out says which. The type of an entry says no more, because
        compiled code would take every entry apart that it only looks at."""
        self._tickets = 0
        """Counts entries: one that is forgotten and comes back must not be taken for what it left behind."""
        self.live = 0
        self.floor = 0
        """The time of the last turn: where a member joins when nobody is in."""
        self.highest = 0
        """The latest time any member has had."""

    def least(self) -> int:
        """The time at which somebody would join now."""
        if not self.heap:
            return self.floor
        first: Member = self.heap[0][3]
        return first.time

    def join(self, member: Member) -> None:
        least = self.least()
        if member.time < least:
            member.time = least
        self.put(member)

    def put(self, member: Member) -> None:
        """Let a member in at the time it has: for a state that is being loaded."""
        self._tickets = ticket = self._tickets + 1
        member.offering = True
        member.ticket = ticket
        self.live += 1
        heap = self.heap
        entry = (member.time, member.name, ticket, member)
        if not heap:
            heap.append(entry)
            return
        if len(heap) == 1:
            alone: Member = heap[0][3]
            heap[0] = (alone.time, alone.name, alone.ticket, alone)
        heappush(heap, entry)

    def leave(self, member: Member) -> None:
        member.offering = False
        member.ticket = 0
        self.live -= 1
        self._settle()

    def charge(self, member: Member, cost: int, stays: bool) -> None:
        """The member has its turn, and leaves with it unless it stays."""
        heap = self.heap
        first: Member = heap[0][3]
        self.floor = first.time
        member.time = time = member.time + cost
        if time > self.highest:
            self.highest = time
        if not stays:
            member.offering = False
            member.ticket = 0
            self.live -= 1
        elif len(heap) == 1:
            return
        elif first is member:
            heapreplace(heap, (time, member.name, member.ticket, member))
        else:
            self._tickets = ticket = self._tickets + 1
            member.ticket = ticket
            heappush(heap, (time, member.name, ticket, member))
        self._settle()

    def _settle(self) -> None:
        heap = self.heap
        while heap:
            entry = heap[0]
            first: Member = entry[3]
            ticket: int = entry[2]
            if first.ticket == ticket:
                break
            heappop(heap)
        if len(heap) > 2 * self.live + _SLACK:
            self.heap = [entry for entry in heap if entry[3].ticket == entry[2]]
            heapify(self.heap)

    def start_over(self) -> None:
        """Everybody is gone. Who comes next owes nobody anything, and nobody's past has to be remembered."""
        self.floor = self.highest
