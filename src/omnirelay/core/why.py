"""Why an item is not the next grant: the gates in its way, read from the same state that grants.

Undoing every gate that is named makes the item the next one. Each gate is judged as if the others were undone:
an item that is delayed *and* behind a held key gets both, so that nobody undoes one only to meet the other. What is
held back by somebody else's pause or limit is not in the way and is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from omnirelay.core.answers import Gate, WhyAnswer
from omnirelay.core.items import DELAYED, LEASED, READY, STATE_NAMES, Item
from omnirelay.core.keys import Keys
from omnirelay.core.lanes import Lane, Share
from omnirelay.core.pauses import Pause
from omnirelay.core.rules.handling import find_item
from omnirelay.core.rules.pausing import pauses_over
from omnirelay.core.rules.selecting import guard_is_due, next_item, starving_levels
from omnirelay.core.scopes import Scope
from omnirelay.core.state import State
from omnirelay.core.turns import Member, Turns
from omnirelay.core.views import backpressure


def why(state: State, sequence_id: int, now_ms: int) -> WhyAnswer:
    """The gates before an item; none: it is next. Raises `unknown_item`."""
    item = find_item(state, sequence_id)
    return WhyAnswer(sequence_id, STATE_NAMES[item.state], _gates(state, item, now_ms), backpressure(state).reason)


def _gates(state: State, item: Item, now_ms: int) -> list[Gate]:
    if item.state == LEASED:
        return [_leased(item)]
    if item.state not in (READY, DELAYED):
        return [Gate(gate="ended", message=f"it is {STATE_NAMES[item.state]}", until=None)]
    if next_item(state, now_ms)[0] is item:
        return []
    place = _Place(state, item)
    gates: list[Gate] = []
    if item.state == DELAYED:
        gates.append(Gate(gate="delay", message="it is delayed", until=item.not_before))
    gates += [_paused(pause) for pause in pauses_over(state, item.payload)]
    gates += _key_gates(state, item)
    gates += place.limits()
    gates += _order_gates(state, place, now_ms)
    return gates


def _leased(item: Item) -> Gate:
    lease = item.lease
    assert lease is not None
    return Gate(
        gate="leased",
        message=f"it is leased to {lease.owner or 'a peer that gave no name'}",
        until=lease.deadline,
        owner_peer_id=lease.owner,
        principal=lease.principal,
    )


def _paused(pause: Pause) -> Gate:
    because = f": {pause.reason}" if pause.reason else ""
    return Gate(
        gate="pause",
        message=f"{pause.scope} is paused{because}",
        until=pause.until,
        reason=pause.reason,
        principal=pause.principal,
    )


# -- keys --------------------------------------------------------------------------------------


def _key_gates(state: State, item: Item) -> list[Gate]:
    keys = state.schedule.keys
    key = keys.find(item) if keys.matter else None
    if key is None:
        return []
    gates: list[Gate] = []
    standing = key.standing
    if keys.is_held(key, item):
        if standing is not None and standing.state == LEASED:
            holder = standing
        else:
            holder = next(other for other in state.leased if keys.find(other) is key)
        owner = None if holder.lease is None else holder.lease.owner
        if key.limit is not None and not keys.exclusive:
            message = f"its key {key.name!r} is at its limit"
            gates.append(_limit(message, key.used, key.limit, holder.sequence_id, owner))
        else:
            gates.append(
                Gate(
                    gate="key",
                    message=f"its key {key.name!r} is held by item {holder.sequence_id}",
                    held_by=holder.sequence_id,
                    owner_peer_id=owner,
                )
            )
    rank = keys.rank(item)
    first = _standing_before(keys, item)
    before = [] if first is None else [first]
    before += takewhile(lambda other: keys.rank(other) < rank, key.in_order())
    if before:
        gates.append(
            Gate(
                gate="key",
                message=f"{counted(len(before))} of its key {key.name!r} before it",
                held_by=before[0].sequence_id,
                ahead=len(before),
            )
        )
    return gates


def _standing_before(keys: Keys, item: Item) -> Item | None:
    """The item that stands in the schedule for the key and comes before this one."""
    key = keys.find(item) if keys.matter else None
    standing = None if key is None else key.standing
    if standing is None or standing.state != READY or keys.rank(standing) >= keys.rank(item):
        return None
    return standing


def _limit(message: str, used: int, limit: int, held_by: int | None = None, owner: str | None = None) -> Gate:
    return Gate(gate="limit", message=message, used=used, max=limit, held_by=held_by, owner_peer_id=owner)


# -- limits ------------------------------------------------------------------------------------


class _Place:
    """Where an item stands, or would stand if only its key and its delay were undone."""

    def __init__(self, state: State, item: Item) -> None:
        schedule = state.schedule
        self.item = item
        self.schedule = schedule
        self.level = schedule.levels[item.priority]
        self.tenant = schedule.tenant_of(item)
        self.share = self.level.shares.get(item.payload.resource_type)
        self.lane = None if self.share is None else self.share.lanes.get(self.tenant)
        self.emptied_lane: Lane | None = None
        """Holds nothing but the item that stands for the key, and has no turn any more when that is gone …"""
        self.emptied_share: Share | None = None
        """… nor has this, which offers nothing else. Who comes in their place joins at the turn of the others."""
        standing = _standing_before(schedule.keys, item)
        lane = None if standing is None else schedule.lane_of(standing)
        if lane is not None and lane.queue.live == 1:
            self.emptied_lane = lane
            if lane.share.turns.live == int(lane.offering):
                self.emptied_share = lane.share

    @property
    def resource_type(self) -> str:
        return self.item.payload.resource_type

    def limits(self) -> list[Gate]:
        schedule = self.schedule
        gates: list[Gate] = []
        scope = schedule.tenants.known(self.tenant)
        if scope is not None and scope.limit is not None:
            mine = (self.level.number, self.item.order, self.resource_type)
            ahead = sorted(
                (place, lane.head())
                for lane in schedule.lanes_of(self.tenant)
                if lane.queue.live and (place := _tenant_place(lane)) < mine
            )
            gates += _scope_gates(scope, f"tenant {self.tenant}", [head for _, head in ahead], self.item)
        scope = schedule.types.known(self.resource_type)
        if scope is not None and scope.limit is not None:
            heads = [
                share.head()
                for level in schedule.levels[: self.level.number]
                if (share := level.shares.get(self.resource_type)) is not None and share.turns.live
            ]
            gates += _scope_gates(scope, f"resource type {self.resource_type}", heads, self.item)
        return gates


def _tenant_place(lane: Lane) -> tuple[int, int, str]:
    return lane.share.level.number, lane.head().order, lane.share.name


def _scope_gates(scope: Scope, name: str, heads: list[Item], item: Item) -> list[Gate]:
    """The limit itself, or the heavier item before this one that has what is left of it reserved."""
    assert scope.limit is not None
    for head in heads:
        if head is not item and not scope.fits(head.weight):
            message = f"what is left of the limit of {name} is reserved for item {head.sequence_id}"
            return [_limit(message, scope.used, scope.limit, head.sequence_id)]
    if scope.fits(item.weight):
        return []
    return [_limit(f"{name} is at its limit", scope.used, scope.limit)]


# -- order -------------------------------------------------------------------------------------


def _order_gates(state: State, place: _Place, now_ms: int) -> list[Gate]:
    """Classes, turns and the line, in the order they are asked."""
    gates: list[Gate] = []
    starving = starving_levels(state, now_ms) if guard_is_due(state) else []
    if starving and starving[0] is not place.level:
        number = starving[0].number
        gates.append(
            Gate(gate="priority", message=f"the next grant goes to class {number}, which has waited too long", ahead=1)
        )
    elif not starving:
        ahead = sum(
            lane.queue.live
            for level in state.schedule.levels[: place.level.number]
            for share in level.shares.values()
            for lane in share.lanes.values()
            if _in_the_way(place, share, lane)
        )
        if ahead:
            gates.append(Gate(gate="priority", message=f"{counted(ahead)} of higher classes before it", ahead=ahead))
    turns = _lanes_first(place)
    if turns:
        names = ", ".join(sorted({f"{lane.share.name}/{lane.name or '-'}" for lane in turns})[:5])
        gates.append(
            Gate(
                gate="tenantShare",
                message=f"it is the turn of other resource types or tenants: {names}",
                ahead=len(turns),
            )
        )
    if place.lane is not None:
        ahead = sum(1 for _ in takewhile(lambda other: other.order < place.item.order, place.lane.queue))
        if ahead:
            gates.append(Gate(gate="position", message=f"{counted(ahead)} of its lane before it", ahead=ahead))
    return gates


def _in_the_way(place: _Place, share: Share, lane: Lane) -> bool:
    """Whether the lane offers, or would as soon as this item's own gates are undone."""
    if not lane.queue.live:
        return False
    if lane.name != place.tenant and not lane.offering:
        return False
    scope = share.scope
    if share.name == place.resource_type or scope is None:
        return True
    return not scope.paused and scope.fits(lane.head().weight)


