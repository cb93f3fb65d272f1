"""`why` in many random states: what it names, no more and no less, makes an item the next grant when it is undone.

The states are made from seeds, thousands of them, in which few names meet at every gate: delays, pauses with and
without an end, keys of every sort, limits by type, tenant and key with heavy heads that reserve them, weights, calls
with filters, changes of options while leases live, snapshots. Half of the work is deep: many names and long lanes.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core.decide import apply
from omnirelay.core.options import HOUR, Limit, QueueOptions
from omnirelay.core.payload import Caller, NewItem, Payload
from omnirelay.core.snapshot import digest
from omnirelay.core.state import State
from omnirelay.errors import OmniRelayError
from tests.builders import START_MS, lease_ids
from tests.property.comparing import copy_of, through_snapshot
from tests.property.gates_driver import copied_ids
from tests.property.gates_model import GatesModel
from tests.property.gates_why import undo_the_gates_of
from tests.property.strategies import LONG

SEEDS = range(80 if LONG else 2)
STATES = 20
GATES = ("delay", "pause", "key", "limit", "priority", "tenantShare", "position")

TYPES = ["a", "a/b", "t"]
FEW_NAMES = ["c", "b/c", "d"]
MANY_NAMES = [str(number) for number in range(30)]
TENANTS = ["", "x", "y"]
SCOPES = [(None, None), *[(kind, None) for kind in TYPES], *[(None, tenant) for tenant in TENANTS[1:]]]
LIMIT_KINDS = [["type", "tenant", "key"], ["type"], ["tenant"], ["key"], ["type", "tenant"]]


class PlainShard:
    """A state with the naive model beside it, and nothing that looks at every step: it is made thousands of times."""

    def __init__(self) -> None:
        self.state = State()
        self.model = GatesModel(msgspec.to_builtins(QueueOptions()))
        self.now = START_MS
        self.ids = lease_ids()

    def copy(self) -> PlainShard:
        other = PlainShard()
        other.state, other.model = through_snapshot(self.state), copy_of(self.model)
        other.now, other.ids = self.now, copied_ids()
        return other

    def ask(self, command: cmd.Command, arrived: int | None = None) -> Any:
        out: list[ev.Event] = []
        try:
            answer = apply(self.state, command, self.now, self.now if arrived is None else arrived, self.ids, out)
        except OmniRelayError as error:
            return error
        for event in out:
            self.model.follow(msgspec.to_builtins(event))
        return answer

    def do(self, command: cmd.Command) -> Any:
        answer = self.ask(command)
        assert not isinstance(answer, OmniRelayError), answer
        return answer

    def end(self, sequence_id: int, how: str, delay_ms: int | None = None) -> None:
        lease = self.state.items[sequence_id].lease
        assert lease is not None
        commands: dict[str, cmd.Command] = {
            "complete": cmd.CompleteItem(lease.token),
            "release": cmd.ReleaseItem(lease.token, delay_ms=delay_ms),
            "retry": cmd.FailItem(lease.token, mode="retry", delay_ms=delay_ms),
            "dead": cmd.FailItem(lease.token, mode="dead"),
        }
        self.ask(commands[how], min(self.now, lease.deadline - 1))

    def complete(self, sequence_id: int) -> None:
        self.end(sequence_id, "complete")


class Story:
    """A shard and what happens to it, all of it drawn from one seed."""

    def __init__(self, seed: str) -> None:
        self.draw = draw = Random(seed)
        self.shard = PlainShard()
        self.deep = draw.random() < 0.4
        self.names = MANY_NAMES if self.deep else FEW_NAMES
        self.classes = draw.choice([[5], [5, 0, 9], [5, 0, 9], [0, 5]])
        self.types = draw.choice([TYPES, TYPES[:1], TYPES[:2]])
        self.pauses = 0
        self.shard.do(cmd.ChangeOptions(self.options()))
        happenings = [self.enqueue, self.lease, self.end, self.let_time_pass, self.operate]
        for _ in range(draw.randint(3, 25)):
            draw.choices(happenings, [35, 25, 15, 12, 13])[0]()

    def options(self) -> QueueOptions:
        draw = self.draw
        kinds = draw.choice(LIMIT_KINDS)
        globs = ["*", "*", "a", "a*", "x", "?", "*c"]
        return QueueOptions(
            lease_duration_ms=5_000,
            max_delivery_attempts=3,
            ended_lease_retention_ms=24 * HOUR,
            result_retention_ms=24 * HOUR,
            request_id_retention_max_ms=48 * HOUR,
            starvation_every=draw.choice([2, 3, 0]),
            starvation_after_ms=draw.choice([50, 0, 200]),
            tenant_weights=draw.choice([{}, {"x": 3}, {"x": 2, "": 5}, {"y": 1_000}]),
            ordering=draw.choice(["none", "exclusive", "fifo", "fifo"]),
            key=draw.choice(["resource", "partition"]),
            fifo_head=draw.choice(["hold", "pass"]),
            tenant_attribute=draw.choice(["tenant", "tenant", "tenant", "tenant", "team"]),
            limits=[
                Limit(by=draw.choice(kinds), match=draw.choice(globs), max=draw.randint(1, 6))  # type: ignore[arg-type]
                for _ in range(draw.choice([0, 1, 1, 2, 3]))
            ],
            requeue_delay_ms=draw.choice([0, 0, 300]),
        )

    def item(self) -> NewItem:
        draw = self.draw
        attributes = {"tenant": draw.choice(TENANTS)} if draw.random() < 0.7 else {}
        if draw.random() < 0.3:
            attributes["team"] = draw.choice(TENANTS[1:])
        payload = Payload(
            resource_type=draw.choice(self.types),
            resource_id=draw.choice(self.names),
            partition_key=draw.choice([None, None, "c", "p"]),
            attributes=attributes or None,
        )
        return NewItem(
            payload=payload,
            priority=draw.choice(self.classes),
            weight=draw.choice([1, 1, 2, 3, 5]),
            delay_ms=draw.choice([None] * 6 + [0, 200, 1_500]),
        )

    def enqueue(self) -> None:
        self.shard.ask(cmd.EnqueueItems([self.item() for _ in range(self.draw.randint(1, 15 if self.deep else 5))]))

    def lease(self) -> None:
        draw = self.draw
        types, tenants = None, None
        if draw.random() < 0.2:
            types, tenants = draw.choice([None, ("a",), ("a*",)]), draw.choice([None, ("x",), ("y",)])
        self.shard.do(cmd.GrantLeases(Caller(peer_id="p"), draw.randint(1, 3), resource_types=types, tenants=tenants))

    def end(self) -> None:
        leased = self.shard.model.having("leased")
        if leased:
            how = self.draw.choice(["complete", "complete", "release", "retry", "dead"])
            self.shard.end(self.draw.choice(leased)["id"], how, self.draw.choice([None, 0, 200]))

    def let_time_pass(self) -> None:
        self.shard.now += self.draw.choice([1, 50, 200, 499, 1_000])
        if self.draw.random() < 0.7:
            self.shard.do(cmd.AdvanceTime())
        if self.draw.random() < 0.3:
            self.shard.do(cmd.ExpireLeases())

    def operate(self) -> None:
        draw, shard, model = self.draw, self.shard, self.shard.model
        what = draw.choice(["pause", "pause", "pause", "resume", "cancel", "options", "redrive", "snapshot"])
        if what == "pause" and len(model.pauses) < 3:
            self.pauses += 1
            until = draw.choice([None, shard.now + 400, shard.now + 1_000])
            # The reason is the pause's own: by it `why` can be taken at its word.
            shard.do(cmd.PauseScope(*draw.choice(SCOPES), reason=f"pause {self.pauses}", until_ms=until))
        elif what == "resume" and model.pauses:
            shard.do(cmd.ResumeScope(*draw.choice(list(model.pauses))))
        elif what == "cancel" and (pending := model.having("ready", "delayed")):
            shard.do(cmd.CancelItem(draw.choice(pending)["id"]))
        elif what == "options":
            shard.do(cmd.ChangeOptions(self.options()))
        elif what == "redrive" and (dead := model.having("dead")):
            shard.do(cmd.RedriveItems(cmd.DeadLetterSelection(sequence_ids=[draw.choice(dead)["id"]])))
        elif what == "snapshot":
            shard.state = through_snapshot(shard.state)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_undoing_exactly_the_gates_that_are_named_makes_an_item_the_next(seed: int) -> None:
    named = Counter[str]()
    for number in range(STATES):
        shard = Story(f"{seed}-{number}").shard
        before = digest(shard.state)
        for item in shard.model.having("ready", "delayed"):
            undoing = undo_the_gates_of(item["id"], shard.copy)
            named.update(gate.gate for gate in undoing.gates)
        assert digest(shard.state) == before, "asking changed something"
    assert min(named[gate] for gate in GATES) > 10, f"some gate is hardly ever met: {named}"
