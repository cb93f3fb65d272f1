"""Who is next: classes, the starvation guard, resource types and tenants in turn."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core.answers import GrantedLease
from omnirelay.core.options import QueueOptions
from omnirelay.errors import InvalidArgument
from tests.builders import Kernel, new_item
from tests.gates import (
    SECOND,
    classes,
    fill,
    grant,
    grant_and_complete,
    ids,
    keep_lanes,
    of_tenant,
    pause,
    tenants,
    types,
    windows,
)

MINUTE = 60 * SECOND

# -- classes -------------------------------------------------------------------------------------


def test_lower_classes_come_first_and_each_class_in_its_order() -> None:
    kernel = Kernel()
    for priority in (9, 5, 0, 5, 3, 0):
        kernel.enqueue(new_item(priority=priority))
    granted = kernel.lease(10)
    assert classes(granted) == [0, 0, 3, 5, 5, 9]
    assert ids(granted) == [3, 6, 5, 2, 4, 1]


def test_an_item_without_a_priority_is_in_class_five() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("late", priority=6), new_item("plain"), new_item("early", priority=4))
    assert ids(kernel.lease(3)) == [3, 2, 1]


def test_a_class_is_left_only_when_nothing_is_ready_in_it() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item(priority=0, delay_ms=SECOND), new_item(priority=9), new_item(priority=9))
    assert classes(kernel.lease(1)) == [9]
    kernel.pass_time(SECOND)
    assert classes(kernel.lease(2)) == [0, 9]


def test_an_item_that_is_tried_again_goes_before_those_that_came_after_it() -> None:
    kernel = Kernel()
    kernel.enqueue(*[new_item(str(n)) for n in range(3)])
    first = kernel.lease_one()
    kernel.fail(first.token)
    assert ids(kernel.lease(3)) == [1, 2, 3]


# -- the starvation guard ------------------------------------------------------------------------


def flooded(options: QueueOptions | None = None, *, low: tuple[int, ...] = (9,)) -> Kernel:
    """A flood of class 0 and, before it, plenty in the low classes."""
    kernel = Kernel(options)
    for priority in low:
        fill(kernel, 100, priority=priority)
    fill(kernel, 4_000, priority=0)
    return kernel


def test_a_low_class_gets_one_grant_in_32_once_it_has_waited_for_a_minute() -> None:
    kernel = flooded()
    kernel.pass_time(MINUTE + 1)
    granted = classes(grant(kernel, 1_600))
    assert [index % 32 for index, priority in enumerate(granted) if priority == 9] == [31] * 50


def test_a_low_class_gets_nothing_as_long_as_it_has_not_waited_for_a_minute() -> None:
    kernel = flooded()
    assert classes(grant(kernel, 500)) == [0] * 500
    kernel.pass_time(MINUTE)
    assert classes(grant(kernel, 500)) == [0] * 500
    kernel.pass_time(1)
    assert 9 in classes(grant(kernel, 32))


def test_two_starving_classes_alternate() -> None:
    kernel = flooded(low=(4, 9))
    kernel.pass_time(MINUTE + 1)
    low = [priority for priority in classes(grant(kernel, 640)) if priority]
    assert low == [4, 9] * 10


def test_three_starving_classes_go_round() -> None:
    kernel = flooded(QueueOptions(starvation_every=4), low=(2, 4, 9))
    kernel.pass_time(MINUTE + 1)
    low = [priority for priority in classes(grant(kernel, 48)) if priority]
    assert low == [2, 4, 9] * 4


def test_the_guard_counts_grants_of_all_calls_and_survives_a_restart() -> None:
    kernel = flooded()
    kernel.pass_time(MINUTE + 1)
    assert classes(grant(kernel, 20)) == [0] * 20
    kernel.restart()
    assert classes(grant(kernel, 12)) == [0] * 11 + [9]


def test_a_class_that_has_its_ordinary_turn_waits_anew() -> None:
    kernel = Kernel(QueueOptions(starvation_every=1))
    fill(kernel, 10, priority=9)
    kernel.pass_time(50 * SECOND)
    assert classes(kernel.lease(1)) == [9]
    fill(kernel, 10, priority=0)
    kernel.pass_time(MINUTE)
    assert classes(kernel.lease(1)) == [0]
    kernel.pass_time(1)
    assert classes(kernel.lease(1)) == [9]


def test_a_turn_by_the_guard_does_not_start_the_wait_anew() -> None:
    kernel = flooded(QueueOptions(starvation_every=2))
    kernel.pass_time(MINUTE + 1)
    assert classes(grant(kernel, 10)) == [0, 9] * 5


def test_a_class_that_comes_back_waits_anew() -> None:
    kernel = flooded(QueueOptions(starvation_every=2), low=())
    kernel.enqueue(new_item(priority=9))
    kernel.pass_time(MINUTE + 1)
    assert classes(kernel.lease(2)) == [0, 9]
    kernel.enqueue(new_item(priority=9))
    kernel.pass_time(MINUTE)
    assert classes(kernel.lease(2)) == [0, 0]
    kernel.pass_time(1)
    assert classes(kernel.lease(2)) == [0, 9]


def test_the_guard_can_be_turned_off() -> None:
    kernel = flooded(QueueOptions(starvation_every=0))
    kernel.pass_time(60 * MINUTE)
    assert classes(grant(kernel, 1_000)) == [0] * 1_000


def test_the_guard_chooses_by_turn_within_its_class() -> None:
    kernel = Kernel(QueueOptions(starvation_every=2))
    fill(kernel, 20, tenant="a", priority=9)
    fill(kernel, 20, tenant="b", priority=9)
    fill(kernel, 50, priority=0)
    kernel.pass_time(MINUTE + 1)
    granted = [lease for lease in grant(kernel, 40) if lease.priority == 9]
    assert tenants(granted) == ["a", "b"] * 10


def test_the_guard_passes_over_a_class_that_is_paused() -> None:
    kernel = Kernel(QueueOptions(starvation_every=2))
    fill(kernel, 20, resource_type="slow", priority=9)
    fill(kernel, 50, priority=0)
    pause(kernel, resource_type="slow")
    kernel.pass_time(MINUTE + 1)
    assert classes(grant(kernel, 20)) == [0] * 20


def test_the_log_says_which_grants_the_guard_made() -> None:
    kernel = flooded()
    kernel.pass_time(MINUTE + 1)
    grant(kernel, 64)
    guarded = [event.guard for event in kernel.events if isinstance(event, ev.LeaseGranted)]
    assert guarded == ([False] * 31 + [True]) * 2


# -- tenants in turn -----------------------------------------------------------------------------


def two_tenants(**weights: int) -> Kernel:
    """Tenants `a` and `b` with a backlog that no test uses up."""
    kernel = Kernel(QueueOptions(tenant_weights=weights))
    fill(kernel, 3_000, tenant="a")
    fill(kernel, 4_500, tenant="b")
    return kernel


@pytest.mark.parametrize("share", [(1, 1), (1, 3), (1, 7), (2, 3)])
def test_backlogged_tenants_share_every_window_of_400_grants_by_weight(share: tuple[int, int]) -> None:
    a, b = share
    kernel = two_tenants(a=a, b=b)
    granted = tenants(grant(kernel, 4_000))
    for count in windows(granted, "a", 400):
        assert abs(count - 400 * a / (a + b)) <= 4


def test_the_share_holds_while_leases_end_in_every_way() -> None:
    kernel = two_tenants(a=1, b=3)
    random = Random(11)
    live: list[GrantedLease] = []
    granted: list[GrantedLease] = []
    while len(granted) < 4_000:
        for lease in kernel.lease(random.randint(1, 40)):
            granted.append(lease)
            live.append(lease)
        random.shuffle(live)
        while len(live) > 30:
            lease = live.pop()
            if random.random() < 0.3:
                kernel.fail(lease.token, delay_ms=random.choice((0, SECOND)))
            else:
                kernel.complete(lease.token)
        kernel.pass_time(random.randint(0, 300))
    for count in windows(tenants(granted), "a", 400):
        assert abs(count - 100) <= 4


def test_a_tenant_that_is_not_named_weighs_one() -> None:
    kernel = Kernel(QueueOptions(tenant_weights={"big": 2}))
    for tenant in ("big", "other", "another"):
        fill(kernel, 400, tenant=tenant)
    granted = tenants(grant(kernel, 400))
    assert [granted.count(tenant) for tenant in ("big", "other", "another")] == [200, 100, 100]


def test_items_without_a_tenant_are_a_tenant_of_their_own() -> None:
    kernel = Kernel()
    fill(kernel, 100)
    fill(kernel, 100, tenant="a")
    assert tenants(kernel.lease(6)) == ["", "a", "", "a", "", "a"]


def test_a_heavy_item_costs_its_tenant_as_much_as_many_light_ones() -> None:
    kernel = Kernel()
    fill(kernel, 100, tenant="heavy", weight=4)
    fill(kernel, 400, tenant="light")
    granted = tenants(grant(kernel, 400))
    for count in windows(granted, "heavy", 100):
        assert abs(count - 20) <= 1


def test_another_attribute_may_say_whose_an_item_is() -> None:
    kernel = Kernel(QueueOptions(tenant_attribute="team"))
    fill(kernel, 10, attributes={"team": "a", "tenant": "x"})
    (late,) = kernel.enqueue(new_item(attributes={"team": "b", "tenant": "x"}))
    assert late in ids(kernel.lease(2))


def test_tenants_in_different_types_share_each_type_by_weight() -> None:
    kernel = Kernel(QueueOptions(tenant_weights={"b": 3}))
    for kind in ("table", "view"):
        for tenant in ("a", "b"):
            fill(kernel, 600, tenant=tenant, resource_type=kind)
    granted = grant(kernel, 1_600)
    for kind in ("table", "view"):
        of_kind = [lease for lease in granted if lease.payload.resource_type == kind]
        assert len(of_kind) == 800
        assert all(abs(count - 100) <= 4 for count in windows(tenants(of_kind), "a", 400))


def test_a_fresh_item_does_not_wait_behind_the_backlog_of_another_tenant() -> None:
    kernel = Kernel()
    fill(kernel, 100_000, tenant="busy")
    grant(kernel, 5_000)
    (fresh,) = kernel.enqueue(of_tenant("quiet"))
    assert fresh in ids(kernel.lease(2))


def test_a_fresh_item_does_not_wait_behind_the_backlog_of_another_type() -> None:
    kernel = Kernel()
    fill(kernel, 100_000)
    grant(kernel, 5_000)
    (fresh,) = kernel.enqueue(new_item(resource_type="view"))
    assert fresh in ids(kernel.lease(2))


def test_a_tenant_that_was_idle_has_not_saved_up_turns() -> None:
    kernel = Kernel()
    fill(kernel, 3_000, tenant="a")
    kernel.enqueue(of_tenant("b"))
    grant(kernel, 1_500)
    fill(kernel, 1_000, tenant="b")
    granted = tenants(grant(kernel, 1_000))
    assert all(abs(count - 50) <= 1 for count in windows(granted, "b", 100))


def test_a_tenant_that_had_everything_while_others_were_idle_is_not_punished() -> None:
    kernel = Kernel()
    fill(kernel, 3_000, tenant="a")
    grant(kernel, 1_500)
    fill(kernel, 1_000, tenant="b")
    granted = tenants(grant(kernel, 1_000))
    assert all(abs(count - 50) <= 1 for count in windows(granted, "a", 100))


def test_a_tenant_that_comes_and_goes_gets_no_more_than_its_share() -> None:
    kernel = Kernel()
    fill(kernel, 1_000, tenant="steady")
    granted = []
    for _ in range(500):
        if not any(item.payload.attributes == {"tenant": "restless"} for item in kernel.state.ready):
            kernel.enqueue(of_tenant("restless"))
        granted += grant_and_complete(kernel, 1)
    restless = windows(tenants(granted), "restless", 100)
    assert all(49 <= count <= 51 for count in restless)


def test_a_tenant_that_leaves_right_after_a_heavy_turn_still_owes_it() -> None:
    kernel = Kernel()
    fill(kernel, 200, tenant="steady")
    kernel.enqueue(of_tenant("heavy", weight=100))
    kernel.lease(2)
    kernel.enqueue(of_tenant("heavy"))
    granted = tenants(grant(kernel, 110))
    assert 90 <= granted.index("heavy") <= 101


def test_a_tenant_that_was_forgotten_comes_back() -> None:
    kernel = Kernel()
    kernel.enqueue(*[of_tenant(tenant) for tenant in "aabbbc"])
    kernel.do(cmd.CancelItem(6))
    assert tenants(kernel.lease(1)) == ["a"]
    kernel.enqueue(of_tenant("c"))
    assert sorted(tenants(kernel.lease(5))) == ["a", "b", "b", "b", "c"]


# -- types in turn -------------------------------------------------------------------------------


def test_types_share_evenly_whatever_their_backlog() -> None:
    kernel = Kernel()
    backlog = {"table": 3_000, "view": 600, "file": 450}
    for kind, count in backlog.items():
        fill(kernel, count, resource_type=kind)
    granted = types(grant(kernel, 1_350))
    for kind in backlog:
        assert all(abs(count - 100) <= 1 for count in windows(granted, kind, 300))


def test_types_share_evenly_however_many_tenants_each_has() -> None:
    kernel = Kernel()
    for number in range(50):
        fill(kernel, 20, tenant=f"t{number}", resource_type="crowded")
    fill(kernel, 1_000, tenant="alone", resource_type="lonely")
    granted = types(grant(kernel, 1_000))
    assert all(abs(count - 50) <= 1 for count in windows(granted, "lonely", 100))


def test_a_type_that_was_forgotten_comes_back() -> None:
    kernel = Kernel()
    kernel.enqueue(*[new_item(resource_type=kind) for kind in "aabbbc"])
    kernel.do(cmd.CancelItem(6))
    assert types(kernel.lease(1)) == ["a"]
    kernel.enqueue(new_item(resource_type="c"))
    assert sorted(types(kernel.lease(5))) == ["a", "b", "b", "b", "c"]


def test_the_order_is_the_same_whichever_way_the_calls_are_cut() -> None:
    def run(sizes: list[int]) -> list[int]:
        kernel = Kernel(QueueOptions(tenant_weights={"b": 2}))
        for number in range(300):
            kernel.enqueue(of_tenant("abc"[number % 3], resource_type="tv"[number % 2], priority=number % 4))
        return [number for size in sizes for number in ids(kernel.lease(size))]

    assert run([300]) == run([1] * 300) == run([7] * 42 + [6])


# -- forgetting ----------------------------------------------------------------------------------


def lanes_of(kernel: Kernel) -> int:
    return sum(len(share.lanes) for level in kernel.state.schedule.levels for share in level.shares.values())


def test_tenants_that_are_gone_leave_nothing_behind() -> None:
    kernel = Kernel()
    keep_lanes(kernel, 50)
    for number in range(500):
        kernel.enqueue(of_tenant(f"t{number}"))
        grant_and_complete(kernel, 1)
    assert lanes_of(kernel) <= 100


def test_types_that_are_gone_leave_nothing_behind() -> None:
    kernel = Kernel()
    keep_lanes(kernel, 50)
    for number in range(500):
        kernel.enqueue(new_item(resource_type=f"t{number}"))
        grant_and_complete(kernel, 1)
    assert sum(len(level.shares) for level in kernel.state.schedule.levels) <= 100


def test_tenants_that_come_and_go_beside_a_backlog_leave_nothing_behind() -> None:
    kernel = Kernel()
    keep_lanes(kernel, 50)
    fill(kernel, 2_000, tenant="steady")
    for number in range(500):
        kernel.enqueue(of_tenant(f"t{number}"))
        grant_and_complete(kernel, 3)
    assert lanes_of(kernel) <= 100


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("tenant_attribute", "", "tenantAttribute"),
        ("tenant_attribute", "  ", "tenantAttribute"),
        ("tenant_attribute", None, "tenantAttribute"),
        ("tenant_attribute", 5, "tenantAttribute"),
        ("tenant_weights", {"a": 0}, "tenantWeights"),
        ("tenant_weights", {"a": -1}, "tenantWeights"),
        ("tenant_weights", {"a": 1.5}, "tenantWeights"),
        ("tenant_weights", {"a": True}, "tenantWeights"),
        ("tenant_weights", {"a": 1_001}, "tenantWeights"),
        ("tenant_weights", {1: 1}, "tenantWeights"),
        ("tenant_weights", None, "tenantWeights"),
        ("tenant_weights", [("a", 1)], "tenantWeights"),
        ("starvation_every", -1, "starvationEvery"),
        ("starvation_every", None, "starvationEvery"),
        ("starvation_every", 32.0, "starvationEvery"),
        ("starvation_after_ms", -1, "starvationAfterMs"),
        ("starvation_after_ms", "60000", "starvationAfterMs"),
    ],
)
def test_a_wrong_option_of_the_order_is_named_when_it_is_built(name: str, value: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        QueueOptions(**{name: value})
    assert refused.value.code == f"resourcelease.{field}.invalid"
    assert refused.value.details["field"] == field


def test_the_largest_weight_of_a_tenant_is_taken() -> None:
    kernel = Kernel(QueueOptions(tenant_weights={"big": 1_000}))
    fill(kernel, 100, tenant="big")
    fill(kernel, 100, tenant="small")
    assert tenants(kernel.lease(50)).count("small") <= 1
