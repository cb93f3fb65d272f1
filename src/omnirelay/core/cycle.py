"""The lease cycle as changes of state: an item comes in, is leased, ends.

This is most of what a shard ever does. `take_in`, `lease_out` and `complete` take plain values: `evolve` reads them
from an event, and whoever has just decided an event passes on what it was made of, because reading it back costs as
much as the step.
"""

from __future__ import annotations

from sys import intern
from typing import Any, Final

from msgspec.structs import astuple

from omnirelay.core.events import Completed, Enqueue, LeaseGranted
from omnirelay.core.items import (
    COMPLETE,
    COMPLETED,
    DELAYED,
    LEASED,
    NO_BODY,
    READY,
    Item,
    Lease,
    share_attributes,
)
from omnirelay.core.payload import OwnershipToken, Payload
from omnirelay.core.requests import end_request, remember_request
from omnirelay.core.state import State

# What is asked for with every item; compiled code would look a name up in its module each time.
_astuple: Final = astuple
_intern: Final = intern

# -- coming in ---------------------------------------------------------------------------------


def evolve_enqueue(state: State, event: Enqueue) -> None:
    (
        sequence_id,
        payload,
        priority,
        weight,
        not_before,
        max_attempts,
        parent,
        request_key,
        digest,
        _peer_id,
        _principal,
        sequence,
        now_ms,
        _schema,
    ) = _astuple(event)
    item = take_in(
        state, sequence_id, payload, priority, weight, not_before, max_attempts, request_key, sequence, now_ms
    )
    if parent is not None:
        item.with_trail().parent = parent
    if request_key is not None:
        remember_request(state, request_key, sequence_id, digest or b"")


def take_in(
    state: State,
    sequence_id: Any,
    payload: Payload,
    priority: int,
    weight: int,
    not_before: int | None,
    max_attempts: int | None,
    request_key: bytes | None,
    sequence: int,
    now_ms: int,
) -> Item:
    resource_type, resource_id, partition_key, encoding, body, attributes, _request_id = _astuple(payload)
    shared = _intern(resource_type)
    if shared is not resource_type:
        payload.resource_type = shared
    size = len(body)
    if not size:
        payload.body = NO_BODY
    if encoding is not None:
        payload.payload_encoding = _intern(encoding)
    if attributes is not None:
        size += share_attributes(payload, attributes)
    number: int = sequence_id
    item = Item(
        number,
        payload,
        READY,
        sequence,
        1,
        priority,
        weight,
        max_attempts,
        now_ms,
        not_before,
        size,
        request_key,
        number,
    )
    # By the object that came: compiled code would make one of its own to be the key.
    state.items[sequence_id] = item
    state.next_sequence_id = number + 1
    state.live_bytes += size
    if not_before is None:
        state.ready.enter(item)
        state.schedule.enter(item, shared, resource_id, partition_key, attributes, now_ms)
    else:
        item.state = DELAYED
        state.delayed.push(item)
        state.schedule.admit(item, now_ms)
    return item


# -- leases ------------------------------------------------------------------------------------


def evolve_granted(state: State, event: LeaseGranted) -> None:
    token, deadline, owner, principal, request_key, guard, sequence, now_ms, _schema = _astuple(event)
    item = state.items[token.sequence_id]
    lease_out(state, item, sequence, now_ms, token, deadline, owner, principal, request_key, guard)


def lease_out(
    state: State,
    item: Item,
    sequence: int,
    now_ms: int,
    token: OwnershipToken,
    deadline: int,
    owner: str,
    principal: str | None,
    request_key: str | None,
    guard: bool,
) -> Lease:
    lease = Lease(token, owner, principal, now_ms, deadline, deadline - now_ms, request_key)
    item.state = LEASED
    item.stamp = sequence
    item.lease = lease
    state.ready.left()
    state.schedule.granted(item, guard, now_ms)
    state.leased.enter(deadline, item)
    if request_key is not None:
        state.grants.setdefault(request_key, {})[item.sequence_id] = item
    return lease


def end_lease(state: State, item: Item, now_ms: int, sequence: int, verb: int) -> Lease:
    """Take the lease off the item and remember it; the caller tells the schedule, and where the item goes next."""
    lease = item.lease
    assert lease is not None, "only a leased item can be acknowledged"
    token = lease.token
    item.lease = None
    item.stamp = sequence
    state.leased.leave(lease.deadline, item)
    if lease.request_key is not None:
        _forget_grant(state, item, lease)
    if verb != COMPLETE:
        item.with_trail().last_token = token
    lease.verb = verb
    lease.ended_at = now_ms
    ended = state.ended
    ended.add(lease)
    if len(ended.order) > state.ended_max:
        ended.forget_oldest()
    return lease


def _forget_grant(state: State, item: Item, lease: Lease) -> None:
    """The lease is over: a repeat of the call that got it no longer gets it back."""
    request_key = lease.request_key
    assert request_key is not None
    granted = state.grants[request_key]
    del granted[item.sequence_id]
    if not granted:
        del state.grants[request_key]
    lease.request_key = None


# -- ends --------------------------------------------------------------------------------------


def evolve_completed(state: State, event: Completed) -> None:
    token, result, result_encoding, follow_up_ids, sequence, now_ms, _schema = _astuple(event)
    item = state.items[token.sequence_id]
    if result is not None:
        trail = item.with_trail()
        trail.result = result
        trail.result_encoding = result_encoding
    lease = complete(state, item, now_ms, sequence)
    if follow_up_ids is not None:
        lease.follow_up_ids = follow_up_ids


def complete(state: State, item: Item, now_ms: int, sequence: int) -> Lease:
    lease = end_lease(state, item, now_ms, sequence, COMPLETE)
    finish(state, item, COMPLETED, now_ms)
    if state.schedule.gated:
        state.schedule.ended(item, now_ms)
    return lease


def finish(state: State, item: Item, how: int, now_ms: int) -> None:
    """Completed or cancelled: out of capacity, remembered for a while. The item left its queue before."""
    item.state = how
    item.ended_at = now_ms
    size = item.size
    state.live_bytes -= size
    trail = item.trail
    if trail is not None and trail.result is not None:
        item.size = size = size + len(trail.result)
    state.finished.append(item)
    state.finished_bytes += size
    if item.request_key is not None:
        end_request(state, item, now_ms)
