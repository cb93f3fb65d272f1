"""`why` taken at its word: what it names is undone, once, on a copy, and then the item has to be the next one.

How each gate is undone is said in `omnirelay.core.why` and in docs/gates/why.md, and done here with commands alone:

    delay        AdvanceTime at the time it names
    pause        ResumeScope
    key          CancelItem for those ahead in the key, the last first; CompleteItem for the lease that holds it
    limit        CompleteItem for every lease that counts in it
    priority     whoever is next, again and again: CancelItem when it is of a lower class, else (it is the guard's
                 grant) GrantLeases and CompleteItem
    tenantShare  GrantLeases and CompleteItem when it is of the item's class, but of another lane
    position     CancelItem when it is of the item's lane

Who is next is what a copy grants, who is ahead in a key and which leases count is said by the model. The other way
round: with one gate left out, the item is not next (`can_be_left_out`), apart from what `may_be_left_out` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core.answers import Gate
from omnirelay.core.decide import apply
from omnirelay.core.state import State
from omnirelay.core.why import why
from tests.property.comparing import through_snapshot
from tests.property.gates_driver import WatchedShard, copied_ids
from tests.property.gates_model import GatesModel, Record

IN_ORDER = ("priority", "tenantShare", "position")
LIMIT_WORDS = {"type": "resource type", "tenant": "tenant", "key": "its key"}


class Shard(Protocol):
    """What is undone on: a `WatchedShard`, or something lighter."""

    state: State
    now: int

    @property
    def model(self) -> GatesModel: ...

    def do(self, command: cmd.Command) -> Any: ...

    def complete(self, sequence_id: int) -> Any: ...


def check_next_has_no_gates(shard: WatchedShard) -> None:
    """Every pending item but the very next one has a gate, and so have the others."""
    granted = apply(through_snapshot(shard.state), cmd.GrantLeases(), shard.now, shard.now, copied_ids(), [])
    next_id = granted[0].sequence_id if granted else None
    for item in shard.model.items.values():
        answer = why(shard.state, item["id"], shard.now)
        assert (answer.sequence_id, answer.state) == (item["id"], item["state"])
        assert (answer.gates == []) == (item["id"] == next_id), f"next is {next_id}: {answer}"
        _check_facts(shard, item, answer.gates)


def _check_facts(shard: WatchedShard, item: Record, gates: list[Gate]) -> None:
    """What the gates say is so, and those that follow from the item alone are all there."""
    found = {name: [gate for gate in gates if gate.gate == name] for name in {gate.gate for gate in gates}}
    if item["state"] == "leased":
        assert [gate.owner_peer_id or "" for gate in found["leased"]] == [item["owner"]]
        return
    if item["state"] == "dead":
        assert list(found) == ["ended"]
        return
    assert not {"leased", "ended"} & set(found)
    assert [gate.until for gate in found.get("delay", [])] == ([item["not_before"]] if item["not_before"] else [])
    reasons = sorted(str(pause["reason"]) for pause in shard.model.pauses_over(item))
    assert sorted(str(gate.reason) for gate in found.get("pause", [])) == reasons
    _check_key(shard, item, found.get("key", []))


def _check_key(shard: WatchedShard, item: Record, gates: list[Gate]) -> None:
    for gate in gates:
        assert gate.held_by != item["id"]
        assert gate.held_by in [other["id"] for other in shard.model.of_same_key(item, "ready", "delayed", "leased")]


class Step(NamedTuple):
    """One thing that was done, and the gates it was done for."""

    gates: list[str]
    verb: str
    what: Any
    """An item, a scope or a time."""


class Undoing:
    """The gates before an item, undone as `why` says they are: what they name, in the order of the steps here."""

    def __init__(self, sequence_id: int, shard: Shard) -> None:
        self.shard = shard
        self.model = shard.model
        self.asked_at = shard.now
        self.item = shard.model.items[sequence_id]
        self.gates = list(why(shard.state, sequence_id, shard.now).gates)
        self.steps: list[Step] = []
        self.went = Counter[str]()
        """Who went before the item, by the gate that has to count it."""

    def undo(self) -> None:
        for kind, undo in (("delay", self._wait), ("pause", self._resume), ("key", self._clear_key)):
            for gate in self.gates:
                if gate.gate == kind:
                    undo(gate)
        for lease, gates in sorted(self._leases().items()):
            self._step(gates, "complete", lease)
        while (found := next_of(self.shard))[0] != self.item["id"]:
            self._let_go(*found)

    def check_next(self) -> None:
        """What went before the item is what its gates counted."""
        named = {gate.gate: gate.ahead for gate in self.gates if gate.gate in IN_ORDER}
        assert dict(self.went) == named, f"{dict(self.went)} went before it: {self.gates}"

    def _step(self, gates: list[str], verb: str, what: Any) -> None:
        step = Step(gates, verb, what)
        self.steps.append(step)
        take(step, self.shard)

    def _wait(self, gate: Gate) -> None:
        assert gate.until is not None
        self._step(["delay"], "wait", gate.until)

    def _resume(self, gate: Gate) -> None:
        for scope, pause in list(self.model.pauses.items()):
            if pause["reason"] == gate.reason:
                self._step([name_of(gate)], "resume", scope)

    def _clear_key(self, gate: Gate) -> None:
        if gate.ahead is not None:
            before = self.model.before_in_key(self.item)
            assert [other["id"] for other in before[:1]] == [gate.held_by]
            assert len(before) == gate.ahead
            for other in reversed(before):
                self._step([name_of(gate)], "cancel", other["id"])

    def _leases(self) -> dict[int, list[str]]:
        """The leases that are in the way, and the gates that name them."""
        found: dict[int, list[str]] = {}
        for gate in self.gates:
            for lease in self._leases_of(gate):
                found.setdefault(lease["id"], []).append(name_of(gate))
        return found

    def _leases_of(self, gate: Gate) -> list[Record]:
        if gate.gate == "key" and gate.ahead is None:
            return [other for other in self.model.of_same_key(self.item, "leased") if other["id"] == gate.held_by]
        if gate.gate == "limit":
            [by] = [by for by, words in LIMIT_WORDS.items() if words in gate.message]
            return self.model.leased_beside(by, self.item)
        return []

    def _let_go(self, sequence_id: int | None, by_guard: bool) -> None:
        """Whoever is next goes. Somebody has to be, and one that comes before the item."""
        assert sequence_id is not None, f"nothing is next: {self.gates}"
        own, other = self.item, self.model.items[sequence_id]
        if other["class"] < own["class"]:
            gate, verb = "priority", "cancel next"
        elif self._lane(other) == self._lane(own):
            gate, verb = "position", "cancel next"
        elif other["class"] == own["class"]:
            gate, verb = "tenantShare", "grant"
        else:
            assert by_guard, f"{sequence_id} of a higher class is next: {self.gates}"
            gate, verb = "priority", "grant"
        self._step([gate], verb, sequence_id)
        self.went[gate] += 1

    def _lane(self, item: Record) -> tuple[int, str, str]:
        return item["class"], item["type"], self.model.tenant(item)

    def can_be_left_out(self, gate: Gate, shard: Shard) -> bool:
        """Whether the item is next without this gate being undone, on a copy of what it was asked of."""
        for step in self.steps:
            if step.gates != [name_of(gate)]:
                take(step, shard)
        return bool(next_of(shard)[0] == self.item["id"])

    def may_be_left_out(self, gate: Gate) -> bool:
        """Whether undoing the others may undo this one: it is over by then, or a lease it names ends for them, too."""
        if gate.gate == "pause":
            waited = [step.what for step in self.steps if step.verb == "wait"]
            return gate.until is not None and bool(waited) and gate.until <= max(self.asked_at, *waited)
        return any(len(step.gates) > 1 for step in self.steps if name_of(gate) in step.gates)


def name_of(gate: Gate) -> str:
    return gate.message if gate.gate in ("key", "limit", "pause") else gate.gate


def next_of(shard: Shard) -> tuple[int | None, bool]:
    """Who would be granted, and whether by the guard: a copy says so."""
    out: list[ev.Event] = []
    apply(through_snapshot(shard.state), cmd.GrantLeases(), shard.now, shard.now, copied_ids(), out)
    for event in out:
        if isinstance(event, ev.LeaseGranted):
            return event.ownership.sequence_id, event.guard
    return None, False


def take(step: Step, shard: Shard) -> None:
    """As one command. Where a gate was left out, what the step is about may not be there, or not be next."""
    states = [item["state"] for item in shard.model.having("ready", "delayed", "leased") if item["id"] == step.what]
    if step.verb == "wait":
        shard.now = max(shard.now, step.what)
        shard.do(cmd.AdvanceTime())
    elif step.verb == "resume":
        shard.do(cmd.ResumeScope(*step.what))
    elif step.verb == "complete" and states == ["leased"]:
        shard.complete(step.what)
    elif step.verb == "cancel" and states and states != ["leased"]:
        shard.do(cmd.CancelItem(step.what))
    elif step.verb in ("grant", "cancel next") and next_of(shard)[0] == step.what:
        if step.verb == "grant":
            shard.do(cmd.GrantLeases())
            shard.complete(step.what)
        else:
            shard.do(cmd.CancelItem(step.what))


def undo_the_gates_of(sequence_id: int, copied: Callable[[], Shard]) -> Undoing:
    """All of them at once, and nothing is asked again; then all but one, for each of them."""
    undoing = Undoing(sequence_id, copied())
    undoing.undo()
    undoing.check_next()
    assert not why(undoing.shard.state, sequence_id, undoing.shard.now).gates
    for gate in undoing.gates:
        if not undoing.may_be_left_out(gate):
            assert not undoing.can_be_left_out(gate, copied()), f"{gate} was not in the way: {undoing.gates}"
    return undoing
