"""Filters: a lease call that takes only some resource types or tenants."""

from __future__ import annotations

from typing import Any

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.options import Limit, QueueOptions
from omnirelay.core.rules.selecting import Globs, _globs_of
from omnirelay.errors import InvalidArgument
from tests.builders import WORKER, Kernel, new_item
from tests.gates import SECOND, classes, fill, grant, ids, of_tenant, pause, tenants, types, windows


def mixed(options: QueueOptions | None = None) -> Kernel:
    """Three types of two tenants, one item each: ids 1 to 6."""
    kernel = Kernel(options)
    for kind in ("table", "topic", "view"):
        for tenant in ("a", "b"):
            kernel.enqueue(of_tenant(tenant, resource_type=kind))
    return kernel


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (("table",), {1, 2}),
        (("t*",), {1, 2, 3, 4}),
        (("view", "table"), {1, 2, 5, 6}),
        (("v?ew", "nothing"), {5, 6}),
        (("[tv]*",), {1, 2, 3, 4, 5, 6}),
        (("*",), {1, 2, 3, 4, 5, 6}),
        (("T*",), set()),
        (("tab",), set()),
        ((), set()),
        (None, {1, 2, 3, 4, 5, 6}),
    ],
)
def test_a_call_gets_only_the_types_it_takes(wanted: tuple[str, ...] | None, expected: set[int]) -> None:
    assert set(ids(mixed().lease(10, resource_types=wanted))) == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (("a",), {1, 3, 5}),
        (("b", "a"), {1, 2, 3, 4, 5, 6}),
        (("a*",), set()),
        (("",), set()),
        ((), set()),
    ],
)
def test_a_call_gets_only_the_tenants_it_takes(wanted: tuple[str, ...], expected: set[int]) -> None:
    assert set(ids(mixed().lease(10, tenants=wanted))) == expected


def test_types_and_tenants_are_both_asked() -> None:
    kernel = mixed()
    assert set(ids(kernel.lease(10, resource_types=("t*",), tenants=("b",)))) == {2, 4}
    assert set(ids(kernel.lease(10))) == {1, 3, 5, 6}


def test_the_empty_tenant_stands_for_items_without_one() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("plain"), of_tenant("a"))
    assert ids(kernel.lease(10, tenants=("",))) == [1]


def test_a_filtered_call_keeps_to_classes() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item(priority=9), new_item(priority=0, resource_type="view"), new_item(priority=3))
    assert classes(kernel.lease(10, resource_types=("table",))) == [3, 9]


def test_a_filtered_call_takes_types_and_tenants_in_turn() -> None:
    kernel = Kernel(QueueOptions(tenant_weights={"b": 3}))
    for kind in ("table", "topic", "view"):
        for tenant in ("a", "b", "c"):
            fill(kernel, 600, tenant=tenant, resource_type=kind)
    granted = grant(kernel, 1_200, resource_types=("t*",), tenants=("a", "b"))
    assert all(abs(count - 200) <= 1 for count in windows(types(granted), "table", 400))
    assert all(abs(count - 100) <= 4 for count in windows(tenants(granted), "a", 400))


def test_what_filtered_calls_took_counts_in_the_turns_of_all() -> None:
    kernel = Kernel()
    for tenant in ("a", "b"):
        fill(kernel, 100, tenant=tenant)
    grant(kernel, 10, tenants=("a",))
    assert tenants(kernel.lease(10)).count("b") >= 9


@pytest.mark.parametrize("scope", [{}, {"resource_type": "table"}, {"tenant": "a"}])
def test_a_filter_does_not_get_round_a_pause(scope: dict[str, str]) -> None:
    kernel = mixed()
    pause(kernel, **scope)
    assert kernel.lease(10, resource_types=("table",), tenants=("a",)) == []


