"""Deciding about heartbeats and about the ends of leases: complete, fail, release, expiry."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from omnirelay.core import events as ev
from omnirelay.core.answers import CompleteAnswer, FailAnswer, HeartbeatAnswer
from omnirelay.core.batches import check_batch
from omnirelay.core.commands import (
    CompleteItem,
    ExpireLeases,
    ExtendLease,
    FailItem,
    ReleaseItem,
    ReturnUndelivered,
)
from omnirelay.core.evolve import DEFAULT_ERROR
from omnirelay.core.intake import (
    caller_bytes,
    check_completion,
    check_failure,
    check_release,
    check_storable,
    check_token,
    encode_progress,
)
from omnirelay.core.items import COMPLETE, FAIL, RELEASE, STATE_NAMES, VERB_NAMES, Item, Lease, attempts_before, size_of
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import ErrorInfo, OwnershipToken
from omnirelay.core.rules.enqueue import plan_items
from omnirelay.core.rules.grant import heartbeat_interval
from omnirelay.core.rules.pausing import RETRY_AFTER_MS
from omnirelay.core.state import State
from omnirelay.errors import FailedPrecondition, PermissionDenied, ResourceExhausted

OUT_OF_ATTEMPTS = "error.resourcelease.attempts_exhausted"
NEVER_DELIVERED = "error.resourcelease.undelivered"

_OWNERSHIP_TOKEN: Final[Any] = OwnershipToken
"""As anything, so that compiled code does not take the fields of what callers send for what they should be."""

_MIX = 0xFFFFFFFFFFFFFFFF


def find_lease(state: State, token: Any, caller: Any, arrived_ms: int, verb: int) -> tuple[Item | None, Lease]:
    """The item and lease the token holds, or (None, lease) when this very verb ended the lease before.

    Raises `unknown_token`, `lease_inactive`, `fence_mismatch` or `not_owner`.
    """
    sequence_id: Any = token.sequence_id if type(token) is _OWNERSHIP_TOKEN else None
    if type(sequence_id) is not int:
        token = check_token(token)
        sequence_id = token.sequence_id
    item = state.items.get(sequence_id)
    lease = None if item is None else item.lease
    if lease is not None:
        held = lease.token
        if held is token or held == token:
            # The whole token, fence included, and a lease that lives: only the caller is left to check.
            if arrived_ms < lease.deadline and lease.principal is None and caller.peer_id is None:
                return item, lease
        else:
            token = check_token(token)
        if held.lease_id == token.lease_id and held.attempt == token.attempt:
            _check_holder(lease, token, caller)
            if arrived_ms >= lease.deadline:
                raise FailedPrecondition(
                    f"the lease on item {token.sequence_id} ran out before this arrived",
                    code="error.taskqueue.lease_inactive",
                    sequenceId=token.sequence_id,
                )
            return item, lease
    else:
        token = check_token(token)
    past = state.ended.find(token.sequence_id, token.lease_id)
    if past is None or past.token.attempt != token.attempt:
        raise FailedPrecondition(
            f"no lease of item {token.sequence_id} is known under this token; if it was acknowledged long ago, "
            "the outcome stands but is no longer remembered",
            code="error.resourcelease.unknown_token",
            sequenceId=token.sequence_id,
        )
    _check_holder(past, token, caller)
    if past.verb != verb:
        how = f"was ended by {VERB_NAMES[past.verb]}" if VERB_NAMES[past.verb] else "was lost"
        raise FailedPrecondition(
            f"the lease on item {token.sequence_id} {how}",
            code="error.taskqueue.lease_inactive",
            sequenceId=token.sequence_id,
        )
    return None, past


def _check_holder(lease: Lease, token: Any, caller: Any) -> None:
    # Both as anything, as above: a fence or a name of a wrong type is another one, with compiled code too.
    fence = token.fence
    if fence is not None and fence != lease.token.fence:
        raise FailedPrecondition(
            f"the fence of item {token.sequence_id} is {lease.token.fence}, not {token.fence}",
            code="error.resourcelease.fence_mismatch",
            sequenceId=token.sequence_id,
            fence=lease.token.fence,
        )
    if lease.principal is not None:
        mine = caller.principal == lease.principal
    else:
        mine = caller.peer_id is None or caller.peer_id == lease.owner
    if not mine:
        raise PermissionDenied(
            f"item {token.sequence_id} is leased to {lease.owner or 'another peer'}",
            code="error.resourcelease.not_owner",
            sequenceId=token.sequence_id,
        )


def decide_heartbeat(
    state: State, command: ExtendLease, now_ms: int, arrived_ms: int
) -> tuple[list[ev.Event], HeartbeatAnswer]:
    """A heartbeat before its time extends nothing and says so; the first one is always written down,
    because it is the proof that the grant was delivered."""
    asked: Any = command
    item, lease = find_lease(state, asked.token, command.caller, arrived_ms, -1)
    assert item is not None, "no lease ends by a heartbeat"
    progress = ev.NO_PROGRESS if asked.progress is None else msgspec.Raw(encode_progress(asked.progress))
    interval = heartbeat_interval(state.options, lease.duration)
    # Counted from the last extension, not from the last heartbeat: one that only brings progress extends nothing.
    due = now_ms >= lease.deadline - lease.duration + interval
    deadline = lease.deadline
    if due and now_ms + lease.duration > deadline:
        deadline = now_ms + lease.duration
    events: list[ev.Event] = []
    if due or command.progress is not None or not lease.heartbeat_at:
        events.append(
            ev.Heartbeat(
                sequence_number=state.sequence + 1,
                timestamp=now_ms,
                ownership=lease.token,
                expires_at=deadline,
                progress=progress,
            )
        )
    trail = item.trail
    return events, HeartbeatAnswer(
        deadline != lease.deadline,
        deadline,
        deadline - now_ms,
        interval,
        trail is not None and trail.cancel_requested,
    )


def decide_complete(
    state: State, command: CompleteItem, now_ms: int, arrived_ms: int
) -> tuple[list[ev.Event], CompleteAnswer]:
    asked: Any = command
    item, lease = find_lease(state, asked.token, command.caller, arrived_ms, COMPLETE)
    if item is None:
        return [], CompleteAnswer(lease.follow_up_ids)
    sequence = state.sequence + 1
    if command.plain:
        return [ev.Completed(sequence_number=sequence, timestamp=now_ms, ownership=lease.token)], PLAIN_COMPLETE
    check_completion(command, state.options)
    if asked.follow_ups:
        check_batch(asked.follow_ups, state.options.body_limit, caller_bytes(command.caller))
    events: list[ev.Event] = []
    follow_up_ids: list[int] | None = None
    if command.follow_ups:
        results = plan_items(state, command.follow_ups, now_ms, command.caller, item.sequence_id, sequence, events)
        size = sum(size_of(event.payload) for event in events if type(event) is ev.Enqueue)
        _check_reserve(state, len(events) - 1, size - item.size)
        follow_up_ids = [result.sequence_id for result in results]
    completed = ev.Completed(
        sequence_number=sequence,
        timestamp=now_ms,
        ownership=lease.token,
        result=command.result,
        result_encoding=command.result_encoding,
        follow_up_ids=follow_up_ids,
    )
    events.insert(0, completed)
    check_storable(events)
    return events, CompleteAnswer(follow_up_ids)


PLAIN_COMPLETE = CompleteAnswer()


def _check_reserve(state: State, items: int, size: int) -> None:
    """Refuse growth beyond capacity and reserve; what does not grow passes, although capacity may have been lowered."""
    options = state.options
    too_many = items > 0 and state.live_count + items > options.items_max
    if too_many or (size > 0 and state.live_bytes + size > options.bytes_max):
        raise ResourceExhausted(
            f"the reserve above capacity is used up; {items + 1} follow-ups do not fit",
            retry_after_ms=RETRY_AFTER_MS,
            capacity=options.capacity,
            itemsMax=options.items_max,
        )


def decide_fail(state: State, command: FailItem, now_ms: int, arrived_ms: int) -> tuple[list[ev.Event], FailAnswer]:
    asked: Any = command
    item, lease = find_lease(state, asked.token, command.caller, arrived_ms, FAIL)
    if item is None:
        return [], FailAnswer(STATE_NAMES[lease.answer_state], lease.answer_not_before)
    check_failure(command)
    error = ErrorInfo(
        DEFAULT_ERROR.message if command.reason is None else command.reason,
        command.error_code or DEFAULT_ERROR.code,
    )
    trail = item.trail
    cancel = trail is not None and trail.cancel_requested
    attempts = _attempts_max(state, item)
    used_up = command.mode == "retry" and _attempts_made(item) >= attempts
    stays = not cancel and command.mode != "dead" and not used_up
    not_before: int | None = None
    if stays:
        not_before = _pending_from(state, item, command.delay_ms, command.mode == "retry", now_ms)
    failed = ev.Failed(
        sequence_number=state.sequence + 1,
        timestamp=now_ms,
        ownership=lease.token,
        error=error,
        mode=command.mode,
        next_attempt=item.attempt + 1 if stays and command.mode == "retry" else None,
        not_before=not_before,
        metadata=command.metadata or None,
    )
    check_storable([failed])
    if cancel:
        return [failed, _cancelled(state, item, now_ms)], FailAnswer("cancelled")
    if used_up:
        error = ErrorInfo(f"failed {attempts} of {attempts} times", OUT_OF_ATTEMPTS)
    if not stays:
        return [failed, _dead(state, item, error, now_ms)], FailAnswer("dead")
    return [failed], FailAnswer("ready" if not_before is None else "delayed", not_before)


def decide_release(
    state: State, command: ReleaseItem, now_ms: int, arrived_ms: int
) -> tuple[list[ev.Event], FailAnswer]:
    asked: Any = command
    item, lease = find_lease(state, asked.token, command.caller, arrived_ms, RELEASE)
    if item is None:
        return [], FailAnswer(STATE_NAMES[lease.answer_state], lease.answer_not_before)
    check_release(command)
    trail = item.trail
    cancel = trail is not None and trail.cancel_requested
    not_before = None if cancel else _pending_from(state, item, command.delay_ms, False, now_ms)
    released = ev.Released(
        sequence_number=state.sequence + 1, timestamp=now_ms, ownership=lease.token, not_before=not_before
    )
    if cancel:
        return [released, _cancelled(state, item, now_ms)], FailAnswer("cancelled")
    return [released], FailAnswer("ready" if not_before is None else "delayed", not_before)


def decide_return(state: State, command: ReturnUndelivered, now_ms: int) -> tuple[list[ev.Event], None]:
    """Grants nobody received go back at once; the peer never saw them, so nothing is burned."""
    events: list[ev.Event] = []
    sequence = state.sequence
    for token in dict.fromkeys(command.tokens):
        item = state.items.get(token.sequence_id)
        lease = None if item is None else item.lease
        if item is None or lease is None or lease.token != token:
            continue
        sequence += 1
        events.append(ev.Released(sequence_number=sequence, timestamp=now_ms, ownership=lease.token, undelivered=True))
        trail = item.trail
        if trail is not None and trail.cancel_requested:
            sequence += 1
            events.append(_cancelled(state, item, now_ms, sequence))
    return events, None


def decide_expire(state: State, command: ExpireLeases, now_ms: int) -> tuple[list[ev.Event], int]:
    """Leases that ran out. Without any sign of life the grant counts as undelivered, which has its own limit."""
    events: list[ev.Event] = []
    expired = state.leased.up_to(now_ms, command.items_max)
    for item in expired:
        lease = item.lease
        assert lease is not None
        trail = item.trail
        undelivered = not lease.heartbeat_at
        cancel = trail is not None and trail.cancel_requested
        error: ErrorInfo | None = None
        if undelivered:
            lost = 1 if trail is None else trail.undelivered + 1
            if lost > state.options.max_undelivered:
                error = ErrorInfo(f"{lost} leases ran out without any sign of life", NEVER_DELIVERED)
        elif _attempts_made(item) >= _attempts_max(state, item):
            attempts = _attempts_max(state, item)
            error = ErrorInfo(f"failed {attempts} of {attempts} times, the last by expiry", OUT_OF_ATTEMPTS)
        stays = not cancel and error is None
        events.append(
            ev.Expired(
                sequence_number=state.sequence + len(events) + 1,
                timestamp=now_ms,
                ownership=lease.token,
                undelivered=undelivered,
                next_attempt=item.attempt + 1 if stays and not undelivered else None,
                not_before=_pending_from(state, item, None, not undelivered, now_ms) if stays else None,
            )
        )
        if cancel:
            events.append(_cancelled(state, item, now_ms, state.sequence + len(events) + 1))
        elif error is not None:
            events.append(_dead(state, item, error, now_ms, state.sequence + len(events) + 1))
    return events, len(expired)


def _attempts_max(state: State, item: Item) -> int:
    return state.options.max_delivery_attempts if item.max_attempts is None else item.max_attempts


def _attempts_made(item: Item) -> int:
    """Attempts since the item came in or was last redriven, the present one included."""
    return item.attempt - attempts_before(item)


def _pending_from(state: State, item: Item, delay_ms: int | None, backoff: bool, now_ms: int) -> int | None:
    """When the item may be granted again; None is at once."""
    if delay_ms is None:
        delay_ms = retry_delay(state.options, item.sequence_id, _attempts_made(item)) if backoff else 0
    return now_ms + delay_ms if delay_ms > 0 else None


def retry_delay(options: QueueOptions, sequence_id: int, attempt: int) -> int:
    """Doubling per attempt, capped, with 10 % jitter either way that is the same in every replay."""
    if options.requeue_delay_ms == 0:
        return 0
    delay = min(options.requeue_delay_ms << min(attempt - 1, 40), options.retry_delay_max_ms)
    mixed = ((sequence_id << 20) ^ attempt) * 0x9E3779B97F4A7C15 & _MIX
    mixed = (mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9 & _MIX
    return delay + delay * ((mixed >> 32) % 2001 - 1000) // 10_000


def _cancelled(state: State, item: Item, now_ms: int, sequence: int | None = None) -> ev.Cancelled:
    reason = None if item.trail is None else item.trail.cancel_reason
    return ev.Cancelled(
        sequence_number=state.sequence + 2 if sequence is None else sequence,
        timestamp=now_ms,
        sequence_id=item.sequence_id,
        reason=reason,
    )


def _dead(state: State, item: Item, error: ErrorInfo, now_ms: int, sequence: int | None = None) -> ev.DeadLettered:
    return ev.DeadLettered(
        sequence_number=state.sequence + 2 if sequence is None else sequence,
        timestamp=now_ms,
        sequence_id=item.sequence_id,
        error=error,
    )
