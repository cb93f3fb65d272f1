"""Pauses: a shard, a type or a tenant that grants nothing for a while, and perhaps takes nothing in."""

from __future__ import annotations

from typing import Any

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core import views
from omnirelay.core.evolve import evolve
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, NewItem
from omnirelay.core.rules.pausing import PAUSES_MAX
from omnirelay.core.snapshot import digest
from omnirelay.errors import InvalidArgument, Unavailable
from tests.builders import WORKER, Kernel, new_item, replay
from tests.gates import SECOND, gates, ids, of_tenant, pause, resume, through_snapshot

OPERATOR = Caller(principal="operator")
SCOPES: list[dict[str, str]] = [{}, {"resource_type": "table"}, {"tenant": "acme"}]
EACH_SCOPE = pytest.mark.parametrize("scope", SCOPES, ids=["shard", "type", "tenant"])


def covered(resource_id: str = "orders", **fields: Any) -> NewItem:
    """An item that every one of the scopes covers."""
    return of_tenant("acme", resource_id, **fields)


def uncovered(resource_id: str = "orders", **fields: Any) -> NewItem:
    """An item that only the pause of the shard covers."""
    return of_tenant("umbrella", resource_id, resource_type="view", **fields)


# -- granting ------------------------------------------------------------------------------------


@EACH_SCOPE
def test_what_is_paused_grants_nothing_until_it_is_resumed(scope: dict[str, str]) -> None:
    kernel = Kernel()
    kernel.enqueue(covered(), covered())
    pause(kernel, **scope)
    assert kernel.lease(10) == []
    kernel.enqueue(covered())
    assert kernel.lease(10) == []
    resume(kernel, **scope)
    assert ids(kernel.lease(10)) == [1, 2, 3]


@EACH_SCOPE
def test_what_is_not_covered_goes_on(scope: dict[str, str]) -> None:
    kernel = Kernel()
    kernel.enqueue(covered(priority=0), uncovered(priority=9))
    pause(kernel, **scope)
    assert ids(kernel.lease(10)) == ([2] if scope else [])


@EACH_SCOPE
def test_leases_in_hand_go_on_under_a_pause(scope: dict[str, str]) -> None:
    kernel = Kernel()
    kernel.enqueue(*[covered(str(n)) for n in range(4)])
    first, second, third, fourth = kernel.lease(4)
    pause(kernel, **scope)
    kernel.pass_time(5 * SECOND)
    assert kernel.heartbeat(first.token).extended
    kernel.complete(second.token)
    kernel.fail(third.token)
    kernel.release(fourth.token)
    assert kernel.lease(10) == []
    kernel.pass_time(60 * SECOND)
    assert kernel.state_of(1) == "ready"
    assert kernel.lease(10) == []


@EACH_SCOPE
def test_delays_go_on_under_a_pause(scope: dict[str, str]) -> None:
    kernel = Kernel()
    kernel.enqueue(covered(delay_ms=SECOND))
    pause(kernel, **scope)
    kernel.pass_time(SECOND)
    assert kernel.state_of(1) == "ready"
    assert kernel.lease(10) == []


def test_an_item_is_granted_when_every_pause_over_it_is_resumed() -> None:
    kernel = Kernel()
    kernel.enqueue(covered())
    for scope in SCOPES:
        pause(kernel, **scope)
    for scope in SCOPES:
        assert kernel.lease(10) == []
        resume(kernel, **scope)
    assert ids(kernel.lease(10)) == [1]


def test_a_pause_names_exactly_one_type_or_tenant() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a"), of_tenant("acme"))
    pause(kernel, resource_type="tab*")
    pause(kernel, resource_type="Table")
    pause(kernel, tenant="acm?")
    assert len(kernel.lease(10)) == 2


def test_a_pause_before_anything_is_there_covers_what_comes() -> None:
    kernel = Kernel()
    pause(kernel, resource_type="table")
    pause(kernel, tenant="umbrella")
    kernel.enqueue(covered(), uncovered(), new_item(resource_type="view"))
    assert ids(kernel.lease(10)) == [3]


def test_a_pause_reads_the_attribute_that_options_name() -> None:
    kernel = Kernel(QueueOptions(tenant_attribute="team"))
    kernel.enqueue(new_item("a", attributes={"team": "red"}), new_item("b", attributes={"tenant": "red"}))
    pause(kernel, tenant="red")
    assert ids(kernel.lease(10)) == [2]


