"""A shadow of the schedule: as much of it as can come before one item, to try out there what undoing its gates does.

It is a schedule of its own and moves by the same functions that grant, so what comes out is what would be. Only copies
of items are in it, and few: of each lane the first, and of each key whose item is there the first that waits behind it.
Before one goes the next of its lane is copied, and then that of its key: so whoever is looked at is there, and no lane
is ever empty that would not be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Final

from omnirelay.core.evolve import FORGET_MAX
from omnirelay.core.items import CANCELLED, COMPLETED, DELAYED, LEASED, READY, Item
from omnirelay.core.keys import Key
from omnirelay.core.lanes import Lane, Level
from omnirelay.core.ordered import OrderedQueue
from omnirelay.core.pauses import Pause
from omnirelay.core.rules.selecting import Choice, next_item
from omnirelay.core.schedule import NEVER
from omnirelay.core.scopes import Scopes
from omnirelay.core.state import State

Place = tuple[int, str, str]
"""Class, resource type and tenant: the name of a lane."""

STEPS_MAX: Final = 10_000
"""So many items are looked at one by one."""

KEYED_DUE_MAX: Final = 100_000
"""So many that are delayed for no longer than the item are looked at, where each may meet others of its key."""


class Shadow:
    """What the schedule would be for `item` at `now_ms`, which may be later than now, and what is left of these leases.

    First it is as the schedule is, then it is changed step by step: see `why`.
    """

    def __init__(self, state: State, item: Item, now_ms: int, ending: Iterable[Item]) -> None:
        self.now_ms = now_ms
        self._real = state
        self._item = item
        self._copies: dict[int, Item] = {}
        self._lanes: dict[Place, Iterator[Item]] = {}
        """What is not copied yet, of each lane …"""
        self._queues: dict[Place, OrderedQueue] = {}
        """… and the queue it comes from, where it is nothing but the rest of that …"""
        self._lines: dict[tuple[str, str], Iterator[Item]] = {}
        """… and of each key."""
        self._taken: set[tuple[str, str]] = set()
        """Keys that are here."""
        # What wakes up may take the place of one that stands: then that leaves a lane before the next is copied.
        self._ahead = 2 if item.state == DELAYED and state.schedule.keyed else 1
        self._due: list[Item] = []
        """What is delayed, but no longer by then …"""
        self._woken: dict[Place, list[Item]] = {}
        """… and of these, by lane, what need not be looked at one by one."""
        self.is_whole = True
        """Not when so much wakes up until then that some of it was left out."""
        self._stamp = state.sequence
        self._loading: list[Item] | None = []
        self._state = State(state.options)
        self.schedule = self._state.schedule
        self._load(list(ending))
        self.item = self._copy(item)

    # -- making it -----------------------------------------------------------------------------

    def _load(self, ending: list[Item]) -> None:
        real, schedule = self._real.schedule, self.schedule
        schedule.count_grants(real.grants, self._real.options.starvation_every)
        schedule.load_pauses(self._real.pauses.values())
        schedule.sweep_at = NEVER
        for scopes, own in ((real.types, schedule.types), (real.tenants, schedule.tenants)):
            _copy_use(scopes, own)
        self._copy_lanes()
        key = real.keys.find(self._item) if real.keyed else None
        if key is not None:
            # Whoever else waits there before the item goes unseen, and whoever waits behind it does not matter.
            first = next(key.in_order(), None)
            self._lines[key.resource_type, key.name] = iter([] if first is None else [first])
            self._take_over_key(key, self._item)
        for lease in ending:
            self._copy(lease)
        self._find_due()
        for place, lane in self._real_lanes():
            self._lanes[place] = iter(lane.queue)
            if not real.keys.matter and place not in self._woken:
                self._queues[place] = lane.queue
            self._feed_lane(place, self._ahead)
        if self._item.state == READY or real.keys.holds_delayed:
            self._copy(self._item)
        items, self._loading = self._loading or [], None
        schedule.load(items)
        self._copy_stillness()

    def _copy_lanes(self) -> None:
        for level, own in zip(self._real.schedule.levels, self.schedule.levels, strict=True):
            own.waiting_since, own.closed_at, own.guarded_at = level.waiting_since, level.closed_at, level.guarded_at
            own.turns.floor = level.turns.floor
            for name, share in level.shares.items():
                own_share = self.schedule.new_share(level.number, name)
                own_share.time, own_share.turns.floor = share.time, share.turns.floor
                for tenant, lane in share.lanes.items():
                    self.schedule.new_lane(own_share, tenant).time = lane.time

    def _copy_stillness(self) -> None:
        for level, own in zip(self._real.schedule.levels, self.schedule.levels, strict=True):
            if not self._matters(level):
                continue
            own.turns.still, own.turns.highest = level.turns.still, level.turns.highest
            for name, share in level.shares.items():
                turns = own.shares[name].turns
                turns.still, turns.highest = share.turns.still, share.turns.highest

    def _real_lanes(self) -> Iterator[tuple[Place, Lane]]:
        for level in self._real.schedule.levels:
            if not self._matters(level):
                continue
            for share in level.shares.values():
                for lane in share.lanes.values():
                    if lane.queue.live:
                        yield (level.number, share.name, lane.name), lane

    def _matters(self, level: Level) -> bool:
        """Classes behind that of the item can have a grant before it only by the guard."""
        options = self._real.options
        if level.number <= self._item.priority:
            return True
        return options.starvation_every > 0 and level.waiting_since < self.now_ms - options.starvation_after_ms

    def _find_due(self) -> None:
        """What is no longer delayed by then. One that a delay keeps in its key is there before it wakes."""
        if self._item.state != DELAYED:
            return
        keys = self._real.schedule.keys
        delayed = self._real.delayed
        due = delayed.up_to(self.now_ms, delayed.live)
        own = self._name_of_key(self._item)
        if keys.matter and len(due) > KEYED_DUE_MAX:
            # Whoever may come before it in its own key is looked at all the same, and so is the item itself.
            self.is_whole = False
            due = due[:KEYED_DUE_MAX] + [item for item in due[KEYED_DUE_MAX:] if self._name_of_key(item) == own]
        twice = self._met_twice(due)
        for item in due:
            key = keys.find(item) if keys.matter else None
            if item is not self._item and self._wakes_unnoticed(item, key, twice):
                self._woken.setdefault(self.place_of(item), []).append(item)
            elif len(self._due) < STEPS_MAX or self._name_of_key(item) == own:
                self._due.append(item)
                if key is not None:
                    self._take_over_key(key, item)
                if keys.holds_delayed:
                    self._copy(item)
            else:
                self.is_whole = False

    def _met_twice(self, due: list[Item]) -> set[tuple[str, str]]:
        """Keys of which more than one wakes."""
        if not self.schedule.keyed:
            return set()
        counts = Counter(self._name_of_key(item) for item in due)
        return {name for name, count in counts.items() if count > 1}

    def _name_of_key(self, item: Item) -> tuple[str, str]:
        payload = item.payload
        if self._real.options.key == "resource":
            return payload.resource_type, payload.resource_id
        return "", payload.partition

    def _wakes_unnoticed(self, item: Item, key: Key | None, twice: set[tuple[str, str]]) -> bool:
        """Whether it just comes to its lane: nobody has to make way, and no limit makes it matter who came first."""
        if any(limit.by != "key" for limit in self._real.options.limits):
            return False
        if key is None:
            return not self.schedule.keyed or self._name_of_key(item) not in twice
        alone = key.live == (1 if self._real.schedule.keys.holds_delayed else 0)
        return alone and key.standing is None and not key.running and self._name_of_key(item) not in twice

    # -- copies --------------------------------------------------------------------------------

    def _copy(self, item: Item) -> Item:
        """A copy of an item that is in; before the schedule is loaded, it is in with all others."""
        found = self._copies.get(item.sequence_id)
        if found is not None:
            return found
        copy = Item(
            item.sequence_id,
            item.payload,
            item.state,
            self._next_stamp(),
            item.attempt,
            item.priority,
            item.weight,
            item.max_attempts,
            item.enqueued_at,
            item.not_before,
            item.size,
            None,
            item.order,
        )
        self._copies[item.sequence_id] = copy
        key = self._real.schedule.keys.find(item) if self._real.schedule.keyed else None
        if key is not None:
            self._take_over_key(key, item)
        if self._loading is not None:
            if item.state == LEASED:
                self._take_off_use(item, key)
            self._loading.append(copy)
        return copy

    def _next_stamp(self) -> int:
        self._stamp += 1
        return self._stamp

    def _take_over_key(self, key: Key, item: Item) -> None:
        """What is leased of a key, who stands for it and who waits first."""
        name = key.resource_type, key.name
        own = None if name in self._taken else self.schedule.keys.of(item)
        if own is None:
            return
        self._taken.add(name)
        self._lines.setdefault(name, key.in_order())
        own.running, own.used = key.running, key.used
        if self._loading is not None:
            if key.standing is not None:
                self._copy(key.standing)
            self._feed_line(name)

    def _take_off_use(self, item: Item, key: Key | None) -> None:
        """A copy of a lease counts itself when it is loaded."""
        schedule = self.schedule
        schedule.types.use(item.payload.resource_type, -item.weight)
        schedule.tenants.use(schedule.tenant_of(item), -item.weight)
        own = None if key is None else schedule.keys.of(item)
        if own is not None and key is not None and key.standing is not item:
            own.running -= 1
            if not schedule.keys.exclusive:
                own.used -= item.weight

    def _feed_lane(self, place: Place, count: int = 1) -> None:
        for _ in range(count):
            item = self._next_of(self._lanes.get(place))
            if item is None:
                return
            copy = self._copy(item)
            if self._loading is None:
                keys = self.schedule.keys
                own = keys.of(copy) if keys.matter else None
                if own is not None:
                    keys.give(own, copy)
                copy.state = READY
                self.schedule.stand(copy, self.now_ms)
                if own is not None:
                    self._feed_line((own.resource_type, own.name))

    def _feed_line(self, name: tuple[str, str]) -> None:
        item = self._next_of(self._lines.get(name))
        if item is not None:
            copy = self._copy(item)
            if self._loading is None:
                self.schedule.admit(copy, self.now_ms)

    def _next_of(self, items: Iterator[Item] | None) -> Item | None:
        if items is None:
            return None
        return next((item for item in items if item.sequence_id not in self._copies), None)

    def place_of(self, item: Item) -> Place:
        return item.priority, item.payload.resource_type, self.schedule.tenant_of(item)

    # -- steps ---------------------------------------------------------------------------------

    def pass_time(self) -> None:
        """Delays and pauses that are over by then are over, as `TimeAdvanced` ends them."""
        self._wake_unnoticed()
        over = [pause for pause in self._real.pauses.values() if pause.until is not None and pause.until <= self.now_ms]
        over.sort(key=_by_scope)
        for start in range(0, len(self._due), FORGET_MAX):
            woken = [self._copy(item) for item in self._due[start : start + FORGET_MAX]]
            for copy in woken:
                copy.state, copy.not_before, copy.stamp = READY, None, self._next_stamp()
            self.schedule.admit_all(woken, self.now_ms, were_delayed=True)
            while over:
                self.resume(over.pop(0))

    def _wake_unnoticed(self) -> None:
        for place, items in self._woken.items():
            items.sort(key=_by_order)
            rest = self._lanes.get(place, iter(()))
            self._lanes[place] = iter(items)
            self._feed_lane(place, self._ahead)
            self._lanes[place] = merge(rest, self._lanes[place], key=_by_order)

    def resume(self, pause: Pause) -> None:
        self.schedule.resume(pause.resource_type, pause.tenant, self.now_ms)

    def clear_key(self) -> list[Item]:
        """Whoever comes before the item in its key goes. Those that are here are returned: not all, see `_lines`."""
        keys = self.schedule.keys
        own = keys.of(self.item) if keys.matter else None
        if own is None:
            return []
        before = [
            copy
            for copy in [*own.in_order(), *([own.standing] if own.standing is not None else [])]
            if copy.state != LEASED and keys.rank(copy) < keys.rank(self.item)
        ]
        for copy in sorted(before, key=keys.rank, reverse=True):
            self.cancel(copy)
        return before

    def end(self, leases: Iterable[Item]) -> None:
        for lease in leases:
            copy = self._copies[lease.sequence_id]
            self._complete(copy)

    def next(self) -> Choice:
        return next_item(self._state, self.now_ms)

    def cancel(self, copy: Item) -> None:
        self._feed_lane(self.place_of(copy))
        copy.stamp = self._next_stamp()
        self.schedule.withdraw(copy, self.now_ms)
        copy.state = CANCELLED
        self._feed_line_of(copy)

    def have_its_turn(self, copy: Item, guard: bool) -> None:
        """It is granted and done at once."""
        self._feed_lane(self.place_of(copy))
        copy.stamp = self._next_stamp()
        copy.state = LEASED
        self.schedule.granted(copy, guard, self.now_ms)
        self._complete(copy)

    def _complete(self, copy: Item) -> None:
        copy.stamp = self._next_stamp()
        copy.state = COMPLETED
        if self.schedule.gated:
            self.schedule.ended(copy, self.now_ms)
        self._feed_line_of(copy)

    def _feed_line_of(self, copy: Item) -> None:
        keys = self._real.schedule.keys
        key = keys.find(copy) if keys.matter else None
        if key is not None:
            self._feed_line((key.resource_type, key.name))

    # -- looking -------------------------------------------------------------------------------

    def lane(self) -> Lane:
        """Where the item stands."""
        return self.schedule.lane_of(self.item)

    # -- many at once --------------------------------------------------------------------------

    def skip_own_lane(self) -> int:
        """How many before the item in its lane go without anybody noticing; they are gone."""
        return self._skip(self.place_of(self.item), self.item.order) if self._is_wide(self.lane()) else 0

    def skip_class(self, level: Level) -> int:
        """The same for a class of which everything is to go."""
        return sum(
            self._skip((level.number, share.name, lane.name), NEVER)
            for share in level.shares.values()
            if share.offering
            for lane in share.lanes.values()
            if lane.offering and self._is_wide(lane)
        )

    def _is_wide(self, lane: Lane) -> bool:
        """Whether no limit holds back anything of the lane, so that it does not matter what is in front."""
        heaviest = max(self._real.schedule.heaviest, self.schedule.heaviest)
        return all(
            scope is None or scope.limit is None or scope.used == 0 or scope.used + heaviest <= scope.limit
            for scope in (lane.scope, lane.share.scope)
        )

    def _skip(self, place: Place, order: int) -> int:
        """Drop those of a lane up to an order, unless somebody waits behind them in their key."""
        waiting = self._lanes.get(place)
        if waiting is None:
            return 0
        queue = self._queues.pop(place, None)
        below = None if queue is None else queue.count_below(order)
        if below is not None:
            self._lanes[place] = iter(())
            return below - self._copied_of(place, order)
        keys = self._real.schedule.keys
        count = 0
        kept: list[Item] = []
        for item in waiting:
            if item.order >= order:
                break
            if item.sequence_id in self._copies:
                continue
            if keys.matter and keys.has_line(item):
                kept.append(item)
            else:
                count += 1
        self._lanes[place] = iter(kept)
        return count

    def _copied_of(self, place: Place, order: int) -> int:
        """How many of a lane up to an order are here already."""
        items = self._real.items
        return sum(
            item.state == READY and item.order < order and self.place_of(item) == place
            for item in map(items.__getitem__, self._copies)
        )


def _copy_use(scopes: Scopes, own: Scopes) -> None:
    for scope in scopes.all():
        if scope.limit is not None:
            own.use(scope.name, scope.used)


def _by_order(item: Item) -> int:
    return item.order


def _by_scope(pause: Pause) -> str:
    return pause.scope
