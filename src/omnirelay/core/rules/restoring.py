"""Deciding how drained items come in again: here, where they were drained, or in another shard.

Numbers are a shard's own, so a number that is taken says nothing by itself. What is told apart here:

    the very item is here already                    a duplicate: counted and left alone
    its request id and payload are here already      the same: whoever repeats a request gets the first item
    its number stands for another item               comes in under a new number
    its number is beyond what numbering may jump to  the same
    its request id stands for another payload        comes in, and what is known by that request id stays so

An item that could not keep its number or its request id is remembered by its fingerprint, in the place of a request id,
so that the same call made twice brings it in once.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec

from omnirelay.core import events as ev
from omnirelay.core.answers import Renumbered, RestoreAnswer
from omnirelay.core.commands import RestoreItems
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
from omnirelay.core.items import Item, size_of
from omnirelay.core.options import BODY_LIMIT_MAX, COMMAND_BYTES_MAX, KIB, UNDELIVERED_MAX
from omnirelay.core.payload import ErrorInfo, OwnershipToken
from omnirelay.core.rules.enqueue import check_request_room
from omnirelay.core.rules.pausing import RETRY_AFTER_MS
from omnirelay.core.rules.upkeep import GENERATION_JUMP
from omnirelay.core.state import State
from omnirelay.errors import InvalidArgument, ResourceExhausted

NUMBER_MAX: Final = 1 << 62
"""Largest number taken from outside, of whatever kind: every store keeps it, with room above to count on."""
ID_KEPT_MAX: Final = 1 << 52
"""Largest id that an item brings along from elsewhere; with another it would get a new one. Numbering goes on from
there, and every JSON reader keeps what is within twice that exact."""
RESTORED_BYTES_MAX: Final = COMMAND_BYTES_MAX + 256 * KIB
"""Most bytes that one restored item may take in the log: as much as it may have been enqueued with, and beside that the
longest error and progress that it can have gathered since. A frame has room for that, too."""

_encode = msgspec.msgpack.Encoder().encode


def decide_restore(state: State, command: RestoreItems, now_ms: int) -> tuple[list[ev.Event], RestoreAnswer]:
    """All or nothing; what is there already is counted, not doubled, and nothing else is left out.

    Fences must go on rising for the store downstream: when an item brings a token from elsewhere whose
    fence this log has not reached, a generation starts first and the numbering jumps past it.
    """
    if not isinstance(command.items, list) or len(command.items) > BATCH_ITEMS_MAX:
        refuse("items", f"must be a list of at most {BATCH_ITEMS_MAX} items")
    intake = _Intake(state)
    highest_fence = 0
    for index, given in enumerate(command.items):
        try:
            item = _checked_pending_item(given, command.caller.principal, now_ms)
        except InvalidArgument as error:
            error.details["index"] = index
            raise
        token = item.last_ownership_token
        if token is not None and token.fence is not None:
            highest_fence = max(highest_fence, token.fence)
        intake.look_at(item)
    taken, renumbered = intake.numbered()
    duplicates = len(command.items) - len(taken)
    if not taken:
        return [], RestoreAnswer(0, duplicates)
    if len(taken) > 1:
        # One by itself came out of a shard, so it is left to what it really takes: these are bounds, not measures.
        check_stored(sum(restored_bytes(item) for item in taken))
    _check_room(state, len(taken), sum(size_of(item.payload) for item in taken))
    keys = {item.request_key for item in taken if item.request_key is not None}
    check_request_room(state, len(keys - state.requests.keys()), now_ms, keys)
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
    return events, RestoreAnswer(len(taken), duplicates, renumbered)


class _Intake:
    """Sorts the items of one call: duplicates, those that keep their number, those that need another."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._taken: list[RestoredItem] = []
        self._fingerprints: dict[bytes, int] = {}
        """Where in `_taken` an item is, by its fingerprint."""
        self._kept: set[int] = set()
        self._moving: set[int] = set()
        """Places in `_taken` of those whose number is another's."""
        self._keys: dict[bytes, bytes | None] = {}
        """Request keys of the call, and the payload digests that came with them."""

    def look_at(self, item: RestoredItem) -> None:
        mark = fingerprint(item)
        if mark in self._fingerprints or self._is_here(item, mark):
            return
        key, digest = item.request_key, item.payload_digest
        if key is not None:
            if key in self._keys:
                if self._keys[key] == digest:
                    return
                key = None
            else:
                record = self._state.requests.get(key)
                if record is not None and record.payload_digest != digest:
                    key = None
                elif record is not None and record.sequence_id in self._state.items:
                    return
        if key is None and item.request_key is not None:
            item.request_key, item.payload_digest = mark, payload_digest(item.payload)
        place = len(self._taken)
        self._fingerprints[mark] = place
        number = item.sequence_id
        beyond = number > ID_KEPT_MAX and number >= self._state.next_sequence_id
        if beyond or number in self._state.items or number in self._kept:
            self._moving.add(place)
        else:
            self._kept.add(number)
        if item.request_key is not None:
            self._keys[item.request_key] = item.payload_digest
        self._taken.append(item)

    def _is_here(self, item: RestoredItem, mark: bytes) -> bool:
        known = self._state.items.get(item.sequence_id)
        if known is not None and known.enqueued_at == item.enqueued_at and fingerprint(known) == mark:
            # One that came in under another number bears the fingerprint it had there. It may be like this one in all
            # else: items of one moment for one resource are.
            moved_here = item.request_key is None and known.request_key is not None and known.request_key != mark
            if not moved_here:
                return True
        record = self._state.requests.get(mark)
        return record is not None and record.sequence_id in self._state.items

    def numbered(self) -> tuple[list[RestoredItem], list[Renumbered]]:
        """The items that come in, each under a number that is free."""
        moving = self._moving
        if not moving:
            self._spare_memory()
            return self._taken, []
        taken = self._taken
        if self._state.options.ordering == "fifo":
            # Numbers are the order of a queue: nobody may get before the one that he stood behind.
            first = min(taken[place].sequence_id for place in moving)
            moving = {place for place, item in enumerate(taken) if place in moving or item.sequence_id > first}
        kept = (item.sequence_id for place, item in enumerate(taken) if place not in moving)
        number = max(self._state.next_sequence_id, max(kept, default=0) + 1)
        marks = {place: mark for mark, place in self._fingerprints.items()}
        renumbered: list[Renumbered] = []
        for place in sorted(moving, key=lambda place: (taken[place].sequence_id, place)):
            item = taken[place]
            if item.sequence_id != number:
                renumbered.append(Renumbered(item.sequence_id, number))
                item.sequence_id = number
                if item.request_key is None:
                    item.request_key, item.payload_digest = marks[place], payload_digest(item.payload)
            number += 1
        self._spare_memory()
        return taken, renumbered

    def _spare_memory(self) -> None:
        """Where so many fingerprints can never be remembered, items come in without: better twice than never."""
        known = self._state.requests
        wanted = {item.request_key for item in self._taken if item.request_key not in known} - {None}
        if len(wanted) > self._state.options.request_id_max:
            for item in self._taken:
                if item.request_key in self._fingerprints:
                    item.request_key = item.payload_digest = None


