"""The places where items stand: a class has shares, one per resource type, and a share has lanes, one per tenant."""

from __future__ import annotations

from omnirelay.core.items import Item
from omnirelay.core.ordered import OrderedQueue
from omnirelay.core.scopes import Scope
from omnirelay.core.turns import Member, Turns


class Lane(Member):
    """What one tenant has of one type in one class."""

    __slots__ = ("queue", "scope", "share", "weight")

    def __init__(self, share: Share, tenant: str, weight: int, scope: Scope | None) -> None:
        super().__init__(tenant)
        self.share = share
        self.scope = scope
        """Of the tenant."""
        self.weight = weight
        self.queue = OrderedQueue()

    def head(self) -> Item:
        """Its first item; only when it has one."""
        item = self.queue.first()
        assert item is not None
        return item


class Share(Member):
    """What one class has of one resource type."""

    __slots__ = ("filled", "lanes", "level", "scope", "turns")

    def __init__(self, level: Level, resource_type: str, scope: Scope | None) -> None:
        super().__init__(resource_type)
        self.level = level
        self.scope = scope
        """Of the type."""
        self.lanes: dict[str, Lane] = {}
        self.filled = 0
        """How many lanes have something standing in them, offered or held back."""
        self.turns = Turns()

    def head(self) -> Item:
        """What it offers; only when one of its lanes does."""
        lane: Lane = self.turns.first
        return lane.head()


class Level:
    """One priority class."""

    __slots__ = ("closed_at", "filled", "guarded_at", "number", "shares", "turns", "waiting_since")

    def __init__(self, number: int) -> None:
        self.number = number
        self.shares: dict[str, Share] = {}
        self.filled = 0
        """How many shares have something standing in them."""
        self.turns = Turns()
        self.waiting_since = 0
        """Since when it has offered something without an ordinary turn."""
        self.closed_at = 0
        """When it last ceased to offer anything other than by a grant: one event may take a head out and put another
        in its place, and that moment in between does not count."""
        self.guarded_at = 0
        """The count of grants when the starvation guard last chose it."""

    def first(self) -> Share:
        """The share whose turn it is; only when one offers."""
        share: Share = self.turns.first
        return share
