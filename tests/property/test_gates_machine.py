"""The gates against their naive model: who may be granted next, and what a shard under pressure lets in.

Every command goes through `WatchedShard`, which lets the model judge each event; what must hold after every step
is there too. Few names and small numbers, so that items meet each other at every gate.
"""

from __future__ import annotations

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
from omnirelay.core.options import Limit, QueueOptions
from omnirelay.core.payload import Caller, NewItem, Payload
from omnirelay.errors import OmniRelayError
from tests.property.comparing import through_snapshot
from tests.property.gates_driver import WatchedShard
from tests.property.gates_model import Record, Scope
from tests.property.gates_why import check_next_has_no_gates, undo_the_gates_of
from tests.property.strategies import LONG, profile

PICKS = st.integers(0, 40)
CLASSES = st.sampled_from([5, 0, 9])
WEIGHTS = st.sampled_from([1, 1, 2, 5])
DELAYS = st.sampled_from([None, None, None, 0, 200, 1_500])
STEPS_MS = st.sampled_from([1, 50, 200, 499, 500, 1_000, 1_001, 4_000])

# "a" with "b/c" and "a/b" with "c" are two resources that read the same.
TYPES = ["a", "a/b", "t"]
NAMES = ["c", "b/c"]
TENANTS = ["", "x", "y"]

LIMITS = st.builds(
    Limit,
    by=st.sampled_from(["type", "tenant", "key"]),
    match=st.sampled_from(["*", "*", "a", "a*", "x", "?", "*c"]),
    max=st.integers(1, 4),
)

WATERMARKS = st.sampled_from([(None, None), (None, None), (3, None), (4, 3), (2, 0), (6, 1)])

OPTIONS = st.builds(
    lambda watermarks, **fields: QueueOptions(high_watermark=watermarks[0], low_watermark=watermarks[1], **fields),
    WATERMARKS,
    ordering=st.sampled_from(["none", "exclusive", "fifo", "fifo"]),
    key=st.sampled_from(["resource", "partition"]),
    fifo_head=st.sampled_from(["hold", "pass"]),
    tenant_attribute=st.sampled_from(["tenant", "tenant", "tenant", "team"]),
    tenant_weights=st.sampled_from([{}, {"x": 3}, {"x": 2, "": 5}, {"y": 1_000}]),
    limits=st.lists(LIMITS, max_size=3),
    starvation_every=st.sampled_from([0, 2, 3]),
    starvation_after_ms=st.sampled_from([0, 50, 300]),
    capacity=st.sampled_from([14, 9, 6]),
    backpressure_cooldown_ms=st.sampled_from([0, 500]),
    lease_duration_ms=st.just(1_000),
    max_delivery_attempts=st.just(2),
    requeue_delay_ms=st.sampled_from([0, 0, 300]),
    # What runs out by itself has a machine of its own.
    ended_lease_retention_ms=st.just(24 * 3_600_000),
    result_retention_ms=st.just(24 * 3_600_000),
    request_id_retention_max_ms=st.just(48 * 3_600_000),
)

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
        "delay": DELAYS,
        "named": st.sampled_from([False, False, False, True]),
    }
).map(lambda spec: {**spec, "request": request_of(spec) if spec["named"] else None})

SCOPES: st.SearchStrategy[Scope] = st.sampled_from(
    [(None, None), *[(kind, None) for kind in TYPES], *[(None, tenant) for tenant in TENANTS[1:]]]
)

