"""Taking turns by virtual time: the member with the lowest time is next, and a turn costs it time.

A member that comes back joins at the lowest time of those that are in, or at its own if that is later:
being away neither saves up turns nor loses any. Where nobody was in, time has stood still: until somebody has a turn
again, whoever comes joins where the last one was, so that it does not matter who comes back first. Members that have
nothing to offer are not in; what they are remembered by is their time, and once everybody else has passed that,
nothing is left to remember.
Ties are broken by name, so the order follows from names and times alone.

Turns mostly cost the same, so many members have one time: those of the lowest are a round, put in order once when it
begins, and whoever has had a turn goes to the end of a later one.
"""

from __future__ import annotations

from bisect import bisect
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, Final

SCALE: Final = 1 << 20
"""What one turn of weight 1 costs: large enough that a share of a thousandth is still exact."""

_SLACK: Final = 16
"""Stale entries tolerated before a clean-up."""

# What every turn asks for; compiled code would look a name up in its module each time.
_bisect: Final = bisect
_heappop: Final = heappop
_heappush: Final = heappush
_name: Final = attrgetter("name")


class Member:
    """Something that takes turns."""

    __slots__ = ("name", "offering", "time")

    def __init__(self, name: str) -> None:
        self.name = name
        self.time = 0
        self.offering = False


class Turns:
    """The members that are in, and which of them is first.

    One that is alone is in no round: it has its turns without touching any, and most never get company. Of the others,
    an entry is stale when its member is not in any more or has another time than the round. The first is never stale.
    """

    __slots__ = (
        "_at",
        "_entries",
        "_later",
        "_names",
        "_round",
        "_time",
        "_times",
        "first",
        "floor",
        "highest",
        "live",
        "still",
    )

    def __init__(self) -> None:
        self.first: Any = None
        """The member whose turn it is. They are lanes or shares; whoever takes one out says which."""
        self._round: list[Any] = []
        """Members by name, from `_at` on; empty while nobody has company."""
        self._names: list[str] = []
        """Their names, as soon as somebody joins this round; or empty."""
        self._at = 0
        self._time = 0
        """The time they have."""
        self._later: dict[int, list[Any]] = {}
        """Those of later times, in no order …"""
        self._times: list[int] = []
        """… and a heap of these times."""
        self._entries = 0
        """In this round and later ones, stale or not."""
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
        if not self._entries:
            self._begin(self.first)
        self._enter(member)
        self.first = self._round[self._at]

    def leave(self, member: Member) -> None:
        member.offering = False
        self.live = live = self.live - 1
        if live:
            self._settle()
            return
        self.first = None
        self.still = True
        if self._entries:
            self._clear()

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
        elif self._entries:
            self._enter(member)
            self._settle()

    def start_over(self) -> None:
        """Everybody is gone. Who comes next owes nobody anything, and nobody's past has to be remembered."""
        self.floor = self.highest

    # -- rounds --------------------------------------------------------------------------------

    def _begin(self, member: Member) -> None:
        self._round = [member]
        self._names = []
        self._at = 0
        self._time = member.time
        self._entries = 1

    def _clear(self) -> None:
        self._round.clear()
        self._names.clear()
        self._at = 0
        self._later.clear()
        self._times.clear()
        self._entries = 0

    def _enter(self, member: Member) -> None:
        """Put a member where its time belongs."""
        self._entries += 1
        time = member.time
        if time > self._time:
            self._put_off(time, member)
        elif time == self._time:
            names = self._names
            if not names:
                names = self._names = [each.name for each in self._round]
            place = _bisect(names, member.name, self._at)
            names.insert(place, member.name)
            self._round.insert(place, member)
        else:
            # Where time stands still, one may join before all others.
            for other in self._round[self._at :]:
                self._put_off(self._time, other)
            self._round = [member]
            self._names = []
            self._at = 0
            self._time = time

    def _put_off(self, time: int, member: Member) -> None:
        later = self._later.get(time)
        if later is None:
            self._later[time] = [member]
            _heappush(self._times, time)
        else:
            later.append(member)

    def _settle(self) -> None:
        """Somebody left or has another time: find who is first now."""
        members = self._round
        at = self._at
        time = self._time
        while True:
            if at == len(members):
                time = self._time = _heappop(self._times)
                members = self._round = self._later.pop(time)
                self._names = []
                if len(members) > 1:
                    members.sort(key=_name)
                at = 0
            first: Member = members[at]
            if first.offering and first.time == time:
                break
            at += 1
            self._entries -= 1
        self._at = at
        self.first = first
        if len(members) + self._entries > 3 * self.live + _SLACK:
            self._tidy()

    def _tidy(self) -> None:
        """Drop what is stale, and those who have had their turn in this round."""
        found: dict[str, Member] = {}
        member: Member
        for member in self._round[self._at :]:
            if member.offering and member.time == self._time:
                found[member.name] = member
        for time, members in self._later.items():
            for member in members:
                if member.offering and member.time == time:
                    found[member.name] = member
        self._clear()
        self._begin(self.first)
        for member in found.values():
            if member is not self.first:
                self._enter(member)
