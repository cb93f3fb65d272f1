"""Why an item is not running: every gate by name, with what has to be undone."""

from __future__ import annotations

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.answers import Gate
from omnirelay.core.options import Limit, QueueOptions
from omnirelay.core.payload import Caller
from omnirelay.core.why import why
from omnirelay.errors import NotFound
from tests.builders import Kernel, new_item
from tests.gates import (
    ENDS,
    SECOND,
    fill,
    gate,
    gate_names,
    gates,
    grant_and_complete,
    in_partition,
    of_tenant,
    pause,
    resume,
)

MINUTE = 60 * SECOND
OPERATOR = Caller(principal="operator")
OWNER = Caller(principal="alice", peer_id="worker-7")


def limits_of(found: list[Gate]) -> list[Gate]:
    return [one for one in found if one.gate == "limit"]


# -- the plain cases -----------------------------------------------------------------------------


def test_the_next_item_has_no_gate_before_it() -> None:
    kernel = Kernel()
    kernel.enqueue()
    answer = why(kernel.state, 1, kernel.now_ms)
    assert (answer.sequence_id, answer.state, answer.gates) == (1, "ready", [])


def test_an_item_that_nobody_knows_is_not_found() -> None:
    kernel = Kernel()
    for unknown in (1, 0, -5, "1", None, True, 1.0):
        with pytest.raises(NotFound) as refused:
            why(kernel.state, unknown, kernel.now_ms)  # type: ignore[arg-type]
        assert refused.value.code == "error.resourcelease.unknown_item"


def test_a_number_that_is_no_whole_number_finds_nothing() -> None:
    kernel = Kernel()
    kernel.enqueue()
    for unknown in ("1", None, True, 1.0):
        with pytest.raises(NotFound):
            why(kernel.state, unknown, kernel.now_ms)  # type: ignore[arg-type]


def test_asking_changes_nothing() -> None:
    kernel = Kernel(QueueOptions(ordering="fifo", limits=[Limit(by="tenant", max=1), Limit(by="type", max=1)]))
    kernel.enqueue(*[of_tenant("ab"[n % 2], str(n % 3)) for n in range(20)])
    kernel.lease(2)
    before = kernel.digest()
    for sequence_id in range(1, 21):
        why(kernel.state, sequence_id, kernel.now_ms + 3_600 * SECOND)
    assert kernel.digest() == before


def test_every_gate_says_something_to_people() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item(delay_ms=SECOND), new_item("b"), new_item("c"))
    pause(kernel)
    for sequence_id in (1, 2, 3):
        assert all(found.message for found in gates(kernel, sequence_id))


# -- leased, ended, delayed ----------------------------------------------------------------------


def test_a_leased_item_names_its_owner_and_its_deadline() -> None:
    kernel = Kernel()
    kernel.enqueue()
    lease = kernel.lease_one(OWNER)
    found = gate(kernel, 1)
    assert (found.gate, found.owner_peer_id, found.principal) == ("leased", "worker-7", "alice")
    assert found.until == lease.expires_at


@pytest.mark.parametrize("end", ENDS)
def test_an_item_that_ended_says_how(end: str) -> None:
    kernel = Kernel()
    kernel.enqueue(new_item(max_attempts=1))
    ENDS[end](kernel, kernel.lease_one())
    answer = why(kernel.state, 1, kernel.now_ms)
    assert answer.state == kernel.state_of(1)
    (found,) = answer.gates
    assert found.gate == "ended"
    assert answer.state in found.message


def test_a_delayed_item_says_until_when() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item(delay_ms=5 * SECOND))
    found = gate(kernel, 1)
    assert (found.gate, found.until) == ("delay", kernel.now_ms + 5 * SECOND)
    kernel.pass_time(5 * SECOND)
    assert gates(kernel, 1) == []


def test_an_item_that_backs_off_says_until_when() -> None:
    kernel = Kernel(QueueOptions(requeue_delay_ms=SECOND))
    kernel.enqueue()
    answer = kernel.fail(kernel.lease_one().token)
    found = gate(kernel, 1)
    assert (found.gate, found.until) == ("delay", answer.not_before)


# -- pauses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", [{}, {"resource_type": "table"}, {"tenant": "acme"}], ids=["shard", "type", "tenant"])
def test_a_pause_says_who_why_and_until_when(scope: dict[str, str]) -> None:
    kernel = Kernel()
    kernel.enqueue(of_tenant("acme"))
    until = kernel.now_ms + MINUTE
    pause(kernel, **scope, reason="upgrade", until_ms=until, caller=OPERATOR)
    found = gate(kernel, 1)
    assert (found.gate, found.reason, found.principal, found.until) == ("pause", "upgrade", "operator", until)
    resume(kernel, **scope)
    assert gates(kernel, 1) == []