def fingerprint(item: RestoredItem | Item) -> bytes:
    """16 bytes of what an item has for life: two items of different shards share their number at most."""
    return blake2b(
        _encode(
            (
                item.sequence_id,
                item.enqueued_at,
                item.priority,
                item.weight,
                item.max_attempts,
                item.payload.request_id,
                payload_digest(item.payload),
            )
        ),
        digest_size=DIGEST_BYTES,
        person=b"restored item",
    ).digest()


def _checked_pending_item(given: RestoredItem, principal: str | None, now_ms: int) -> RestoredItem:
    if not isinstance(given, RestoredItem):
        refuse("items", "must not have empty elements", code="resourcelease.restore.pending_item_required")
    check_payload(given.payload, BODY_LIMIT_MAX)
    check_restorable(given)
    check_required_number("enqueuedAt", given.enqueued_at, 0, TIME_MAX_MS)
    check_required_number("priority", given.priority, 0, 9)
    check_required_number("weight", given.weight, 1, WEIGHT_MAX)
    check_number("notBefore", given.not_before, 0, TIME_MAX_MS)
    check_number("maxAttempts", given.max_attempts, 1, ATTEMPTS_MAX)
    if given.last_error is not None:
        if type(given.last_error) is not ErrorInfo:
            refuse("lastError", "must be an error")
        if type(given.last_error.message) is not str:
            refuse("lastError", "must have a message")
        check_text("lastError", given.last_error.message, TEXT_MAX)
        check_text("lastError", given.last_error.code)
    token = given.last_ownership_token
    if token is not None:
        if type(token.lease_id) is not str:
            refuse("lastOwnershipToken", "must have a leaseId")
        check_name("lastOwnershipToken", token.lease_id, CALLER_MAX)
    _check_past_progress(given.progress)
    key, digest = given.request_key, given.payload_digest
    for field, value in (("requestKey", key), ("payloadDigest", digest)):
        if value is not None and (type(value) is not bytes or len(value) != DIGEST_BYTES):
            refuse(field, f"must be {DIGEST_BYTES} bytes")
    if given.payload.request_id is not None:
        key = key or request_key(principal, given.payload.request_id)
    if key is not None:
        digest = digest or payload_digest(given.payload)
    not_before = given.not_before
    if not_before is not None and not_before <= now_ms:
        not_before = None
    # An empty progress must be the very value that stands for none, or it would be written as nothing at all.
    progress = given.progress if bytes(given.progress) else NO_PROGRESS
    return msgspec.structs.replace(
        given, request_key=key, payload_digest=digest, not_before=not_before, progress=progress
    )


