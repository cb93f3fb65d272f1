"""Deciding whether items may come in."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Final, NoReturn

from msgspec.structs import astuple

from omnirelay.core import events as ev
from omnirelay.core.answers import EnqueueAnswer, EnqueueResult
from omnirelay.core.batches import check_batch
from omnirelay.core.commands import EnqueueItems
from omnirelay.core.intake import caller_bytes, payload_digest, refuse, request_key
from omnirelay.core.items import size_of
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, NewItem
from omnirelay.core.rules.closing import check_backpressure
from omnirelay.core.rules.pausing import RETRY_AFTER_MS, check_intake
from omnirelay.core.state import State
from omnirelay.errors import AlreadyExists, RequestIdsFull, ResourceExhausted

# What is asked for with every item; compiled code would look a name up in its module each time.
_astuple: Final = astuple
_ENQUEUE: Final = ev.Enqueue
_ENQUEUE_RESULT: Final = EnqueueResult


def decide_enqueue(state: State, command: EnqueueItems, now_ms: int) -> tuple[list[ev.Event], EnqueueAnswer]:
    size, _ = check_items(state, command)
    return plan_enqueue(state, command, size, now_ms)


def check_items(state: State, command: EnqueueItems) -> tuple[int, bool]:
    """The bytes of the items, and whether all of them are plain; raises for a bad one."""
    asked: Any = command
    return check_batch(asked.items, state.options.body_limit, caller_bytes(command.caller))


def is_open_for(state: State, count: int, size: int) -> bool:
    """Whether nothing at all stands in the way of so many new items."""
    options = state.options
    return (
        not state.pauses
        and not state.backpressure
        and not state.closures
        and state.live_count + count <= options.capacity
        and state.live_bytes + size <= options.capacity_bytes
    )


def plan_enqueue(state: State, command: EnqueueItems, size: int, now_ms: int) -> tuple[list[ev.Event], EnqueueAnswer]:
    """Decide about items that are good in themselves and have so many bytes."""
    options = state.options
    items = command.items
    events: list[ev.Event] = []
    results = plan_items(state, items, now_ms, command.caller, None, state.sequence, events)
    if len(events) < len(items):
        # Repeats of items that are in already need no room.
        size = sum(size_of(event.payload) for event in events if type(event) is ev.Enqueue)
    if len(events) > options.capacity or size > options.capacity_bytes:
        _refuse_size(options, len(events), size)
    if events and state.pauses:
        check_intake(state, items, results)
    if events and (state.backpressure or state.closures):
        check_backpressure(state)
    if events and (
        state.live_count + len(events) > options.capacity or state.live_bytes + size > options.capacity_bytes
    ):
        raise ResourceExhausted(
            f"the shard holds {state.live_count} items and {state.live_bytes} bytes, "
            f"and {len(events)} more with {size} bytes do not fit; "
            "try again when some are completed, or raise capacity",
            retry_after_ms=RETRY_AFTER_MS,
            capacity=options.capacity,
            capacityBytes=options.capacity_bytes,
        )
    all_new = len(events) == len(items)
    return events, EnqueueAnswer(results, state.pending_count + len(events), state.leased.live, all_new)


def check_size(state: State, command: EnqueueItems) -> None:
    """Refuse a valid call that would not even fit an empty shard: no wait makes room for it."""
    options = state.options
    items = command.items
    if len(items) <= min(options.capacity, options.request_id_max) and (
        sum(size_of(item.payload) for item in items) <= options.capacity_bytes
    ):
        return
    principal = command.caller.principal
    keys: set[bytes] = set()
    count = size = 0
    for item in items:
        request_id = item.payload.request_id
        if request_id is not None:
            key = request_key(principal, request_id)
            if key in keys or key in state.requests:
                continue
            keys.add(key)
        count += 1
        size += size_of(item.payload)
    if count > options.capacity or size > options.capacity_bytes:
        _refuse_size(options, count, size)
    _check_request_count(options, len(keys))


def _refuse_size(options: QueueOptions, count: int, size: int) -> NoReturn:
    field = "items" if count > 1 else "payload"
    code = "resourcelease.payload.too_large"
    advice = "send them in several calls, or raise it" if count > 1 else "keep large data in a store, or raise it"
    if count > options.capacity:
        why = f"are {count}, and the capacity of this shard is {options.capacity}; {advice}"
        refuse(field, why, code=code, limit=options.capacity)
    why = f"has {size} bytes, and the capacity_bytes of this shard is {options.capacity_bytes}; {advice}"
    refuse(field, why, code=code, limit=options.capacity_bytes)


def _check_request_count(options: QueueOptions, wanted: int) -> None:
    if wanted > options.request_id_max:
        refuse(
            "requestId",
            f"comes with {wanted} items, and this shard remembers {options.request_id_max} at most; "
            "send fewer in one call, send without requestId, or raise request_id_max",
            limit=options.request_id_max,
        )


def is_repeat(state: State, command: EnqueueItems) -> bool:
    """Whether every item of a valid call is in already, by its request id: then the call needs no room."""
    principal = command.caller.principal
    return all(
        item.payload.request_id is not None and request_key(principal, item.payload.request_id) in state.requests
        for item in command.items
    )


def check_pauses(state: State, command: EnqueueItems) -> None:
    """Refuse a valid call whose intake is paused: that says more to its caller than how many others wait for room."""
    if not state.pauses:
        return
    principal = command.caller.principal
    known = [
        item.payload.request_id is not None and request_key(principal, item.payload.request_id) in state.requests
        for item in command.items
    ]
    check_intake(state, command.items, [EnqueueResult(0, each) for each in known])


def check_request_ids(state: State, command: EnqueueItems, now_ms: int) -> None:
    """Refuse a valid call whose new request ids cannot be remembered now: waiting for room would not help it."""
    principal = command.caller.principal
    keys: set[bytes] = set()
    for item in command.items:
        request_id = item.payload.request_id
        if request_id is not None:
            key = request_key(principal, request_id)
            if key not in state.requests:
                keys.add(key)
    check_request_room(state, len(keys), now_ms)


def plan_items(
    state: State,
    items: list[NewItem],
    now_ms: int,
    caller: Caller,
    parent: int | None,
    after_sequence: int,
    events: list[ev.Event],
) -> list[EnqueueResult]:
    """Append an Enqueue event per new item; one that repeats a request id gets the first one's id instead."""
    results: list[EnqueueResult] = []
    sequence = after_sequence
    sequence_id = state.next_sequence_id
    seen: dict[bytes, tuple[int, bytes]] = {}
    principal = caller.principal
    peer_id = caller.peer_id
    now: Any = now_ms  # Compiled code would make an object of it for every item.
    for index, item in enumerate(items):
        payload, priority, weight, not_before, delay_ms, max_attempts = _astuple(item)
        key: bytes | None = None
        digest: bytes | None = None
        request_id = payload.request_id
        if request_id is not None:
            key = request_key(principal, request_id)
            digest = payload_digest(payload)
            known = _known_request(state, seen, key)
            if known is not None:
                if known[1] != digest:
                    raise AlreadyExists(
                        f"requestId {request_id!r} was used for item {known[0]} with another payload; "
                        "use a new requestId for new work",
                        field="requestId",
                        index=index,
                        sequenceId=known[0],
                    )
                results.append(EnqueueResult(known[0], True))
                continue
            seen[key] = (sequence_id, digest)
        if delay_ms is not None:
            not_before = now_ms + delay_ms
        if not_before is not None and not_before <= now_ms:
            not_before = None
        sequence += 1
        number: Any = sequence_id
        events.append(
            # By place: matching this many names would cost more than all else.
            _ENQUEUE(
                number,
                payload,
                priority,
                weight,
                not_before,
                max_attempts,
                parent,
                key,
                digest,
                peer_id,
                principal,
                sequence_number=sequence,
                timestamp=now,
            )
        )
        results.append(_ENQUEUE_RESULT(number, False))
        sequence_id += 1
    if seen:
        check_request_room(state, len(seen), now_ms)
    return results


def _known_request(state: State, seen: dict[bytes, tuple[int, bytes]], key: bytes) -> tuple[int, bytes] | None:
    record = state.requests.get(key)
    if record is not None:
        return record.sequence_id, record.payload_digest
    return seen.get(key)


def check_request_room(state: State, wanted: int, now_ms: int, returning: Set[bytes] = frozenset()) -> None:
    """Refuse when remembering `wanted` more request ids would forget one too early; `returning` ones must stay too."""
    options = state.options
    _check_request_count(options, wanted)
    missing = len(state.requests) + wanted - options.request_id_max
    if missing <= 0 or not wanted:
        return
    for key, record in state.requests_ended:
        if record.ended_at + options.request_id_retention_ms > now_ms:
            break
        if state.requests.get(key) is record and key not in returning:
            missing -= 1
            if missing <= 0:
                return
    raise RequestIdsFull(
        f"{len(state.requests)} request ids are remembered and too few may be forgotten yet; "
        "try again later, send without requestId, or raise request_id_max",
        retry_after_ms=RETRY_AFTER_MS,
        field="requestId",
        limit=options.request_id_max,
    )