def test_each_pause_over_an_item_is_a_gate_of_its_own() -> None:
    kernel = Kernel()
    kernel.enqueue(of_tenant("acme"))
    for reason, scope in (("one", {}), ("two", {"resource_type": "table"}), ("three", {"tenant": "acme"})):
        pause(kernel, **scope, reason=reason)
    pause(kernel, tenant="somebody else", reason="four")
    assert [(found.gate, found.reason) for found in gates(kernel, 1)] == [
        ("pause", "one"),
        ("pause", "two"),
        ("pause", "three"),
    ]


def test_items_of_somebody_who_is_paused_are_not_in_the_way() -> None:
    kernel = Kernel()
    kernel.enqueue(of_tenant("acme", priority=0), of_tenant("umbrella", priority=5))
    assert gate(kernel, 2).gate == "priority"
    pause(kernel, tenant="acme")
    assert gates(kernel, 2) == []


# -- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordering", ["exclusive", "fifo"])
def test_a_held_key_names_the_item_that_holds_it_and_its_owner(ordering: str) -> None:
    kernel = Kernel(QueueOptions(ordering=ordering))  # type: ignore[arg-type]
    kernel.enqueue(new_item("a"), new_item("a"))
    lease = kernel.lease_one(OWNER)
    found = gate(kernel, 2)
    assert (found.gate, found.held_by, found.owner_peer_id) == ("key", 1, "worker-7")
    kernel.complete(lease.token, caller=OWNER)
    assert gates(kernel, 2) == []


@pytest.mark.parametrize("ordering", ["exclusive", "fifo"])
def test_a_key_with_a_line_says_who_stands_first_and_how_many_come_before(ordering: str) -> None:
    kernel = Kernel(QueueOptions(ordering=ordering))  # type: ignore[arg-type]
    kernel.enqueue(*[new_item("a") for _ in range(4)])
    found = [one for one in gates(kernel, 4) if one.gate == "key"]
    assert [(one.held_by, one.ahead) for one in found] == [(1, 3)]


def test_a_key_that_is_held_and_has_a_line_says_both() -> None:
    kernel = Kernel(QueueOptions(ordering="fifo"))
    kernel.enqueue(*[new_item("a") for _ in range(4)])
    kernel.lease_one()
    found = [one for one in gates(kernel, 4) if one.gate == "key"]
    assert {one.held_by for one in found} == {1, 2}
    assert [one.ahead for one in found if one.ahead is not None] == [2]


def test_a_delayed_head_is_named_by_those_it_holds() -> None:
    kernel = Kernel(QueueOptions(ordering="fifo"))
    kernel.enqueue(new_item("a"), new_item("a"))
    kernel.fail(kernel.lease_one().token, delay_ms=5 * SECOND)
    assert gate(kernel, 1).gate == "delay"
    found = gate(kernel, 2)
    assert (found.gate, found.held_by, found.ahead) == ("key", 1, 1)


@pytest.mark.parametrize("tenant", ["x", "y"])
@pytest.mark.parametrize("other", ["a type", "a tenant"])
def test_the_turn_that_a_key_loses_with_its_head_is_named_with_it(tenant: str, other: str) -> None:
    """With the head, its type or tenant has nothing to offer for a moment, and then joins at the turn of the others."""
    kernel = Kernel(QueueOptions(ordering="fifo"))
    if other == "a type":
        kernel.enqueue(new_item("b1", resource_type="a"), new_item("b2", resource_type="a"))
    else:
        kernel.enqueue(of_tenant("a", "b1"), of_tenant("a", "b2"))
        tenant = "x"
    first, item = kernel.enqueue(of_tenant("x", "orders"), of_tenant(tenant, "orders"))
    assert kernel.lease_one().sequence_id == 1
    assert gates(kernel, first) == []
    names = gate_names(kernel, item)
    assert [name for name in names if name != "position"] == ["key", "tenantShare"]
    kernel.do(cmd.CancelItem(first))
    assert gate_names(kernel, item) == ["tenantShare"]
    assert kernel.lease_one().sequence_id == 2
    assert gates(kernel, item) == []