def check_restorable(item: RestoredItem) -> None:
    """Refuse numbers that no shard would take, of those that a shard counts on by itself."""
    check_required_number("sequenceId", item.sequence_id, 1, NUMBER_MAX)
    check_required_number("attempt", item.attempt, 1, NUMBER_MAX)
    # An attempt is always the first or a later one since the last redrive: what retries wait for is counted from there.
    check_required_number("attemptFloor", item.attempt_floor, 0, item.attempt - 1)
    check_required_number("undelivered", item.undelivered, 0, UNDELIVERED_MAX)
    check_number("parentSequenceId", item.parent_sequence_id, 1, NUMBER_MAX)
    token = item.last_ownership_token
    if token is not None:
        if type(token) is not OwnershipToken:
            refuse("lastOwnershipToken", "must be a token")
        check_required_number("lastOwnershipToken", token.sequence_id, 1, NUMBER_MAX)
        check_required_number("lastOwnershipToken", token.attempt, 1, NUMBER_MAX)
        check_number("lastOwnershipToken", token.fence, 0, NUMBER_MAX)


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


def restored_bytes(item: RestoredItem) -> int:
    """No less than what the item takes in a RestoreSnapshot event."""
    stored = stored_bytes(item.payload) + len(bytes(item.progress)) + 512
    if item.last_error is not None:
        stored += 4 * (len(item.last_error.message) + len(item.last_error.code or ""))
    if item.last_ownership_token is not None:
        stored += 4 * len(item.last_ownership_token.lease_id)
    return stored


def _check_room(state: State, items: int, size: int) -> None:
    options = state.options
    if state.live_count + items > options.items_max or state.live_bytes + size > options.bytes_max:
        raise ResourceExhausted(
            f"{items} items do not fit: {state.live_count} are here, capacity and reserve are {options.items_max}",
            retry_after_ms=RETRY_AFTER_MS,
            itemsMax=options.items_max,
        )
