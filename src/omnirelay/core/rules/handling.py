"""Deciding what operators and callers do with items outside the lease cycle: cancel, drain, restore, dead letters."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from omnirelay.core import events as ev
from omnirelay.core.answers import CancelAnswer, CountAnswer, DrainAnswer, RestoreAnswer
from omnirelay.core.commands import (
    CancelItem,
    DeadLetterSelection,
    DrainItems,
    EditDeadLetter,
    PurgeItems,
    RedriveItems,
    RestoreItems,
)
from omnirelay.core.events import NO_PROGRESS, RestoredItem
from omnirelay.core.intake import (
    ATTEMPTS_MAX,
    BATCH_ITEMS_MAX,
    CALLER_MAX,
    DIGEST_BYTES,
    PROGRESS_BYTES_MAX,
    TEXT_MAX,
    TIME_MAX_MS,
    WEIGHT_MAX,
    check_name,
    check_nesting,
    check_number,
    check_payload,
    check_required_number,
    check_stored,
    check_text,
    payload_digest,
    refuse,
    request_key,
    stored_bytes,
)
from omnirelay.core.items import COMPLETED, DEAD, LEASED, STATE_NAMES, Item, size_of
from omnirelay.core.options import BODY_LIMIT_MAX, COMMAND_BYTES_MAX
from omnirelay.core.payload import ErrorInfo, OwnershipToken
from omnirelay.core.rules.enqueue import check_request_room
from omnirelay.core.rules.pausing import RETRY_AFTER_MS
from omnirelay.core.rules.upkeep import GENERATION_JUMP
from omnirelay.core.state import State
from omnirelay.errors import InvalidArgument, NotFound, ResourceExhausted

NUMBER_MAX = 1 << 53
"""Largest id taken from outside: every JSON reader keeps it exact."""
FENCE_MAX = 1 << 52
"""Largest fence from another log: numbering jumps past it and must stay within NUMBER_MAX."""
SCAN_MAX = 10_000
"""Most dead letters one step looks at when most of them do not match."""


def find_item(state: State, sequence_id: int) -> Item:
    item = state.items.get(sequence_id) if type(sequence_id) is int else None
    if item is None:
        raise NotFound(f"item {sequence_id} is not known here, or was forgotten", sequenceId=sequence_id)
    return item


# -- cancel ------------------------------------------------------------------------------------


def decide_cancel(state: State, command: CancelItem, now_ms: int) -> tuple[list[ev.Event], CancelAnswer]:
    """Pending: cancelled at once. Leased: the owner is asked to stop, or with `force` loses the lease."""
    item = find_item(state, command.sequence_id)
    check_text("reason", command.reason, TEXT_MAX)
    sequence = state.sequence + 1
    principal = command.caller.principal
    if item.state >= COMPLETED:
        return [], CancelAnswer(False, STATE_NAMES[item.state], False)
    if item.state == LEASED and not command.force:
        answer = CancelAnswer(True, "leased", True)
        if item.trail is not None and item.trail.cancel_requested:
            return [], answer
        return [
            ev.CancelRequested(
                sequence_number=sequence,
                timestamp=now_ms,
                sequence_id=item.sequence_id,
                reason=command.reason,
                principal=principal,
            )
        ], answer
    return [
        ev.Cancelled(
            sequence_number=sequence,
            timestamp=now_ms,
            sequence_id=item.sequence_id,
            reason=command.reason,
            principal=principal,
        )
    ], CancelAnswer(True, "cancelled", False)


# -- drain and restore -------------------------------------------------------------------------


def decide_drain(state: State, command: DrainItems, now_ms: int) -> tuple[list[ev.Event], DrainAnswer]:
    """A page of pending items leaves the shard in the answer. Leased ones stay with their owners."""
    check_required_number("maxItems", command.items_max, 1, BATCH_ITEMS_MAX)
    if type(command.pause_intake) is not bool:
        refuse("pauseIntake", "must be true or false")
    page: list[RestoredItem] = []
    size = 0
    for item in _pending(state):
        drained = pending_item(state, item)
        size += _restored_bytes(drained)
        # A page can be restored in one call, so it keeps to what one call may carry.
        if len(page) >= command.items_max or (page and size > COMMAND_BYTES_MAX):
            break
        page.append(drained)
    events: list[ev.Event] = []
    sequence = state.sequence
    if command.pause_intake:
        sequence += 1
        events.append(
            ev.Paused(
                sequence_number=sequence,
                timestamp=now_ms,
                intake=True,
                reason="drain",
                principal=command.caller.principal,
            )
        )
    if page:
        events.append(
            ev.DrainSnapshot(
                sequence_number=sequence + 1,
                timestamp=now_ms,
                sequence_ids=[item.sequence_id for item in page],
                principal=command.caller.principal,
            )
        )
    return events, DrainAnswer(page, state.pending_count - len(page))


def _pending(state: State) -> Iterator[Item]:
    yield from state.ready
    yield from state.delayed


def pending_item(state: State, item: Item) -> RestoredItem:
    trail = item.trail
    record = None if item.request_key is None else state.requests.get(item.request_key)
    return RestoredItem(
        sequence_id=item.sequence_id,
        payload=item.payload,
        attempt=item.attempt,
        enqueued_at=item.enqueued_at,
        priority=item.priority,
        weight=item.weight,
        not_before=item.not_before,
        max_attempts=item.max_attempts,
        last_error=None if trail is None else trail.last_error,
        last_ownership_token=None if trail is None else trail.last_token,
        progress=NO_PROGRESS if trail is None or trail.progress is None else msgspec.Raw(trail.progress),
        parent_sequence_id=None if trail is None else trail.parent,
        request_key=item.request_key,
        payload_digest=None if record is None else record.payload_digest,
        attempt_floor=0 if trail is None else trail.attempt_floor,
        undelivered=0 if trail is None else trail.undelivered,
    )


def decide_restore(state: State, command: RestoreItems, now_ms: int) -> tuple[list[ev.Event], RestoreAnswer]:
    """All or nothing; what is there already is counted, not doubled.

    Fences must go on rising for the store downstream: when an item brings a token from elsewhere whose
    fence this log has not reached, a generation starts first and the numbering jumps past it.
    """
    if not isinstance(command.items, list) or len(command.items) > BATCH_ITEMS_MAX:
        refuse("items", f"must be a list of at most {BATCH_ITEMS_MAX} items")
    taken: list[RestoredItem] = []
    ids: set[int] = set()
    keys: set[bytes] = set()
    size = 0
    stored = 0
    highest_fence = 0
    for index, given in enumerate(command.items):
        try:
            item = _checked_pending_item(state, given, command.caller.principal, now_ms)
        except InvalidArgument as error:
            error.details["index"] = index
            raise
        token = item.last_ownership_token
        if token is not None and token.fence is not None:
            highest_fence = max(highest_fence, token.fence)
        if item.sequence_id in state.items or item.sequence_id in ids or _taken_request(state, item, keys):
            continue
        ids.add(item.sequence_id)
        if item.request_key is not None:
            keys.add(item.request_key)
        size += size_of(item.payload)
        stored += _restored_bytes(item)
        taken.append(item)
    duplicates = len(command.items) - len(taken)
    if not taken:
        return [], RestoreAnswer(0, duplicates)
    check_stored(stored)
    _check_restore_room(state, len(taken), size)
    check_request_room(state, len(keys - state.requests.keys()), now_ms, keys)
    if highest_fence > max(state.sequence, FENCE_MAX):
        refuse("lastOwnershipToken", f"must have a fence of at most {FENCE_MAX}")
    events: list[ev.Event] = []
    sequence = state.sequence
    if highest_fence > sequence:
        sequence = highest_fence + GENERATION_JUMP
        events.append(
            ev.GenerationStarted(
                sequence_number=sequence,
                timestamp=now_ms,
                generation=state.generation + 1,
                reason="restored items bring fences from another log",
                next_sequence_id=state.next_sequence_id,
            )
        )
    events.append(
        ev.RestoreSnapshot(
            sequence_number=sequence + 1,
            timestamp=now_ms,
            items=taken,
            principal=command.caller.principal,
        )
    )
    return events, RestoreAnswer(len(taken), duplicates)


def _checked_pending_item(state: State, given: RestoredItem, principal: str | None, now_ms: int) -> RestoredItem:
    if not isinstance(given, RestoredItem):
        refuse("items", "must not have empty elements", code="resourcelease.restore.pending_item_required")
    check_payload(given.payload, BODY_LIMIT_MAX)
    check_required_number("sequenceId", given.sequence_id, 1, NUMBER_MAX)
    check_required_number("attempt", given.attempt, 1, ATTEMPTS_MAX)
    check_required_number("enqueuedAt", given.enqueued_at, 0, TIME_MAX_MS)
    check_required_number("priority", given.priority, 0, 9)
    check_required_number("weight", given.weight, 1, WEIGHT_MAX)
    check_number("notBefore", given.not_before, 0, TIME_MAX_MS)
    check_number("maxAttempts", given.max_attempts, 1, ATTEMPTS_MAX)
    check_number("parentSequenceId", given.parent_sequence_id, 1, NUMBER_MAX)
    if given.last_error is not None:
        if type(given.last_error) is not ErrorInfo:
            refuse("lastError", "must be an error")
        check_text("lastError", given.last_error.message, TEXT_MAX)
        check_text("lastError", given.last_error.code)
    _check_past_token(given.last_ownership_token)
    _check_past_progress(given.progress)
    key, digest = given.request_key, given.payload_digest
    for field, value in (("requestKey", key), ("payloadDigest", digest)):
        if value is not None and (type(value) is not bytes or len(value) != DIGEST_BYTES):
            refuse(field, f"must be {DIGEST_BYTES} bytes")
    if given.payload.request_id is not None:
        digest = digest or payload_digest(given.payload)
        key = key or request_key(principal, given.payload.request_id)
    not_before = given.not_before
    if not_before is not None and not_before <= now_ms:
        not_before = None
    # An empty progress must be the very value that stands for none, or it would be written as nothing at all.
    progress = given.progress if bytes(given.progress) else NO_PROGRESS
    return msgspec.structs.replace(
        given, request_key=key, payload_digest=digest, not_before=not_before, progress=progress
    )


def _check_past_token(token: OwnershipToken | None) -> None:
    if token is None:
        return
    if type(token) is not OwnershipToken:
        refuse("lastOwnershipToken", "must be a token")
    check_required_number("lastOwnershipToken", token.sequence_id, 1, NUMBER_MAX)
    check_required_number("lastOwnershipToken", token.attempt, 1, ATTEMPTS_MAX)
    check_number("lastOwnershipToken", token.fence, 0, NUMBER_MAX)
    check_name("lastOwnershipToken", token.lease_id, CALLER_MAX)


def _check_past_progress(progress: msgspec.Raw) -> None:
    encoded = bytes(progress)
    if len(encoded) > PROGRESS_BYTES_MAX:
        refuse("progress", f"must be at most {PROGRESS_BYTES_MAX} bytes as JSON, got {len(encoded)}")
    if encoded:
        try:
            msgspec.json.decode(encoded)
        except (msgspec.DecodeError, RecursionError) as error:
            refuse("progress", f"is not JSON: {error}")
        check_nesting(encoded)


def _restored_bytes(item: RestoredItem) -> int:
    """No less than what the item takes in a RestoreSnapshot event."""
    stored = stored_bytes(item.payload) + len(bytes(item.progress)) + 512
    if item.last_error is not None:
        stored += 4 * (len(item.last_error.message) + len(item.last_error.code or ""))
    if item.last_ownership_token is not None:
        stored += 4 * len(item.last_ownership_token.lease_id)
    return stored


def _taken_request(state: State, item: RestoredItem, keys: set[bytes]) -> bool:
    """Whether the item's request id stands for another item here."""
    key = item.request_key
    if key is None:
        return False
    record = state.requests.get(key)
    return key in keys or (record is not None and record.sequence_id != item.sequence_id)


