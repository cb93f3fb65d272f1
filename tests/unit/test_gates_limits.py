"""Limits: how much weight of a type, a tenant or a key may be leased at a time."""

from __future__ import annotations

from random import Random
from typing import Any, Literal

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.answers import GrantedLease
from omnirelay.core.options import Limit, QueueOptions
from omnirelay.core.payload import NewItem
from omnirelay.errors import InvalidArgument
from tests.builders import Kernel, new_item
from tests.gates import (
    ENDS,
    SECOND,
    fill,
    gates,
    grant_and_complete,
    ids,
    in_partition,
    keep_lanes,
    of_tenant,
    pause,
    resume,
    tenants,
    types,
)

By = Literal["type", "tenant", "key"]
KINDS: tuple[By, ...] = ("type", "tenant", "key")


def limited(by: By, most: int, match: str = "*", **options: Any) -> Kernel:
    return Kernel(QueueOptions(limits=[Limit(by=by, match=match, max=most)], **options))


def alike(**fields: Any) -> NewItem:
    """An item that shares its type, its tenant and its key with all others made here."""
    return of_tenant("acme", "orders", **fields)


def other(by: By, **fields: Any) -> NewItem:
    """An item that differs from those of `alike` in what a limit speaks of."""
    if by == "type":
        return of_tenant("acme", "orders", resource_type="view", **fields)
    if by == "tenant":
        return of_tenant("umbrella", "orders", **fields)
    return of_tenant("acme", "lines", **fields)


# -- each kind -----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", KINDS)
def test_a_limit_bounds_the_leases_that_live_at_a_time(by: By) -> None:
    kernel = limited(by, 3)
    kernel.enqueue(*[alike() for _ in range(5)])
    granted = kernel.lease(10)
    assert ids(granted) == [1, 2, 3]
    kernel.complete(granted[1].token)
    assert ids(kernel.lease(10)) == [4]


@pytest.mark.parametrize("by", KINDS)
def test_a_limit_counts_weight_not_items(by: By) -> None:
    kernel = limited(by, 10)
    kernel.enqueue(*[alike(weight=4) for _ in range(4)])
    granted = kernel.lease(10)
    assert ids(granted) == [1, 2]
    kernel.complete(granted[0].token)
    assert ids(kernel.lease(10)) == [3]


@pytest.mark.parametrize("by", KINDS)
def test_a_limit_holds_for_each_name_by_itself(by: By) -> None:
    kernel = limited(by, 1)
    kernel.enqueue(alike(), alike(), other(by), other(by))
    assert sorted(ids(kernel.lease(10))) == [1, 3]


@pytest.mark.parametrize("by", KINDS)
@pytest.mark.parametrize("end", ENDS)
def test_room_is_free_again_however_a_lease_ends(by: By, end: str) -> None:
    kernel = limited(by, 2)
    kernel.enqueue(alike(weight=2, max_attempts=1), alike(weight=2))
    lease = kernel.lease_one()
    assert kernel.lease(10) == []
    ENDS[end](kernel, lease)
    assert ids(kernel.lease(10)) == [2]


@pytest.mark.parametrize("by", KINDS)
def test_an_item_that_fails_or_is_released_gives_its_room_back(by: By) -> None:
    kernel = limited(by, 1)
    kernel.enqueue(alike(), alike())
    kernel.fail(kernel.lease_one().token, delay_ms=SECOND)
    second = kernel.lease_one()
    assert second.sequence_id == 2
    kernel.release(second.token, delay_ms=SECOND)
    kernel.pass_time(SECOND)
    assert ids(kernel.lease(10)) == [1]


@pytest.mark.parametrize("by", KINDS)
def test_a_lease_that_ran_out_counts_until_it_is_expired(by: By) -> None:
    kernel = limited(by, 1)
    kernel.enqueue(alike(max_attempts=1), alike())
    kernel.heartbeat(kernel.lease_one().token)
    kernel.pass_time(60 * SECOND, upkeep=False)
    assert kernel.lease(10) == []
    kernel.do(cmd.ExpireLeases())
    assert ids(kernel.lease(10)) == [2]


