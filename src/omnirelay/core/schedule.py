"""Who is next: classes first, then resource types in turn, then tenants in turn, then the order of arrival.

    class 0-9 ──▶ share (class, type) ──▶ lane (class, type, tenant) ──▶ items by order
                  in turn, evenly          in turn, by weight

An item that could be granted *stands* in a lane. A lane *offers* when something stands there and neither a pause nor
its tenant's limit holds it back; a share when one of its lanes does and neither a pause nor its type's limit
holds it back. Every change ends with everything it touched settled, so that finding the next item only reads.

A head that is too heavy for what a limit has left reserves it: whatever comes after it in that type or tenant is
held back too, or light items would keep a heavy one out for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from omnirelay.core.items import LEASED, READY, Item
from omnirelay.core.keys import Key, Keys
from omnirelay.core.lanes import Lane, Level, Share
from omnirelay.core.options import QueueOptions
from omnirelay.core.pauses import Pause
from omnirelay.core.scopes import Scope, Scopes
from omnirelay.core.turns import SCALE, Turns
from omnirelay.core.waiting import CLASSES

NEVER: Final = 1 << 62

LANES_KEPT: Final = 16_384
"""So many lanes are kept, empty or not: most fill again soon, and making one costs more than a grant."""


class Schedule:
    """See the module. `now_ms` is always the timestamp of the event that is being evolved.

    A lease that ends is told in three steps: `release` what it used, `admit` the item if it is pending again, and
    then `freed` lets in who waited for what it used. When the item ends with its lease, `ended` is all of that.
    """

    __slots__ = (
        "_front",
        "_guard_every",
        "_lanes",
        "_loading",
        "_tenant_attribute",
        "_tenant_lanes",
        "_tenant_weights",
        "gated",
        "grants",
        "guard_at",
        "heaviest",
        "keyed",
        "keys",
        "lanes_kept",
        "levels",
        "offering",
        "paused",
        "sweep_at",
        "tenants",
        "types",
    )

    def __init__(self, options: QueueOptions) -> None:
        limits = tuple(options.limits)
        self.levels = [Level(number) for number in range(CLASSES)]
        self.offering = 0
        """A bit per class that offers something."""
        self._front: Level | None = None
        """The first of them."""
        self.paused = False
        """The whole shard."""
        self.grants = 0
        self.guard_at = NEVER
        """The count of grants after which the next one is the starvation guard's."""
        self._guard_every = 0
        self.count_grants(0, options.starvation_every)
        self.keys = Keys(options)
        self.keyed = self.keys.matter
        self.types = Scopes("type", limits)
        self.tenants = Scopes("tenant", limits)
        self.gated = self.keyed or self.types.any or self.tenants.any
        """Whether the end of a lease can let anybody in."""
        self._tenant_attribute = options.tenant_attribute
        self._tenant_weights = options.tenant_weights
        self._tenant_lanes: dict[str, list[Lane]] = {}
        """The lanes of tenants that have a scope."""
        self.heaviest = 1
        """No item that ever stood here weighs more."""
        self._lanes = 0
        self.lanes_kept = LANES_KEPT
        self.sweep_at = LANES_KEPT
        """With so many lanes, those that nobody has to remember are dropped before another is made."""
        self._loading = False

    def count_grants(self, grants: int, guard_every: int) -> None:
        """Go on counting from here; one grant in `guard_every` is the starvation guard's, none when it is 0."""
        self.grants = grants
        self._guard_every = guard_every
        self.guard_at = NEVER if guard_every == 0 else (grants // guard_every + 1) * guard_every - 1

    # -- finding -------------------------------------------------------------------------------

    @property
    def offers(self) -> bool:
        """Whether a lease call that takes anything would get something."""
        return self.offering != 0 and not self.paused

    def first(self) -> Item | None:
        """What is next when the starvation guard does not step in."""
        front = self._front
        if front is None or self.paused:
            return None
        share: Share = front.turns.first
        lane: Lane = share.turns.first
        return lane.queue.first()

    def tenant_of(self, item: Item) -> str:
        attributes = item.payload.attributes
        return "" if attributes is None else attributes.get(self._tenant_attribute, "")

    def lane_of(self, item: Item) -> Lane:
        """The lane where the item stands."""
        payload = item.payload
        share = self.levels[item.priority].shares[payload.resource_type]
        attributes = payload.attributes
        return share.lanes["" if attributes is None else attributes.get(self._tenant_attribute, "")]

    def lanes_of(self, tenant: str) -> list[Lane]:
        """The lanes of a tenant that has a limit or was paused."""
        return self._tenant_lanes.get(tenant, [])

    def _make_lane(self, priority: int, resource_type: str, tenant: str) -> Lane:
        if self._lanes >= self.sweep_at and not self._loading:
            self._sweep()
        share = self.levels[priority].shares.get(resource_type)
        if share is None:
            share = self.new_share(priority, resource_type)
        return self.new_lane(share, tenant)

    def new_share(self, priority: int, resource_type: str) -> Share:
        level = self.levels[priority]
        scope = self.types.find(resource_type) if self.types.any else None
        share = level.shares[resource_type] = Share(level, resource_type, scope)
        return share

    def new_lane(self, share: Share, tenant: str) -> Lane:
        scope = self.tenants.find(tenant) if self.tenants.any else None
        lane = share.lanes[tenant] = Lane(share, tenant, self._tenant_weights.get(tenant, 1), scope)
        self._lanes += 1
        if scope is not None:
            self._tenant_lanes.setdefault(tenant, []).append(lane)
        return lane

    # -- items come and go ---------------------------------------------------------------------

    def enter(
        self,
        item: Item,
        resource_type: str,
        resource_id: str,
        partition_key: str | None,
        attributes: dict[str, str] | None,
        now_ms: int,
    ) -> None:
        """A new item is ready: `admit` for what comes most often, told what it would have to read from the payload."""
        if self.keyed:
            keys = self.keys
            if not keys.exclusive:
                self.admit(item, now_ms)
                return
            key = keys.claim(item, resource_type, resource_id, partition_key)
            if key is not None:
                self._join_key(key, item, now_ms)
                if key.standing is None:
                    self._settle_key(key, now_ms)
                return
        tenant = "" if attributes is None else attributes.get(self._tenant_attribute, "")
        priority = item.priority
        share = self.levels[priority].shares.get(resource_type)
        lane = None if share is None else share.lanes.get(tenant)
        if lane is None:
            lane = self._make_lane(priority, resource_type, tenant)
        self._stand_in(lane, item, now_ms)

    def admit(self, item: Item, now_ms: int) -> None:
        """The item is pending from now on: ready, or delayed (which matters only where a delay holds a key)."""
        ready = item.state == READY
        if self.keyed and (ready or self.keys.holds_delayed):
            key = self.keys.of(item)
            if key is not None:
                if not ready or key.standing is not None or key.live or key.running:
                    self._join_key(key, item, now_ms)
                    self._settle_key(key, now_ms)
                    return
                self.keys.give(key, item)
        if ready:
            self.stand(item, now_ms)

    def admit_all(self, items: list[Item], now_ms: int, *, were_delayed: bool = False) -> None:
        """Several items of one event come to their keys together, so that none stands only to make way at once."""
        keys = self.keys
        touched: dict[int, Key] = {}
        for item in items:
            key = keys.of(item) if self.keyed else None
            if key is None:
                self.admit(item, now_ms)
                continue
            if were_delayed and keys.holds_delayed:
                keys.no_longer_waits(key, item)
            if item.state == READY or keys.holds_delayed:
                self._join_key(key, item, now_ms)
            touched[id(key)] = key
        for key in touched.values():
            self._settle_key(key, now_ms)

    def withdraw(self, item: Item, now_ms: int) -> None:
        """A pending item leaves. Its stamp has changed, its state has not."""
        keys = self.keys
        if self.keyed and (item.state == READY or keys.holds_delayed):
            key = keys.of(item)
            if key is not None:
                if key.standing is item:
                    key.standing = None
                    self._leave_lane(item, now_ms)
                else:
                    keys.no_longer_waits(key, item)
                self._settle_key(key, now_ms)
                return
        if item.state == READY:
            self._leave_lane(item, now_ms)

    def granted(self, item: Item, guard: bool, now_ms: int) -> None:
        """The item has become a lease; its stamp has changed."""
        level = self.levels[item.priority]
        above = level.turns
        share: Share = above.first
        turns = share.turns
        lane: Lane = turns.first
        queue = lane.queue
        if queue.first() is not item:
            # A call that takes only some was given what is not next for everybody.
            lane = self.lane_of(item)
            queue = lane.queue
            share = lane.share
            turns = share.turns
        queue.left(item)
        weight = item.weight
        cost = weight * SCALE
        of_type, of_tenant = share.scope, lane.scope
        if of_type is not None:
            of_type.used += weight
        if of_tenant is not None:
            of_tenant.used += weight
        # Whoever has nothing left to offer leaves with its turn, unless limits have to be looked at first.
        tenant_is_open = of_tenant is None or of_tenant.open_for(self.heaviest)
        turns.charge(lane, cost // lane.weight, not tenant_is_open or queue.live > 0)
        type_is_open = tenant_is_open and (of_type is None or of_type.open_for(self.heaviest))
        above.charge(share, cost, not type_is_open or turns.live > 0)
        if not queue.live:
            self._emptied(lane)
        self.grants += 1
        if self.grants > self.guard_at:
            self.guard_at += self._guard_every
        if guard:
            level.guarded_at = self.grants
        else:
            level.waiting_since = now_ms
        if not type_is_open:
            self._settle_lane(lane, now_ms)
        elif not above.live:
            level.closed_at = now_ms
            self._open(level, False)
        if self.keyed and not self.keys.exclusive:
            key = self.keys.of(item)
            if key is not None:
                self.keys.hold(key, item)
                self._settle_key(key, now_ms)
        if not above.live:
            level.closed_at = 0

    def release(self, item: Item) -> None:
        """The item's lease has ended; nobody is let in yet."""
        weight = item.weight
        if self.types.any:
            scope = self.types.find(item.payload.resource_type)
            if scope is not None:
                scope.used -= weight
        if self.tenants.any:
            scope = self.tenants.find(self.tenant_of(item))
            if scope is not None:
                scope.used -= weight
        if self.keyed:
            key = self.keys.of(item)
            if key is not None:
                self.keys.release(key, item)

    def freed(self, item: Item, now_ms: int) -> None:
        """Let in whoever waited for what the item's lease used."""
        if self.tenants.any:
            scope = self.tenants.find(self.tenant_of(item))
            if scope is not None and scope.blocked:
                self._settle_tenant(scope, now_ms)
        if self.types.any:
            scope = self.types.find(item.payload.resource_type)
            if scope is not None and scope.blocked:
                self._settle_type(scope, now_ms)
        if self.keyed:
            key = self.keys.of(item)
            if key is not None:
                self._settle_key(key, now_ms)

    def ended(self, item: Item, now_ms: int) -> None:
        """The item's lease has ended, and the item with it."""
        if self.tenants.any or (self.keyed and not self.keys.exclusive):
            self.release(item)
            self.freed(item, now_ms)
            return
        # Nothing but the commonest gates, each of which is looked at once.
        resource_type = item.payload.resource_type
        if self.types.any:
            scope = self.types.find(resource_type)
            if scope is not None:
                scope.used -= item.weight
                if scope.blocked:
                    self._settle_type(scope, now_ms)
        if self.keyed:
            key = self.keys.give_up(item, resource_type)
            if key is not None:
                self._settle_key(key, now_ms)

    # -- standing ------------------------------------------------------------------------------

    def stand(self, item: Item, now_ms: int) -> None:
        """The item can be granted as far as its key is concerned."""
        resource_type, tenant = item.payload.resource_type, self.tenant_of(item)
        share = self.levels[item.priority].shares.get(resource_type)
        lane = None if share is None else share.lanes.get(tenant)
        self._stand_in(lane or self._make_lane(item.priority, resource_type, tenant), item, now_ms)

    def _stand_in(self, lane: Lane, item: Item, now_ms: int) -> None:
        if item.weight > self.heaviest:
            self.heaviest = item.weight
        queue = lane.queue
        queue.push(item)
        if queue.live == 1:
            share = lane.share
            share.filled += 1
            if share.filled == 1:
                share.level.filled += 1
        if not self._loading and (not lane.offering or self.gated):
            self._settle_lane(lane, now_ms)

    def _leave_lane(self, item: Item, now_ms: int) -> None:
        lane = self.lane_of(item)
        lane.queue.left(item)
        if not lane.queue.live:
            self._emptied(lane)
            self._settle_lane(lane, now_ms)
        elif self.gated:
            self._settle_lane(lane, now_ms)

    def _emptied(self, lane: Lane) -> None:
        """Nothing stands in the lane any more. When that is true of all of them, their times start over."""
        share = lane.share
        share.filled -= 1
        if not share.filled:
            share.turns.start_over()
            level = share.level
            level.filled -= 1
            if not level.filled:
                level.turns.start_over()

    def _join_key(self, key: Key, item: Item, now_ms: int) -> None:
        standing = key.standing
        if standing is not None and self.keys.precedes_standing(key, item):
            key.standing = None
            # It stays what it is but not where it is; the event that displaced it is what its entries are known by.
            standing.stamp = item.stamp
            self._leave_lane(standing, now_ms)
            self.keys.wait(key, standing)
        self.keys.wait(key, item)

    def _settle_key(self, key: Key, now_ms: int) -> None:
        keys = self.keys
        if key.standing is None:
            head = keys.head(key)
            if head is not None:
                key.take_first()
                keys.give(key, head)
                self.stand(head, now_ms)
                return
            keys.forget_unused(key)

    # -- offering ------------------------------------------------------------------------------

    def _settle_lane(self, lane: Lane, now_ms: int) -> None:
        scope = lane.scope
        if scope is None or scope.open_for(self.heaviest):
            self._set_lane(lane, lane.queue.live > 0)
            self._settle_share(lane.share, now_ms)
        else:
            self._settle_tenant(scope, now_ms)
            if not lane.queue.live:
                self._settle_share(lane.share, now_ms)

    def _settle_tenant(self, scope: Scope, now_ms: int) -> None:
        """Let the tenant's lanes through in the order of class and age, up to the first that does not fit."""
        filled: list[tuple[int, int, str, Lane]] = []
        for lane in self._tenant_lanes.get(scope.name, ()):
            if lane.queue.live:
                filled.append((lane.share.level.number, lane.head().order, lane.share.name, lane))
            else:
                self._set_lane(lane, False)
        filled.sort(key=_first_three)
        held = scope.paused
        for _, _, _, lane in filled:
            held = held or not scope.fits(lane.head().weight)
            self._set_lane(lane, not held)
        scope.blocked = held
        for _, _, _, lane in filled:
            self._settle_share(lane.share, now_ms)

    def _set_lane(self, lane: Lane, offers: bool) -> None:
        if offers != lane.offering:
            turns = lane.share.turns
            if not offers:
                turns.leave(lane)
            elif self._loading:
                turns.put(lane)
            else:
                turns.join(lane)

    def _settle_share(self, share: Share, now_ms: int) -> None:
        scope = share.scope
        if scope is None or scope.open_for(self.heaviest):
            self._set_share(share, share.turns.live > 0, now_ms)
        else:
            self._settle_type(scope, now_ms)

    def _settle_type(self, scope: Scope, now_ms: int) -> None:
        """Let the type's shares through in the order of class, up to the first that does not fit."""
        held = scope.paused
        for level in self.levels:
            share = level.shares.get(scope.name)
            if share is None:
                continue
            offers = share.turns.live > 0
            if offers:
                held = held or not scope.fits(share.head().weight)
            self._set_share(share, offers and not held, now_ms)
        scope.blocked = held

    def _set_share(self, share: Share, offers: bool, now_ms: int) -> None:
        if offers == share.offering:
            return
        level = share.level
        turns = level.turns
        if offers:
            if self._loading:
                turns.put(share)
            else:
                turns.join(share)
                if turns.live == 1 and level.closed_at != now_ms:
                    level.waiting_since = now_ms
            if turns.live == 1:
                self._open(level, True)
        else:
            turns.leave(share)
            if not turns.live:
                if not self._loading:
                    level.closed_at = now_ms
                self._open(level, False)

    def _open(self, level: Level, offers: bool) -> None:
        """The class begins or ceases to offer."""
        bit = 1 << level.number
        self.offering = offering = self.offering | bit if offers else self.offering & ~bit
        self._front = self.levels[(offering & -offering).bit_length() - 1] if offering else None

    # -- forgetting ----------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Drop empty lanes and shares whose time everybody has passed: a new one would join at the same time."""
        for level in self.levels:
            for share in list(level.shares.values()):
                floor = share.turns.floor
                for lane in list(share.lanes.values()):
                    if not lane.queue.live and lane.time <= floor:
                        self._forget_lane(lane)
                if not share.filled and share.time <= level.turns.floor:
                    for lane in list(share.lanes.values()):
                        self._forget_lane(lane)
                    del level.shares[share.name]
        self.types.forget_unused({name for level in self.levels for name in level.shares})
        self.tenants.forget_unused(set(self._tenant_lanes))
        self.sweep_at = max(self.lanes_kept, 2 * self._lanes)

    def _forget_lane(self, lane: Lane) -> None:
        del lane.share.lanes[lane.name]
        self._lanes -= 1
        if lane.scope is not None:
            lanes = self._tenant_lanes[lane.name]
            lanes.remove(lane)
            if not lanes:
                del self._tenant_lanes[lane.name]

    # -- pauses --------------------------------------------------------------------------------

    def pause(self, resource_type: str | None, tenant: str | None, now_ms: int) -> None:
        if resource_type is not None:
            self._pause_type(resource_type, now_ms)
        elif tenant is not None:
            self._pause_tenant(tenant, now_ms)
        else:
            self.paused = True

    def resume(self, resource_type: str | None, tenant: str | None, now_ms: int) -> None:
        """End a pause that is there."""
        if resource_type is not None:
            self._settle_type(self.types.resume(resource_type), now_ms)
        elif tenant is not None:
            self._settle_tenant(self.tenants.resume(tenant), now_ms)
        else:
            self.paused = False

    def _pause_type(self, name: str, now_ms: int) -> None:
        scope = self.types.pause(name)
        self.gated = True
        for level in self.levels:
            share = level.shares.get(name)
            if share is not None:
                share.scope = scope
        self._settle_type(scope, now_ms)

    def _pause_tenant(self, name: str, now_ms: int) -> None:
        scope = self.tenants.pause(name)
        self.gated = True
        if name not in self._tenant_lanes:
            found = [share.lanes[name] for share in self._shares() if name in share.lanes]
            for lane in found:
                lane.scope = scope
            if found:
                self._tenant_lanes[name] = found
        self._settle_tenant(scope, now_ms)

    def _shares(self) -> list[Share]:
        return [share for level in self.levels for share in level.shares.values()]

    # -- loading -------------------------------------------------------------------------------

    def load_pauses(self, pauses: Iterable[Pause]) -> None:
        """Pause an empty schedule."""
        for pause in pauses:
            self.pause(pause.resource_type, pause.tenant, 0)

    def load(self, items: Iterable[Item]) -> None:
        """Fill an empty schedule with items that are ready, delayed or leased, keeping the times lanes already have."""
        self._loading = True
        for item in items:
            if item.state == LEASED:
                self._load_lease(item)
                continue
            key = self.keys.of(item) if self.keyed else None
            if key is None:
                if item.state == READY:
                    self.stand(item, 0)
            elif item.state == READY or self.keys.holds_delayed:
                self.keys.wait(key, item)
        for key in self.keys.all():
            self._settle_key(key, 0)
        self._settle_all()
        self._loading = False

    def _load_lease(self, item: Item) -> None:
        if self.types.any:
            self.types.use(item.payload.resource_type, item.weight)
        if self.tenants.any:
            self.tenants.use(self.tenant_of(item), item.weight)
        key = self.keys.of(item) if self.keyed else None
        if key is not None:
            self.keys.hold(key, item)

    def _settle_all(self) -> None:
        for level in self.levels:
            level.turns.highest = level.turns.floor
        for share in self._shares():
            share.turns.highest = share.turns.floor
            for lane in share.lanes.values():
                self._settle_lane(lane, 0)
                if lane.time > share.turns.highest:
                    share.turns.highest = lane.time
            self._settle_share(share, 0)
            level = share.level
            if share.time > level.turns.highest:
                level.turns.highest = share.time
        for turns in self._turns():
            turns.still = not turns.live

    def _turns(self) -> list[Turns]:
        return [level.turns for level in self.levels] + [share.turns for share in self._shares()]


def _first_three(entry: tuple[int, int, str, Lane]) -> tuple[int, int, str]:
    return entry[:3]
