"""Which item is next, for everybody or for a call that takes only some. Reads only."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from omnirelay.core.items import Item
from omnirelay.core.lanes import Lane, Level, Share
from omnirelay.core.schedule import Schedule
from omnirelay.core.state import State

_GLOB_CHARACTERS = frozenset("*?[")
_KNOWN_MAX: Final = 10_000
"""Most resource types of which a list of globs remembers whether it takes them."""


Choice = tuple[Item | None, bool]
"""The item to grant, None when there is nothing; and whether the starvation guard chose it."""


def guard_is_due(state: State) -> bool:
    schedule = state.schedule
    return schedule.grants >= schedule.guard_at


def starving_levels(state: State, now_ms: int) -> list[Level]:
    """Classes that have offered something for too long without a turn, the one the guard looks at first in front."""
    schedule = state.schedule
    since = now_ms - state.options.starvation_after_ms
    found = [
        level for level in schedule.levels if schedule.offering >> level.number & 1 and level.waiting_since < since
    ]
    found.sort(key=_guard_order)
    return found


def _guard_order(level: Level) -> tuple[int, int]:
    return level.guarded_at, level.number


def next_item(state: State, now_ms: int) -> Choice:
    """What a call that takes anything gets."""
    schedule = state.schedule
    if guard_is_due(state) and schedule.offers:
        starving = starving_levels(state, now_ms)
        if starving:
            return starving[0].first().head(), True
    return schedule.first(), False


class Globs:
    """Resource types and globs of a call. What they take of a name never changes, and the same peers ask with the same
    globs again and again, about the same few names: matching them anew each time took most of a filtered call.
    """

    __slots__ = ("_globs", "_known")

    def __init__(self, globs: Iterable[str]) -> None:
        self._globs = tuple(globs)
        self._known: dict[str, bool] = {}

    def take(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._known[name] = any(fnmatchcase(name, glob) for glob in self._globs)
        return known


@lru_cache(maxsize=64)
def _globs_of(types: tuple[str, ...]) -> Globs:
    return Globs(types)


class Filter:
    """What a lease call takes: resource types by glob, tenants by name, resolved against what is there at the time."""

    __slots__ = ("_globs", "_names", "_tenants")

    def __init__(self, resource_types: Iterable[str] | None, tenants: Iterable[str] | None) -> None:
        types = None if resource_types is None else sorted(set(resource_types))
        self._names: list[str] | None = None
        self._globs: Globs | None = None
        if types is not None:
            if any(_GLOB_CHARACTERS.intersection(name) for name in types):
                self._globs = _globs_of(tuple(types))
            else:
                self._names = types
        self._tenants = None if tenants is None else sorted(set(tenants))

    def next_item(self, state: State, now_ms: int) -> Choice:
        schedule = state.schedule
        if not schedule.offers:
            return None, False
        if guard_is_due(state):
            for level in starving_levels(state, now_ms):
                item = self._first_of(level)
                if item is not None:
                    return item, True
        for level in _offering(schedule):
            item = self._first_of(level)
            if item is not None:
                return item, False
        return None, False

    def _first_of(self, level: Level) -> Item | None:
        """What the class has for this call: the first by turn among the shares and lanes that match."""
        best: Share | None = None
        best_item: Item | None = None
        for share in self._matching(level):
            if best is not None and (best.time, best.name) < (share.time, share.name):
                continue
            item = self._from_share(share)
            if item is not None:
                best, best_item = share, item
        return best_item

    def _matching(self, level: Level) -> list[Share]:
        shares = level.shares
        if self._names is not None:
            return [shares[name] for name in self._names if name in shares and shares[name].offering]
        globs = self._globs
        if globs is None:
            return [share for share in shares.values() if share.offering]
        return [share for share in shares.values() if share.offering and globs.take(share.name)]

    def _from_share(self, share: Share) -> Item | None:
        if self._tenants is None:
            return share.head()
        lanes = [share.lanes[name] for name in self._tenants if name in share.lanes and share.lanes[name].offering]
        if not lanes:
            return None
        item = min(lanes, key=_turn).head()
        # The type's limit was judged by the head of another lane.
        return item if share.scope is None or share.scope.fits(item.weight) else None


def _turn(lane: Lane) -> tuple[int, str]:
    return lane.time, lane.name


def _offering(schedule: Schedule) -> list[Level]:
    return [level for level in schedule.levels if schedule.offering >> level.number & 1]