FILTERS = st.tuples(
    st.sampled_from([None, None, ("a",), ("a*",), ("t", "a"), ("nobody",)]),
    st.sampled_from([None, None, ("x",), ("x", "")]),
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
        self.filters = False
        self.attentive = False
        self.pauses_made = 0
        self.steps = 0

    @initialize(options=OPTIONS, filters=st.booleans(), attentive=st.booleans())
    def start(self, options: QueueOptions, filters: bool, attentive: bool) -> None:
        """Runs without filters can hold the shard to fairness; attentive ones signal at once, as an engine does."""
        self.filters, self.attentive = filters, attentive
        self.shard.do(cmd.ChangeOptions(options))

    def _pick(self, pick: int, *states: str) -> int:
        known = [item["id"] for item in self.shard.model.having(*states)]
        return int(known[pick % len(known)])

    # -- workers -------------------------------------------------------------------------------

    @rule(specs=st.lists(SPECS, min_size=1, max_size=4))
    def enqueue(self, specs: list[Record]) -> None:
        model = self.shard.model
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

    @precondition(is_pending)
    @rule(count=st.integers(1, 3), filter_=FILTERS, peer=st.sampled_from([None, "p1"]))
    def lease(self, count: int, filter_: Any, peer: str | None) -> None:
        types, tenants = filter_ if self.filters else (None, None)
        caller = Caller(peer_id=peer)
        self.shard.do(cmd.GrantLeases(caller, count, resource_types=types, tenants=tenants))

    @precondition(is_leased)
    @rule(pick=PICKS, follow_ups=st.one_of(st.just([]), st.lists(SPECS, max_size=2)))
    def complete(self, pick: int, follow_ups: list[Record]) -> None:
        """Follow-ups come in whatever is paused or full: the work they belong to was let in before."""
        items = [new_item_of(spec) for spec in follow_ups]
        self.shard.complete(self._pick(pick, "leased"), follow_ups=items or None)

    @precondition(is_leased)
    @rule(pick=PICKS, mode=st.sampled_from(["retry", "release", "dead"]), delay=DELAYS)
    def fail(self, pick: int, mode: Any, delay: int | None) -> None:
        sequence_id = self._pick(pick, "leased")
        token = self.shard.lease_of(sequence_id).token
        self.shard.do(cmd.FailItem(token, mode=mode, delay_ms=delay), self.shard.in_time(sequence_id))

    @precondition(is_leased)
    @rule(pick=PICKS, delay=DELAYS)
    def release(self, pick: int, delay: int | None) -> None:
        sequence_id = self._pick(pick, "leased")
        token = self.shard.lease_of(sequence_id).token
        self.shard.do(cmd.ReleaseItem(token, delay_ms=delay), self.shard.in_time(sequence_id))

    @precondition(is_leased)
    @rule(pick=PICKS)
    def heartbeat(self, pick: int) -> None:
        sequence_id = self._pick(pick, "leased")
        self.shard.do(cmd.ExtendLease(self.shard.lease_of(sequence_id).token), self.shard.in_time(sequence_id))

    # -- time ----------------------------------------------------------------------------------

    @rule(ms=STEPS_MS, advance=st.sampled_from([True, True, False]), expire=st.sampled_from([True, True, False]))
    def let_time_pass(self, ms: int, advance: bool, expire: bool) -> None:
        self.shard.now += ms
        if advance:
            self.shard.advance_time()
        if expire:
            self.shard.do(cmd.ExpireLeases())

    # -- operators -----------------------------------------------------------------------------

    @precondition(is_pending)
    @rule(pick=PICKS)
    def cancel_pending(self, pick: int) -> None:
        self.shard.do(cmd.CancelItem(self._pick(pick, "ready", "delayed")))

    @precondition(is_leased)
    @rule(pick=PICKS, force=st.booleans())
    def cancel_leased(self, pick: int, force: bool) -> None:
        self.shard.do(cmd.CancelItem(self._pick(pick, "leased"), force=force))

    @precondition(is_dead)
    @rule(picks=st.lists(PICKS, min_size=1, max_size=3), rate=st.sampled_from([None, None, 2]))
    def redrive(self, picks: list[int], rate: float | None) -> None:
        """Named one by one, in any order: with fifo they line up at the tail in just that order."""
        chosen = list(dict.fromkeys(self._pick(pick, "dead") for pick in picks))
        self.shard.do(cmd.RedriveItems(cmd.DeadLetterSelection(sequence_ids=chosen), rate_per_second=rate))

    @precondition(lambda self: is_pending(self) and self.steps % 4 == 0)
    @rule(count=st.integers(1, 4), pause_intake=st.booleans())
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

    @precondition(lambda self: self.steps % 2 == 0)
    @rule(scope=SCOPES, intake=st.booleans(), lasts=st.sampled_from([None, 1, 400, 1_000]))
    def pause(self, scope: Scope, intake: bool, lasts: int | None) -> None:
        self.pauses_made += 1
        # The reason is the pause's own: by it `why` can be taken at its word.
        reason = f"pause {self.pauses_made}"
        until = None if lasts is None else self.shard.now + lasts
        self.shard.pause(cmd.PauseScope(*scope, intake=intake, reason=reason, until_ms=until))

    @rule(scope=SCOPES)
    def resume(self, scope: Scope) -> None:
        self.shard.resume(scope)

    @precondition(lambda self: bool(self.shard.model.pauses))
    @rule(pick=PICKS)
    def resume_what_is_paused(self, pick: int) -> None:
        paused = list(self.shard.model.pauses)
        self.shard.resume(paused[pick % len(paused)])

    @precondition(lambda self: self.steps % 8 == 7)
    @rule(ago=st.sampled_from([0, 1_000]))
    def pause_wrongly(self, ago: int) -> None:
        both = self.shard.ask(cmd.PauseScope("a", "x"))
        assert both.code == "resourcelease.scope.invalid"
        over = self.shard.ask(cmd.PauseScope(until_ms=self.shard.now - ago))
        assert over.code == "resourcelease.until.invalid"

    @precondition(lambda self: self.steps % 4 == 2)
    @rule(options=OPTIONS)
    def change_options(self, options: QueueOptions) -> None:
        self.shard.do(cmd.ChangeOptions(options))

    @precondition(lambda self: not self.attentive)
    @rule()
    def signal_backpressure(self) -> None:
        self.shard.signal_backpressure()

    # -- crashes and snapshots -----------------------------------------------------------------

    @rule(down=st.sampled_from([None, 0, 700]))
    def crash(self, down: int | None) -> None:
        """Whoever takes over moves the leases by the time nobody was there."""
        self.shard.recover()
        if down is not None:
            self.shard.now += down
            self.shard.do(cmd.ElectLeader(2, "node-2"))

    @rule()
    def go_on_from_a_snapshot(self) -> None:
        self.shard.state = through_snapshot(self.shard.state)

    # -- asking why ----------------------------------------------------------------------------

    @precondition(is_pending)
    @rule(pick=PICKS, raise_limits=st.booleans())
    def ask_why(self, pick: int, raise_limits: bool) -> None:
        sequence_id = self._pick(pick, "ready", "delayed")
        undo_the_gates_of(sequence_id, self.shard.copy(), raise_limits)

    # -- after each step -----------------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        self.steps += 1
        if self.attentive:
            self.shard.signal_backpressure()
        self.shard.check()
        self.shard.check_next_grants()
        check_next_has_no_gates(self.shard)


@pytest.mark.timeout(7_200 if LONG else 900)
def test_the_gates_do_what_the_naive_model_says() -> None:
    run_state_machine_as_test(GatesMachine, settings=profile(120, 40))