def test_limits_of_several_kinds_hold_together() -> None:
    kernel = Kernel(
        QueueOptions(
            limits=[Limit(by="type", max=4), Limit(by="tenant", max=3), Limit(by="key", max=2)],
        )
    )
    fill(kernel, 5, tenant="a", resource_id="one")
    fill(kernel, 5, tenant="a", resource_id="two")
    fill(kernel, 5, tenant="b", resource_id="three")
    granted = kernel.lease(20)
    assert len(granted) == 4
    assert tenants(granted).count("a") <= 3
    keys = [lease.payload.resource_id for lease in granted]
    assert all(keys.count(key) <= 2 for key in keys)


def test_a_tenant_at_its_limit_does_not_keep_others_waiting() -> None:
    kernel = limited("tenant", 1, "greedy")
    fill(kernel, 50, tenant="greedy")
    fill(kernel, 50, tenant="modest")
    assert tenants(kernel.lease(100)).count("greedy") == 1
    assert kernel.state.ready.live == 49


def test_a_type_at_its_limit_does_not_keep_lower_classes_of_others_waiting() -> None:
    kernel = limited("type", 1, "table")
    fill(kernel, 5, priority=0)
    fill(kernel, 5, resource_type="view", priority=9)
    assert types(kernel.lease(10)) == ["table"] + ["view"] * 5


def test_a_tenant_limit_counts_all_its_types_and_classes() -> None:
    kernel = limited("tenant", 2)
    kernel.enqueue(
        of_tenant("a", resource_type="table", priority=9),
        of_tenant("a", resource_type="view", priority=5),
        of_tenant("a", resource_type="file", priority=1),
    )
    assert ids(kernel.lease(10)) == [3, 2]


def test_a_type_limit_lets_lower_classes_first() -> None:
    kernel = limited("type", 1)
    kernel.enqueue(new_item("a", priority=9), new_item("b", priority=0))
    first = kernel.lease_one()
    assert first.sequence_id == 2
    kernel.complete(first.token)
    assert ids(kernel.lease(10)) == [1]


def test_a_key_limit_lets_several_run_at_once_and_exclusive_only_one() -> None:
    for ordering, expected in (("none", [1, 2]), ("exclusive", [1]), ("fifo", [1])):
        kernel = limited("key", 2, ordering=ordering)
        kernel.enqueue(*[alike() for _ in range(4)])
        assert ids(kernel.lease(10)) == expected


def test_items_of_a_limited_key_come_by_class_and_then_by_age() -> None:
    kernel = limited("key", 1)
    kernel.enqueue(alike(priority=5), alike(priority=9), alike(priority=1), alike(priority=5))
    order = []
    for _ in range(4):
        lease = kernel.lease_one()
        order.append(lease.sequence_id)
        kernel.complete(lease.token)
    assert order == [3, 1, 4, 2]


def test_the_starvation_guard_keeps_to_limits() -> None:
    kernel = limited("type", 1, "slow", starvation_every=2)
    fill(kernel, 5, resource_type="slow", priority=9)
    fill(kernel, 100, priority=0)
    kernel.pass_time(61 * SECOND)
    granted = kernel.lease(50)
    assert types(granted).count("slow") == 1


# -- heavy items ---------------------------------------------------------------------------------


@pytest.mark.parametrize("by", KINDS)
def test_a_heavy_head_reserves_the_room_that_is_left(by: By) -> None:
    kernel = limited(by, 5)
    kernel.enqueue(alike(weight=3))
    running = kernel.lease_one()
    kernel.enqueue(alike(weight=4), alike(weight=1), alike(weight=1))
    assert kernel.lease(10) == []
    kernel.complete(running.token)
    assert ids(kernel.lease(10)) == [2, 3]


@pytest.mark.parametrize("by", KINDS)
def test_an_item_heavier_than_the_limit_runs_alone(by: By) -> None:
    kernel = limited(by, 5)
    kernel.enqueue(alike(), alike(weight=100), alike())
    first = kernel.lease(10)
    assert ids(first) == [1]
    kernel.complete(first[0].token)
    heavy = kernel.lease(10)
    assert ids(heavy) == [2]
    kernel.complete(heavy[0].token)
    assert ids(kernel.lease(10)) == [3]


