"""`why` taken at its word: what it names is undone, on a copy, and then the item has to be the next one.

What is undone may bring up something new: behind a cancelled item of another key stands the next one, what a lease
used frees others, and while time goes by they wake up. So `why` is asked again after each round; every round has to get
on by one gate or one item. Where only pauses and its own key are in the way, nothing new may come up.
"""

from __future__ import annotations

import msgspec

from omnirelay.core import commands as cmd
from omnirelay.core.answers import Gate
from omnirelay.core.decide import apply
from omnirelay.core.why import why
from tests.property.comparing import through_snapshot
from tests.property.gates_driver import WatchedShard, copied_ids
from tests.property.gates_model import LIMIT_KINDS, Record

GATE_KINDS = 7
AT_ONCE = {"pause", "key"}
NO_LIMIT = 1 << 30


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


class Undoing:
    def __init__(self, sequence_id: int, shard: WatchedShard, raise_limits: bool) -> None:
        self.shard = shard
        self.model = shard.model
        self.item = shard.model.items[sequence_id]
        self.raise_limits = raise_limits

    def gates(self) -> list[Gate]:
        return list(why(self.shard.state, self.item["id"], self.shard.now).gates)

    def undo(self, gate: Gate) -> None:
        {
            "delay": self._wait,
            "pause": self._resume,
            "key": self._free_key,
            "limit": self._make_room,
            "priority": self._clear_lower_classes,
            "tenantShare": self._clear_other_lanes,
            "position": self._clear_own_lane,
        }[gate.gate](gate)

    def _wait(self, gate: Gate) -> None:
        assert gate.until is not None
        self.shard.now = max(self.shard.now, gate.until)
        self.shard.do(cmd.AdvanceTime())

    def _resume(self, gate: Gate) -> None:
        for scope, pause in list(self.model.pauses.items()):
            if pause["reason"] == gate.reason:
                self.shard.resume(scope)

    def _free_key(self, gate: Gate) -> None:
        """Whoever holds the key is done, and whoever comes before in it is no longer wanted."""
        for other in self.model.of_same_key(self.item, "leased"):
            self.shard.complete(other["id"])
        for other in self.model.before_in_key(self.item):
            self._cancel(other)

    def _make_room(self, gate: Gate) -> None:
        holder = self.model.items.get(gate.held_by or 0)
        if holder is not None and holder["state"] != "leased":
            self._cancel(holder)
            return
        for by in LIMIT_KINDS:
            if (self.model.used(by, self.item), self.model.limit_of(by, self.item)) == (gate.used, gate.max):
                self._lift_limit(by)

    def _lift_limit(self, by: str) -> None:
        if not self.raise_limits:
            for other in self.model.leased_beside(by, self.item):
                self.shard.complete(other["id"])
            return
        options = self.shard.state.options
        raised = [msgspec.structs.replace(limit, max=NO_LIMIT) if limit.by == by else limit for limit in options.limits]
        self.shard.do(cmd.ChangeOptions(msgspec.structs.replace(options, limits=raised)))

    def _clear_lower_classes(self, gate: Gate) -> None:
        """Those that stand, and those that stand once they are gone; or the guard has its turn."""
        if self.model.guard_may_step_in(self.shard.now):
            self.shard.next_grant()
            return
        while before := [lane for lane in self.model.standing_lanes() if lane[0] < self.item["class"]]:
            for lane in before:
                self._cancel(self.model.standing_lanes().get(lane))

    def _clear_other_lanes(self, gate: Gate) -> None:
        own = self.model.lane(self.item)
        while others := [lane for lane in self.model.standing_lanes() if lane[0] == own[0] and lane != own]:
            for lane in others:
                self._cancel(self.model.standing_lanes().get(lane))

    def _clear_own_lane(self, gate: Gate) -> None:
        own = self.model.lane(self.item)
        while self.model.standing_lanes().get(own, self.item) is not self.item:
            self._cancel(self.model.standing_lanes()[own])

    def _cancel(self, item: Record | None) -> None:
        if item is not None and item["state"] in ("ready", "delayed") and item is not self.item:
            self.shard.do(cmd.CancelItem(item["id"]))


def undo_the_gates_of(sequence_id: int, copy: WatchedShard, raise_limits: bool) -> None:
    undoing = Undoing(sequence_id, copy, raise_limits)
    rounds = GATE_KINDS + len(copy.model.items)
    if {gate.gate for gate in undoing.gates()} <= AT_ONCE and not copy.state.options.limits:
        rounds = 1
    for _ in range(rounds):
        for gate in undoing.gates():
            # The gate before may have been the last that mattered; a grant would now take the item itself away.
            if undoing.gates():
                undoing.undo(gate)
    copy.check()
    assert not undoing.gates(), f"{rounds} rounds were not enough"
    assert copy.next_grant() == sequence_id
