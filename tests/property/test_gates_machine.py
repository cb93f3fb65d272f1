"""The gates against their naive model: who may be granted next, and what a shard under pressure lets in.

Every command goes through `WatchedShard`, which lets the model judge each event; what must hold after every step
is there too. Few names and small numbers, so that items meet each other at every gate.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core.options import HOUR, Limit, QueueOptions
from omnirelay.core.payload import Caller, NewItem, Payload
from omnirelay.core.schedule import LANES_KEPT
from omnirelay.errors import OmniRelayError
from tests.property.comparing import through_snapshot
from tests.property.gates_driver import WatchedShard
from tests.property.gates_model import Record, Scope
from tests.property.gates_why import check_next_has_no_gates, undo_the_gates_of
from tests.property.strategies import LONG, profile

PICKS = st.integers(0, 40)
CLASSES = st.sampled_from([5, 0, 9])
WEIGHTS = st.sampled_from([1, 1, 2, 3, 5])
DELAYS = st.sampled_from([None, None, None, 0, 200, 1_500])
ENDS = st.tuples(
    PICKS, st.sampled_from(["complete", "complete", "release", "retry", "fail", "dead", "heartbeat"]), DELAYS
)
STEPS_MS = st.sampled_from([1, 50, 200, 499, 500, 1_000, 1_001, 4_000])

# "a" with "b/c" and "a/b" with "c" are two resources that read the same.
TYPES = ["a", "a/b", "t"]
NAMES = ["c", "b/c"]
TENANTS = ["", "x", "y"]

GLOBS = st.sampled_from(["*", "*", "a", "a*", "x", "?", "*c"])
LIMIT_KINDS = ["type", "tenant", "key"]
LIMITS = st.lists(st.builds(Limit, by=st.sampled_from(LIMIT_KINDS), match=GLOBS, max=st.integers(1, 4)), max_size=3)
LIMITS_OF_ONE_KIND = st.sampled_from(LIMIT_KINDS).flatmap(
    lambda kind: st.lists(
        st.builds(Limit, by=st.just(kind), match=GLOBS, max=st.integers(2, 6)), min_size=1, max_size=3
    )
)
WATERMARKS = st.sampled_from([(None, None), (None, None), (8, None), (6, 5), (10, 0), (5, 1)])
TENANT_WEIGHTS = st.sampled_from([{}, {"x": 3}, {"x": 2, "": 5}, {"y": 1_000}])


def options(**drawn: st.SearchStrategy[Any]) -> st.SearchStrategy[QueueOptions]:
    """Options around what is drawn. What runs out by itself has a machine of its own, so memories last here."""
    return st.builds(
        QueueOptions,
        lease_duration_ms=st.just(1_000),
        max_delivery_attempts=st.just(2),
        ended_lease_retention_ms=st.just(24 * HOUR),
        result_retention_ms=st.just(24 * HOUR),
        request_id_retention_max_ms=st.just(48 * HOUR),
        starvation_every=st.sampled_from([2, 3, 0]),
        starvation_after_ms=st.sampled_from([50, 0, 200]),
        tenant_weights=TENANT_WEIGHTS,
        backpressure_cooldown_ms=st.sampled_from([0, 500]),
        **drawn,
    )


MIXED = WATERMARKS.flatmap(
    lambda marks: options(
        high_watermark=st.just(marks[0]),
        low_watermark=st.just(marks[1]),
        capacity=st.sampled_from([20, 14, 9]),
        ordering=st.sampled_from(["none", "exclusive", "fifo", "fifo"]),
        key=st.sampled_from(["resource", "partition"]),
        fifo_head=st.sampled_from(["hold", "pass"]),
        tenant_attribute=st.sampled_from(["tenant", "tenant", "tenant", "team"]),
        limits=LIMITS,
        requeue_delay_ms=st.sampled_from([0, 0, 300]),
    )
)
LIMITED = options(capacity=st.just(40), limits=LIMITS_OF_ONE_KIND)
FAIR = options(capacity=st.just(80))

RUNS = st.one_of(
    st.tuples(st.just("mixed"), MIXED), st.tuples(st.just("limited"), LIMITED), st.tuples(st.just("fair"), FAIR)
)
"""Every gate at once hides most of them from each other: some runs are about limits, some about turns alone."""

SPECS: st.SearchStrategy[Record] = st.fixed_dictionaries(
    {
        "type": st.sampled_from(TYPES),
        "name": st.sampled_from(NAMES),
        "partition": st.sampled_from([None, None, "c", "p"]),
        "attributes": st.fixed_dictionaries(
            {}, optional={"tenant": st.sampled_from(TENANTS), "team": st.sampled_from(TENANTS[1:])}
        ),
        "class": CLASSES,
        "weight": WEIGHTS,
        "delay": st.sampled_from([None, None, None, None, None, 0, 200, 1_500]),
        "named": st.sampled_from([False, False, False, True]),
    }
).map(lambda spec: {**spec, "request": request_of(spec) if spec["named"] else None})

SCOPES: st.SearchStrategy[Scope] = st.sampled_from(
    [(None, None), *[(kind, None) for kind in TYPES], *[(None, tenant) for tenant in TENANTS[1:]]]
)

FILTERS = st.tuples(
    st.sampled_from([None, None, ("a",), ("a*",), ("t", "a"), ("nobody",)]),
    st.sampled_from([None, ("x",), ("x", ""), ("y",)]),
)


def request_of(spec: Record) -> str:
    """One request id for one payload, so that a repeat is a repeat."""
    return "|".join(str(spec[name]) for name in ("type", "name", "partition", "attributes"))


def new_item_of(spec: Record) -> NewItem:
    payload = Payload(
        resource_type=spec["type"],
        resource_id=spec["name"],
        partition_key=spec["partition"],
        attributes=dict(spec["attributes"]) or None,
        request_id=spec["request"],
    )
    return NewItem(payload=payload, priority=spec["class"], weight=spec["weight"], delay_ms=spec["delay"])


def is_leased(machine: GatesMachine) -> bool:
    return bool(machine.shard.model.having("leased"))


def is_pending(machine: GatesMachine) -> bool:
    return bool(machine.shard.model.having("ready", "delayed"))


def is_dead(machine: GatesMachine) -> bool:
    return bool(machine.shard.model.having("dead"))


class GatesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shard = WatchedShard()
        self.drained: list[bytes] = []
        self.kind = ""
        self.filters = False
        self.attentive = False
        self.pauses_made = 0
        self.steps = 0

    @initialize(run=RUNS, filters=st.booleans(), attentive=st.booleans())
    def start(self, run: tuple[str, QueueOptions], filters: bool, attentive: bool) -> None:
        """Runs without filters can hold the shard to fairness; attentive ones signal at once, as an engine does."""
        self.kind, options = run
        self.filters, self.attentive = self.kind == "limited" or (filters and self.kind == "mixed"), attentive
        self.shard.do(cmd.ChangeOptions(options))

    def _shaped(self, specs: list[Record]) -> list[Record]:
        """Fewer lanes and nothing late where it is about limits or turns alone: so that more of them meet."""
        if self.kind == "fair":
            return [{**spec, "class": 5, "delay": None, "weight": min(spec["weight"], 2)} for spec in specs]
        if self.kind == "limited":
            return [
                {**spec, "class": min(spec["class"], 5), "type": spec["type"][:1], "request": None, "delay": None}
                for spec in specs
            ]
        return specs

    def _pick(self, pick: int, *states: str) -> int:
        known = [item["id"] for item in self.shard.model.having(*states)]
        return int(known[pick % len(known)])

    # -- workers -------------------------------------------------------------------------------

    @rule(specs=st.lists(SPECS, min_size=1, max_size=5))
    def enqueue(self, specs: list[Record]) -> None:
        model = self.shard.model
        specs = self._shaped(specs)
        allowed, fresh = model.refusals(specs), len(model.fresh(specs))
        before = model.next_id
        answer = self.shard.ask(cmd.EnqueueItems([new_item_of(spec) for spec in specs]))
        if allowed:
            assert isinstance(answer, OmniRelayError), f"taken in, although {allowed}"
            assert answer.code in allowed
        else:
            assert not isinstance(answer, OmniRelayError), answer
            assert model.next_id == before + fresh
            assert sum(not result.duplicate for result in answer.results) == fresh
            assert answer.pending_count == len(model.having("ready", "delayed"))

    @precondition(lambda self: self.kind == "fair")
    @rule(specs=st.lists(SPECS, min_size=2, max_size=4), copies=st.integers(3, 8))
    def enqueue_many_alike(self, specs: list[Record], copies: int) -> None:
        """Enough for each to offer something all the time, or else nobody can be held to anything."""
        self.enqueue([{**spec, "request": None} for spec in specs * copies])

    @rule(specs=st.lists(SPECS, min_size=1, max_size=5), count=st.integers(1, 3), filter_=FILTERS)
    def enqueue_and_lease(self, specs: list[Record], count: int, filter_: Any) -> None:
        self.enqueue(specs)
        self.lease(count, filter_, None)

    @precondition(is_pending)
    @rule(count=st.integers(1, 3), filter_=FILTERS, peer=st.sampled_from([None, "p1"]))
    def lease(self, count: int, filter_: Any, peer: str | None) -> None:
        types, tenants = filter_ if self.filters else (None, None)
        self.shard.do(cmd.GrantLeases(Caller(peer_id=peer), count, resource_types=types, tenants=tenants))

    @precondition(is_leased)
    @rule(ends=st.lists(ENDS, min_size=1, max_size=3))
    def acknowledge(self, ends: list[tuple[int, str, int | None]]) -> None:
        for end in ends:
            if is_leased(self):
                self._end(*end)

    @precondition(is_pending)
    @rule(rounds=st.lists(st.tuples(st.integers(1, 2), FILTERS, ENDS), min_size=2, max_size=5))
    def work(self, rounds: list[tuple[int, Any, tuple[int, str, int | None]]]) -> None:
        """A worker that goes on for a while: takes some, is done with one, takes more."""
        for count, filter_, end in rounds:
            self.lease(count, filter_, "p1")
            self.acknowledge([end])
            self.shard.now += 60

    @precondition(lambda self: self.kind == "fair" and is_pending(self))
    @rule(count=st.integers(5, 25))
    def work_a_lot(self, count: int) -> None:
        for granted in self.shard.do(cmd.GrantLeases(items_max=count)):
            self.shard.complete(granted.sequence_id)

    def _end(self, pick: int, how: str, delay: int | None) -> None:
        sequence_id = self._pick(pick, "leased")
        token = self.shard.lease_of(sequence_id).token
        commands: dict[str, cmd.Command] = {
            "complete": cmd.CompleteItem(token),
            "retry": cmd.FailItem(token, mode="retry", delay_ms=delay),
            "fail": cmd.FailItem(token, mode="release", delay_ms=delay),
            "dead": cmd.FailItem(token, mode="dead"),
            "release": cmd.ReleaseItem(token, delay_ms=delay),
            "heartbeat": cmd.ExtendLease(token),
        }
        self.shard.do(commands[how], self.shard.in_time(sequence_id))

    @precondition(is_leased)
    @rule(pick=PICKS, follow_ups=st.lists(SPECS, min_size=1, max_size=2))
    def go_on_with(self, pick: int, follow_ups: list[Record]) -> None:
        """Follow-ups come in whatever is paused or full: the work they belong to was let in before."""
        items = [new_item_of(spec) for spec in follow_ups]
        self.shard.complete(self._pick(pick, "leased"), follow_ups=items)

    # -- time ----------------------------------------------------------------------------------

    @rule(ms=STEPS_MS, advance=st.sampled_from([True, True, False]), expire=st.sampled_from([True, False]))
    def let_time_pass(self, ms: int, advance: bool, expire: bool) -> None:
        self.shard.now += ms
        if advance:
            self.shard.advance_time()
        if expire:
            self.shard.do(cmd.ExpireLeases())

    # -- operators -----------------------------------------------------------------------------

    @precondition(lambda self: is_pending(self) or is_leased(self))
    @rule(pick=PICKS, pending=st.booleans(), force=st.booleans())
    def cancel(self, pick: int, pending: bool, force: bool) -> None:
        wanted = ("ready", "delayed") if pending and is_pending(self) else ("ready", "delayed", "leased")
        self.shard.do(cmd.CancelItem(self._pick(pick, *wanted), force=force))

    @precondition(is_dead)
    @rule(picks=st.lists(PICKS, min_size=1, max_size=3), rate=st.sampled_from([None, None, 2]))
    def redrive(self, picks: list[int], rate: float | None) -> None:
        """Named one by one, in any order: with fifo they line up at the tail in just that order."""
        chosen = list(dict.fromkeys(self._pick(pick, "dead") for pick in picks))
        self.shard.do(cmd.RedriveItems(cmd.DeadLetterSelection(sequence_ids=chosen), rate_per_second=rate))

    @precondition(lambda self: is_pending(self) and self.steps % 3 == 0)
    @rule(count=st.integers(1, 4), pause_intake=st.sampled_from([False, False, False, True]))
    def drain(self, count: int, pause_intake: bool) -> None:
        pending = len(self.shard.model.having("ready", "delayed"))
        answer = self.shard.do(cmd.DrainItems(count, pause_intake=pause_intake))
        assert len(answer.items) == min(count, pending)
        self.drained += [msgspec.json.encode(item) for item in answer.items]
        if pause_intake:
            pause = self.shard.model.pauses[None, None]
            assert (pause["intake"], pause["reason"]) == (True, "drain")

    @precondition(lambda self: bool(self.drained))
    @rule(picks=st.lists(PICKS, min_size=1, max_size=4))
    def restore(self, picks: list[int]) -> None:
        chosen = [self.drained[pick % len(self.drained)] for pick in picks]
        self.shard.do(cmd.RestoreItems([msgspec.json.decode(item, type=ev.RestoredItem) for item in chosen]))

    @precondition(lambda self: len(self.shard.model.pauses) < 2 and self.steps % 3 == 1)
    @rule(scope=SCOPES, intake=st.booleans(), lasts=st.sampled_from([400, 1, 1_000, None]))
    def pause(self, scope: Scope, intake: bool, lasts: int | None) -> None:
        self.pauses_made += 1
        # The reason is the pause's own: by it `why` can be taken at its word.
        reason = f"pause {self.pauses_made}"
        until = None if lasts is None else self.shard.now + lasts
        self.shard.pause(cmd.PauseScope(*scope, intake=intake, reason=reason, until_ms=until))
        self._pause_wrongly()

    def _pause_wrongly(self) -> None:
        both = self.shard.ask(cmd.PauseScope("a", "x"))
        assert both.code == "resourcelease.scope.invalid"
        over = self.shard.ask(cmd.PauseScope(until_ms=self.shard.now))
        assert over.code == "resourcelease.until.invalid"

    @precondition(lambda self: bool(self.shard.model.pauses))
    @rule(pick=PICKS, scope=SCOPES)
    def resume(self, pick: int, scope: Scope) -> None:
        """What is paused, and what may well not be."""
        paused = list(self.shard.model.pauses)
        self.shard.resume(paused[pick % len(paused)])
        self.shard.resume(scope)

    @precondition(lambda self: self.kind != "fair" and self.steps % 4 == 2)
    @rule(mixed=MIXED, limited=LIMITED)
    def change_options(self, mixed: QueueOptions, limited: QueueOptions) -> None:
        self.shard.do(cmd.ChangeOptions(mixed if self.kind == "mixed" else limited))

    @precondition(lambda self: not self.attentive)
    @rule()
    def signal_backpressure(self) -> None:
        self.shard.signal_backpressure()

    # -- crashes and snapshots -----------------------------------------------------------------

    @precondition(lambda self: bool(self.shard.model.items))
    @rule(down=st.sampled_from([None, 0, 700]), snapshot=st.booleans())
    def crash(self, down: int | None, snapshot: bool) -> None:
        """What comes back is from the log or from a snapshot; a new leader moves the leases by the time away."""
        if snapshot:
            self.shard.state = through_snapshot(self.shard.state)
        else:
            self.shard.recover()
        if down is not None:
            self.shard.now += down
            self.shard.do(cmd.ElectLeader(2, "node-2"))

    # -- asking why ----------------------------------------------------------------------------

    @precondition(is_pending)
    @rule(pick=PICKS)
    def ask_why(self, pick: int) -> None:
        sequence_id = self._pick(pick, "ready", "delayed")
        undone = self.shard.copy()
        copies = chain([undone], iter(self.shard.copy, None))
        undo_the_gates_of(sequence_id, lambda: next(copies))
        undone.check()
        assert undone.next_grant() == sequence_id

    # -- after each step -----------------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        self.steps += 1
        if self.attentive:
            self.shard.signal_backpressure()
        self.shard.check()
        self.shard.check_next_grants()
        check_next_has_no_gates(self.shard)
        if self.steps % 3 == 0 and is_pending(self):
            self.ask_why(self.steps // 3)


@pytest.mark.timeout(7_200 if LONG else 900)
@pytest.mark.parametrize("lanes_kept", [LANES_KEPT, 3])
def test_the_gates_do_what_the_naive_model_says(lanes_kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once as it is, and once forgetting empty lanes all the time: nobody may notice."""
    monkeypatch.setattr("omnirelay.core.schedule.LANES_KEPT", lanes_kept)
    run_state_machine_as_test(GatesMachine, settings=profile(20, 40, long=500))