@EACH_SCOPE
def test_a_pause_survives_a_restart(scope: dict[str, str]) -> None:
    kernel = Kernel()
    kernel.enqueue(covered())
    pause(kernel, **scope, reason="maintenance", caller=OPERATOR)
    before = kernel.state.pauses
    kernel.restart(60 * SECOND)
    assert kernel.state.pauses == before
    assert kernel.lease(10) == []
    resume(kernel, **scope)
    assert ids(kernel.lease(10)) == [1]


@EACH_SCOPE
def test_a_pause_survives_a_change_of_options(scope: dict[str, str]) -> None:
    kernel = Kernel()
    kernel.enqueue(covered())
    pause(kernel, **scope)
    kernel.do(cmd.ChangeOptions(QueueOptions(ordering="fifo", tenant_weights={"acme": 2})))
    assert kernel.lease(10) == []
    resume(kernel, **scope)
    assert ids(kernel.lease(10)) == [1]


def test_a_tenant_that_was_paused_has_saved_up_no_turns() -> None:
    kernel = Kernel()
    kernel.enqueue(*[covered(str(n)) for n in range(100)])
    kernel.enqueue(*[of_tenant("umbrella", str(n)) for n in range(200)])
    pause(kernel, tenant="acme")
    kernel.lease(100)
    resume(kernel, tenant="acme")
    granted = kernel.lease(100)
    assert 49 <= sum(lease.sequence_id <= 100 for lease in granted) <= 51


# -- the end of a pause --------------------------------------------------------------------------


@EACH_SCOPE
def test_a_pause_with_an_end_is_over_when_time_is_written_down(scope: dict[str, str]) -> None:
    kernel = Kernel()
    kernel.enqueue(covered())
    until = kernel.now_ms + 60 * SECOND
    pause(kernel, **scope, until_ms=until)
    assert kernel.state.next_due() == until
    kernel.pass_time(60 * SECOND - 1)
    assert kernel.lease(10) == []
    kernel.pass_time(1, upkeep=False)
    assert kernel.lease(10) == []
    assert kernel.state.time_has_work(kernel.now_ms)
    kernel.do(cmd.AdvanceTime())
    assert kernel.state.pauses == {}
    assert ids(kernel.lease(10)) == [1]


def test_several_pauses_end_each_at_its_time() -> None:
    kernel = Kernel()
    pause(kernel, resource_type="table", until_ms=kernel.now_ms + 1_000)
    pause(kernel, tenant="acme", until_ms=kernel.now_ms + 2_000)
    pause(kernel, tenant="umbrella")
    kernel.pass_time(1_000)
    assert [found.tenant for found in kernel.state.pauses.values()] == ["acme", "umbrella"]
    kernel.pass_time(60_000)
    assert [found.tenant for found in kernel.state.pauses.values()] == ["umbrella"]


def test_a_pause_that_ends_while_the_shard_is_down_ends_with_the_first_time_after_it() -> None:
    kernel = Kernel()
    kernel.enqueue(covered())
    pause(kernel, until_ms=kernel.now_ms + SECOND)
    kernel.restart(60 * SECOND)
    assert kernel.lease(10) == []
    kernel.pass_time()
    assert ids(kernel.lease(10)) == [1]


@EACH_SCOPE
def test_pausing_again_replaces_the_pause(scope: dict[str, str]) -> None:
    kernel = Kernel()
    kernel.enqueue(covered())
    pause(kernel, **scope, until_ms=kernel.now_ms + SECOND, intake=True, reason="first")
    kernel.pass_time(500)
    (found,) = pause(kernel, **scope, reason="second", caller=OPERATOR)
    assert (found.reason, found.until, found.intake) == ("second", None, False)
    assert (found.principal, found.since) == ("operator", kernel.now_ms)
    kernel.pass_time(60 * SECOND)
    assert kernel.lease(10) == []
    kernel.enqueue(covered())
    resume(kernel, **scope)
    assert len(kernel.lease(10)) == 2


@EACH_SCOPE
def test_resuming_what_is_not_paused_changes_nothing(scope: dict[str, str]) -> None:
    kernel = Kernel()
    others = [other for other in SCOPES if other != scope]
    for other in others:
        pause(kernel, **other)
    written, before = len(kernel.events), kernel.digest()
    assert len(resume(kernel, **scope)) == 2
    assert (len(kernel.events), kernel.digest()) == (written, before)


