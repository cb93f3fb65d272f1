"""Deciding which item a peer gets next."""

from __future__ import annotations

from typing import Any, Final

from omnirelay.core import events as ev
from omnirelay.core.answers import GrantedLease
from omnirelay.core.commands import GrantLeases
from omnirelay.core.items import Item, Lease
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, OwnershipToken
from omnirelay.core.rules.selecting import Choice, Filter, next_item
from omnirelay.core.state import State


def repeated_grants(state: State, command: GrantLeases, now_ms: int) -> list[GrantedLease]:
    """What an earlier call with the same request id was granted and still holds."""
    key = grant_key(command.caller, command.request_id)
    if key is None:
        return []
    return [
        describe_grant(
            item,
            item.lease,
            item.lease.deadline,
            item.lease.deadline - now_ms,
            heartbeat_interval(state.options, item.lease.duration),
        )
        for item in state.grants.get(key, {}).values()
        if item.lease is not None and item.lease.deadline > now_ms
    ]


def filter_of(command: GrantLeases) -> Filter | None:
    """What the call takes; None when it takes anything."""
    if command.resource_types is None and command.tenants is None:
        return None
    return Filter(command.resource_types, command.tenants)


def choose(state: State, only: Filter | None, now_ms: int) -> Choice:
    """What the next grant takes. Reads only."""
    if only is not None:
        return only.next_item(state, now_ms)
    schedule = state.schedule
    if schedule.grants < schedule.guard_at:
        return schedule.first(), False
    return next_item(state, now_ms)


def decide_next_grant(
    state: State,
    caller: Caller,
    duration_ms: int,
    key: str | None,
    now_ms: int,
    lease_id: str,
    only: Filter | None = None,
) -> ev.LeaseGranted | None:
    """The next grant for this caller, or None when there is nothing for it. Reads only."""
    item, guard = choose(state, only, now_ms)
    if item is None:
        return None
    fence = state.sequence + 1
    token = OwnershipToken(item.sequence_id, item.attempt, lease_id, fence)
    return grant_event(token, fence, now_ms, now_ms + duration_ms, owner_of(caller), caller.principal, key, guard)


def grant_event(
    token: OwnershipToken,
    fence: Any,
    now_ms: Any,
    deadline: Any,
    owner: str,
    principal: str | None,
    key: str | None,
    guard: bool,
) -> ev.LeaseGranted:
    return _LEASE_GRANTED(token, deadline, owner, principal, key, guard, sequence_number=fence, timestamp=now_ms)


_LEASE_GRANTED: Final = ev.LeaseGranted


def owner_of(caller: Caller) -> str:
    return caller.peer_id or caller.principal or ""


def grant_key(caller: Caller, request_id: str | None) -> str | None:
    """Request ids of lease calls are scoped by who asks: the principal, else the peer as it names itself."""
    if request_id is None:
        return None
    if caller.principal is not None:
        return f"principal {len(caller.principal)} {caller.principal} {request_id}"
    peer = caller.peer_id or ""
    return f"peer {len(peer)} {peer} {request_id}"


def describe_grant(
    item: Item, lease: Lease, expires_at: Any, expires_in_ms: Any, heartbeat_after_ms: Any
) -> GrantedLease:
    """The numbers are whole; whoever describes many leases has made objects of them already."""
    trail = item.trail
    if trail is None:
        return _GRANTED_LEASE(
            item.payload,
            lease.token,
            lease.owner,
            expires_at,
            expires_in_ms,
            heartbeat_after_ms,
            item.enqueued_at,
            item.priority,
        )
    return _GRANTED_LEASE(
        item.payload,
        lease.token,
        lease.owner,
        expires_at,
        expires_in_ms,
        heartbeat_after_ms,
        item.enqueued_at,
        item.priority,
        trail.last_error,
        trail.progress,
    )


_GRANTED_LEASE: Final = GrantedLease


def heartbeat_interval(options: QueueOptions, duration_ms: int) -> int:
    """The interval in force: never more than a third of the lease, so that two may get lost."""
    interval = options.heartbeat_interval_ms
    third = duration_ms // 3
    return interval if interval < third else third
