"""Maps of one attribute are shared between items, and nobody sees the difference."""

from __future__ import annotations

from omnirelay.core import items
from omnirelay.core.items import intern_strings
from omnirelay.core.payload import Payload


def with_tenant(name: str) -> Payload:
    return Payload(resource_type="table", resource_id="a", body=b"xy", attributes={"tenant": name})


def test_payloads_with_the_same_single_attribute_have_one_map() -> None:
    first, second, other = with_tenant("blueblue"), with_tenant("blueblue"), with_tenant("red")
    sizes = [intern_strings(each) for each in (first, second, other)]
    assert sizes == [2 + 6 + 8, 2 + 6 + 8, 2 + 6 + 3]
    assert first.attributes is second.attributes
    assert (first.attributes, other.attributes) == ({"tenant": "blueblue"}, {"tenant": "red"})


def test_maps_of_several_attributes_keep_their_order_and_their_own_object() -> None:
    one = Payload(resource_type="t", resource_id="a", attributes={"b": "1", "a": "2"})
    two = Payload(resource_type="t", resource_id="a", attributes={"a": "2", "b": "1"})
    intern_strings(one)
    intern_strings(two)
    assert one.attributes is not None
    assert two.attributes is not None
    assert (list(one.attributes), list(two.attributes)) == (["b", "a"], ["a", "b"])


def test_names_that_never_come_back_are_not_kept_for_ever() -> None:
    for number in range(2 * items._SINGLE_MAX + 10):
        intern_strings(with_tenant(f"tenant-{number}"))
    assert sum(map(len, items._single.values())) <= items._SINGLE_MAX