def test_a_partition_is_named_as_the_key() -> None:
    kernel = Kernel(QueueOptions(ordering="exclusive", key="partition"))
    kernel.enqueue(in_partition("eu-1", "a"), in_partition("eu-1", "b", "view"))
    kernel.lease_one()
    found = gate(kernel, 2)
    assert (found.gate, found.held_by) == ("key", 1)
    assert "eu-1" in found.message


# -- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["type", "tenant", "key"])
def test_a_limit_says_what_is_used_and_what_may_be(by: str) -> None:
    kernel = Kernel(QueueOptions(limits=[Limit(by=by, max=5)]))  # type: ignore[arg-type]
    kernel.enqueue(of_tenant("acme", weight=4), of_tenant("acme", weight=2))
    lease = kernel.lease_one()
    found = gate(kernel, 2)
    assert (found.gate, found.used, found.max) == ("limit", 4, 5)
    kernel.complete(lease.token)
    assert gates(kernel, 2) == []


def test_each_limit_is_a_gate_of_its_own() -> None:
    kernel = Kernel(QueueOptions(limits=[Limit(by="type", max=2), Limit(by="tenant", max=1), Limit(by="key", max=1)]))
    kernel.enqueue(of_tenant("acme", weight=2), of_tenant("acme"))
    kernel.lease_one()
    found = limits_of(gates(kernel, 2))
    assert sorted((one.used, one.max) for one in found) == [(2, 1), (2, 1), (2, 2)]


def test_a_light_item_names_the_heavy_one_that_has_the_room_reserved() -> None:
    for limit in (Limit(by="type", max=5), Limit(by="tenant", max=5)):
        kernel = Kernel(QueueOptions(limits=[limit]))
        kernel.enqueue(of_tenant("acme", weight=3))
        kernel.lease_one()
        kernel.enqueue(of_tenant("acme", weight=4, priority=1), of_tenant("acme", weight=1, priority=9))
        (found,) = limits_of(gates(kernel, 3))
        assert (found.held_by, found.used, found.max) == (2, 3, 5)
        (found,) = limits_of(gates(kernel, 2))
        assert (found.held_by, found.used, found.max) == (None, 3, 5)


def test_a_key_limit_names_an_item_that_uses_it() -> None:
    kernel = Kernel(QueueOptions(limits=[Limit(by="key", max=1)]))
    kernel.enqueue(new_item("a"), new_item("a"))
    kernel.lease_one(OWNER)
    found = gate(kernel, 2)
    assert (found.gate, found.held_by, found.owner_peer_id) == ("limit", 1, "worker-7")


def test_items_that_a_limit_holds_back_are_not_in_the_way() -> None:
    kernel = Kernel(QueueOptions(limits=[Limit(by="type", match="table", max=1)]))
    kernel.enqueue(new_item("a", priority=0), new_item("b", priority=0), new_item("c", resource_type="view"))
    kernel.lease_one()
    assert gates(kernel, 3) == []


# -- order ---------------------------------------------------------------------------------------


def test_priority_counts_the_items_of_lower_classes_that_come_first() -> None:
    kernel = Kernel()
    fill(kernel, 3, priority=0)
    fill(kernel, 2, tenant="acme", resource_type="view", priority=4)
    (item,) = kernel.enqueue(new_item("late", priority=9))
    found = gate(kernel, item)
    assert (found.gate, found.ahead) == ("priority", 5)


def test_priority_is_named_when_the_next_grant_is_the_guards() -> None:
    kernel = Kernel(QueueOptions(starvation_every=2))
    kernel.enqueue(new_item("low", priority=9), new_item("low", priority=9))
    fill(kernel, 5, priority=0)
    kernel.pass_time(MINUTE + 1)
    assert gates(kernel, 3) == []
    kernel.lease_one()
    assert gates(kernel, 1) == []
    assert "priority" in gate_names(kernel, 4)
    assert kernel.lease_one().sequence_id == 1


def test_tenant_share_counts_the_tenants_whose_turn_comes_first() -> None:
    kernel = Kernel()
    for tenant in ("a", "b", "c"):
        fill(kernel, 3, tenant=tenant)
    assert gates(kernel, 1) == []
    found = gate(kernel, 7)
    assert (found.gate, found.ahead) == ("tenantShare", 2)
    kernel.lease(2)
    assert gates(kernel, 7) == []


def test_tenant_share_counts_the_types_whose_turn_comes_first() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a"), new_item("a", resource_type="view"))
    assert gates(kernel, 1) == []
    found = gate(kernel, 2)
    assert (found.gate, found.ahead) == ("tenantShare", 1)
    assert "table" in found.message


