"""Exclusive keys and limits as an audit counts them: from grants and ends alone, beside the schedule's own counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from omnirelay.core.items import Item
from omnirelay.core.options import QueueOptions
from omnirelay.core.scopes import limit_of


class Gates:
    """What live leases hold under the options of the moment."""

    def __init__(self, options: QueueOptions, leased: Iterable[Item]) -> None:
        self._limits = {by: [limit for limit in options.limits if limit.by == by] for by in ("type", "tenant", "key")}
        self._exclusive = options.ordering != "none"
        self._by_resource = options.key == "resource"
        self._tenant_attribute = options.tenant_attribute
        self.matter = self._exclusive or bool(options.limits)
        """Without, nothing here has to be asked."""
        self._max: dict[tuple[str, str], int | None] = {}
        """Globs are matched once per name."""
        self._used: dict[tuple[str, str], int] = {}
        self._holders: dict[str, dict[int, Item]] = {}
        if self.matter:
            for item in leased:
                self.hold(item)

    def _key(self, item: Item) -> str:
        payload = item.payload
        return f"{payload.resource_type}/{payload.resource_id}" if self._by_resource else payload.partition

    def _scopes(self, item: Item) -> Iterator[tuple[tuple[str, str], int]]:
        """The limits that a lease of this item counts against."""
        attributes = item.payload.attributes
        names = {
            "type": item.payload.resource_type,
            "tenant": "" if attributes is None else attributes.get(self._tenant_attribute, ""),
            "key": self._key(item),
        }
        for by, limits in self._limits.items():
            if not limits:
                continue
            scope = (by, names[by])
            if scope not in self._max:
                self._max[scope] = limit_of(limits, names[by])
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
                    f"the key {self._key(item)!r} is leased to item {other.sequence_id} (fence {fence})",
                )
        for scope, most in self._scopes(item):
            used = self._used.get(scope, 0)
            # One that is heavier than the limit runs alone.
            if used and used + item.weight > most:
                yield (
                    "limits",
                    f"a weight of {used + item.weight} is leased of {scope[0]} {scope[1]!r}, {most} is the limit",
                )

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
