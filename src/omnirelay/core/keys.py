"""Keys: which items exclude each other, and who among them is first.

Only the head of a key stands in the schedule. The others wait here and cost nothing, however many they are.

    waiting ──head, and the key has room──▶ standing ──grant──▶ running ──end──▶ room for the next
"""

from __future__ import annotations

from typing import Final

from omnirelay.core.items import READY, Item
from omnirelay.core.options import QueueOptions
from omnirelay.core.ordered import OrderedQueue
from omnirelay.core.scopes import limit_of

_CLASS_SHIFT: Final = 56
"""Ranks put the class above the order; no number of generations takes an order that far."""


class Key:
    """One resource or partition that has something pending or leased."""

    __slots__ = ("limit", "name", "resource_type", "running", "standing", "used", "waiting")

    def __init__(self, resource_type: str, name: str, limit: int | None) -> None:
        self.resource_type = resource_type
        """Empty when partitions are the keys."""
        self.name = name
        self.limit = limit
        self.used = 0
        """Weight of its live leases."""
        self.running = 0
        """How many of its items are leased."""
        self.standing: Item | None = None
        self.waiting: OrderedQueue | None = None


class Keys:
    """All keys of a shard, as its options define them."""

    __slots__ = ("_by_resource", "_by_type", "_fifo", "_limits", "exclusive", "holds_delayed", "matter")

    def __init__(self, options: QueueOptions) -> None:
        self._limits = [limit for limit in options.limits if limit.by == "key"]
        self.exclusive = options.ordering != "none"
        """Whether at most one item of a key is leased at a time."""
        self._fifo = options.ordering == "fifo"
        self._by_resource = options.key == "resource"
        self._by_type: dict[str, dict[str, Key]] = {}
        self.matter = self.exclusive or bool(self._limits)
        """Without, no item has a key and nothing here is ever asked."""
        self.holds_delayed = self._fifo and options.fifo_head == "hold"
        """Whether a delayed item keeps its place before those behind it."""

    def all(self) -> list[Key]:
        return [key for keys in self._by_type.values() for key in keys.values()]

    def rank(self, item: Item) -> int:
        """The place of an item in its key: by order alone when it is a queue, else by class first."""
        return item.order if self._fifo else (item.priority << _CLASS_SHIFT) + item.order

    def find(self, item: Item) -> Key | None:
        """The item's key, if anything of it is known."""
        payload = item.payload
        if self._by_resource:
            return self._by_type.get(payload.resource_type, {}).get(payload.resource_id)
        return self._by_type.get("", {}).get(payload.partition)

    def of(self, item: Item) -> Key | None:
        """The item's key, made when there is none; None when keys of that name hold nothing back."""
        payload = item.payload
        if self._by_resource:
            resource_type, name = payload.resource_type, payload.resource_id
        else:
            resource_type, name = "", payload.partition
        keys = self._by_type.get(resource_type)
        if keys is not None:
            key = keys.get(name)
            if key is not None:
                return key
        return self._make(resource_type, name)

    def _make(self, resource_type: str, name: str) -> Key | None:
        limit: int | None = None
        if self._limits:
            limit = limit_of(self._limits, f"{resource_type}/{name}" if self._by_resource else name)
        if limit is None and not self.exclusive:
            return None
        key = self._by_type.setdefault(resource_type, {})[name] = Key(resource_type, name, limit)
        return key

    def forget_unused(self, key: Key) -> None:
        if key.standing is None and key.waiting is None and not key.running:
            del self._by_type[key.resource_type][key.name]

    # -- who stands ----------------------------------------------------------------------------

    def has_room(self, key: Key, item: Item) -> bool:
        if not key.running:
            return True
        return not self.exclusive and (key.limit is None or key.used + item.weight <= key.limit)

    def head(self, key: Key) -> Item | None:
        """The first of those that wait, when it may stand now."""
        waiting = key.waiting
        if waiting is None:
            return None
        item = waiting.first()
        if item is None or item.state != READY or not self.has_room(key, item):
            return None
        return item

    def wait(self, key: Key, item: Item) -> None:
        waiting = key.waiting
        if waiting is None:
            waiting = key.waiting = OrderedQueue()
        waiting.push(self.rank(item), item)

    def no_longer_waits(self, key: Key, item: Item) -> None:
        """The item has a new stamp: it left the key, or comes in again."""
        waiting = key.waiting
        assert waiting is not None, "what does not stand waits"
        waiting.left(item)
        if not waiting.live:
            key.waiting = None

    def take_head(self, key: Key) -> None:
        waiting = key.waiting
        assert waiting is not None
        waiting.take_first()
        if not waiting.live:
            key.waiting = None

    def precedes_standing(self, key: Key, item: Item) -> bool:
        standing = key.standing
        return standing is not None and self.rank(item) < self.rank(standing)