def test_position_counts_the_items_of_the_same_lane() -> None:
    kernel = Kernel()
    fill(kernel, 4)
    found = gate(kernel, 4)
    assert (found.gate, found.ahead) == ("position", 3)


# -- all together --------------------------------------------------------------------------------


def test_gates_are_told_in_the_order_they_are_asked() -> None:
    options = QueueOptions(ordering="fifo", limits=[Limit(by="tenant", match="acme", max=1)])
    kernel = Kernel(options)
    kernel.enqueue(of_tenant("acme", "a"))
    kernel.lease_one()
    fill(kernel, 2, tenant="umbrella", prefix="u", priority=0)
    fill(kernel, 2, tenant="aaa", prefix="v")
    fill(kernel, 2, tenant="acme", prefix="w")
    (item,) = kernel.enqueue(of_tenant("acme", "a", delay_ms=SECOND))
    pause(kernel, tenant="acme")
    assert gate_names(kernel, item) == ["delay", "pause", "key", "limit", "priority", "tenantShare", "position"]


def test_undoing_every_gate_that_is_named_makes_the_item_the_next() -> None:
    options = QueueOptions(ordering="fifo", limits=[Limit(by="tenant", match="acme", max=1)])
    kernel = Kernel(options)
    kernel.enqueue(of_tenant("acme", "a"))
    running = kernel.lease_one()
    fill(kernel, 2, tenant="umbrella", prefix="u", priority=0)
    fill(kernel, 2, tenant="aaa", prefix="v")
    (item,) = kernel.enqueue(of_tenant("acme", "a", delay_ms=SECOND))
    pause(kernel, tenant="acme")
    kernel.complete(running.token)
    resume(kernel, tenant="acme")
    kernel.pass_time(SECOND)
    assert gate_names(kernel, item) == ["priority", "tenantShare"]
    for other in (2, 3, 4, 5):
        kernel.do(cmd.CancelItem(other))
    assert gates(kernel, item) == []
    assert kernel.lease_one().sequence_id == item


def test_what_comes_up_behind_those_ahead_is_counted_with_them() -> None:
    """Each of the three keys has a second item, which stands as soon as the first is gone."""
    kernel = Kernel(QueueOptions(ordering="fifo"))
    kernel.enqueue(*[new_item(name, priority=0) for name in ("a", "b", "c", "a", "b", "c")])
    (item,) = kernel.enqueue(new_item("d", priority=9))
    found = gate(kernel, item)
    assert (found.gate, found.ahead) == ("priority", 6)


def test_those_that_share_a_limit_and_go_first_once_it_is_free_are_named_with_it() -> None:
    kernel = Kernel(QueueOptions(limits=[Limit(by="type", match="table", max=1)]))
    kernel.enqueue(new_item("running"))
    running = kernel.lease_one()
    kernel.enqueue(new_item("urgent", priority=0), new_item("late"))
    assert gate_names(kernel, 3) == ["limit", "priority"]
    kernel.complete(running.token)
    kernel.do(cmd.CancelItem(2))
    assert gates(kernel, 3) == []


def test_those_whose_delay_ends_no_later_are_named_with_the_delay() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a", delay_ms=SECOND), new_item("b", delay_ms=2 * SECOND))
    assert [(found.gate, found.ahead) for found in gates(kernel, 2)] == [("delay", None), ("position", 1)]
    kernel.pass_time(2 * SECOND)
    assert [(found.gate, found.ahead) for found in gates(kernel, 2)] == [("position", 1)]


def test_a_delayed_one_of_the_key_that_wakes_first_comes_before_although_it_lets_others_pass() -> None:
    kernel = Kernel(QueueOptions(ordering="fifo", fifo_head="pass"))
    kernel.enqueue(new_item("a", delay_ms=SECOND), new_item("a", delay_ms=2 * SECOND))
    found = [one for one in gates(kernel, 2) if one.gate == "key"]
    assert [(one.held_by, one.ahead) for one in found] == [(1, 1)]


def test_a_limit_that_only_one_behind_the_head_meets_is_named() -> None:
    """The head of the lane fits. The one behind it does not, and would have the rest reserved before the last."""
    kernel = Kernel(QueueOptions(limits=[Limit(by="tenant", max=5)]))
    kernel.enqueue(of_tenant("x", "running", weight=3))
    kernel.lease_one()
    kernel.enqueue(of_tenant("x", "a"), of_tenant("x", "b", weight=5), of_tenant("x", "c"))
    (found,) = limits_of(gates(kernel, 4))
    assert (found.held_by, found.used, found.max) == (3, 3, 5)
    assert [one.ahead for one in gates(kernel, 4) if one.gate == "position"] == [2]


