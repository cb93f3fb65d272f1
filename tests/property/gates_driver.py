"""A shard with the gates' model looking over its shoulder, copies of it, and what must hold for both at any time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core import schedule, views
from omnirelay.core.answers import PauseAnswer
from omnirelay.core.decide import apply
from omnirelay.core.evolve import evolve
from omnirelay.core.items import STATE_NAMES, Lease
from omnirelay.core.options import HOUR, QueueOptions
from omnirelay.core.snapshot import digest
from omnirelay.core.state import State
from omnirelay.errors import OmniRelayError
from tests.builders import START_MS, lease_id, lease_ids, replay, stored_and_read
from tests.property.comparing import copy_of, through_snapshot
from tests.property.gates_judge import Filter, GatesJudge
from tests.property.gates_model import LIMIT_KINDS, Record, Scope
from tests.property.strategies import LONG

KNOWN_STATES = ("ready", "delayed", "leased", "dead")
"""What the model keeps: it forgets what was completed or cancelled at once."""


def copied_ids() -> Callable[[], str]:
    """Lease ids for a copy, where those of the original may still live."""
    numbers = count(1 << 24)
    return lambda: lease_id(next(numbers))


class WatchedShard:
    def __init__(self) -> None:
        self.state = State()
        self.model = GatesJudge(msgspec.to_builtins(QueueOptions()))
        self.now = START_MS
        self.ids = lease_ids()
        self.events: list[ev.Event] = []
        self.shadow = State()
        """What a replica would have: fed with the events as they are stored."""
        self.digest = digest(self.state)
        self.checks = 0

    def copy(self) -> WatchedShard:
        """By way of a snapshot, which is the only thing a copy of the real shard would have."""
        other = WatchedShard()
        other.state, other.shadow = through_snapshot(self.state), through_snapshot(self.state)
        other.model, other.now, other.ids = copy_of(self.model), self.now, copied_ids()
        other.digest = self.digest
        return other

    # -- driving -------------------------------------------------------------------------------

    def ask(self, command: cmd.Command, arrived: int | None = None) -> Any:
        """The answer, or the error it was refused with."""
        out: list[ev.Event] = []
        try:
            answer = apply(self.state, command, self.now, self.now if arrived is None else arrived, self.ids, out)
        except OmniRelayError as error:
            assert not out
            assert digest(self.state) == self.digest, "a refused command changed something"
            return error
        self._judge(command, out)
        for event in stored_and_read(out):
            evolve(self.shadow, event)
        self.events += out
        self.digest = digest(self.state)
        return answer

    def do(self, command: cmd.Command, arrived: int | None = None) -> Any:
        answer = self.ask(command, arrived)
        assert not isinstance(answer, OmniRelayError), answer
        return answer

    def _judge(self, command: cmd.Command, out: list[ev.Event]) -> None:
        wanted = Filter()
        if isinstance(command, cmd.GrantLeases):
            wanted = Filter(command.resource_types, command.tenants)
        for event in out:
            stored = msgspec.to_builtins(event)
            if isinstance(event, ev.LeaseGranted):
                self.model.judge_grant(stored, wanted)
            else:
                self.model.take_over(stored)
        if isinstance(command, cmd.GrantLeases) and len(out) < command.items_max:
            self.model.judge_nothing(wanted)

    def lease_of(self, sequence_id: int) -> Lease:
        lease = self.state.items[sequence_id].lease
        assert lease is not None
        return lease

    def complete(self, sequence_id: int, **fields: Any) -> Any:
        """In time: the call came in before the lease ran out, however late it is by now."""
        lease = self.lease_of(sequence_id)
        return self.do(cmd.CompleteItem(lease.token, **fields), self.in_time(sequence_id))

    def in_time(self, sequence_id: int) -> int:
        return min(self.now, self.lease_of(sequence_id).deadline - 1)

    def advance_time(self) -> None:
        """As an engine does it: only when there is something to do, which is for core to know."""
        model = self.model
        ends = [item["not_before"] for item in model.having("delayed")]
        ends += [pause["until"] for pause in model.pauses.values() if pause["until"] is not None]
        work = any(end <= self.now for end in ends)
        assert self.state.time_has_work(self.now) == work, "an engine would sleep through this, or wake for nothing"
        if work:
            self.do(cmd.AdvanceTime())

    def signal_backpressure(self) -> None:
        due = self.model.backpressure_wanted() and self.now >= self.model.backpressure_due_at()
        before = len(self.events)
        self.do(cmd.SignalBackpressure())
        assert (len(self.events) > before) == due, "signals exactly when it is due"

    def pause(self, command: cmd.PauseScope) -> None:
        self._check_pauses_named(self.do(command))
        pause = self.model.pauses[command.resource_type, command.tenant]
        assert (pause["intake"], pause["reason"], pause["until"]) == (command.intake, command.reason, command.until_ms)

    def resume(self, scope: Scope) -> None:
        paused, before = scope in self.model.pauses, len(self.events)
        self._check_pauses_named(self.do(cmd.ResumeScope(*scope)))
        assert len(self.events) - before == paused, "what is not paused cannot be resumed"
        assert scope not in self.model.pauses

    def _check_pauses_named(self, answer: PauseAnswer) -> None:
        assert {(pause.resource_type, pause.tenant) for pause in answer.pauses} == set(self.model.pauses)

    def next_grant(self) -> int | None:
        """The item that goes next. It goes: ask a copy."""
        granted = self.do(cmd.GrantLeases())
        return granted[0].sequence_id if granted else None

    # -- what holds at any time ----------------------------------------------------------------

    def check(self) -> None:
        self._check_items()
        self._check_limits()
        self._check_pauses_and_backpressure()
        self._check_next_due()
        assert digest(self.shadow) == self.digest, "replay does not give the live state"
        assert digest(through_snapshot(self.state)) == self.digest, "a snapshot does not give the state back"

    def _check_items(self) -> None:
        known = {
            item.sequence_id: (STATE_NAMES[item.state], item.not_before)
            for item in self.state.items.values()
            if STATE_NAMES[item.state] in KNOWN_STATES
        }
        assert known == {item["id"]: (item["state"], item["not_before"]) for item in self.model.items.values()}
        assert self.state.next_sequence_id == self.model.next_id
        stats = views.stats(self.state, self.now)
        assert stats.ready_count == len(self.model.having("ready"))
        assert stats.delayed_count == len(self.model.having("delayed"))
        assert stats.pending_count == self.state.pending_count == stats.ready_count + stats.delayed_count
        assert stats.active_lease_count == len(self.model.having("leased"))

    def _check_limits(self) -> None:
        """A change of options may find more leased than it allows; then nothing is added to that."""
        model = self.model
        for item in model.having("leased"):
            for by in LIMIT_KINDS:
                beside, most = model.leased_beside(by, item), model.limit_of(by, item)
                if most is not None and model.used(by, item) > most and len(beside) > 1:
                    self._assert_older_than_the_options(beside)
            if model.options["ordering"] != "none" and len(model.of_same_key(item, "leased")) > 1:
                self._assert_older_than_the_options(model.of_same_key(item, "leased"))

    def _assert_older_than_the_options(self, leased: list[Record]) -> None:
        assert all(item["leased_under"] < self.model.options_changes for item in leased), "too many are leased"

    def _check_pauses_and_backpressure(self) -> None:
        known = {
            (pause.resource_type, pause.tenant): (pause.intake, pause.reason, pause.until)
            for pause in self.state.pauses.values()
        }
        model = self.model
        assert known == {
            scope: (pause["intake"], pause["reason"], pause["until"]) for scope, pause in model.pauses.items()
        }
        assert self.state.backpressure is model.backpressure
        assert self.state.backpressure_at == model.backpressure_changed_at

    def _check_next_due(self) -> None:
        """What an engine sleeps until. Memories last for a day here, so they are no matter."""
        model = self.model
        moments = [self.lease_of(item["id"]).deadline for item in model.having("leased")]
        moments += [item["not_before"] for item in model.having("delayed")]
        moments += [pause["until"] for pause in model.pauses.values() if pause["until"] is not None]
        if model.backpressure_wanted():
            moments.append(model.backpressure_due_at())
        next_due = self.state.next_due()
        if moments:
            assert next_due == min(moments), "an engine would miss something"
        else:
            assert next_due is None or next_due > self.now + HOUR

    # -- who goes next -------------------------------------------------------------------------

    def check_next_grants(self) -> None:
        """The live shard, a recovery from the log and one from a snapshot go on with the same items.

        A copy takes longer than all the rest: in the short form the first two take turns in standing for both.
        """
        self.checks += 1
        recovered = next_grants(through_snapshot(self.state), self.now)
        if LONG or self.checks % 2:
            assert next_grants(self._copied(self.state), self.now) == recovered, "a recovery would grant others"
        if LONG or self.checks % 2 == 0:
            assert next_grants(self._copied(self.shadow), self.now) == recovered, "a replica would grant others"

    def _copied(self, state: State) -> State:
        """Compiled objects cannot be copied; there a snapshot has to do."""
        return copy_of(state) if str(schedule.__file__).endswith(".py") else through_snapshot(state)

    def recover(self) -> None:
        """All that is left is the log."""
        self.state = replay(self.events)
        assert digest(self.state) == self.digest


def next_grants(state: State, now: int, most: int = 20) -> list[int]:
    """The items of the next grants. When nothing can be had, the oldest lease is completed; time goes by meanwhile."""
    ids, order = copied_ids(), list[int]()
    while len(order) < most:
        granted = apply(state, cmd.GrantLeases(), now, now, ids, [])
        order += [each.sequence_id for each in granted]
        if not granted:
            leases = [item.lease for item in state.items.values() if item.lease is not None]
            if not leases:
                break
            oldest = min(leases, key=lambda lease: lease.token.fence or 0)
            apply(state, cmd.CompleteItem(oldest.token), now, oldest.granted_at, ids, [])
        now += 30
    return order