def test_both_calls_answer_with_everything_that_is_paused() -> None:
    kernel = Kernel()
    pause(kernel, reason="all")
    found = pause(kernel, tenant="acme", intake=True, until_ms=kernel.now_ms + 5)
    assert [(p.resource_type, p.tenant, p.intake, p.reason) for p in found] == [
        (None, None, False, "all"),
        (None, "acme", True, None),
    ]
    left = resume(kernel)
    assert [p.tenant for p in left] == ["acme"]
    assert left == views.stats(kernel.state, kernel.now_ms).pauses


def test_the_log_says_who_paused_what_and_why() -> None:
    kernel = Kernel()
    pause(kernel, tenant="acme", intake=True, reason="bill", until_ms=kernel.now_ms + 5, caller=OPERATOR)
    resume(kernel, tenant="acme", caller=OPERATOR)
    paused, resumed = kernel.events
    assert isinstance(paused, ev.Paused)
    assert (paused.tenant, paused.resource_type, paused.intake) == ("acme", None, True)
    assert (paused.reason, paused.until, paused.principal) == ("bill", kernel.now_ms + 5, "operator")
    assert isinstance(resumed, ev.Resumed)
    assert (resumed.tenant, resumed.principal) == ("acme", "operator")


# -- intake --------------------------------------------------------------------------------------


def refused_intake(kernel: Kernel, *items: NewItem) -> Unavailable:
    error = kernel.refusal(cmd.EnqueueItems(list(items), WORKER))
    assert isinstance(error, Unavailable)
    assert error.code == "error.resourcelease.paused"
    assert error.retry_after_ms is not None
    return error


@EACH_SCOPE
def test_a_pause_of_intake_refuses_enqueues(scope: dict[str, str]) -> None:
    kernel = Kernel()
    pause(kernel, **scope, intake=True, reason="moving house")
    assert "moving house" in refused_intake(kernel, covered()).message
    if scope:
        kernel.enqueue(uncovered())
    resume(kernel, **scope)
    kernel.enqueue(covered())


@EACH_SCOPE
def test_a_batch_is_refused_as_a_whole_and_the_first_refused_item_is_named(scope: dict[str, str]) -> None:
    kernel = Kernel()
    pause(kernel, **scope, intake=True)
    error = refused_intake(kernel, uncovered(), uncovered(), covered(), covered())
    assert error.details["index"] == (2 if scope else 0)


def test_the_index_counts_repeats_that_stand_before_it() -> None:
    kernel = Kernel()
    kernel.enqueue(covered(request_id="r1"))
    pause(kernel, tenant="acme", intake=True)
    error = refused_intake(kernel, covered(request_id="r1"), uncovered(), covered(request_id="r2"))
    assert error.details["index"] == 2


@EACH_SCOPE
def test_repeats_of_what_is_in_already_are_answered(scope: dict[str, str]) -> None:
    kernel = Kernel()
    (first,) = kernel.enqueue(covered(request_id="r1"))
    pause(kernel, **scope, intake=True)
    answer = kernel.do(cmd.EnqueueItems([covered(request_id="r1")], WORKER))
    assert [(result.sequence_id, result.duplicate) for result in answer.results] == [(first, True)]


@EACH_SCOPE
def test_follow_ups_come_in_under_a_pause_of_intake(scope: dict[str, str]) -> None:
    kernel = Kernel()
    kernel.enqueue(covered())
    token = kernel.lease_one().token
    pause(kernel, **scope, intake=True)
    assert kernel.complete(token, follow_ups=[covered(), covered()]).follow_up_ids == [2, 3]
    assert kernel.lease(10) == []


@EACH_SCOPE
def test_restores_redrives_and_retries_come_in_under_a_pause_of_intake(scope: dict[str, str]) -> None:
    kernel = Kernel()
    dead = kernel.dead_item(attributes={"tenant": "acme"})
    kernel.enqueue(covered())
    page = kernel.do(cmd.DrainItems())
    kernel.enqueue(covered())
    lease = kernel.lease_one()
    pause(kernel, **scope, intake=True)
    assert kernel.do(cmd.RestoreItems(page.items)).restored_count == 1
    assert kernel.do(cmd.RedriveItems(cmd.DeadLetterSelection(sequence_ids=[dead]))).count == 1
    kernel.fail(lease.token)
    assert kernel.state.pending_count == 3


