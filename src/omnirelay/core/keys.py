"""Keys: which items exclude each other, and who among them is first.

Only the head of a key stands in the schedule. The others wait here and cost nothing, however many they are.

    waiting ──head, and the key has room──▶ standing ──grant──▶ running ──end──▶ room for the next
"""

from __future__ import annotations

from typing import Any, Final

from omnirelay.core.items import LEASED, READY, Item
from omnirelay.core.options import QueueOptions
from omnirelay.core.scopes import limit_of
from omnirelay.core.waiting import Waiting

_CLASS_SHIFT: Final = 56
"""Ranks put the class above the order; no number of generations takes an order that far."""


class Key(Waiting):
    """One resource or partition that has something pending or leased, with those that wait there."""

    __slots__ = ("limit", "name", "rank", "resource_type", "running", "standing", "used")

    def __init__(self, resource_type: str, name: str, limit: int | None) -> None:
        super().__init__()
        self.standing: Item | None = None
        """Who has the key: stands in the schedule or, when the key is exclusive, is leased."""
        self.rank = 0
        """The rank of that item, which is not looked at when somebody comes who is behind it."""
        self.resource_type = resource_type
        """Empty when partitions are the keys."""
        self.name = name
        self.limit = limit
        self.used = 0
        """Weight of its live leases, where there is a limit."""
        self.running = 0
        """How many of its items are leased, other than the one that has an exclusive key."""