def _check_restore_room(state: State, items: int, size: int) -> None:
    options = state.options
    if state.live_count + items > options.items_max or state.live_bytes + size > options.bytes_max:
        raise ResourceExhausted(
            f"{items} items do not fit: {state.live_count} are here, capacity and reserve are {options.items_max}",
            retry_after_ms=RETRY_AFTER_MS,
            itemsMax=options.items_max,
        )


# -- dead letters ------------------------------------------------------------------------------


def decide_edit(state: State, command: EditDeadLetter, now_ms: int) -> tuple[list[ev.Event], None]:
    item = find_item(state, command.sequence_id)
    if item.state != DEAD:
        refuse("sequenceId", f"must be a dead letter; item {item.sequence_id} is {STATE_NAMES[item.state]}")
    check_payload(command.payload, state.options.body_limit)
    edited = ev.DeadLetterEdited(
        sequence_number=state.sequence + 1,
        timestamp=now_ms,
        sequence_id=item.sequence_id,
        payload=command.payload,
        principal=command.caller.principal,
    )
    return [edited], None


def decide_redrive(state: State, command: RedriveItems, now_ms: int) -> tuple[list[ev.Event], CountAnswer]:
    """Dead letters become pending again with fresh attempts; they go to the reserve above capacity."""
    rate = command.rate_per_second
    if rate is not None and (type(rate) not in (int, float) or not 0.001 <= rate <= 1_000_000):
        refuse("ratePerSecond", "must be from 0.001 to 1000000")
    chosen, go_on = _select(state, command.selection)
    if not chosen:
        return [], CountAnswer(0, go_on)
    fitting = _that_fit(state, chosen)
    if len(fitting) < len(chosen):
        if command.selection.sequence_ids is not None or not fitting:
            raise ResourceExhausted(
                f"the reserve above capacity is used up; {len(fitting)} of {len(chosen)} dead letters fit",
                retry_after_ms=RETRY_AFTER_MS,
                itemsMax=state.options.items_max,
            )
        go_on = fitting[-1].stamp
    not_before: list[int] | None = None
    if rate is not None:
        not_before = [now_ms + int((command.already + i) * 1000 / rate) for i in range(len(fitting))]
    redriven = ev.Redriven(
        sequence_number=state.sequence + 1,
        timestamp=now_ms,
        sequence_ids=[item.sequence_id for item in fitting],
        not_before=not_before,
        principal=command.caller.principal,
    )
    return [redriven], CountAnswer(len(fitting), go_on)


