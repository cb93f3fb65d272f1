"""Deciding what operators and callers do with items outside the lease cycle: cancel, drain, dead letters."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from omnirelay.core import events as ev
from omnirelay.core.answers import CancelAnswer, CountAnswer, DrainAnswer
from omnirelay.core.commands import (
    CancelItem,
    DeadLetterSelection,
    DrainItems,
    EditDeadLetter,
    PurgeItems,
    RedriveItems,
)
from omnirelay.core.events import NO_PROGRESS, RestoredItem
from omnirelay.core.intake import (
    BATCH_ITEMS_MAX,
    TEXT_MAX,
    TIME_MAX_MS,
    check_payload,
    check_required_number,
    check_text,
    refuse,
)
from omnirelay.core.items import COMPLETED, DEAD, LEASED, STATE_NAMES, Item, attempts_before
from omnirelay.core.options import COMMAND_BYTES_MAX, UNDELIVERED_MAX
from omnirelay.core.rules.pausing import RETRY_AFTER_MS
from omnirelay.core.rules.restoring import check_restorable, restored_bytes
from omnirelay.core.state import State
from omnirelay.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted

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


# -- drain -------------------------------------------------------------------------------------


def decide_drain(state: State, command: DrainItems, now_ms: int) -> tuple[list[ev.Event], DrainAnswer]:
    """A page of pending items leaves the shard in the answer. Leased ones stay with their owners.

    An item that no shard would take in again stays, too, and when there is nothing else it is named.
    """
    check_required_number("maxItems", command.items_max, 1, BATCH_ITEMS_MAX)
    if type(command.pause_intake) is not bool:
        refuse("pauseIntake", "must be true or false")
    page: list[RestoredItem] = []
    size = 0
    stuck: tuple[int, str] | None = None
    for item in _pending(state):
        drained = pending_item(state, item)
        try:
            check_restorable(drained)
        except InvalidArgument as error:
            stuck = item.sequence_id, error.message
            continue
        size += restored_bytes(drained)
        # A page can be restored in one call, so it keeps to what one call may carry.
        if len(page) >= command.items_max or (page and size > COMMAND_BYTES_MAX):
            break
        page.append(drained)
    if stuck is not None and not page:
        raise FailedPrecondition(
            f"item {stuck[0]} cannot be drained, no shard would take it in again: {stuck[1]}", sequenceId=stuck[0]
        )
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
        attempt_floor=attempts_before(item),
        undelivered=0 if trail is None else min(max(trail.undelivered, 0), UNDELIVERED_MAX),
    )


# -- dead letters ------------------------------------------------------------------------------


def decide_edit(state: State, command: EditDeadLetter, now_ms: int) -> tuple[list[ev.Event], None]:
    """Another payload for the same item: what that is known by stays, and no other id is shown that finds nothing."""
    item = find_item(state, command.sequence_id)
    if item.state != DEAD:
        refuse("sequenceId", f"must be a dead letter; item {item.sequence_id} is {STATE_NAMES[item.state]}")
    check_payload(command.payload, state.options.body_limit)
    payload, request_id = command.payload, item.payload.request_id
    if payload.request_id is None and request_id is not None:
        payload = msgspec.structs.replace(payload, request_id=request_id)
    elif payload.request_id != request_id:
        refuse("requestId", f"must be left out, or be that of item {item.sequence_id}: an edit does not change it")
    edited = ev.DeadLetterEdited(
        sequence_number=state.sequence + 1,
        timestamp=now_ms,
        sequence_id=item.sequence_id,
        payload=payload,
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
        later = [now_ms + int((command.already + i) * 1000 / rate) for i in range(len(fitting))]
        not_before = [min(each, TIME_MAX_MS) for each in later]
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


def count_selected(state: State, selection: DeadLetterSelection) -> CountAnswer:
    """How many are meant, as far as one step looks, and where the next goes on."""
    chosen, go_on = _select(state, selection)
    return CountAnswer(len(chosen), go_on)


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
