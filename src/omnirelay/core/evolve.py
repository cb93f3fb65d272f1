"""`evolve(state, event)`: the only writer of state. It cannot refuse and reads nothing else.

The same function runs live, in recovery, in replicas and in time travel, so whatever it does must
follow from the state and the event alone. Every function leaves the state settled: queue heads are
live and counters are exact, so that `decide` only has to read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from omnirelay.core import events as ev
from omnirelay.core.closures import Closure
from omnirelay.core.cycle import end_lease, evolve_completed, evolve_enqueue, evolve_granted, finish
from omnirelay.core.deadlines import Deadlines
from omnirelay.core.items import (
    CANCELLED,
    DEAD,
    DELAYED,
    FAIL,
    LEASED,
    LOST,
    READY,
    RELEASE,
    Item,
    Lease,
    intern_strings,
    size_of,
)
from omnirelay.core.pauses import Pause, scope_name
from omnirelay.core.payload import ErrorInfo
from omnirelay.core.requests import end_request, remember_request, settle_requests
from omnirelay.core.schedule import Schedule
from omnirelay.core.state import State

FORGET_MAX: Final = 10_000
"""Most memories of one kind that one TimeAdvanced event drops, so that none holds the shard up."""

_COUNTED_MAX: Final = 1 << 62

_ENQUEUE: Final[Any] = ev.Enqueue

EXPIRED_ERROR: Final = ErrorInfo("the lease ran out before an acknowledgement came", "error.taskqueue.lease_expired")
DEFAULT_ERROR: Final = ErrorInfo("lease failed", "error.resourcelease.failed")
UNSAID: Final = (EXPIRED_ERROR, DEFAULT_ERROR)
"""What stands for an owner that did not say what was wrong. When such an attempt was the last, why it was says more."""


def evolve(state: State, event: ev.Event) -> None:
    _EVOLVE[type(event)](state, event)
    state.sequence = event.sequence_number
    state.time = event.timestamp


def evolver_of(kind: type[Any]) -> Callable[[State, Any], None]:
    """What `evolve` does with an event of this type, but for its number and its time: those are for the caller to set,
    at the latest behind the last event of a frame.
    """
    return _EVOLVE[kind]


def evolve_all(state: State, events: Sequence[ev.Event]) -> None:
    """Evolve events in order. Nothing but the last one's number and time stays of those, so they are set once. When one
    of them raises, the state is worth nothing any more, but its number tells which: the next one behind it.
    """
    if events:
        event: Any
        try:
            for event in events:
                kind = type(event)
                if kind is _ENQUEUE:
                    evolve_enqueue(state, event)
                else:
                    _EVOLVE[kind](state, event)
        except Exception:
            state.sequence = event.sequence_number - 1
            raise
        state.sequence = event.sequence_number
        state.time = event.timestamp


# -- coming in from elsewhere ------------------------------------------------------------------


def _evolve_restored(state: State, event: ev.RestoreSnapshot) -> None:
    items: list[Item] = []
    for restored in event.items:
        size = intern_strings(restored.payload)
        item = Item(
            restored.sequence_id,
            restored.payload,
            READY,
            event.sequence_number,
            restored.attempt,
            restored.priority,
            restored.weight,
            restored.max_attempts,
            restored.enqueued_at,
            None,
            size,
            restored.request_key,
            restored.sequence_id,
        )
        state.items[restored.sequence_id] = item
        if restored.sequence_id >= state.next_sequence_id:
            state.next_sequence_id = restored.sequence_id + 1
        state.live_bytes += item.size
        limit = restored.max_attempts or state.options.max_delivery_attempts
        beyond = restored.attempt - restored.attempt_floor > limit
        progress = bytes(restored.progress) or None
        kept = restored.attempt_floor or restored.undelivered
        if restored.last_error or restored.last_ownership_token or progress or beyond or kept:
            trail = item.with_trail()
            trail.last_error = restored.last_error
            trail.last_token = restored.last_ownership_token
            trail.progress = progress
            trail.undelivered = restored.undelivered
            # Beyond the limit without saying why: it was redriven where it came from, so earlier attempts do not count.
            trail.attempt_floor = restored.attempt_floor or (restored.attempt - 1 if beyond else 0)
        if restored.parent_sequence_id is not None:
            item.with_trail().parent = restored.parent_sequence_id
        if restored.request_key is not None:
            remember_request(
                state,
                restored.request_key,
                restored.sequence_id,
                restored.payload_digest or b"",
            )
        _back_to_pending(state, item, restored.not_before, event.sequence_number)
        items.append(item)
    state.schedule.admit_all(items, event.timestamp)


# -- leases ------------------------------------------------------------------------------------


def _evolve_heartbeat(state: State, event: ev.Heartbeat) -> None:
    item = state.items[event.ownership.sequence_id]
    lease = _lease_of(item)
    lease.heartbeat_at = event.timestamp
    _was_delivered(item)
    progress = bytes(event.progress)
    if progress:
        item.with_trail().progress = progress
    if event.expires_at != lease.deadline:
        state.leased.leave(lease.deadline, item)
        lease.deadline = event.expires_at
        item.stamp = event.sequence_number
        state.leased.enter(event.expires_at, item)


def _evolve_failed(state: State, event: ev.Failed) -> None:
    item = state.items[event.ownership.sequence_id]
    lease = end_lease(state, item, event.timestamp, event.sequence_number, FAIL)
    _was_delivered(item)
    item.with_trail().last_error = event.error
    if event.next_attempt is not None:
        item.attempt = event.next_attempt
    _come_back(state, item, event.not_before, event)
    lease.answer_state = item.state
    lease.answer_not_before = event.not_before


def _evolve_released(state: State, event: ev.Released) -> None:
    item = state.items[event.ownership.sequence_id]
    lease = end_lease(state, item, event.timestamp, event.sequence_number, RELEASE)
    if not event.undelivered:
        _was_delivered(item)
    _come_back(state, item, event.not_before, event)
    lease.answer_state = item.state
    lease.answer_not_before = event.not_before


def _evolve_expired(state: State, event: ev.Expired) -> None:
    item = state.items[event.ownership.sequence_id]
    end_lease(state, item, event.timestamp, event.sequence_number, LOST)
    trail = item.with_trail()
    trail.last_error = EXPIRED_ERROR
    # Older versions took any count in with a restored item; one more must not be more than a snapshot can hold.
    if event.undelivered and trail.undelivered < _COUNTED_MAX:
        trail.undelivered += 1
    if event.next_attempt is not None:
        item.attempt = event.next_attempt
    _come_back(state, item, event.not_before, event)


def _was_delivered(item: Item) -> None:
    """A word of the owner: whatever was lost on the way before no longer counts, because that is counted in a row."""
    if item.trail is not None:
        item.trail.undelivered = 0


def _lease_of(item: Item) -> Lease:
    lease = item.lease
    assert lease is not None, "only a leased item can be acknowledged"
    return lease


def _back_to_pending(state: State, item: Item, not_before: int | None, stamp: int) -> None:
    item.stamp = stamp
    item.not_before = not_before
    if not_before is None:
        item.state = READY
        state.ready.enter(item)
    else:
        item.state = DELAYED
        state.delayed.push(item)


def _come_back(state: State, item: Item, not_before: int | None, event: ev.Failed | ev.Released | ev.Expired) -> None:
    """The lease has ended and the item is pending again."""
    schedule = state.schedule
    if schedule.gated:
        schedule.release(item)
    _back_to_pending(state, item, not_before, event.sequence_number)
    schedule.admit(item, event.timestamp)
    if schedule.gated:
        schedule.freed(item, event.timestamp)


# -- ends --------------------------------------------------------------------------------------


def _evolve_dead_lettered(state: State, event: ev.DeadLettered) -> None:
    item = state.items[event.sequence_id]
    trail = item.with_trail()
    if trail.last_error is None or trail.last_error in UNSAID:
        trail.last_error = event.error
    # The event before this one (Failed or Expired) put the item back to pending.
    _leave_pending(state, item, event)
    lease = state.ended.last_of(item.sequence_id)
    if lease is not None and lease.verb == FAIL:
        lease.answer_state = DEAD
        lease.answer_not_before = None
    item.state = DEAD
    item.not_before = None
    item.ended_at = event.timestamp
    state.live_bytes -= item.size
    state.dead.add(item)


def _evolve_cancelled(state: State, event: ev.Cancelled) -> None:
    item = state.items[event.sequence_id]
    leased = item.lease is not None
    if leased:
        end_lease(state, item, event.timestamp, event.sequence_number, LOST)
    else:
        _leave_pending(state, item, event)
        lease = state.ended.last_of(item.sequence_id)
        if (
            lease is not None
            and lease.verb in (FAIL, RELEASE)
            and item.trail is not None
            and item.trail.cancel_requested
        ):
            # The owner's last word on an item whose cancellation was requested: this is part of its answer.
            lease.answer_state = CANCELLED
            lease.answer_not_before = None
    if event.reason is not None:
        item.with_trail().cancel_reason = event.reason
    finish(state, item, CANCELLED, event.timestamp)
    if leased and state.schedule.gated:
        state.schedule.ended(item, event.timestamp)


def _leave_pending(state: State, item: Item, event: ev.DeadLettered | ev.Cancelled | ev.DrainSnapshot) -> None:
    item.stamp = event.sequence_number
    if item.state == READY:
        state.ready.left()
    else:
        state.delayed.left(item)
    state.schedule.withdraw(item, event.timestamp)


def _evolve_cancel_requested(state: State, event: ev.CancelRequested) -> None:
    trail = state.items[event.sequence_id].with_trail()
    trail.cancel_requested = True
    trail.cancel_reason = event.reason


def _evolve_drained(state: State, event: ev.DrainSnapshot) -> None:
    for sequence_id in event.sequence_ids:
        item = state.items.pop(sequence_id)
        _leave_pending(state, item, event)
        item.state = CANCELLED  # Whatever still has hold of it must not take it for a ready one.
        state.live_bytes -= item.size
        if item.request_key is not None:
            end_request(state, item, event.timestamp)


# -- dead letters ------------------------------------------------------------------------------


def _evolve_redriven(state: State, event: ev.Redriven) -> None:
    items: list[Item] = []
    for index, sequence_id in enumerate(event.sequence_ids):
        item = state.items[sequence_id]
        state.dead.remove(item)
        trail = item.with_trail()
        trail.attempt_floor = item.attempt
        trail.undelivered = 0
        trail.cancel_requested = False
        item.attempt += 1
        item.ended_at = 0
        state.live_bytes += item.size
        not_before = None if event.not_before is None else event.not_before[index]
        _back_to_pending(state, item, not_before, event.sequence_number)
        if state.options.ordering == "fifo":
            # To the tail: it takes a place as if it had come now, before whatever comes next.
            item.order = state.next_sequence_id
            state.next_sequence_id += 1
        items.append(item)
    state.schedule.admit_all(items, event.timestamp)


def _evolve_edited(state: State, event: ev.DeadLetterEdited) -> None:
    item = state.items[event.sequence_id]
    state.dead.bytes -= item.size
    intern_strings(event.payload)
    item.payload = event.payload
    item.size = size_of(event.payload)
    state.dead.bytes += item.size


def _evolve_purged(state: State, event: ev.Purged) -> None:
    for sequence_id in event.sequence_ids or ():
        item = state.items.pop(sequence_id)
        state.dead.remove(item)
        if item.request_key is not None:
            end_request(state, item, event.timestamp)
    if event.ended_up_to is not None:
        finished = state.finished
        while finished and finished[0].stamp <= event.ended_up_to:
            _forget_finished(state)


def _forget_finished(state: State) -> None:
    item = state.finished.popleft()
    state.finished_bytes -= item.size
    del state.items[item.sequence_id]


# -- time and leadership -----------------------------------------------------------------------


def _evolve_time(state: State, event: ev.TimeAdvanced) -> None:
    now_ms = event.timestamp
    due = state.delayed.up_to(now_ms, FORGET_MAX)
    for item in due:
        item.stamp = event.sequence_number
        state.delayed.left(item)
        item.state = READY
        item.not_before = None
        state.ready.enter(item)
    if due:
        state.schedule.admit_all(due, now_ms, were_delayed=True)
    # In an order that a snapshot has too: not in that in which they happened to be made.
    over = [scope for scope, pause in state.pauses.items() if pause.until is not None and pause.until <= now_ms]
    for scope in sorted(over):
        pause = state.pauses[scope]
        _end_pause(state, pause.resource_type, pause.tenant, now_ms)
    options = state.options
    finished = state.finished
    for _ in range(FORGET_MAX):
        if not finished or finished[0].ended_at + options.result_retention_ms > now_ms:
            break
        _forget_finished(state)
    ended = state.ended
    for _ in range(FORGET_MAX):
        if not ended.order or ended.order[0].ended_at + options.ended_lease_retention_ms > now_ms:
            break
        ended.forget_oldest()
    requests = state.requests_ended
    for _ in range(FORGET_MAX):
        if not requests or requests[0][1].ended_at + options.request_id_retention_max_ms > now_ms:
            break
        key, _ = requests.popleft()
        del state.requests[key]
        settle_requests(state)


def _evolve_leader(state: State, event: ev.LeaderElected) -> None:
    """Nobody could heartbeat while the shard was down, so no lease may run out because of it."""
    shift = event.timestamp - event.down_from
    if shift <= 0:
        return
    leased = list(state.leased)
    state.leased = Deadlines()
    for item in leased:
        lease = _lease_of(item)
        lease.deadline += shift
        state.leased.enter(lease.deadline, item)


def _evolve_paused(state: State, event: ev.Paused) -> None:
    pause = Pause(
        resource_type=event.resource_type,
        tenant=event.tenant,
        intake=event.intake,
        reason=event.reason,
        principal=event.principal,
        since=event.timestamp,
        until=event.until,
    )
    if pause.scope not in state.pauses:
        state.schedule.pause(event.resource_type, event.tenant, event.timestamp)
    state.pauses[pause.scope] = pause


def _evolve_resumed(state: State, event: ev.Resumed) -> None:
    _end_pause(state, event.resource_type, event.tenant, event.timestamp)


def _end_pause(state: State, resource_type: str | None, tenant: str | None, now_ms: int) -> None:
    del state.pauses[scope_name(resource_type, tenant)]
    state.schedule.resume(resource_type, tenant, now_ms)


def _evolve_backpressure(state: State, event: ev.BackpressureChanged) -> None:
    cause = event.cause
    if cause is None:
        state.backpressure = event.active
        state.backpressure_at = event.timestamp
        return
    # Beside the watermarks and not in them: the cooldown of one must not hold up the other.
    state.closures_at = event.timestamp
    if event.active:
        state.closures[cause] = Closure(cause, event.reason or "", event.timestamp)
    else:
        state.closures.pop(cause, None)


def _evolve_options(state: State, event: ev.OptionsChanged) -> None:
    gates = state.options.gates()
    state.set_options(event.options)
    grants = state.schedule.grants
    if event.options.gates() != gates:
        _reschedule(state, event.timestamp)
    state.schedule.count_grants(grants, event.options.starvation_every)
    while len(state.ended) > event.options.ended_lease_max:
        state.ended.forget_oldest()


def _reschedule(state: State, now_ms: int) -> None:
    """The rules of who is next have changed: everybody starts over under the new ones."""
    schedule = Schedule(state.options)
    schedule.load_pauses(state.pauses.values())
    schedule.load(item for item in state.items.values() if item.state <= LEASED)
    for level in schedule.levels:
        level.waiting_since = now_ms
    state.schedule = schedule


def _evolve_generation(state: State, event: ev.GenerationStarted) -> None:
    state.generation = event.generation
    state.next_sequence_id = event.next_sequence_id


_EVOLVE: Final[dict[type[Any], Callable[[State, Any], None]]] = {
    ev.Enqueue: evolve_enqueue,
    ev.LeaseGranted: evolve_granted,
    ev.Heartbeat: _evolve_heartbeat,
    ev.Completed: evolve_completed,
    ev.Failed: _evolve_failed,
    ev.DrainSnapshot: _evolve_drained,
    ev.RestoreSnapshot: _evolve_restored,
    ev.Expired: _evolve_expired,
    ev.DeadLettered: _evolve_dead_lettered,
    ev.Redriven: _evolve_redriven,
    ev.Released: _evolve_released,
    ev.Cancelled: _evolve_cancelled,
    ev.Paused: _evolve_paused,
    ev.Resumed: _evolve_resumed,
    ev.BackpressureChanged: _evolve_backpressure,
    ev.LeaderElected: _evolve_leader,
    ev.CancelRequested: _evolve_cancel_requested,
    ev.DeadLetterEdited: _evolve_edited,
    ev.Purged: _evolve_purged,
    ev.OptionsChanged: _evolve_options,
    ev.GenerationStarted: _evolve_generation,
    ev.TimeAdvanced: _evolve_time,
}