def _that_fit(state: State, items: list[Item]) -> list[Item]:
    room = state.options.items_max - state.live_count
    room_bytes = state.options.bytes_max - state.live_bytes
    fitting: list[Item] = []
    for item in items:
        room_bytes -= item.size
        if len(fitting) >= room or room_bytes < 0:
            break
        fitting.append(item)
    return fitting


def decide_purge(state: State, command: PurgeItems, now_ms: int) -> tuple[list[ev.Event], CountAnswer]:
    chosen, go_on = _select(state, command.selection)
    if not chosen:
        return [], CountAnswer(0, go_on)
    purged = ev.Purged(
        sequence_number=state.sequence + 1,
        timestamp=now_ms,
        sequence_ids=[item.sequence_id for item in chosen],
        principal=command.caller.principal,
    )
    return [purged], CountAnswer(len(chosen), go_on)


def _select(state: State, selection: DeadLetterSelection) -> tuple[list[Item], int | None]:
    """The dead letters meant, oldest first, and where to go on looking (None: nothing is left)."""
    given = (
        selection.sequence_ids is not None,
        selection.resource_type is not None,
        selection.error_code is not None,
        bool(selection.everything),
    )
    if sum(given) != 1:
        refuse("selection", "must be exactly one of sequenceIds, resourceType, errorCode, all")
    if selection.sequence_ids is not None:
        return _select_named(state, selection.sequence_ids), None
    chosen: list[Item] = []
    last = selection.after
    for looked_at, item in enumerate(state.dead.after(selection.after)):
        if looked_at >= SCAN_MAX or len(chosen) >= selection.items_max:
            return chosen, last
        last = item.stamp
        if matches(item, selection.resource_type, selection.error_code):
            chosen.append(item)
    return chosen, None


def _select_named(state: State, sequence_ids: list[int]) -> list[Item]:
    if not isinstance(sequence_ids, list) or len(sequence_ids) > BATCH_ITEMS_MAX:
        refuse("sequenceIds", f"must be a list of at most {BATCH_ITEMS_MAX} ids")
    chosen: list[Item] = []
    for sequence_id in dict.fromkeys(sequence_ids):
        item = find_item(state, sequence_id)
        if item.state != DEAD:
            raise NotFound(
                f"item {sequence_id} is not a dead letter, it is {STATE_NAMES[item.state]}",
                sequenceId=sequence_id,
            )
        chosen.append(item)
    return chosen


def matches(item: Item, resource_type: str | None, error_code: str | None) -> bool:
    if resource_type is not None and item.payload.resource_type != resource_type:
        return False
    if error_code is None:
        return True
    error = None if item.trail is None else item.trail.last_error
    return error is not None and error.code == error_code