def test_a_heavy_head_of_a_tenant_reserves_across_its_types_and_classes() -> None:
    kernel = limited("tenant", 5)
    kernel.enqueue(of_tenant("a", weight=3))
    running = kernel.lease_one()
    kernel.enqueue(
        of_tenant("a", resource_type="view", weight=3, priority=1),
        of_tenant("a", resource_type="file", priority=1),
        of_tenant("a", resource_type="table", priority=9),
        of_tenant("b", resource_type="table", priority=9),
    )
    assert tenants(kernel.lease(10)) == ["b"]
    kernel.complete(running.token)
    assert sorted(ids(kernel.lease(10))) == [2, 3, 4]


def test_a_heavy_head_of_a_type_reserves_across_its_classes() -> None:
    kernel = limited("type", 5)
    kernel.enqueue(new_item(weight=3))
    running = kernel.lease_one()
    kernel.enqueue(new_item("heavy", weight=3, priority=1), new_item("light", priority=9))
    assert kernel.lease(10) == []
    kernel.complete(running.token)
    assert ids(kernel.lease(10)) == [2, 3]


def test_a_light_item_of_a_lower_class_passes_a_heavy_one_behind_it() -> None:
    kernel = limited("type", 5)
    kernel.enqueue(new_item(weight=3))
    kernel.lease_one()
    kernel.enqueue(new_item("heavy", weight=3, priority=9), new_item("light", priority=1))
    assert ids(kernel.lease(10)) == [3]


def test_a_heavy_item_is_not_kept_out_by_light_ones_that_keep_coming() -> None:
    kernel = limited("tenant", 10)
    fill(kernel, 10, tenant="a")
    live = kernel.lease(10)
    (heavy,) = kernel.enqueue(of_tenant("a", "heavy", weight=10))
    for number in range(10):
        kernel.enqueue(of_tenant("a", f"light-{number}"))
        assert kernel.lease(10) == []
        kernel.complete(live[number].token)
    assert ids(kernel.lease(10)) == [heavy]


def test_a_heavy_head_that_is_cancelled_reserves_nothing_any_more() -> None:
    for by in KINDS:
        kernel = limited(by, 5)
        kernel.enqueue(alike(weight=3))
        kernel.lease_one()
        kernel.enqueue(alike(weight=4), alike())
        kernel.do(cmd.CancelItem(2))
        assert ids(kernel.lease(10)) == [3]


# -- which limit holds ---------------------------------------------------------------------------


def test_the_first_limit_that_matches_holds() -> None:
    limits = [
        Limit(by="type", match="table", max=3),
        Limit(by="type", match="t*", max=1),
        Limit(by="type", match="*", max=2),
    ]
    kernel = Kernel(QueueOptions(limits=limits))
    for kind in ("table", "topic", "view"):
        fill(kernel, 5, resource_type=kind)
    granted = types(kernel.lease(20))
    assert {kind: granted.count(kind) for kind in ("table", "topic", "view")} == {"table": 3, "topic": 1, "view": 2}


def test_a_wider_limit_in_front_hides_a_narrower_one() -> None:
    limits = [Limit(by="tenant", match="*", max=4), Limit(by="tenant", match="a", max=1)]
    kernel = Kernel(QueueOptions(limits=limits))
    fill(kernel, 5, tenant="a")
    assert len(kernel.lease(20)) == 4


def test_limits_of_other_kinds_do_not_count_as_a_match() -> None:
    limits = [Limit(by="tenant", match="*", max=4), Limit(by="type", match="*", max=2)]
    kernel = Kernel(QueueOptions(limits=limits))
    fill(kernel, 9, tenant="a")
    assert len(kernel.lease(20)) == 2


def test_a_name_that_no_limit_speaks_of_has_none() -> None:
    for by in KINDS:
        kernel = limited(by, 1, "nobody")
        kernel.enqueue(*[alike() for _ in range(5)])
        assert len(kernel.lease(20)) == 5


def test_globs_tell_small_letters_from_capitals() -> None:
    kernel = limited("type", 1, "Table")
    kernel.enqueue(new_item("a"), new_item("b"))
    assert len(kernel.lease(10)) == 2


def test_the_tenant_of_items_without_one_is_the_empty_name() -> None:
    kernel = limited("tenant", 1, "")
    kernel.enqueue(new_item("a"), new_item("b"), of_tenant("x"), of_tenant("x"))
    assert sorted(ids(kernel.lease(10))) == [1, 3, 4]


