"""Plants for the replay: what no node decides, although each event by itself finds its item as it has to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omnirelay.core import events as ev
from omnirelay.core.items import LEASED, READY, Item
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import ErrorInfo, OwnershipToken
from omnirelay.core.rules.upkeep import GENERATION_JUMP
from omnirelay.log.base import Frame
from tests.spark.audit_plants import OPTIONS, Log, enqueued, grant

HOUR_MS = QueueOptions().max_lease_duration_ms


def _leased(log: Log) -> tuple[Item, OwnershipToken]:
    item = log.item(LEASED)
    assert item.lease is not None
    return item, item.lease.token


def _about_lease(log: Log, kind: type[Any], at: int = 0, **fields: Any) -> Any:
    """An event that the owner of the live lease brought about, `at` places behind the next one."""
    _, token = _leased(log)
    when = {"sequence_number": log.next + at, "timestamp": log.state.time + 1}
    return kind(**{"ownership": token, **when, **fields})


def _failed(log: Log, at: int = 0, **fields: Any) -> ev.Failed:
    event: ev.Failed = _about_lease(log, ev.Failed, at, **{"error": ErrorInfo("no"), "mode": "dead", **fields})
    return event


def _about_item(log: Log, kind: type[Any], at: int = 0, **fields: Any) -> Any:
    item, _ = _leased(log)
    when = {"sequence_number": log.next + at, "timestamp": log.state.time + 1}
    return kind(**{"sequence_id": item.sequence_id, **when, **fields})


def _dead_letter(log: Log, at: int = 0) -> ev.DeadLettered:
    event: ev.DeadLettered = _about_item(log, ev.DeadLettered, at, error=ErrorInfo("no"))
    return event


# -- how long leases are ---------------------------------------------------------------------------


def ended_before_it_began(log: Log) -> tuple[Frame, int]:
    return log.frame([grant(log, log.item(READY), duration_ms=-5)]), log.next


def leased_for_too_long(log: Log) -> tuple[Frame, int]:
    return log.frame([grant(log, log.item(READY), duration_ms=HOUR_MS + 1)]), log.next


def leased_for_longer_than_options_changed_to(log: Log) -> tuple[Frame, int]:
    """What was allowed before, and no longer is."""
    changed = QueueOptions(lease_duration_ms=1_000, max_lease_duration_ms=2_000, capacity=40, reserve=0)
    events: list[ev.Event] = [
        ev.OptionsChanged(sequence_number=log.next, timestamp=log.state.time + 1, options=changed),
        grant(log, log.item(READY), sequence=log.next + 1, duration_ms=2_001),
    ]
    return log.frame(events), log.next + 1


def renewed_for_too_long(log: Log) -> tuple[Frame, int]:
    return log.frame([_about_lease(log, ev.Heartbeat, expires_at=log.state.time + 10 * HOUR_MS)]), log.next


def renewed_for_less(log: Log) -> tuple[Frame, int]:
    item, _ = _leased(log)
    assert item.lease is not None
    return log.frame([_about_lease(log, ev.Heartbeat, expires_at=item.lease.deadline - 1)]), log.next


# -- what belongs together -------------------------------------------------------------------------


def dead_without_a_letter(log: Log) -> tuple[Frame, int]:
    behind = ev.TimeAdvanced(sequence_number=log.next + 1, timestamp=log.state.time + 1)
    return log.frame([_failed(log), behind]), log.next


def last_attempt_without_a_letter(log: Log) -> tuple[Frame, int]:
    """None is to follow, and the item is pending all the same."""
    one_only = QueueOptions(max_delivery_attempts=1, capacity=40, reserve=0)
    events: list[ev.Event] = [
        ev.OptionsChanged(sequence_number=log.next, timestamp=log.state.time + 1, options=one_only),
        _failed(log, 1, mode="retry"),
    ]
    return log.frame(events), log.next + 1


def dead_letter_of_nothing(log: Log) -> tuple[Frame, int]:
    number = log.item(READY).sequence_id
    when = {"sequence_number": log.next, "timestamp": log.state.time + 1}
    return log.frame([ev.DeadLettered(sequence_id=number, error=ErrorInfo("no"), **when)]), log.next


def requested_and_not_cancelled(log: Log) -> tuple[Frame, int]:
    """The owner was asked to stop and did, and the item goes on."""
    return log.frame([_about_item(log, ev.CancelRequested), _about_lease(log, ev.Released, 1)]), log.next + 1


def follow_up_of_nowhere(log: Log) -> tuple[Frame, int]:
    return log.frame([_about_lease(log, ev.Completed, follow_up_ids=[4711])]), log.next


def follow_up_that_never_was(log: Log) -> tuple[Frame, int]:
    """A number below all there are, which no item has and no request brought in."""
    assert not log.state.requests
    return log.frame([_about_lease(log, ev.Completed, follow_up_ids=[0])]), log.next


def follow_ups_that_do_not_come(log: Log) -> tuple[Frame, int]:
    item, _ = _leased(log)
    first = log.state.next_sequence_id
    events = [
        _about_lease(log, ev.Completed, follow_up_ids=[first, first + 1]),
        enqueued(log, 1, parent_sequence_id=item.sequence_id),
    ]
    return log.frame(events), log.next


def follow_up_without_a_completion(log: Log) -> tuple[Frame, int]:
    return log.frame([enqueued(log, parent_sequence_id=log.item(LEASED).sequence_id)]), log.next


# -- numbers, pauses, lists ------------------------------------------------------------------------


def number_skipped(log: Log) -> tuple[Frame, int]:
    """Those behind it follow it, and are not held against it."""
    first = log.state.next_sequence_id + 3
    return log.frame([enqueued(log, at, sequence_id=first + at) for at in range(3)]), log.next


def _generation(log: Log, next_sequence_id: int) -> tuple[Frame, int]:
    sequence = log.state.sequence + GENERATION_JUMP
    event = ev.GenerationStarted(
        sequence_number=sequence,
        timestamp=log.state.time + 1,
        generation=log.state.generation + 1,
        reason="restored",
        next_sequence_id=next_sequence_id,
    )
    return log.frame([event]), sequence


def generation_that_gives_out_numbers_again(log: Log) -> tuple[Frame, int]:
    return _generation(log, 1)


def generation_that_skips_too_far(log: Log) -> tuple[Frame, int]:
    return _generation(log, log.state.next_sequence_id + GENERATION_JUMP + 1)


def never_paused(log: Log) -> tuple[Frame, int]:
    event = ev.Resumed(sequence_number=log.next, timestamp=log.state.time + 1, resource_type="never paused")
    return log.frame([event]), log.next


def drained_twice(log: Log) -> tuple[Frame, int]:
    number = log.item(READY).sequence_id
    event = ev.DrainSnapshot(sequence_number=log.next, timestamp=log.state.time + 1, sequence_ids=[number, number])
    return log.frame([event]), log.next


def requested_twice(log: Log) -> tuple[Frame, int]:
    return log.frame([_about_item(log, ev.CancelRequested, at) for at in range(2)]), log.next + 1


def undelivered_although_it_was_heard_of(log: Log) -> tuple[Frame, int]:
    item, _ = _leased(log)
    assert item.lease is not None
    late = item.lease.deadline + 60_000
    beat = _about_lease(log, ev.Heartbeat, expires_at=item.lease.deadline)
    expired = _about_lease(log, ev.Expired, 1, timestamp=late, undelivered=True)
    return log.frame([beat, expired]), log.next + 1


ODD: dict[str, tuple[Callable[[Log], tuple[Frame, int]], str]] = {
    "ended-before-it-began": (ended_before_it_began, "expiry"),
    "leased-for-too-long": (leased_for_too_long, "expiry"),
    "leased-for-longer-than-options-changed-to": (leased_for_longer_than_options_changed_to, "expiry"),
    "renewed-for-too-long": (renewed_for_too_long, "expiry"),
    "renewed-for-less": (renewed_for_less, "expiry"),
    "undelivered-although-it-was-heard-of": (undelivered_although_it_was_heard_of, "expiry"),
    "dead-without-a-letter": (dead_without_a_letter, "together"),
    "last-attempt-without-a-letter": (last_attempt_without_a_letter, "together"),
    "dead-letter-of-nothing": (dead_letter_of_nothing, "together"),
    "requested-and-not-cancelled": (requested_and_not_cancelled, "together"),
    "follow-up-of-nowhere": (follow_up_of_nowhere, "together"),
    "follow-up-that-never-was": (follow_up_that_never_was, "together"),
    "follow-ups-that-do-not-come": (follow_ups_that_do_not_come, "together"),
    "follow-up-without-a-completion": (follow_up_without_a_completion, "together"),
    "number-skipped": (number_skipped, "life"),
    "generation-that-gives-out-numbers-again": (generation_that_gives_out_numbers_again, "life"),
    "generation-that-skips-too-far": (generation_that_skips_too_far, "life"),
    "drained-twice": (drained_twice, "life"),
    "never-paused": (never_paused, "follows"),
    "requested-twice": (requested_twice, "follows"),
}
"""By name: the plant, and the one rule that it violates."""


# -- what may be -----------------------------------------------------------------------------------


def cancelled_by_force(log: Log) -> Frame:
    """A leased item is cancelled at once, and nobody was asked to stop before."""
    return log.frame([_about_item(log, ev.Cancelled)])


def cancelled_on_request(log: Log) -> Frame:
    events = [
        _about_item(log, ev.CancelRequested),
        _about_lease(log, ev.Released, 1),
        _about_item(log, ev.Cancelled, 2),
    ]
    return log.frame(events)


def dead_with_its_letter(log: Log) -> Frame:
    return log.frame([_failed(log), _dead_letter(log, 1)])


def follow_ups_of_now_and_before(log: Log) -> Frame:
    """A completion may name what its requests brought in before."""
    item, _ = _leased(log)
    first = log.state.next_sequence_id
    events = [
        _about_lease(log, ev.Completed, follow_up_ids=[first, log.item(READY).sequence_id, first + 1, first]),
        *(enqueued(log, 1 + at, sequence_id=first + at, parent_sequence_id=item.sequence_id) for at in range(2)),
    ]
    return log.frame(events)


def heartbeat_that_renews_nothing(log: Log) -> Frame:
    item, _ = _leased(log)
    assert item.lease is not None
    return log.frame([_about_lease(log, ev.Heartbeat, expires_at=item.lease.deadline)])


def leased_for_as_long_as_allowed(log: Log) -> Frame:
    return log.frame([grant(log, log.item(READY), duration_ms=OPTIONS.max_lease_duration_ms)])


def numbers_that_go_on_behind_a_generation(log: Log) -> Frame:
    following = log.state.next_sequence_id + GENERATION_JUMP
    sequence = log.state.sequence + GENERATION_JUMP
    started = ev.GenerationStarted(
        sequence_number=sequence,
        timestamp=log.state.time + 1,
        generation=log.state.generation + 1,
        reason="restored",
        next_sequence_id=following,
    )
    return log.frame([started, enqueued(log, sequence_number=sequence + 1, sequence_id=following)])


GOOD = (
    cancelled_by_force,
    cancelled_on_request,
    dead_with_its_letter,
    follow_ups_of_now_and_before,
    heartbeat_that_renews_nothing,
    leased_for_as_long_as_allowed,
    numbers_that_go_on_behind_a_generation,
)