def test_a_pause_without_intake_lets_items_in() -> None:
    kernel = Kernel()
    for scope in SCOPES:
        pause(kernel, **scope)
    assert kernel.enqueue(covered()) == [1]


# -- drain ---------------------------------------------------------------------------------------


def test_a_drain_that_pauses_intake_leaves_nothing_behind() -> None:
    kernel = Kernel()
    kernel.enqueue(covered("a"), covered("b", delay_ms=SECOND), covered("c"))
    lease = kernel.lease_one()
    page = kernel.do(cmd.DrainItems(caller=OPERATOR, pause_intake=True))
    assert kernel.kinds(2) == ["Paused", "DrainSnapshot"]
    assert (len(page.items), page.remaining_count) == (2, 0)
    (found,) = kernel.state.pauses.values()
    assert (found.intake, found.reason, found.principal) == (True, "drain", "operator")
    refused_intake(kernel, uncovered())
    kernel.release(lease.token)
    assert kernel.lease(10) == []
    assert [item.sequence_id for item in kernel.do(cmd.DrainItems()).items] == [lease.sequence_id]


def test_a_drain_of_nothing_pauses_intake_all_the_same() -> None:
    kernel = Kernel()
    kernel.do(cmd.DrainItems(pause_intake=True))
    assert kernel.kinds(1) == ["Paused"]
    refused_intake(kernel, covered())
    resume(kernel)
    kernel.enqueue(covered())


def test_a_drain_in_pages_stays_paused_to_the_end() -> None:
    kernel = Kernel()
    kernel.enqueue(*[covered(str(n)) for n in range(5)])
    sizes = [len(kernel.do(cmd.DrainItems(items_max=2, pause_intake=True)).items) for _ in range(3)]
    assert sizes == [2, 2, 1]
    assert len(kernel.state.pauses) == 1


def test_a_plain_drain_pauses_nothing() -> None:
    kernel = Kernel()
    kernel.enqueue(covered())
    kernel.do(cmd.DrainItems())
    assert kernel.state.pauses == {}
    assert kernel.enqueue(covered())


def test_a_paused_shard_can_be_drained_and_what_it_held_goes_on_elsewhere() -> None:
    old, new = Kernel(), Kernel()
    old.enqueue(covered("a"), covered("b"))
    page = old.do(cmd.DrainItems(pause_intake=True))
    new.do(cmd.RestoreItems(page.items))
    assert ids(new.lease(10)) == [1, 2]
    assert old.lease(10) == []


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"resource_type": "table", "tenant": "acme"}, "scope"),
        ({"resource_type": ""}, "resourceType"),
        ({"resource_type": " "}, "resourceType"),
        ({"resource_type": 5}, "resourceType"),
        ({"resource_type": "a\0b"}, "resourceType"),
        ({"resource_type": "x" * 1_025}, "resourceType"),
        ({"tenant": ""}, "tenant"),
        ({"tenant": b"acme"}, "tenant"),
        ({"tenant": "\ud800"}, "tenant"),
        ({"caller": None}, "caller"),
        ({"caller": Caller(principal=" ")}, "principal"),
    ],
)
def test_a_bad_scope_is_refused_by_both_calls(fields: dict[str, Any], field: str) -> None:
    kernel = Kernel()
    pause(kernel, resource_type="view")
    for command in (cmd.PauseScope(**fields), cmd.ResumeScope(**fields)):
        error = kernel.refusal(command)
        assert isinstance(error, InvalidArgument)
        assert (error.code, error.details["field"]) == (f"resourcelease.{field}.invalid", field)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"reason": 5}, "reason"),
        ({"reason": "x" * 16_385}, "reason"),
        ({"reason": "\0"}, "reason"),
        ({"intake": 1}, "intake"),
        ({"intake": None}, "intake"),
        ({"intake": "yes"}, "intake"),
        ({"until_ms": -1}, "until"),
        ({"until_ms": 0}, "until"),
        ({"until_ms": 1.5}, "until"),
        ({"until_ms": True}, "until"),
        ({"until_ms": "tomorrow"}, "until"),
        ({"until_ms": 1 << 60}, "until"),
    ],
)
def test_a_bad_pause_is_refused(fields: dict[str, Any], field: str) -> None:
    kernel = Kernel()
    error = kernel.refusal(cmd.PauseScope(**fields))
    assert isinstance(error, InvalidArgument)
    assert (error.code, error.details["field"]) == (f"resourcelease.{field}.invalid", field)


