"""Ended leases are found by item and lease id, also when an item had several."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core.ended import EndedLeases
from omnirelay.core.items import Lease
from omnirelay.core.payload import OwnershipToken


def lease(sequence_id: int, number: int) -> Lease:
    token = OwnershipToken(sequence_id, 1, f"lease-{number}", number)
    return Lease(token, "peer", None, 0, 1_000, 1_000, None)


@given(items=st.lists(st.integers(1, 4), max_size=30), forgotten=st.integers(0, 30))
def test_every_remembered_lease_is_found_and_no_forgotten_one(items: list[int], forgotten: int) -> None:
    leases = [lease(sequence_id, number) for number, sequence_id in enumerate(items)]
    ended = EndedLeases()
    for each in leases:
        ended.add(each)
    forgotten = min(forgotten, len(leases))
    for _ in range(forgotten):
        ended.forget_oldest()
    assert list(ended) == leases[forgotten:]
    assert len(ended) == len(leases) - forgotten
    for number, each in enumerate(leases):
        found = ended.find(each.token.sequence_id, each.token.lease_id)
        assert found is (each if number >= forgotten else None)
        assert ended.find(each.token.sequence_id + 10, each.token.lease_id) is None


def test_the_last_lease_is_told_by_its_item() -> None:
    ended = EndedLeases()
    assert ended.last_of(1) is None
    first, second = lease(1, 1), lease(2, 2)
    ended.add(first)
    ended.add(second)
    assert ended.last_of(2) is second
    assert ended.last_of(1) is None