def test_every_lease_that_holds_a_key_is_named() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("a"), new_item("a"), new_item("a"))
    kernel.lease(2)
    kernel.do(cmd.ChangeOptions(QueueOptions(ordering="exclusive")))
    assert sorted(one.held_by or 0 for one in gates(kernel, 3)) == [1, 2]


def test_a_delayed_head_of_its_key_does_not_put_the_item_into_the_turns_before_it_goes() -> None:
    """A tenant that comes in joins at the turn of the others, also when it was there long ago."""
    kernel = Kernel(QueueOptions(ordering="fifo"))
    kernel.enqueue(*[of_tenant("a", str(number)) for number in range(4)])
    grant_and_complete(kernel, 2)
    kernel.enqueue(of_tenant("b", "k", delay_ms=SECOND), of_tenant("b", "k"))
    assert [(one.gate, one.ahead) for one in gates(kernel, 6)] == [("key", 1), ("tenantShare", 1)]
    kernel.do(cmd.CancelItem(5))
    assert [(one.gate, one.ahead) for one in gates(kernel, 6)] == [("tenantShare", 1)]


def test_a_turn_is_counted_for_each_grant_that_it_takes() -> None:
    kernel = Kernel(QueueOptions(tenant_weights={"a": 3}))
    kernel.enqueue(*[of_tenant("a", str(number)) for number in range(9)], of_tenant("b", "x"), of_tenant("b", "y"))
    assert [(one.gate, one.ahead) for one in gates(kernel, 10)] == [("tenantShare", 1)]
    grant_and_complete(kernel, 2)
    assert [(one.gate, one.ahead) for one in gates(kernel, 11)] == [("tenantShare", 3)]
    granted = grant_and_complete(kernel, 4)
    assert [lease.sequence_id for lease in granted][3] == 11


def test_where_too_many_would_have_to_be_looked_at_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnirelay.core.why.STEPS_MAX", 5)
    kernel = Kernel()
    kernel.enqueue(*[of_tenant(f"t{number}") for number in range(9)])
    found = gate(kernel, 9)
    assert (found.gate, found.ahead) == ("tenantShare", 5)
    assert "at least 5" in found.message
    assert "at least" not in gate(kernel, 5).message


def test_where_too_many_wake_up_first_it_says_so_and_leaves_out_none_of_its_own_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("omnirelay.core.shadow.KEYED_DUE_MAX", 5)
    kernel = Kernel(QueueOptions(ordering="exclusive"))
    kernel.enqueue(*[new_item(f"r{number}", delay_ms=SECOND) for number in range(9)])
    first, item = kernel.enqueue(new_item("late", delay_ms=2 * SECOND), new_item("late", delay_ms=2 * SECOND))
    found = {one.gate: one for one in gates(kernel, item)}
    assert (found["key"].held_by, found["key"].ahead) == (first, 1)
    assert found["position"].ahead == 5
    assert "at least 5" in found["position"].message


def test_how_many_are_in_line_is_exact_however_many_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is held back by nothing and has nobody behind is not looked at one by one."""
    monkeypatch.setattr("omnirelay.core.why.STEPS_MAX", 5)
    kernel = Kernel(QueueOptions(ordering="fifo"))
    fill(kernel, 100, priority=0, prefix="u")
    fill(kernel, 100)
    (item,) = kernel.enqueue(new_item("late"))
    assert [(one.gate, one.ahead) for one in gates(kernel, item)] == [("priority", 100), ("position", 100)]


def test_why_says_none_for_exactly_the_item_that_is_granted_next() -> None:
    options = QueueOptions(
        ordering="exclusive",
        tenant_weights={"a": 2},
        limits=[Limit(by="type", match="view", max=3)],
        starvation_every=4,
        starvation_after_ms=100,
    )
    kernel = Kernel(options)
    for number in range(60):
        kernel.enqueue(
            of_tenant(
                "abc"[number % 3], str(number % 11), resource_type=("table", "view")[number % 2], priority=number % 4
            )
        )
    kernel.pass_time(200)
    while True:
        free = [item.sequence_id for item in kernel.state.ready if not gates(kernel, item.sequence_id)]
        granted = kernel.lease(1)
        assert free == [lease.sequence_id for lease in granted]
        if not granted:
            break
        if granted[0].sequence_id % 3:
            kernel.complete(granted[0].token)
    assert kernel.state.leased.live > 5