def test_a_key_limit_is_matched_against_type_and_id() -> None:
    kernel = limited("key", 1, "table/sales.*")
    kernel.enqueue(
        new_item("sales.orders"),
        new_item("sales.orders"),
        new_item("other.orders"),
        new_item("other.orders"),
        new_item("sales.orders", resource_type="view"),
        new_item("sales.orders", resource_type="view"),
    )
    assert sorted(ids(kernel.lease(10))) == [1, 3, 4, 5, 6]


def test_a_key_limit_is_matched_against_the_partition_where_that_is_the_key() -> None:
    kernel = limited("key", 1, "eu-*", key="partition")
    kernel.enqueue(
        in_partition("eu-1", "a"),
        in_partition("eu-1", "b", "view"),
        in_partition("eu-2", "a"),
        in_partition("us-1", "a"),
        in_partition("us-1", "b"),
    )
    assert sorted(ids(kernel.lease(10))) == [1, 3, 4, 5]


# -- options that change -------------------------------------------------------------------------


@pytest.mark.parametrize("by", KINDS)
def test_a_limit_that_is_raised_lets_items_in(by: By) -> None:
    kernel = limited(by, 1)
    kernel.enqueue(*[alike() for _ in range(5)])
    assert len(kernel.lease(10)) == 1
    kernel.do(cmd.ChangeOptions(QueueOptions(limits=[Limit(by=by, max=3)])))
    assert len(kernel.lease(10)) == 2
    kernel.do(cmd.ChangeOptions(QueueOptions()))
    assert len(kernel.lease(10)) == 2


@pytest.mark.parametrize("by", KINDS)
def test_a_limit_that_is_lowered_takes_no_lease_away(by: By) -> None:
    kernel = limited(by, 3)
    kernel.enqueue(*[alike() for _ in range(5)])
    granted = kernel.lease(10)
    kernel.do(cmd.ChangeOptions(QueueOptions(limits=[Limit(by=by, max=1)])))
    for lease in granted:
        assert kernel.lease(10) == []
        kernel.complete(lease.token)
    assert len(kernel.lease(10)) == 1


@pytest.mark.parametrize("by", KINDS)
def test_a_limit_that_is_new_counts_the_leases_that_are_there(by: By) -> None:
    kernel = Kernel()
    kernel.enqueue(*[alike() for _ in range(5)])
    granted = kernel.lease(2)
    kernel.do(cmd.ChangeOptions(QueueOptions(limits=[Limit(by=by, max=2)])))
    assert kernel.lease(10) == []
    kernel.complete(granted[0].token)
    assert len(kernel.lease(10)) == 1


# -- never beyond --------------------------------------------------------------------------------


def test_no_limit_is_ever_exceeded_whatever_happens() -> None:
    most = {"type": 7, "tenant": 5, "key": 3}
    kernel = Kernel(QueueOptions(limits=[Limit(by=by, max=most[by]) for by in KINDS]))
    random = Random(3)
    live: dict[int, GrantedLease] = {}
    for _ in range(1_500):
        kernel.enqueue(
            of_tenant(
                random.choice("ab"),
                random.choice("xyz"),
                resource_type=random.choice("tv"),
                priority=random.randrange(3),
                weight=random.choice((1, 1, 2, 3, 9)),
            )
        )
        for lease in kernel.lease(random.randint(1, 4)):
            live[lease.sequence_id] = lease
        used: dict[tuple[str, str], list[int]] = {}
        for number in live:
            payload, weight = kernel.item(number).payload, kernel.item(number).weight
            tenant = (payload.attributes or {})["tenant"]
            key = f"{payload.resource_type}/{payload.resource_id}"
            for scope in (("type", payload.resource_type), ("tenant", tenant), ("key", key)):
                used.setdefault(scope, []).append(weight)
        for (by, _), weights in used.items():
            assert sum(weights) <= most[by] or len(weights) == 1
        while live and random.random() < 0.6:
            lease = live.pop(random.choice(list(live)))
            if random.random() < 0.3:
                kernel.fail(lease.token, delay_ms=random.choice((0, 300)))
            else:
                kernel.complete(lease.token)
        kernel.pass_time(random.randint(0, 100))
        live = {number: lease for number, lease in live.items() if kernel.state_of(number) == "leased"}


