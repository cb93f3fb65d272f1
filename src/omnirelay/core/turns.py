"""Taking turns by virtual time: the member with the lowest time is next, and a turn costs it time.

A member that comes back joins at the lowest time of those that are in, or at its own if that is later:
being away neither saves up turns nor loses any. Where nobody was in, time has stood still: until somebody has a turn
again, whoever comes joins where the last one was, so that it does not matter who comes back first. Members that have
nothing to offer are not in; what they are remembered by is their time, and once everybody else has passed that,
nothing is left to remember.
Ties are broken by name, so the order follows from names and times alone.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Final

SCALE: Final = 1 << 20
"""What one turn of weight 1 costs: large enough that a share of a thousandth is still exact."""

_SLACK: Final = 16
"""Stale entries tolerated before a clean-up."""

# What every turn asks for; compiled code would look a name up in its module each time.
_heappop: Final = heappop
_heappush: Final = heappush
_heapreplace: Final = heapreplace


class Member:
    """Something that takes turns. `ticket` tells its present entry from those it left behind."""

    __slots__ = ("name", "offering", "ticket", "time")

    def __init__(self, name: str) -> None:
        self.name = name
        self.time = 0
        self.ticket = 0
        self.offering = False


class Turns:
    """The members that are in, and which of them is first.

    One that is alone is not in the heap: it has its turns without touching it, and most never get company. Otherwise
    the heap holds (time, name, ticket, member), and its first entry is always a live one.
    """

    __slots__ = ("_heap", "_tickets", "first", "floor", "highest", "live", "still")

    def __init__(self) -> None:
        self.first: Any = None
        """The member whose turn it is. They are lanes or shares; whoever takes one out says which."""
        self._heap: list[tuple[Any, ...]] = []
        """The type of an entry says no more, because compiled code would take every entry apart that it only looks
        at."""
        self._tickets = 0
        """Counts entries: one that is forgotten and comes back must not be taken for what it left behind."""
        self.live = 0
        self.floor = 0
        """The time of the last turn: where a member joins when nobody is in."""
        self.highest = 0
        """The latest time any member has had."""
        self.still = True
        """Nobody has had a turn since nobody was in."""

    @property
    def still_matters(self) -> bool:
        """Whether that is to be remembered: with nobody in it is always so, and where no time is later than the last
        turn everybody joins there anyhow."""
        return self.still and self.live > 0 and self.highest > self.floor

    def least(self) -> int:
        """The time at which somebody would join now."""
        if self.still:
            return self.floor
        first: Member = self.first
        return first.time

    def join(self, member: Member) -> None:
        least = self.least()
        if member.time < least:
            member.time = least
        self.put(member)

    def put(self, member: Member) -> None:
        """Let a member in at the time it has: for a state that is being loaded."""
        member.offering = True
        self.live = live = self.live + 1
        if live == 1:
            self.first = member
            return
        heap = self._heap
        if not heap:
            self._push(self.first)
        self._push(member)
        self.first = heap[0][3]

    def _push(self, member: Member) -> None:
        self._tickets = ticket = self._tickets + 1
        member.ticket = ticket
        _heappush(self._heap, (member.time, member.name, ticket, member))

    def leave(self, member: Member) -> None:
        member.offering = False
        member.ticket = 0
        self.live -= 1
        self._settle()

    def charge(self, member: Member, cost: int, stays: bool) -> None:
        """The member has its turn, and leaves with it unless it stays."""
        first: Member = self.first
        self.floor = first.time
        self.still = False
        member.time = time = member.time + cost
        if time > self.highest:
            self.highest = time
        if not stays:
            self.leave(member)
            return
        heap = self._heap
        if not heap:
            return
        if first is member:
            _heapreplace(heap, (time, member.name, member.ticket, member))
        else:
            self._push(member)
        self._settle()

    def _settle(self) -> None:
        """Somebody left or has another time."""
        heap = self._heap
        live = self.live
        if not live:
            self.first = None
            self.still = True
            if heap:
                heap.clear()
            return
        while True:
            entry = heap[0]
            first: Member = entry[3]
            ticket: int = entry[2]
            if first.ticket == ticket:
                break
            _heappop(heap)
        self.first = first
        if len(heap) > 2 * live + _SLACK:
            self._heap = [entry for entry in heap if entry[3].ticket == entry[2]]
            heapify(self._heap)

    def start_over(self) -> None:
        """Everybody is gone. Who comes next owes nobody anything, and nobody's past has to be remembered."""
        self.floor = self.highest