def test_a_pause_that_would_be_over_already_is_refused() -> None:
    kernel = Kernel()
    error = kernel.refusal(cmd.PauseScope(until_ms=kernel.now_ms))
    assert error.code == "resourcelease.until.invalid"
    pause(kernel, until_ms=kernel.now_ms + 1)


def test_a_bad_drain_is_refused() -> None:
    kernel = Kernel()
    kernel.enqueue()
    for value in ("yes", None, 1):
        error = kernel.refusal(cmd.DrainItems(pause_intake=value))  # type: ignore[arg-type]
        assert (error.code, error.details["field"]) == ("resourcelease.pauseIntake.invalid", "pauseIntake")


def test_there_is_a_most_number_of_pauses() -> None:
    kernel = Kernel()
    for number in range(PAUSES_MAX):
        evolve(kernel.state, ev.Paused(sequence_number=number + 1, timestamp=kernel.now_ms, tenant=f"t{number}"))
    error = kernel.refusal(cmd.PauseScope(tenant="one more"))
    assert (error.code, error.details["field"]) == ("resourcelease.scope.invalid", "scope")
    assert len(pause(kernel, tenant="t7", reason="again")) == PAUSES_MAX


# -- turns ---------------------------------------------------------------------------------------


def shared_by_two(names: tuple[str, str]) -> Kernel:
    """Two types of one tenant, of which the first had its turn: the next grant is item 5, of the other."""
    kernel = Kernel()
    kernel.enqueue(*[of_tenant("acme", str(n), resource_type=name) for name in names for n in range(4)])
    taken = kernel.lease_one(resource_types=(names[0],))
    assert taken.payload.resource_type == names[0]
    assert gates(kernel, 5) == []
    return kernel


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize(
    "scopes",
    [
        [{"tenant": "acme"}],
        [{"resource_type": "a"}, {"resource_type": "b"}],
        [{"resource_type": "b"}, {"resource_type": "a"}],
        [{"tenant": "acme"}, {"resource_type": "b"}],
        [{"resource_type": "b"}, {"tenant": "acme"}],
        [{}],
    ],
)
@pytest.mark.parametrize("by_itself", [True, False])
def test_nobody_loses_a_turn_to_a_pause_of_all(
    names: tuple[str, str], scopes: list[dict[str, str]], by_itself: bool
) -> None:
    kernel = shared_by_two(names)
    for scope in scopes:
        pause(kernel, **scope, until_ms=kernel.now_ms + SECOND if by_itself else None)
    assert {gate.gate for gate in gates(kernel, 5)} <= {"pause"}
    if by_itself:
        kernel.pass_time(SECOND)
    else:
        for scope in scopes:
            resume(kernel, **scope)
    assert gates(kernel, 5) == []
    assert ids(kernel.lease()) == [5]


@pytest.mark.parametrize("scopes", [("a", "b"), ("b", "a")])
def test_pauses_that_end_together_do_so_in_the_same_order_after_a_snapshot(scopes: tuple[str, str]) -> None:
    kernel = shared_by_two(("a", "b"))
    for name in scopes:
        pause(kernel, resource_type=name, until_ms=kernel.now_ms + SECOND)
    recovered, written = through_snapshot(kernel.state), len(kernel.events)
    kernel.pass_time(SECOND)
    assert digest(replay(kernel.events[written:], recovered)) == kernel.digest() == digest(kernel.replayed())


def test_that_nobody_had_a_turn_since_a_pause_is_part_of_a_snapshot() -> None:
    kernel = shared_by_two(("a", "b"))
    for name in ("a", "b"):
        pause(kernel, resource_type=name)
    resume(kernel, resource_type="a")
    kernel.state = through_snapshot(kernel.state)
    assert digest(kernel.replayed()) == kernel.digest()
    resume(kernel, resource_type="b")
    assert digest(kernel.replayed()) == kernel.digest()
    assert ids(kernel.lease(2)) == [5, 2]
