"""Callers that wait: lease calls in line, and calls that wait for an item to end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from omnirelay.core import events as ev
from omnirelay.core.answers import GrantedLease
from omnirelay.core.items import COMPLETED, size_of
from omnirelay.core.payload import NewItem, OwnershipToken
from omnirelay.core.rules.grant import grant_key
from omnirelay.core.state import State
from omnirelay.core.views import view
from omnirelay.engine.clock import Clock
from omnirelay.engine.requests import Batch, EnqueueRequest, LeaseRequest
from omnirelay.errors import NotFound, ResourceExhausted

ITEM_BYTES = 500
"""What an item that waits takes besides its body and its texts, about."""

SHARED_MAX = 100_000
"""Shared leases remembered; an older one that is forgotten too early is released, which costs its owner a retry."""


Wanted = tuple[tuple[str, ...] | None, tuple[str, ...] | None]
"""What a lease call takes: resource types and tenants."""


class LeaseLine:
    """Lease calls in the order they came. One leaves when it is granted, out of time, or its caller is gone.

    Calls that take the same are one group: when there is nothing for the first of them, there is nothing for any.
    """

    def __init__(self, clock: Clock, waiting_max: int, on_time_out: Callable[[LeaseRequest], None]) -> None:
        """`on_time_out` gets a request whose time is over; the engine answers it like any read."""
        self._clock = clock
        self._on_time_out = on_time_out
        self._waiting_max = waiting_max
        self.closed = False
        """Nobody joins any more: whoever would have to wait is answered with nothing."""
        self._groups: dict[Wanted, dict[LeaseRequest, int]] = {}
        """By what they take, each with its place in line."""
        self._joined = 0
        self._waiting = 0
        self._by_key: dict[str, dict[LeaseRequest, None]] = {}
        self._shared: dict[str, int] = {}
        """How many calls have each lease that more than one was answered with, the latest last."""

    def __len__(self) -> int:
        return self._waiting

    @property
    def full(self) -> bool:
        return self._waiting >= self._waiting_max

    def serve(self, grant: Callable[[LeaseRequest], bool]) -> None:
        """Offer each call its turn, in order of arrival; `grant` says whether there was something for it.

        A group whose first call got nothing is not asked again.
        """
        first = [(next(iter(group.values())), wanted) for wanted, group in self._groups.items()]
        heapify(first)
        while first:
            _, wanted = heappop(first)
            group = self._groups.get(wanted)
            if not group:
                continue  # Its calls were repeats of another one and got what that got.
            request = next(iter(group))
            if request.future.done() or grant(request):
                self.leave(request)
                if group:
                    heappush(first, (next(iter(group.values())), wanted))

    def join(self, request: LeaseRequest) -> None:
        self._joined += 1
        self._waiting += 1
        self._groups.setdefault(_wanted_by(request), {})[request] = self._joined
        key = _key_of(request)
        if key is not None:
            self._by_key.setdefault(key, {})[request] = None
        request.timer = self._clock.call_later(request.wait_ms, lambda: self._time_over(request))
        request.future.add_done_callback(lambda _: self.leave(request))

    def leave(self, request: LeaseRequest) -> None:
        wanted = _wanted_by(request)
        group = self._groups.get(wanted)
        if group is not None and group.pop(request, None) is not None:
            self._waiting -= 1
            if not group:
                del self._groups[wanted]
        key = _key_of(request)
        if key is not None and key in self._by_key:
            self._by_key[key].pop(request, None)
            if not self._by_key[key]:
                del self._by_key[key]
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None

    def repeats_of(self, request: LeaseRequest) -> list[LeaseRequest]:
        """Other calls in line with the same request id: they get the same leases."""
        waiting = self._by_key.get(_key_of(request) or "", {})
        return [repeat for repeat in waiting if repeat is not request]

    def share(self, grants: list[GrantedLease]) -> None:
        """One more call is answered with these: that one of the callers is gone says nothing about the others."""
        for grant in grants:
            lease_id = grant.token.lease_id
            self._shared[lease_id] = self._shared.pop(lease_id, 1) + 1
        while len(self._shared) > SHARED_MAX:
            del self._shared[next(iter(self._shared))]

    def forsaken(self, grants: list[GrantedLease]) -> list[OwnershipToken]:
        """A caller that was answered with these is gone; returns those that no other call has."""
        tokens = []
        for grant in grants:
            callers = self._shared.pop(grant.token.lease_id, 1)
            if callers == 1:
                tokens.append(grant.token)
            else:
                self._shared[grant.token.lease_id] = callers - 1
        return tokens

    def _time_over(self, request: LeaseRequest) -> None:
        if request in self._groups.get(_wanted_by(request), ()):
            self.leave(request)
            self._on_time_out(request)

    def clear(self) -> list[LeaseRequest]:
        """Everyone who still waits; the line is empty afterwards."""
        waiting = [request for group in self._groups.values() for request in group]
        for request in waiting:
            self.leave(request)
        return waiting


def _wanted_by(request: LeaseRequest) -> Wanted:
    return request.command.resource_types, request.command.tenants


def _key_of(request: LeaseRequest) -> str | None:
    return grant_key(request.command.caller, request.command.request_id)


class EnqueueLine:
    """Enqueues that wait for room, in the order they came, bounded in number and bytes."""

    def __init__(
        self, clock: Clock, waiting_max: int, bytes_max: int, on_time_out: Callable[[EnqueueRequest], None]
    ) -> None:
        self._clock = clock
        self._waiting_max = waiting_max
        self._bytes_max = bytes_max
        self._on_time_out = on_time_out
        self._line: dict[EnqueueRequest, None] = {}
        self._bytes = 0
        self.closed = False
        """Nobody joins any more: whoever would have to wait is refused."""

    def __len__(self) -> int:
        return len(self._line)

    def first(self) -> EnqueueRequest:
        return next(iter(self._line))

    def join(self, request: EnqueueRequest, refusal: ResourceExhausted) -> bool:
        """Take the call into the line; false when there is no place for it."""
        size = sum(map(_held_by, request.command.items))
        if self.closed or len(self._line) >= self._waiting_max or self._bytes + size > self._bytes_max:
            return False
        request.size = size
        request.refusal = refusal
        self._line[request] = None
        self._bytes += size
        request.timer = self._clock.call_later(request.wait_ms, lambda: self._time_over(request))
        request.future.add_done_callback(lambda _: self.leave(request))
        return True

    def leave(self, request: EnqueueRequest) -> None:
        if request in self._line:
            del self._line[request]
            self._bytes -= request.size
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None

    def _time_over(self, request: EnqueueRequest) -> None:
        if request in self._line:
            self.leave(request)
            self._on_time_out(request)

    def clear(self) -> list[EnqueueRequest]:
        """Everyone who still waits; the line is empty afterwards."""
        waiting = list(self._line)
        for request in waiting:
            self.leave(request)
        return waiting


def _held_by(item: NewItem) -> int:
    """About as many bytes as an item takes while it waits."""
    payload = item.payload
    names = (payload.resource_type, payload.resource_id, payload.partition_key, payload.request_id)
    return ITEM_BYTES + size_of(payload) + sum(len(name) for name in names if name is not None)


class ItemWaiters:
    """Calls that wait for the end of an item, by its id."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[asyncio.Future[Any]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, sequence_id: int, future: asyncio.Future[Any]) -> None:
        self._waiting.setdefault(sequence_id, []).append(future)
        future.add_done_callback(lambda _: self._remove(sequence_id, future))

    def answer(self, state: State, batch: Batch) -> None:
        """Answer, with the batch, those whose item has ended by now."""
        for sequence_id in self._touched_by(batch.events):
            item = state.items.get(sequence_id)
            if item is not None and item.state < COMPLETED:
                continue
            outcome: Any = (
                NotFound(f"item {sequence_id} left the shard", sequenceId=sequence_id) if item is None else view(item)
            )
            for future in self._waiting.pop(sequence_id):
                batch.answer(future, outcome)

    def _touched_by(self, events: list[ev.Event]) -> list[int]:
        """The items waited for that these events may have ended: thousands may wait, and most frames end a few."""
        waiting = self._waiting
        if len(events) >= len(waiting):
            return list(waiting)
        ended: dict[int, None] = {}
        for event in events:
            if type(event) is ev.Completed:
                ended[event.ownership.sequence_id] = None
            elif type(event) is ev.DeadLettered or type(event) is ev.Cancelled:
                ended[event.sequence_id] = None
            elif type(event) is ev.DrainSnapshot:
                ended.update(dict.fromkeys(event.sequence_ids))
        return [sequence_id for sequence_id in ended if sequence_id in waiting]

    def clear(self) -> list[tuple[int, asyncio.Future[Any]]]:
        """Everyone who still waits, and for which item; nobody does afterwards."""
        waiting = [(sequence_id, future) for sequence_id, futures in self._waiting.items() for future in futures]
        self._waiting.clear()
        return waiting

    def _remove(self, sequence_id: int, future: asyncio.Future[Any]) -> None:
        waiting = self._waiting.get(sequence_id)
        if waiting is not None and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._waiting[sequence_id]
