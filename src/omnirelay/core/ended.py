"""Leases that are over, remembered for repeated acknowledgements.

Nearly every item has one. It is found by the number of its item: numbers that follow each other lie beside each other,
while a table of a million random lease ids would have the processor wait for memory twice per lease.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from omnirelay.core.items import Lease


class EndedLeases:
    """In the order they ended."""

    __slots__ = ("_by_item", "_others", "order")

    def __init__(self) -> None:
        self.order: deque[Lease] = deque()
        """Oldest first. For reading; `add` and `forget_oldest` change it."""
        self._by_item: dict[int, Lease] = {}
        """One per item: the first to come while there was none."""
        self._others: dict[str, Lease] = {}
        """Further ones of the same items, by lease id."""

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.order)

    def add(self, lease: Lease) -> None:
        self.order.append(lease)
        # As Any, or compiled code makes a number of its own to be the key.
        token: Any = lease.token
        if self._by_item.setdefault(token.sequence_id, lease) is not lease:
            self._others[token.lease_id] = lease

    def forget_oldest(self) -> None:
        lease: Lease = self.order.popleft()
        token: Any = lease.token
        if self._by_item.get(token.sequence_id) is lease:
            del self._by_item[token.sequence_id]
        else:
            del self._others[token.lease_id]

    def last_of(self, sequence_id: int) -> Lease | None:
        """The lease that ended last, if it was of this item."""
        if not self.order:
            return None
        lease: Lease = self.order[-1]
        return lease if lease.token.sequence_id == sequence_id else None

    def find(self, sequence_id: int, lease_id: str) -> Lease | None:
        lease = self._by_item.get(sequence_id)
        if lease is not None and lease.token.lease_id == lease_id:
            return lease
        other = self._others.get(lease_id)
        return other if other is not None and other.token.sequence_id == sequence_id else None
