"""Why an item is not the next grant: the gates in its way, found with the functions that grant.

Undoing exactly the gates that are named makes the item the next grant. They are undone in this order, and nothing
else happens meanwhile:

    delay         time passes until then: other delays and pauses that end by then end, too
    pause         that scope is resumed
    key           those ahead in the key are cancelled, the last of them first; the lease that holds it is completed
    limit         every lease that counts in it is completed
    priority,     whoever is next goes, again and again, until it is the item: what is of a lower class or of the
    tenantShare,  item's own lane is cancelled, others have their turn, which is a grant that is completed at once.
    position      `ahead` counts each of these

To see what that brings up, it is done to a `Shadow`. Each gate is judged as if the others were undone: an item that is
delayed *and* behind a held key gets both, so that nobody undoes one only to meet the other. What is held back by
somebody else's pause or limit is not in the way and is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from omnirelay.core.answers import Gate, WhyAnswer
from omnirelay.core.items import DELAYED, LEASED, READY, STATE_NAMES, Item
from omnirelay.core.keys import Key
from omnirelay.core.lanes import Lane
from omnirelay.core.pauses import Pause
from omnirelay.core.rules.handling import find_item
from omnirelay.core.rules.pausing import pauses_over
from omnirelay.core.rules.selecting import next_item
from omnirelay.core.scopes import Scope
from omnirelay.core.shadow import STEPS_MAX, Shadow
from omnirelay.core.state import State
from omnirelay.core.views import backpressure

Held = int | None
"""The item that has what is left of a limit reserved; None when the one that is asked for does not fit itself."""


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
    gates: list[Gate] = []
    if item.state == DELAYED:
        gates.append(Gate(gate="delay", message="it is delayed", until=item.not_before))
    gates += [_paused(pause) for pause in pauses_over(state, item.payload)]
    return gates + _Undoing(state, item, now_ms).gates()


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


# -- undoing -----------------------------------------------------------------------------------


class _Undoing:
    """What has to be undone besides a delay and pauses: found by doing it."""

    def __init__(self, state: State, item: Item, now_ms: int) -> None:
        self._state = state
        self._item = item
        self._now_ms = now_ms if item.not_before is None else max(now_ms, item.not_before)
        keys = state.schedule.keys
        self._key = keys.find(item) if keys.matter else None
        self._holders = self._find_holders()
        self._limits: dict[str, Held] = {}
        """Of the tenant and of the type, as far as they are in the way."""
        self._ahead = dict.fromkeys(("priority", "tenantShare", "position"), 0)
        self._guarded: list[int] = []
        """Classes that get a grant by the starvation guard."""
        self._lanes_first: set[str] = set()
        self._counted = True
        """Whether that is all."""
        self._before: dict[int, Item] = {}
        """Those ahead in the key."""

    def gates(self) -> list[Gate]:
        # What a limit lets in may meet another one: each is found once, and then everything is tried again.
        while not self._is_next():
            pass
        gates = self._key_gates()
        return gates + self._limit_gates() + self._order_gates()

    def _is_next(self) -> bool:
        """Whether the item is next once everything that is known to be in its way is undone; else more is known."""
        ending = sorted(self._ending().values(), key=_by_id)
        shadow = Shadow(self._state, self._item, self._now_ms, ending)
        if self._item.state == DELAYED:
            shadow.pass_time()
        for pause in pauses_over(self._state, self._item.payload):
            if self._item.state != DELAYED or pause.until is None or pause.until > self._now_ms:
                shadow.resume(pause)
        self._before = {item.sequence_id: item for item in [*self._waiting_before(), *shadow.clear_key()]}
        if self._meets(_limits_before(shadow)):
            return False
        shadow.end(ending)
        self._counted = shadow.is_whole
        return self._comes_up(shadow)

    def _meets(self, limits: dict[str, Held]) -> bool:
        """Whether one of these limits was not known."""
        found = {kind: held for kind, held in limits.items() if kind not in self._limits}
        self._limits.update(found)
        return bool(found)

    def _ending(self) -> dict[int, Item]:
        """The leases that are in the way, by their keys or by what they use."""
        ending = {holder.sequence_id: holder for holder in self._holders}
        tenant, resource_type = self._state.schedule.tenant_of(self._item), self._item.payload.resource_type
        for lease in self._state.leased if self._limits else ():
            if ("tenant" in self._limits and self._state.schedule.tenant_of(lease) == tenant) or (
                "type" in self._limits and lease.payload.resource_type == resource_type
            ):
                ending[lease.sequence_id] = lease
        return ending

    def _limit_gates(self) -> list[Gate]:
        schedule = self._state.schedule
        scopes = {
            "tenant": schedule.tenants.known(schedule.tenant_of(self._item)),
            "type": schedule.types.known(self._item.payload.resource_type),
        }
        return [
            _limit_gate(kind, scope, self._limits[kind])
            for kind, scope in scopes.items()
            if scope is not None and kind in self._limits
        ]

    # -- keys ----------------------------------------------------------------------------------

    def _find_holders(self) -> list[Item]:
        """The leases that keep the item from standing for its key."""
        keys, key = self._state.schedule.keys, self._key
        if key is None or not keys.is_held(key, self._item):
            return []
        standing = key.standing
        held = [standing] if standing is not None and standing.state == LEASED else []
        if key.running:
            held += [lease for lease in self._state.leased if lease is not standing and keys.find(lease) is key]
        return held

    def _waiting_before(self) -> list[Item]:
        keys, key = self._state.schedule.keys, self._key
        if key is None:
            return []
        rank = keys.rank(self._item)
        before = list(takewhile(lambda other: keys.rank(other) < rank, key.in_order()))
        standing = key.standing
        if standing is not None and standing.state == READY and keys.rank(standing) < rank:
            before.append(standing)
        return before

    def _key_gates(self) -> list[Gate]:
        key = self._key
        gates: list[Gate] = []
        if key is not None and self._holders:
            gates += _holding(key, self._holders, self._state.schedule.keys.exclusive)
        if self._before:
            first = min(self._before.values(), key=self._state.schedule.keys.rank)
            name = self._item_key_name()
            gates.append(
                Gate(
                    gate="key",
                    message=f"{counted(len(self._before))} of its key {name!r} before it",
                    held_by=first.sequence_id,
                    ahead=len(self._before),
                )
            )
        return gates

    def _item_key_name(self) -> str:
        payload = self._item.payload
        return payload.resource_id if self._state.options.key == "resource" else payload.partition

    # -- order ---------------------------------------------------------------------------------

    def _comes_up(self, shadow: Shadow) -> bool:
        """Let whoever is next go until it is the item; not when it meets a limit."""
        item, lane = shadow.item, shadow.lane()
        self._ahead = dict.fromkeys(self._ahead, 0)
        self._guarded, self._lanes_first = [], set()
        ahead = self._ahead
        ahead["position"] = shadow.skip_own_lane()
        skipped: set[int] = set()
        for _ in range(STEPS_MAX):
            if self._meets(_limit_over(shadow, lane)):
                return False
            other, guard = shadow.next()
            if other is item:
                return True
            assert other is not None, "the item itself is offered"
            if other.priority < item.priority:
                if other.priority not in skipped:
                    skipped.add(other.priority)
                    ahead["priority"] += shadow.skip_class(shadow.schedule.levels[other.priority])
                ahead["priority"] += 1
                shadow.cancel(other)
            elif shadow.schedule.lane_of(other) is lane:
                ahead["position"] += 1
                shadow.cancel(other)
            elif other.priority == item.priority:
                ahead["tenantShare"] += 1
                self._lanes_first.add(f"{other.payload.resource_type}/{shadow.schedule.tenant_of(other) or '-'}")
                shadow.have_its_turn(other, guard)
            else:
                ahead["priority"] += 1
                self._guarded.append(other.priority)
                shadow.have_its_turn(other, guard)
        self._counted = False
        return True

    def _order_gates(self) -> list[Gate]:
        gates: list[Gate] = []
        least = "" if self._counted else "at least "
        ahead = self._ahead["priority"]
        if ahead:
            message = f"{least}{counted(ahead)} of higher classes before it"
            if self._guarded and ahead == len(self._guarded):
                message = f"the next grant goes to class {self._guarded[0]}, which has waited too long"
            gates.append(Gate(gate="priority", message=message, ahead=ahead))
        ahead = self._ahead["tenantShare"]
        if ahead:
            names = ", ".join(sorted(self._lanes_first)[:5])
            many = "" if self._counted else f", at least {ahead} times"
            gates.append(
                Gate(
                    gate="tenantShare",
                    message=f"it is the turn of other resource types or tenants{many}: {names}",
                    ahead=ahead,
                )
            )
        ahead = self._ahead["position"]
        if ahead:
            message = f"{least}{counted(ahead)} of its lane before it"
            gates.append(Gate(gate="position", message=message, ahead=ahead))
        return gates


def _by_id(item: Item) -> int:
    return item.sequence_id


def _holding(key: Key, holders: list[Item], exclusive: bool) -> list[Gate]:
    """A gate for each lease that has an exclusive key, or one for the limit of the key that they use."""
    owners = [None if holder.lease is None else holder.lease.owner for holder in holders]
    if key.limit is not None and not exclusive:
        message = f"its key {key.name!r} is at its limit"
        return [_limit(message, key.used, key.limit, holders[0].sequence_id, owners[0])]
    return [
        Gate(
            gate="key",
            message=f"its key {key.name!r} is held by item {holder.sequence_id}",
            held_by=holder.sequence_id,
            owner_peer_id=owner,
        )
        for holder, owner in zip(holders, owners, strict=True)
    ]


def _limit(message: str, used: int, limit: int, held_by: int | None = None, owner: str | None = None) -> Gate:
    return Gate(gate="limit", message=message, used=used, max=limit, held_by=held_by, owner_peer_id=owner)


# -- limits ------------------------------------------------------------------------------------


def _limits_before(shadow: Shadow) -> dict[str, Held]:
    """The limits that an item meets, whether it stands already or not."""
    schedule, item = shadow.schedule, shadow.item
    number, resource_type, tenant = shadow.place_of(item)
    found: dict[str, Held] = {}
    scope = schedule.tenants.known(tenant)
    if scope is not None:
        mine = (number, item.order, resource_type)
        filled = [lane for lane in schedule.lanes_of(tenant) if lane.queue.live and _tenant_place(lane) < mine]
        heads = [lane.head() for lane in sorted(filled, key=_tenant_place)]
        found |= _held_by("tenant", scope, heads, item)
    scope = schedule.types.known(resource_type)
    if scope is not None:
        shares = [level.shares.get(resource_type) for level in schedule.levels[:number]]
        heads = [share.head() for share in shares if share is not None and share.turns.live]
        found |= _held_by("type", scope, heads, item)
    return found


def _limit_over(shadow: Shadow, lane: Lane) -> dict[str, Held]:
    """The limits that hold back the lane of an item as it is now, or its share."""
    if lane.offering and lane.share.offering:
        return {}
    found = _limits_before(shadow)
    if lane.offering and lane.share.scope is not None:
        found |= _held_by("type", lane.share.scope, [lane.share.head()], shadow.item)
    assert found, "nothing else holds a lane back"
    return found


def _tenant_place(lane: Lane) -> tuple[int, int, str]:
    return lane.share.level.number, lane.head().order, lane.share.name


def _held_by(kind: str, scope: Scope, heads: Iterable[Item], item: Item) -> dict[str, Held]:
    """Whether the limit is in the way: for the item itself, or for one before it that has what is left reserved."""
    if scope.limit is None:
        return {}
    for head in heads:
        if head is not item and not scope.fits(head.weight):
            return {kind: head.sequence_id}
    return {} if scope.fits(item.weight) else {kind: None}


def _limit_gate(kind: str, scope: Scope, held_by: int | None) -> Gate:
    assert scope.limit is not None
    name = f"tenant {scope.name}" if kind == "tenant" else f"resource type {scope.name}"
    message = f"{name} is at its limit"
    if held_by is not None:
        message = f"what is left of the limit of {name} is reserved for item {held_by}"
    return _limit(message, scope.used, scope.limit, held_by)


def counted(items: int) -> str:
    return "1 item" if items == 1 else f"{items} items"
