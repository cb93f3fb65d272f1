"""Leases as the watch of a replay looks at them: how they are granted, renewed and ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from omnirelay.core import events as ev
from omnirelay.core.evolve import evolver_of
from omnirelay.core.items import LEASED, READY, STATE_NAMES, Item, attempts_before
from omnirelay.core.options import QueueOptions
from omnirelay.core.schedule import Schedule
from omnirelay.core.state import State
from omnirelay.lakehouse.audit_debts import Debts, Name
from omnirelay.lakehouse.audit_gates import Gates, is_offered


class Leases:
    """The leases of a state. A check says whether the event is to be applied, and names what is wrong with it."""

    def __init__(self, state: State, name: Name, debts: Debts) -> None:
        self.state = state
        self._name = name
        self._debts = debts
        self.judge_by(state.options)
        self.checks: Final[dict[type[Any], Callable[[Any], bool]]] = {
            ev.LeaseGranted: self.granted,
            ev.Heartbeat: self.renewed,
            ev.Completed: self.completed,
            ev.Failed: self.failed,
            ev.Released: self.released,
            ev.Expired: self.expired,
        }

    def judge_by(self, options: QueueOptions) -> None:
        """These options hold from now on."""
        self._gates = Gates(options, self.state.leased)
        self._lease_max_ms = options.max_lease_duration_ms

    def lost(self, item: Item) -> None:
        """The item is to lose its lease without a word about the lease."""
        if self._gates.matter:
            self._gates.free(item)

    # -- granting ------------------------------------------------------------------------------

    def granted(self, event: ev.LeaseGranted) -> bool:
        token = event.ownership
        number = token.sequence_id
        item = self.state.items.get(number)
        if item is None or item.state != READY:
            if item is not None and item.lease is not None:
                self._name("one-lease", event, number, f"lease {item.lease.token.lease_id} of the item is live")
            else:
                self._name("life", event, number, f"an item that is {state_of(item)} cannot be leased")
            return False
        if token.fence != event.sequence_number:
            self._name("fences", event, number, f"its fence is {token.fence}, its number {event.sequence_number}")
        elif item.trail is not None:
            last = item.trail.last_token
            if last is not None and last.fence is not None and last.fence >= event.sequence_number:
                self._name("fences", event, number, f"its fence is not above the item's last one, {last.fence}")
        if token.attempt != item.attempt:
            self._name("limits", event, number, f"it is attempt {token.attempt}, the item is at {item.attempt}")
        duration_ms = event.expires_at - event.timestamp
        if not 0 < duration_ms <= self._lease_max_ms:
            what = f"it is given for {duration_ms} ms, the options allow 1 to {self._lease_max_ms}"
            self._name("expiry", event, number, what)
        if self._gates.matter or self.state.schedule.gated or self.state.pauses:
            return self._let_through(event, item)
        return True

    def _let_through(self, event: ev.LeaseGranted, item: Item) -> bool:
        """Whether the schedule lets the item be leased. If not that is named, and the item is leased past it: left out,
        the lease would be missed by every event about it.
        """
        kept_back = bool(self.state.pauses) and self._is_paused(event, item)
        if self._gates.matter:
            for rule, what in self._gates.objections(item):
                self._name(rule, event, item.sequence_id, what)
                kept_back = True
            self._gates.hold(item)
        if not kept_back and not is_offered(self.state.schedule, item):
            self._name("follows", event, item.sequence_id, "the schedule keeps it back for others that come before it")
            kept_back = True
        if kept_back:
            self._grant_past_schedule(event, item)
        return not kept_back

    def _grant_past_schedule(self, event: ev.LeaseGranted, item: Item) -> None:
        state = self.state
        grants = state.schedule.grants + 1
        # In a schedule where there is nothing else the item is the next one.
        state.schedule = Schedule(QueueOptions())
        state.schedule.load([item])
        evolver_of(ev.LeaseGranted)(state, event)
        state.schedule = Schedule(state.options)
        state.schedule.load_pauses(state.pauses.values())
        state.schedule.load(each for each in state.items.values() if each.state <= LEASED)
        state.schedule.count_grants(grants, state.options.starvation_every)

    def _is_paused(self, event: ev.LeaseGranted, item: Item) -> bool:
        tenant = (item.payload.attributes or {}).get(self.state.options.tenant_attribute, "")
        for pause in self.state.pauses.values():
            if pause.resource_type in (None, item.payload.resource_type) and pause.tenant in (None, tenant):
                self._name("follows", event, item.sequence_id, f"{pause.scope} is paused")
                return True
        return False

    # -- going on and ending -------------------------------------------------------------------

    def _owner(self, event: ev.Heartbeat | ev.Completed | ev.Failed | ev.Released | ev.Expired) -> Item | None:
        """The item, if the event names its live lease, as it has to."""
        token = event.ownership
        item = self.state.items.get(token.sequence_id)
        if item is not None and item.lease is not None:
            live = item.lease.token
            if live.lease_id == token.lease_id and live.fence == token.fence:
                if live.attempt == token.attempt:
                    return item
                what = f"it names attempt {token.attempt}, the live lease is attempt {live.attempt}"
            else:
                what = (
                    f"lease {token.lease_id} (fence {token.fence}) is over,"
                    f" {live.lease_id} (fence {live.fence}) is live"
                )
        else:
            what = f"no lease of an item that is {state_of(item)} is live"
        self._name("owner", event, token.sequence_id, what)
        return None

    def renewed(self, event: ev.Heartbeat) -> bool:
        item = self._owner(event)
        if item is None:
            return False
        lease = item.lease
        assert lease is not None
        until, deadline = event.expires_at, lease.deadline
        if until != deadline and (until < deadline or until != event.timestamp + lease.duration):
            what = (
                f"the lease of {lease.duration} ms is to end {until - event.timestamp} ms from now,"
                f" and not {deadline - event.timestamp} as it was"
            )
            self._name("expiry", event, item.sequence_id, what)
        return True

    def completed(self, event: ev.Completed) -> bool:
        item = self._owner(event)
        if item is None:
            return False
        if self._gates.matter:
            self._gates.free(item)
        if event.follow_up_ids is not None:
            self._debts.owe_follow_ups(event, event.follow_up_ids, self.state)
        return True

    def _given_back(self, event: ev.Failed | ev.Released | ev.Expired) -> Item | None:
        """The item whose lease ends; it goes on without, unless its cancellation was requested."""
        item = self._owner(event)
        if item is not None:
            if self._gates.matter:
                self._gates.free(item)
            if item.trail is not None and item.trail.cancel_requested:
                self._debts.owe(event, item.sequence_id, ev.Cancelled)
        return item

    def released(self, event: ev.Released) -> bool:
        return self._given_back(event) is not None

    def failed(self, event: ev.Failed) -> bool:
        item = self._given_back(event)
        if item is None:
            return False
        if event.mode == "retry":
            self._check_next_attempt(event, item)
        elif event.next_attempt is not None:
            self._name("limits", event, item.sequence_id, f"an attempt is to follow a failure by {event.mode}")
        elif event.mode == "dead" and not is_cancelled(item):
            self._debts.owe(event, item.sequence_id, ev.DeadLettered)
        return True

    def expired(self, event: ev.Expired) -> bool:
        item = self._given_back(event)
        if item is None:
            return False
        lease = item.lease
        assert lease is not None
        if event.timestamp < lease.deadline:
            self._name("expiry", event, item.sequence_id, f"the lease had {lease.deadline - event.timestamp} ms left")
        if event.undelivered != (not lease.heartbeat_at):
            what = "a heartbeat came" if event.undelivered else "no heartbeat came"
            self._name("expiry", event, item.sequence_id, f"it says undelivered={event.undelivered}, but {what}")
        if not event.undelivered:
            self._check_next_attempt(event, item)
            return True
        lost = 1 if item.trail is None else item.trail.undelivered + 1
        if event.next_attempt is not None:
            self._name("limits", event, item.sequence_id, "an attempt is to follow one that was never delivered")
        elif lost > self.state.options.max_undelivered and not is_cancelled(item):
            self._debts.owe(event, item.sequence_id, ev.DeadLettered)
        return True

    def _check_next_attempt(self, event: ev.Failed | ev.Expired, item: Item) -> None:
        """The attempt that is to follow; when it was the last, a dead letter follows."""
        made = item.attempt - attempts_before(item)
        most = self.state.options.max_delivery_attempts if item.max_attempts is None else item.max_attempts
        following = event.next_attempt
        if following is None:
            if is_cancelled(item):
                return
            if made < most:
                self._name("limits", event, item.sequence_id, f"no attempt is to follow, {made} of {most} were made")
            self._debts.owe(event, item.sequence_id, ev.DeadLettered)
        elif following - item.attempt + made > most:
            what = f"attempt {following - item.attempt + made} is to follow, {most} are allowed"
            self._name("limits", event, item.sequence_id, what)
        elif following != item.attempt + 1:
            self._name("limits", event, item.sequence_id, f"attempt {following} is to follow attempt {item.attempt}")


def is_cancelled(item: Item) -> bool:
    """Whether the end of its lease will be the end of the item."""
    return item.trail is not None and item.trail.cancel_requested


def state_of(item: Item | None) -> str:
    return "not there" if item is None else STATE_NAMES[item.state]
