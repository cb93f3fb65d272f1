"""The watch around a replay: before each event, whether it may happen in the state there is.

`evolve` cannot refuse, so whatever a log says is applied. The watch looks first. An event that cannot be is named and
left out, so that the state stays one that could be, and the replay goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from omnirelay.core import events as ev
from omnirelay.core.evolve import evolver_of
from omnirelay.core.items import DEAD, DELAYED, LEASED, READY, STATE_NAMES, Item
from omnirelay.core.state import State
from omnirelay.lakehouse.audit_gates import Gates
from omnirelay.lakehouse.audit_rules import Findings

_OVERDUE_MS: Final = 60_000
"""How long the end of a lease or a delay may be overdue at the end of a log: a busy shard works in slices."""


class Impossible(Exception):
    """The rules could not apply an event."""

    def __init__(self, event: ev.Event, error: Exception) -> None:
        super().__init__(f"{type(event).__name__} cannot be applied to the state before it: {error!r}")
        self.sequence = event.sequence_number


class Watch:
    """One state and what was found while it was brought forward."""

    def __init__(self, state: State, findings: Findings) -> None:
        self.state = state
        self._findings = findings
        self._gates = Gates(state.options, state.leased)
        self._checks: Final[dict[type[Any], Callable[[Any], bool]]] = {
            ev.Enqueue: self._enqueued,
            ev.LeaseGranted: self._granted,
            ev.Heartbeat: self._owned,
            ev.Completed: self._ended,
            ev.Failed: self._tried,
            ev.Released: self._ended,
            ev.Expired: self._expired,
            ev.DeadLettered: self._dead_lettered,
            ev.Cancelled: self._cancelled,
            ev.DrainSnapshot: self._drained,
            ev.RestoreSnapshot: self._restored,
            ev.Redriven: self._redriven,
            ev.Purged: self._purged,
            ev.DeadLetterEdited: self._edited,
            ev.CancelRequested: self._cancel_requested,
            ev.OptionsChanged: self._options,
            ev.LeaderElected: self._elected,
            ev.GenerationStarted: self._started,
        }
        self._steps: dict[type[Any], tuple[Callable[[Any], bool] | None, Callable[[State, Any], None]]] = {}
        """What is done with an event of a type: looked up once."""
        self._epoch = 0
        """That of the last takeover; a state does not have it."""
        self._tight = True
        """Whether these events may come near the capacity; with room to spare nobody has to ask with every item."""

    def replay(self, events: Sequence[ev.Event]) -> None:
        """Check and apply events, in order. Raises Impossible for one that passes, and cannot be applied."""
        state = self.state
        steps = self._steps
        self._tight = state.live_count + len(events) > state.options.items_max
        last: ev.Event | None = None
        time = state.time
        for event in events:
            kind = type(event)
            if event.timestamp < time:
                self._name("follows", event, None, f"time goes back by {time - event.timestamp} ms")
            else:
                time = event.timestamp
            try:
                check, apply = steps[kind]
            except KeyError:
                check, apply = steps[kind] = self._checks.get(kind), evolver_of(kind)
            if check is None or check(event):
                try:
                    apply(state, event)
                except (LookupError, AssertionError, AttributeError, TypeError, ValueError) as error:
                    raise Impossible(event, error) from error
                last = event
        if last is not None:
            state.sequence = last.sequence_number
            state.time = time

    def _name(self, rule: str, event: ev.Event, item: int | None, what: str) -> None:
        self._findings.add(rule, event.sequence_number, f"{type(event).__name__}: {what}", item)

    # -- coming in -----------------------------------------------------------------------------

    def _enqueued(self, event: ev.Enqueue) -> bool:
        if event.sequence_id in self.state.items:
            self._name("life", event, event.sequence_id, "the item is there already")
            return False
        if event.sequence_id < self.state.next_sequence_id:
            what = f"the number was given out before, the next one is {self.state.next_sequence_id}"
            self._name("life", event, event.sequence_id, what)
            return False
        if self._tight:
            self._check_room(event, 1)
        return True

    def _restored(self, event: ev.RestoreSnapshot) -> bool:
        for restored in event.items:
            if restored.sequence_id in self.state.items:
                self._name("life", event, restored.sequence_id, "the item is there already")
                return False
        self._check_room(event, len(event.items))
        return True

    def _check_room(self, event: ev.Event, more: int) -> None:
        live, most = self.state.live_count + more, self.state.options.items_max
        if live > most:
            self._name("limits", event, None, f"{live} items are live, there is room for {most}")

    # -- leases --------------------------------------------------------------------------------

    def _granted(self, event: ev.LeaseGranted) -> bool:
        token = event.ownership
        number = token.sequence_id
        item = self.state.items.get(number)
        if item is None or item.state != READY:
            if item is not None and item.lease is not None:
                self._name("one-lease", event, number, f"lease {item.lease.token.lease_id} of the item is live")
            else:
                self._name("life", event, number, f"an item that is {_state_of(item)} cannot be leased")
            return False
        if token.fence != event.sequence_number:
            self._name("fences", event, number, f"its fence is {token.fence}, its number {event.sequence_number}")
        elif item.trail is not None:
            last = item.trail.last_token
            if last is not None and last.fence is not None and last.fence >= event.sequence_number:
                self._name("fences", event, number, f"its fence is not above the item's last one, {last.fence}")
        if token.attempt != item.attempt:
            self._name("limits", event, number, f"it is attempt {token.attempt}, the item is at {item.attempt}")
        if self.state.pauses and self._is_paused(event, item):
            return False  # The schedule does not offer it, so it cannot be taken from there.
        if self._gates.matter:
            for rule, what in self._gates.objections(item):
                self._name(rule, event, number, what)
            self._gates.hold(item)
        return True

    def _is_paused(self, event: ev.LeaseGranted, item: Item) -> bool:
        tenant = (item.payload.attributes or {}).get(self.state.options.tenant_attribute, "")
        for pause in self.state.pauses.values():
            if pause.resource_type in (None, item.payload.resource_type) and pause.tenant in (None, tenant):
                self._name("follows", event, item.sequence_id, f"{pause.scope} is paused")
                return True
        return False

    def _owned(self, event: ev.Heartbeat | ev.Completed | ev.Failed | ev.Released | ev.Expired) -> bool:
        token = event.ownership
        item = self.state.items.get(token.sequence_id)
        if item is not None and item.lease is not None:
            live = item.lease.token
            if live.lease_id == token.lease_id and live.fence == token.fence:
                if live.attempt == token.attempt:
                    return True
                what = f"it names attempt {token.attempt}, the live lease is attempt {live.attempt}"
            else:
                what = (
                    f"lease {token.lease_id} (fence {token.fence}) is over,"
                    f" {live.lease_id} (fence {live.fence}) is live"
                )
        else:
            what = f"no lease of an item that is {_state_of(item)} is live"
        self._name("owner", event, token.sequence_id, what)
        return False

    def _ended(self, event: ev.Completed | ev.Failed | ev.Released | ev.Expired) -> bool:
        if not self._owned(event):
            return False
        if self._gates.matter:
            self._gates.free(self.state.items[event.ownership.sequence_id])
        return True

    def _tried(self, event: ev.Failed | ev.Expired) -> bool:
        if not self._ended(event):
            return False
        if event.next_attempt is not None:
            item = self.state.items[event.ownership.sequence_id]
            floor = 0 if item.trail is None else item.trail.attempt_floor
            most = self.state.options.max_delivery_attempts if item.max_attempts is None else item.max_attempts
            if event.next_attempt - floor > most:
                what = f"attempt {event.next_attempt - floor} is to follow, {most} are allowed"
                self._name("limits", event, item.sequence_id, what)
            elif event.next_attempt != item.attempt + 1:
                what = f"attempt {event.next_attempt} is to follow attempt {item.attempt}"
                self._name("limits", event, item.sequence_id, what)
        return True

    def _expired(self, event: ev.Expired) -> bool:
        item = self.state.items.get(event.ownership.sequence_id)
        if not self._tried(event):
            return False
        assert item is not None
        assert item.lease is not None
        if event.timestamp < item.lease.deadline:
            early = item.lease.deadline - event.timestamp
            self._name("expiry", event, item.sequence_id, f"the lease had {early} ms left")
        return True

    # -- ends ----------------------------------------------------------------------------------

    def _is(self, event: ev.Event, number: int, *states: int) -> bool:
        """Whether the item is in one of these states, as it has to be."""
        item = self.state.items.get(number)
        if item is not None and item.state in states:
            return True
        self._name("life", event, number, f"the item is {_state_of(item)}")
        return False

    def _dead_lettered(self, event: ev.DeadLettered) -> bool:
        return self._is(event, event.sequence_id, READY, DELAYED)

    def _cancelled(self, event: ev.Cancelled) -> bool:
        if not self._is(event, event.sequence_id, READY, DELAYED, LEASED):
            return False
        item = self.state.items[event.sequence_id]
        if self._gates.matter and item.lease is not None:
            self._gates.free(item)
        return True

    def _drained(self, event: ev.DrainSnapshot) -> bool:
        return all(self._is(event, number, READY, DELAYED) for number in event.sequence_ids)

    def _redriven(self, event: ev.Redriven) -> bool:
        if not all(self._is(event, number, DEAD) for number in event.sequence_ids):
            return False
        self._check_room(event, len(event.sequence_ids))
        return True

    def _purged(self, event: ev.Purged) -> bool:
        return all(self._is(event, number, DEAD) for number in event.sequence_ids or ())

    def _edited(self, event: ev.DeadLetterEdited) -> bool:
        return self._is(event, event.sequence_id, DEAD)

    def _cancel_requested(self, event: ev.CancelRequested) -> bool:
        return self._is(event, event.sequence_id, LEASED)

    # -- the shard -----------------------------------------------------------------------------

    def _options(self, event: ev.OptionsChanged) -> bool:
        self._gates = Gates(event.options, self.state.leased)
        self._tight = True
        return True

    def _started(self, event: ev.GenerationStarted) -> bool:
        if event.generation <= self.state.generation:
            what = f"generation {event.generation} follows generation {self.state.generation}"
            self._name("fences", event, None, what)
        return True

    def _elected(self, event: ev.LeaderElected) -> bool:
        if event.epoch < self._epoch:
            self._name("fences", event, None, f"epoch {event.epoch} follows epoch {self._epoch}")
        self._epoch = max(self._epoch, event.epoch)
        return True

    def check_depth(self, sequence: int, pending: int | None, active: int | None) -> None:
        """Compare what a frame says about the depth behind it."""
        state = self.state
        found = (state.pending_count, state.leased.live)
        if pending is not None and (pending, active or 0) != found:
            what = (
                f"the frame says {pending} pending and {active or 0} leased, the replay has {found[0]} and {found[1]}"
            )
            self._findings.add("depth", sequence, what)

    def check_ends(self) -> dict[str, int]:
        """Whether what is still there has a reason to be; how many items are in which state."""
        state = self.state
        counts = dict.fromkeys(STATE_NAMES, 0)
        for item in state.items.values():
            counts[STATE_NAMES[item.state]] += 1
            reason = self._without_reason(item)
            if reason is not None:
                self._findings.add("ends", item.stamp, reason, item.sequence_id)
        return counts

    def _without_reason(self, item: Item) -> str | None:
        now_ms = self.state.time
        if item.state == LEASED:
            if item.lease is None:
                return "it is leased to nobody"
            if item.lease.deadline + _OVERDUE_MS < now_ms:
                return f"its lease ran out {now_ms - item.lease.deadline} ms before the end and was never expired"
        if item.state == DELAYED and (item.not_before or 0) + _OVERDUE_MS < now_ms:
            return f"its delay ended {now_ms - (item.not_before or 0)} ms before the end, and it never became ready"
        return None


def _state_of(item: Item | None) -> str:
    return "not there" if item is None else STATE_NAMES[item.state]
