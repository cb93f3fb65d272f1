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
from omnirelay.core.pauses import scope_name
from omnirelay.core.rules.upkeep import GENERATION_JUMP
from omnirelay.core.state import State
from omnirelay.lakehouse.audit_debts import Debts
from omnirelay.lakehouse.audit_leases import Leases, is_cancelled, state_of
from omnirelay.lakehouse.audit_rules import Findings

_OVERDUE_MS: Final = 60_000
"""How long the end of a lease or a delay may be overdue at the end of a log: a busy shard works in slices."""


class Impossible(Exception):
    """The rules could not apply an event."""

    def __init__(self, event: ev.Event, error: Exception) -> None:
        super().__init__(
            f"{type(event).__name__}: the product's own rules cannot apply it to the state before it"
            f" ({type(error).__name__}: {error})"
        )
        self.sequence = event.sequence_number


class Watch:
    """One state and what was found while it was brought forward."""

    def __init__(self, state: State, findings: Findings) -> None:
        self.state = state
        self._findings = findings
        self._debts = Debts(self._name)
        self._leases = Leases(state, self._name, self._debts)
        self._checks: Final[dict[type[Any], Callable[[Any], bool]]] = {
            **self._leases.checks,
            ev.Enqueue: self._enqueued,
            ev.DeadLettered: self._dead_lettered,
            ev.Cancelled: self._cancelled,
            ev.DrainSnapshot: self._drained,
            ev.RestoreSnapshot: self._restored,
            ev.Redriven: self._redriven,
            ev.Purged: self._purged,
            ev.DeadLetterEdited: self._edited,
            ev.CancelRequested: self._cancel_requested,
            ev.Resumed: self._resumed,
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
        if event.sequence_id != self.state.next_sequence_id and not self._is_numbered(event):
            return False
        parent = event.parent_sequence_id
        if parent is not None and not self._debts.is_paid_by(event, parent):
            what = f"no completion of item {parent} right before it names it as a follow-up"
            self._name("together", event, event.sequence_id, what)
        if self._tight:
            self._check_room(event, 1)
        return True

    def _is_numbered(self, event: ev.Enqueue) -> bool:
        """Whether the item can come in under its number, though that is not the next one."""
        number, following = event.sequence_id, self.state.next_sequence_id
        if number in self.state.items:
            self._name("life", event, number, "the item is there already")
            return False
        if number < following:
            self._name("life", event, number, f"the number was given out before, the next one is {following}")
            return False
        # It comes in all the same: left out, it would be missed by every event about it.
        self._name("life", event, number, f"numbers are skipped, the next one is {following}")
        return True

    def _restored(self, event: ev.RestoreSnapshot) -> bool:
        numbers = [restored.sequence_id for restored in event.items]
        if not self._are_distinct(event, numbers):
            return False
        for number in numbers:
            if number in self.state.items:
                self._name("life", event, number, "the item is there already")
                return False
        self._check_room(event, len(event.items))
        return True

    def _check_room(self, event: ev.Event, more: int) -> None:
        live, most = self.state.live_count + more, self.state.options.items_max
        if live > most:
            self._name("limits", event, None, f"{live} items are live, there is room for {most}")

    # -- ends ----------------------------------------------------------------------------------

    def _is(self, event: ev.Event, number: int, *states: int) -> bool:
        """Whether the item is in one of these states, as it has to be."""
        item = self.state.items.get(number)
        if item is not None and item.state in states:
            return True
        self._name("life", event, number, f"the item is {state_of(item)}")
        return False

    def _are(self, event: ev.Event, numbers: Sequence[int], *states: int) -> bool:
        return self._are_distinct(event, numbers) and all(self._is(event, number, *states) for number in numbers)

    def _are_distinct(self, event: ev.Event, numbers: Sequence[int]) -> bool:
        if len(set(numbers)) == len(numbers):
            return True
        twice = next(number for at, number in enumerate(numbers) if number in numbers[:at])
        self._name("life", event, twice, "it names the item twice")
        return False

    def _dead_lettered(self, event: ev.DeadLettered) -> bool:
        if not self._is(event, event.sequence_id, READY, DELAYED):
            return False
        if not self._debts.is_paid_by(event, event.sequence_id):
            self._name("together", event, event.sequence_id, "no last attempt of the item ended right before it")
        return True

    def _cancelled(self, event: ev.Cancelled) -> bool:
        """Of a leased item at once, too: by force it loses its lease, and nobody is asked before."""
        self._debts.is_paid_by(event, event.sequence_id)
        if not self._is(event, event.sequence_id, READY, DELAYED, LEASED):
            return False
        item = self.state.items[event.sequence_id]
        if item.lease is not None:
            self._leases.lost(item)
        return True

    def _drained(self, event: ev.DrainSnapshot) -> bool:
        return self._are(event, event.sequence_ids, READY, DELAYED)

    def _redriven(self, event: ev.Redriven) -> bool:
        if not self._are(event, event.sequence_ids, DEAD):
            return False
        self._check_room(event, len(event.sequence_ids))
        return True

    def _purged(self, event: ev.Purged) -> bool:
        return self._are(event, event.sequence_ids or (), DEAD)

    def _edited(self, event: ev.DeadLetterEdited) -> bool:
        return self._is(event, event.sequence_id, DEAD)

    def _cancel_requested(self, event: ev.CancelRequested) -> bool:
        if not self._is(event, event.sequence_id, LEASED):
            return False
        if is_cancelled(self.state.items[event.sequence_id]):
            self._name("follows", event, event.sequence_id, "its cancellation was requested before")
        return True

    # -- the shard -----------------------------------------------------------------------------

    def _options(self, event: ev.OptionsChanged) -> bool:
        self._leases.judge_by(event.options)
        self._tight = True
        return True

    def _resumed(self, event: ev.Resumed) -> bool:
        scope = scope_name(event.resource_type, event.tenant)
        if scope not in self.state.pauses:
            self._name("follows", event, None, f"{scope} is not paused")
            return False
        return True

    def _started(self, event: ev.GenerationStarted) -> bool:
        state = self.state
        if event.generation <= state.generation:
            what = f"generation {event.generation} follows generation {state.generation}"
            self._name("fences", event, None, what)
        following = state.next_sequence_id
        if event.next_sequence_id not in (following, following + GENERATION_JUMP):
            what = f"the next item is to be {event.next_sequence_id}, it would be {following} or {GENERATION_JUMP} more"
            self._name("life", event, None, what)
        if event.next_sequence_id < following:
            # Applied, it would give out numbers again that items have.
            state.generation = event.generation
            return False
        return True

    def _elected(self, event: ev.LeaderElected) -> bool:
        if event.epoch < self._epoch:
            self._name("fences", event, None, f"epoch {event.epoch} follows epoch {self._epoch}")
        self._epoch = max(self._epoch, event.epoch)
        return True

    def end_commit(self, *, whole: bool) -> None:
        """The events of a frame are over, and with them those of every command; or of a part of it that is audited."""
        if whole:
            self._debts.settle()
        else:
            self._debts.forget()

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