class Keys:
    """All keys of a shard, as its options define them.

    Most exclusive keys have one item at a time. As long as it is alone, it stands for the key itself, and a `Key` is
    made only when a second one comes.
    """

    __slots__ = ("_by_resource", "_by_type", "_fifo", "_limits", "exclusive", "holds_delayed", "matter")

    def __init__(self, options: QueueOptions) -> None:
        self._limits = [limit for limit in options.limits if limit.by == "key"]
        self.exclusive = options.ordering != "none"
        """Whether at most one item of a key is leased at a time."""
        self._fifo = options.ordering == "fifo"
        self._by_resource = options.key == "resource"
        self._by_type: dict[str, dict[str, Any]] = {}
        """A `Key`, or the item that is alone under it."""
        self.matter = self.exclusive or bool(self._limits)
        """Without, no item has a key and nothing here is ever asked."""
        self.holds_delayed = self._fifo and options.fifo_head == "hold"
        """Whether a delayed item keeps its place before those behind it."""

    def all(self) -> list[Key]:
        """The keys of a schedule that is being loaded: there, nobody is alone."""
        return [key for keys in self._by_type.values() for key in keys.values()]

    def rank(self, item: Item) -> int:
        """The place of an item in its key: by order alone when it is a queue, else by class first."""
        return item.order if self._fifo else (item.priority << _CLASS_SHIFT) + item.order

    def find(self, item: Item) -> Key | None:
        """The item's key as it is, if anything of it is known."""
        resource_type, name = self._names(item)
        found = self._by_type.get(resource_type, {}).get(name)
        if isinstance(found, Item):
            key = Key(resource_type, name, None)
            key.standing = found
            return key
        return found

    def has_line(self, item: Item) -> bool:
        """Whether others wait in the key of an item that has it, or waits there itself."""
        resource_type, name = self._names(item)
        found = self._by_type.get(resource_type, {}).get(name)
        return isinstance(found, Key) and found.live > (0 if found.standing is item else 1)

    def of(self, item: Item) -> Key | None:
        """The item's key, made when there is none; None when keys of that name hold nothing back."""
        resource_type, name = self._names(item)
        keys = self._by_type.get(resource_type)
        found = None if keys is None else keys.get(name)
        if isinstance(found, Key):
            return found
        key = self._make(resource_type, name)
        if key is not None and found is not None:
            self.give(key, found)
        return key

    def _names(self, item: Item) -> tuple[str, str]:
        payload = item.payload
        if self._by_resource:
            return payload.resource_type, payload.resource_id
        return "", payload.partition

    def _make(self, resource_type: str, name: str) -> Key | None:
        limit = self._limit_of(resource_type, name) if self._limits else None
        if limit is None and not self.exclusive:
            return None
        key = self._by_type.setdefault(resource_type, {})[name] = Key(resource_type, name, limit)
        return key

    def _limit_of(self, resource_type: str, name: str) -> int | None:
        return limit_of(self._limits, f"{resource_type}/{name}" if self._by_resource else name)

    def forget_unused(self, key: Key) -> None:
        if key.standing is None and not key.live and not key.running:
            del self._by_type[key.resource_type][key.name]

    # -- who has an exclusive key --------------------------------------------------------------

    def claim(self, item: Item, resource_type: str, resource_id: str, partition_key: str | None) -> Key | None:
        """Give a new item its exclusive key if it is the only one there, else return the key it comes to."""
        if not self._by_resource:
            resource_type = ""
            if partition_key is not None:
                resource_id = partition_key
        keys = self._by_type.get(resource_type)
        if keys is None:
            keys = self._by_type[resource_type] = {}
        found = keys.setdefault(resource_id, item)
        if found is item:
            return None
        if isinstance(found, Key):
            key = found
        else:
            # By the text that is the table's already: whoever has the same object is found without reading it.
            name = self._names(found)[1]
            limit = self._limit_of(resource_type, name) if self._limits else None
            key = keys[name] = Key(resource_type, name, limit)
            self.give(key, found)
        if self._by_resource:
            item.payload.resource_id = key.name
        return key

    def give_up(self, item: Item, resource_type: str) -> Key | None:
        """The lease of an item that has ended held its exclusive key; returns that if there are others."""
        payload = item.payload
        if self._by_resource:
            keys = self._by_type[resource_type]
            name = payload.resource_id
        else:
            keys = self._by_type[""]
            name = payload.partition
        found = keys[name]
        if found is item:
            del keys[name]
            return None
        key: Key = found
        self.release(key, item)
        return key

    def hold(self, key: Key, item: Item) -> None:
        """The item is leased."""
        if not self.exclusive:
            if key.standing is item:
                key.standing = None
            key.running += 1
            key.used += item.weight
        elif key.standing is None:
            self.give(key, item)
        elif key.standing is not item:
            # Leased before keys became exclusive.
            key.running += 1

    def release(self, key: Key, item: Item) -> None:
        """The item's lease has ended."""
        if not self.exclusive:
            key.running -= 1
            key.used -= item.weight
        elif key.standing is item:
            key.standing = None
        else:
            key.running -= 1

    def is_held(self, key: Key, item: Item) -> bool:
        """Whether leases are in the way of the item."""
        standing = key.standing
        if self.exclusive and standing is not None and standing.state == LEASED:
            return True
        return not self.has_room(key, item)

    # -- who stands ----------------------------------------------------------------------------

    def give(self, key: Key, item: Item) -> None:
        """The item has the key from now on."""
        key.standing = item
        key.rank = self.rank(item)

    def has_room(self, key: Key, item: Item) -> bool:
        if not key.running:
            return True
        return not self.exclusive and (key.limit is None or key.used + item.weight <= key.limit)

    def head(self, key: Key) -> Item | None:
        """The first of those that wait, when it may stand now."""
        if not key.live:
            return None
        item = key.first()
        if item is None or item.state != READY or not self.has_room(key, item):
            return None
        return item

    def wait(self, key: Key, item: Item) -> None:
        key.push(0 if self._fifo else item.priority, item)

    def no_longer_waits(self, key: Key, item: Item) -> None:
        """The item has a new stamp: it left the key, or comes in again."""
        key.left(0 if self._fifo else item.priority, item)

    def precedes_standing(self, key: Key, item: Item) -> bool:
        standing = key.standing
        return standing is not None and self.rank(item) < key.rank and standing.state == READY
