"""What limits and pauses speak of: a resource type or a tenant, with what its live leases weigh."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

from omnirelay.core.options import Limit


class Scope:
    """One resource type or tenant that has a limit or is paused."""

    __slots__ = ("blocked", "limit", "name", "paused", "used")

    def __init__(self, name: str, limit: int | None) -> None:
        self.name = name
        self.limit = limit
        self.used = 0
        """Weight of the live leases; exact only where there is a limit."""
        self.paused = False
        self.blocked = False
        """Something is held back here, so every change has to be looked at."""

    def fits(self, weight: int) -> bool:
        """Whether a lease of this weight may be granted; one that is heavier than the limit runs alone."""
        return self.limit is None or self.used == 0 or self.used + weight <= self.limit

    def open_for(self, heaviest: int) -> bool:
        """Whether nothing here can possibly be held back."""
        if self.paused or self.blocked:
            return False
        return self.limit is None or self.used + heaviest <= self.limit


class Scopes:
    """The scopes of one kind, found by name; most names have none."""

    __slots__ = ("_by", "_limits", "_none", "_scopes", "any")

    def __init__(self, by: Literal["type", "tenant"], limits: tuple[Limit, ...]) -> None:
        self._by = by
        self._limits = [limit for limit in limits if limit.by == by]
        self._scopes: dict[str, Scope] = {}
        self._none: set[str] = set()
        """Names that no limit speaks of, so that globs are matched once per name."""
        self.any = bool(self._limits)

    def find(self, name: str) -> Scope | None:
        scope = self._scopes.get(name)
        if scope is None and name not in self._none:
            limit = limit_of(self._limits, name)
            if limit is None:
                if len(self._none) >= NAMES_MAX:
                    self._none.clear()
                self._none.add(name)
            else:
                scope = self._scopes[name] = Scope(name, limit)
        return scope

    def known(self, name: str) -> Scope | None:
        """The scope of a name, if there is one by now."""
        return self._scopes.get(name)

    def all(self) -> list[Scope]:
        return list(self._scopes.values())

    def use(self, name: str, weight: int) -> None:
        """A lease of this weight lives."""
        scope = self.find(name)
        if scope is not None:
            scope.used += weight

    def pause(self, name: str) -> Scope:
        scope = self.find(name)
        if scope is None:
            self._none.discard(name)
            scope = self._scopes[name] = Scope(name, None)
        scope.paused = True
        self.any = True
        return scope

    def resume(self, name: str) -> Scope:
        scope = self._scopes[name]
        scope.paused = False
        return scope

    def forget_unused(self, used: set[str]) -> None:
        """Drop scopes of other names than these where no lease and no pause is left to know of."""
        for scope in list(self._scopes.values()):
            if not scope.used and not scope.paused and scope.name not in used:
                del self._scopes[scope.name]


NAMES_MAX = 100_000


def limit_of(limits: list[Limit], name: str) -> int | None:
    """The first limit that speaks of the name."""
    for limit in limits:
        if fnmatchcase(name, limit.match):
            return limit.max
    return None
