"""Exclusive keys and limits as an audit counts them: from grants and ends alone, beside the schedule's own counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from omnirelay.core.items import Item
from omnirelay.core.options import QueueOptions
from omnirelay.core.schedule import Schedule
from omnirelay.core.scopes import limit_of

_Scope: TypeAlias = tuple[str, str, str]
"""What kind of limit, and of what: a key by its type and its name, others by a name alone."""


class Gates:
    """What live leases hold under the options of the moment."""

    def __init__(self, options: QueueOptions, leased: Iterable[Item]) -> None:
        self._limits = {by: [limit for limit in options.limits if limit.by == by] for by in ("type", "tenant", "key")}
        self._exclusive = options.ordering != "none"
        self._by_resource = options.key == "resource"
        self._tenant_attribute = options.tenant_attribute
        self.matter = self._exclusive or bool(options.limits)
        """Without, nothing here has to be asked."""
        self._max: dict[_Scope, int | None] = {}
        """Globs are matched once per name."""
        self._used: dict[_Scope, int] = {}
        self._holders: dict[tuple[str, str], dict[int, Item]] = {}
        if self.matter:
            for item in leased:
                self.hold(item)

    def _key(self, item: Item) -> tuple[str, str]:
        """Two texts: "a/b" of type "c" reads as "b" of type "c/a" does, and is another key."""
        payload = item.payload
        return (payload.resource_type, payload.resource_id) if self._by_resource else ("", payload.partition)

    def _key_name(self, item: Item) -> str:
        return "/".join(self._key(item)) if self._by_resource else item.payload.partition

    def _scopes(self, item: Item) -> Iterator[tuple[_Scope, int]]:
        """The limits that a lease of this item counts against."""
        attributes = item.payload.attributes
        for by, limits in self._limits.items():
            if not limits:
                continue
            if by == "key":
                scope, name = (by, *self._key(item)), self._key_name(item)
            elif by == "type":
                scope, name = (by, "", item.payload.resource_type), item.payload.resource_type
            else:
                name = "" if attributes is None else attributes.get(self._tenant_attribute, "")
                scope = (by, "", name)
            if scope not in self._max:
                self._max[scope] = limit_of(limits, name)
            most = self._max[scope]
            if most is not None:
                yield scope, most

    def objections(self, item: Item) -> Iterator[tuple[str, str]]:
        """What speaks against a lease of this item now: the rule, and what is wrong."""
        if self._exclusive:
            for other in self._holders.get(self._key(item), {}).values():
                fence = None if other.lease is None else other.lease.token.fence
                yield (
                    "exclusive-key",
                    f"the key {self._key_name(item)!r} is leased to item {other.sequence_id} (fence {fence})",
                )
        for scope, most in self._scopes(item):
            used = self._used.get(scope, 0)
            # One that is heavier than the limit runs alone.
            if used and used + item.weight > most:
                by = scope[0]
                name = self._key_name(item) if by == "key" else scope[2]
                yield "limits", f"a weight of {used + item.weight} is leased of {by} {name!r}, {most} is the limit"

    def hold(self, item: Item) -> None:
        if self._exclusive:
            self._holders.setdefault(self._key(item), {})[item.sequence_id] = item
        for scope, _ in self._scopes(item):
            self._used[scope] = self._used.get(scope, 0) + item.weight

    def free(self, item: Item) -> None:
        if self._exclusive:
            holders = self._holders.get(self._key(item), {})
            holders.pop(item.sequence_id, None)
            if not holders:
                self._holders.pop(self._key(item), None)
        for scope, _ in self._scopes(item):
            left = self._used.get(scope, 0) - item.weight
            if left > 0:
                self._used[scope] = left
            else:
                self._used.pop(scope, None)


def is_offered(schedule: Schedule, item: Item) -> bool:
    """Whether the schedule has the item where a grant can take it from: not behind others of its key, and in a lane
    that nothing holds back.
    """
    key = schedule.keys.find(item) if schedule.keyed else None
    if key is not None and key.standing is not item:
        return False
    share = schedule.levels[item.priority].shares.get(item.payload.resource_type)
    lane = None if share is None else share.lanes.get(schedule.tenant_of(item))
    return share is not None and lane is not None and share.offering and lane.offering