def test_names_that_are_gone_leave_no_limit_behind() -> None:
    kernel = Kernel(QueueOptions(limits=[Limit(by="tenant", max=30), Limit(by="type", max=30)]))
    keep_lanes(kernel, 50)
    fill(kernel, 2_000, tenant="steady")
    held: list[GrantedLease] = []
    for number in range(400):
        kernel.enqueue(of_tenant(f"t{number}", resource_type=f"t{number}"))
        held += kernel.lease(4)
        while len(held) > 20:
            kernel.complete(held.pop(0).token)
    schedule = kernel.state.schedule
    assert sum(schedule.tenants.known(f"t{number}") is not None for number in range(400)) <= 100
    assert sum(schedule.types.known(f"t{number}") is not None for number in range(400)) <= 100


def test_a_pause_in_between_does_not_disturb_the_count_of_a_limit() -> None:
    for scope in ({"resource_type": "table"}, {"tenant": "acme"}, {}):
        kernel = Kernel(QueueOptions(limits=[Limit(by="tenant", max=2), Limit(by="type", max=2)]))
        kernel.enqueue(*[of_tenant("acme", str(n)) for n in range(5)])
        first, second = kernel.lease(10)
        pause(kernel, **scope)
        kernel.complete(first.token)
        assert kernel.lease(10) == []
        resume(kernel, **scope)
        assert ids(kernel.lease(10)) == [3]
        kernel.complete(second.token)
        assert ids(kernel.lease(10)) == [4]


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [
        None,
        5,
        "type",
        [None],
        [{"by": "type", "max": 1}],
        [Limit(by="class", max=1)],  # type: ignore[arg-type]
        [Limit(by=None, max=1)],  # type: ignore[arg-type]
        [Limit(by="type", match=None, max=1)],  # type: ignore[arg-type]
        [Limit(by="type", max=0)],
        [Limit(by="type", max=-1)],
        [Limit(by="type", max=1.5)],  # type: ignore[arg-type]
        [Limit(by="type", max=True)],
        [Limit(by="type", max=1), Limit(by="type", max="2")],  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_a_wrong_limit_is_named_when_options_are_built(limits: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        QueueOptions(limits=limits)
    assert refused.value.code == "resourcelease.limits.invalid"
    assert refused.value.details["field"] == "limits"


def test_a_glob_that_no_log_can_hold_is_refused_and_changes_nothing() -> None:
    kernel = Kernel()
    kernel.enqueue()
    error = kernel.refusal(cmd.ChangeOptions(QueueOptions(limits=[Limit(by="type", match="\ud800", max=1)])))
    assert isinstance(error, InvalidArgument)
    assert error.code == "resourcelease.request.invalid"


def test_options_of_another_kind_are_refused_and_change_nothing() -> None:
    kernel = Kernel()
    error = kernel.refusal(cmd.ChangeOptions({"limits": []}))  # type: ignore[arg-type]
    assert (error.code, error.details["field"]) == ("resourcelease.options.invalid", "options")


# -- turns ---------------------------------------------------------------------------------------


def test_types_take_turns_under_the_limit_of_their_tenant() -> None:
    """All of them are held back whenever one has a lease, and the oldest comes back first: not always with its turn."""
    kernel = limited("tenant", 1)
    kernel.enqueue(*[of_tenant("acme", str(n), resource_type=name) for name in ("table", "view") for n in range(4)])
    assert types(grant_and_complete(kernel, 8)) == ["table", "view"] * 4


def test_an_item_that_only_a_limit_holds_back_is_next_when_there_is_room() -> None:
    kernel = limited("tenant", 2)
    kernel.enqueue(*[of_tenant("acme", str(n), resource_type=name) for name in ("table", "view") for n in range(2)])
    grant_and_complete(kernel, 1)
    kernel.enqueue(of_tenant("acme", "heavy", weight=2, priority=0))
    lease = kernel.lease_one()
    assert [gate.gate for gate in gates(kernel, 3)] == ["limit"]
    kernel.complete(lease.token)
    assert gates(kernel, 3) == []