def test_a_filter_does_not_get_round_a_key() -> None:
    kernel = Kernel(QueueOptions(ordering="exclusive"))
    kernel.enqueue(of_tenant("a", "x"), of_tenant("b", "x"))
    kernel.lease_one(tenants=("a",))
    assert kernel.lease(10, tenants=("b",)) == []


def test_a_filter_does_not_get_round_a_limit_or_what_is_reserved() -> None:
    kernel = Kernel(QueueOptions(limits=[Limit(by="type", max=5)]))
    kernel.enqueue(of_tenant("a", weight=3))
    running = kernel.lease_one()
    kernel.enqueue(of_tenant("a", weight=4, priority=1), of_tenant("b", weight=2, priority=9))
    assert kernel.lease(10, tenants=("b",)) == []
    kernel.complete(running.token)
    assert ids(kernel.lease(10, tenants=("a",))) == [2]


def test_a_type_limit_is_judged_by_the_item_that_is_taken() -> None:
    kernel = Kernel(QueueOptions(limits=[Limit(by="type", max=5)]))
    kernel.enqueue(of_tenant("a", weight=3))
    kernel.lease_one()
    kernel.enqueue(of_tenant("b", weight=1), of_tenant("c", weight=4))
    assert kernel.lease(10, tenants=("c",)) == []
    assert ids(kernel.lease(10, tenants=("b",))) == [2]


def test_the_guard_looks_only_at_what_the_call_takes() -> None:
    kernel = Kernel(QueueOptions(starvation_every=2))
    fill(kernel, 10, resource_type="view", priority=4)
    fill(kernel, 10, priority=9)
    fill(kernel, 50, priority=0)
    kernel.pass_time(61 * SECOND)
    granted = grant(kernel, 10, resource_types=("table",))
    assert classes(granted) == [0, 9] * 5
    assert classes(grant(kernel, 4)) == [0, 4, 0, 9]


def test_a_repeated_call_gets_its_leases_whatever_it_takes_now() -> None:
    kernel = mixed()
    first = kernel.lease(1, resource_types=("table",), request_id="call-1")
    assert kernel.lease(1, resource_types=("view",), request_id="call-1") == first


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"resource_types": "table"}, "resourceTypes"),
        ({"resource_types": 5}, "resourceTypes"),
        ({"resource_types": ("table", 5)}, "resourceTypes"),
        ({"resource_types": ("table", None)}, "resourceTypes"),
        ({"resource_types": ("x" * 1_025,)}, "resourceTypes"),
        ({"resource_types": ("a\0",)}, "resourceTypes"),
        ({"resource_types": ("a",) * 1_001}, "resourceTypes"),
        ({"tenants": "acme"}, "tenants"),
        ({"tenants": {"acme"}}, "tenants"),
        ({"tenants": (b"acme",)}, "tenants"),
        ({"tenants": ("a",) * 1_001}, "tenants"),
        ({"tenants": ("\ud800",)}, "tenants"),
    ],
)
def test_a_bad_filter_is_refused(fields: dict[str, Any], field: str) -> None:
    kernel = mixed()
    error = kernel.refusal(cmd.GrantLeases(WORKER, **fields))
    assert isinstance(error, InvalidArgument)
    assert (error.code, error.details["field"]) == (f"resourcelease.{field}.invalid", field)


def test_globs_take_the_same_of_more_names_than_they_remember() -> None:
    globs = Globs(("t*0", "view"))
    names = ["view", *(f"t{number}" for number in range(25_000))]
    for _ in range(2):
        taken = [name for name in names if globs.take(name)]
        assert taken == ["view", *(f"t{number}" for number in range(0, 25_000, 10))]


def test_calls_with_the_same_globs_share_what_is_known_of_names() -> None:
    kernel = mixed()
    _globs_of.cache_clear()
    for _ in range(3):
        assert kernel.lease(1, resource_types=("q*", "p?")) == []
        assert kernel.lease(1, resource_types=("p?", "q*", "p?")) == []
    assert (_globs_of.cache_info().misses, _globs_of.cache_info().hits) == (1, 5)