def _lanes_first(place: _Place) -> list[Lane]:
    """Lanes of the same class whose turn comes before that of the item's lane."""
    level, share = place.level, place.share
    mine = _turn_without(place.emptied_share, level.turns, level.shares.values(), share, place.resource_type)
    found: list[Lane] = []
    for other in level.shares.values():
        if other is share:
            own = _turn_without(place.emptied_lane, other.turns, other.lanes.values(), place.lane, place.tenant)
            found += [
                lane
                for lane in other.lanes.values()
                if lane is not place.lane
                and _in_the_way(place, other, lane)
                and _turn(other.turns, lane, lane.name) < own
            ]
        elif _turn(level.turns, other, other.name) < mine:
            found += [lane for lane in other.lanes.values() if _in_the_way(place, other, lane)]
    return found


def _turn(turns: Turns, member: Member | None, name: str) -> tuple[int, str]:
    """When it is the member's turn; for one that is not in, as if it joined now."""
    time = 0 if member is None else member.time
    if member is None or not member.offering:
        time = max(time, turns.least())
    return time, name


def _turn_without(
    leaving: Member | None, turns: Turns, members: Iterable[Member], member: Member | None, name: str
) -> tuple[int, str]:
    """When it is the member's turn once another has left; one that leaves itself joins again."""
    if leaving is None or (member is not None and member is not leaving and member.offering):
        return _turn(turns, member, name)
    others = [each.time for each in members if each.offering and each is not leaving]
    joins_at = turns.floor if turns.still or not others else min(others)
    return max(0 if member is None else member.time, joins_at), name


def counted(items: int) -> str:
    return "1 item" if items == 1 else f"{items} items"
