"""What callers get back: one struct per verb, made from core's answers.

A field without a default is always there; one with a default is left out when it has that value.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from omnirelay.core import answers
from omnirelay.core.events import NO_PROGRESS, RestoredItem
from omnirelay.core.pauses import Pause
from omnirelay.core.payload import DEFAULT_ENCODING, ErrorInfo, OwnershipToken, Payload
from omnirelay.core.rules.acknowledge import PLAIN_COMPLETE
from omnirelay.errors import OmniRelayError
from omnirelay.wire.instants import instant, instant_or_none
from omnirelay.wire.requests import Instant

ItemState = Annotated[
    str, Meta(extra_json_schema={"enum": ["delayed", "ready", "leased", "completed", "dead", "cancelled"]})
]


class Outgoing(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Base of everything written."""


class OutgoingPayload(Outgoing, gc=False):
    """A payload as it was stored, with what was left out filled in."""

    resource_type: str
    resource_id: str
    partition_key: str
    payload_encoding: str
    body: bytes
    attributes: dict[str, str]
    request_id: str | None = None


def payload_of(payload: Payload) -> OutgoingPayload:
    """By position, in the order of the fields: this runs for every lease, and names would cost half as much again."""
    resource_id, partition_key, encoding = payload.resource_id, payload.partition_key, payload.payload_encoding
    return OutgoingPayload(
        payload.resource_type,
        resource_id,
        resource_id if partition_key is None else partition_key,
        DEFAULT_ENCODING if encoding is None else encoding,
        payload.body,
        payload.attributes or {},
        payload.request_id,
    )


class Progress(Outgoing):
    """How far an owner has come. `data` is any JSON value."""

    fraction: float | None = None
    message: str | None = None
    data: Any = None


def _progress(stored: bytes | msgspec.Raw | None) -> Progress | None:
    """Progress is kept as the JSON it came in."""
    return _decode_progress(stored) if stored else None


_decode_progress = msgspec.json.Decoder(Progress).decode


class QueueStats(Outgoing):
    pending_count: int
    active_lease_count: int


EnqueueResult = answers.EnqueueResult
"""Goes out as core made it."""


class EnqueueAnswer(Outgoing):
    """Of one item: `sequenceId` and `duplicate`. Of a batch: `results`, in order."""

    stats: QueueStats
    sequence_id: int | None = None
    duplicate: bool | None = None
    results: list[EnqueueResult] | None = None


def enqueue_answer(answer: answers.EnqueueAnswer, *, batch: bool) -> EnqueueAnswer:
    stats = QueueStats(pending_count=answer.pending_count, active_lease_count=answer.active_lease_count)
    if not batch:
        [result] = answer.results
        return EnqueueAnswer(stats=stats, sequence_id=result.sequence_id, duplicate=result.duplicate)
    return EnqueueAnswer(stats=stats, results=answer.results)


class Lease(Outgoing, gc=False):
    payload: OutgoingPayload
    sequence_id: int
    attempt: int
    enqueued_at: Instant
    ownership_token: OwnershipToken
    owner_peer_id: str
    expires_at: Instant
    remaining_ms: int
    heartbeat_after_ms: int
    priority: int
    last_error: ErrorInfo | None = None
    progress: Progress | None = None


def lease_of(granted: answers.GrantedLease) -> Lease:
    """By position, as `payload_of`."""
    token = granted.token
    progress = granted.progress
    return Lease(
        payload_of(granted.payload),
        token.sequence_id,
        token.attempt,
        instant(granted.enqueued_at),
        token,
        granted.owner,
        instant(granted.expires_at),
        granted.remaining_ms,
        granted.heartbeat_after_ms,
        granted.priority,
        granted.last_error,
        None if progress is None else _progress(progress),
    )


class LeaseAnswer(Outgoing):
    """With `maxItems` in the request: `leases`. Without: the fields of one Lease, or nothing at all."""

    leases: list[Lease]


class Outcome(Outgoing, gc=False):
    """One acknowledgement of a batch: what its single answer has, or why it was refused."""

    success: bool
    error_code: str | None = None
    error_message: str | None = None
    extended: bool | None = None
    expires_at: Instant | None = None
    remaining_ms: int | None = None
    heartbeat_after_ms: int | None = None
    cancel_requested: bool | None = None
    follow_up_ids: list[int] | None = None
    state: ItemState | None = None
    not_before: Instant | None = None


class AcksAnswer(Outgoing):
    results: list[Outcome]


_DONE = Outcome(success=True)


def outcomes_of(outcomes: list[Any]) -> list[Outcome]:
    """What came of acknowledgements, most of which just say that it is done."""
    return [_DONE if each is PLAIN_COMPLETE else outcome_of(each) for each in outcomes]


def outcome_of(outcome: Any) -> Outcome:
    """What came of one acknowledgement; an error becomes an outcome too."""
    kind = type(outcome)
    if kind is answers.CompleteAnswer:
        return _DONE if outcome.follow_up_ids is None else Outcome(success=True, follow_up_ids=outcome.follow_up_ids)
    if kind is answers.HeartbeatAnswer:
        return Outcome(
            success=True,
            extended=outcome.extended,
            expires_at=instant(outcome.expires_at),
            remaining_ms=outcome.remaining_ms,
            heartbeat_after_ms=outcome.heartbeat_after_ms,
            cancel_requested=outcome.cancel_requested,
        )
    if kind is answers.FailAnswer:
        return Outcome(success=True, state=outcome.state, not_before=instant_or_none(outcome.not_before))
    assert isinstance(outcome, OmniRelayError), outcome
    return Outcome(success=False, error_code=outcome.code, error_message=outcome.message)


class Item(Outgoing):
    sequence_id: int
    state: ItemState
    payload: OutgoingPayload
    attempt: int
    priority: int
    weight: int
    enqueued_at: Instant
    not_before: Instant | None = None
    max_attempts: int | None = None
    last_error: ErrorInfo | None = None
    ownership_token: OwnershipToken | None = None
    owner_peer_id: str | None = None
    principal: str | None = None
    granted_at: Instant | None = None
    last_heartbeat_at: Instant | None = None
    expires_at: Instant | None = None
    progress: Progress | None = None
    cancel_requested: bool | None = None
    cancel_reason: str | None = None
    result: bytes | None = None
    result_encoding: str | None = None
    parent_sequence_id: int | None = None
    ended_at: Instant | None = None


def item_of(view: answers.ItemView) -> Item:
    return Item(
        sequence_id=view.sequence_id,
        state=view.state,
        payload=payload_of(view.payload),
        attempt=view.attempt,
        priority=view.priority,
        weight=view.weight,
        enqueued_at=instant(view.enqueued_at),
        not_before=instant_or_none(view.not_before),
        max_attempts=view.max_attempts,
        last_error=view.last_error,
        ownership_token=view.ownership_token,
        owner_peer_id=view.owner_peer_id,
        principal=view.principal,
        granted_at=instant_or_none(view.granted_at),
        last_heartbeat_at=instant_or_none(view.last_heartbeat_at),
        expires_at=instant_or_none(view.expires_at),
        progress=_progress(view.progress),
        cancel_requested=True if view.cancel_requested else None,
        cancel_reason=view.cancel_reason,
        result=view.result,
        result_encoding=view.result_encoding,
        parent_sequence_id=view.parent_sequence_id,
        ended_at=instant_or_none(view.ended_at),
    )


class ItemAnswer(Outgoing):
    item: Item


class PendingItem(Outgoing):
    """A pending item as drain hands it out. Send it to restore as it is."""

    payload: OutgoingPayload
    attempt: int
    enqueued_at: Instant
    sequence_id: int
    priority: int
    weight: int
    last_error: ErrorInfo | None = None
    last_ownership_token: OwnershipToken | None = None
    not_before: Instant | None = None
    max_attempts: int | None = None
    progress: Progress | None = None
    parent_sequence_id: int | None = None
    request_key: bytes | None = None
    payload_digest: bytes | None = None
    attempt_floor: int = 0
    undelivered: int = 0


def pending_item_of(item: RestoredItem) -> PendingItem:
    return PendingItem(
        payload=payload_of(item.payload),
        attempt=item.attempt,
        enqueued_at=instant(item.enqueued_at),
        sequence_id=item.sequence_id,
        priority=item.priority,
        weight=item.weight,
        last_error=item.last_error,
        last_ownership_token=item.last_ownership_token,
        not_before=instant_or_none(item.not_before),
        max_attempts=item.max_attempts,
        progress=None if item.progress == NO_PROGRESS else _progress(item.progress),
        parent_sequence_id=item.parent_sequence_id,
        request_key=item.request_key,
        payload_digest=item.payload_digest,
        attempt_floor=item.attempt_floor,
        undelivered=item.undelivered,
    )


class DrainAnswer(Outgoing):
    items: list[PendingItem]
    remaining_count: int


class Renumbered(Outgoing):
    """An item whose number stood for another one here, and the number it got instead."""

    sequence_id: int
    new_sequence_id: int


class RestoreAnswer(Outgoing):
    """`renumbered` items are among those that were restored; left out when there are none."""

    restored_count: int
    duplicate_count: int
    renumbered: list[Renumbered] | None = None


class CancelAnswer(Outgoing):
    success: bool
    state: ItemState
    cancel_requested: bool


class OutgoingPause(Outgoing):
    """One pause. Neither `resourceType` nor `tenant`: the whole shard."""

    intake: bool
    since: Instant
    resource_type: str | None = None
    tenant: str | None = None
    reason: str | None = None
    principal: str | None = None
    until: Instant | None = None


def pause_of(pause: Pause) -> OutgoingPause:
    return OutgoingPause(
        intake=pause.intake,
        since=instant(pause.since),
        resource_type=pause.resource_type,
        tenant=pause.tenant,
        reason=pause.reason,
        principal=pause.principal,
        until=instant_or_none(pause.until),
    )


class PausesAnswer(Outgoing):
    success: bool
    pauses: list[OutgoingPause]


def pauses_answer(pauses: list[Pause]) -> PausesAnswer:
    return PausesAnswer(success=True, pauses=[pause_of(each) for each in pauses])


class PageAnswer(Outgoing):
    """Part of a listing. `next` goes into the following request as `after`; without it this was the last part."""

    items: list[Item]
    next: int | None = None


class DeadLettersAnswer(Outgoing):
    items: list[Item]
    total: int
    next: int | None = None


class RedriveAnswer(Outgoing):
    """`left_count`: of those meant there was no room for so many more; left out when there was for all."""

    redriven_count: int
    left_count: int = 0


class PurgeAnswer(Outgoing):
    purged_count: int


class IntakeCause(Outgoing):
    """One thing that keeps intake closed."""

    cause: str
    """`depth`: how much is pending. Else what asked for it: `replication.lag:SINK`, `replication.retention:SINK`."""
    reason: str
    since: Instant


class Backpressure(Outgoing):
    is_active: bool
    pending_count: int
    high_watermark: int
    low_watermark: int
    observed_at: Instant
    since: Instant | None = None
    reason: str | None = None
    """Why intake is closed, for people."""
    causes: list[IntakeCause] = []


class ShardStats(Outgoing):
    pending_count: int
    ready_count: int
    delayed_count: int
    active_lease_count: int
    dead_letter_count: int
    completed_count: int
    oldest_ready_age_ms: int
    last_sequence: int
    generation: int
    live_bytes: int
    backpressure: Backpressure
    pauses: list[OutgoingPause]


class StatsAnswer(Outgoing):
    stats: ShardStats


def stats_answer(stats: answers.Stats, now_ms: int) -> StatsAnswer:
    signal = stats.backpressure
    return StatsAnswer(
        stats=ShardStats(
            pending_count=stats.pending_count,
            ready_count=stats.ready_count,
            delayed_count=stats.delayed_count,
            active_lease_count=stats.active_lease_count,
            dead_letter_count=stats.dead_letter_count,
            completed_count=stats.completed_count,
            oldest_ready_age_ms=stats.oldest_ready_age_ms,
            last_sequence=stats.last_sequence,
            generation=stats.generation,
            live_bytes=stats.live_bytes,
            backpressure=Backpressure(
                is_active=signal.active,
                pending_count=signal.pending,
                high_watermark=signal.high_watermark,
                low_watermark=signal.low_watermark,
                observed_at=instant(now_ms),
                since=instant_or_none(signal.since),
                reason=signal.reason,
                causes=[
                    IntakeCause(cause=each.cause, reason=each.reason, since=instant(each.since))
                    for each in signal.causes
                ],
            ),
            pauses=[pause_of(each) for each in stats.pauses],
        )
    )


class Gate(Outgoing):
    gate: Annotated[
        str,
        Meta(
            extra_json_schema={
                "enum": ["delay", "pause", "key", "limit", "tenantShare", "priority", "position", "leased", "ended"]
            }
        ),
    ]
    message: str
    until: Instant | None = None
    held_by: int | None = None
    owner_peer_id: str | None = None
    used: int | None = None
    max: int | None = None
    ahead: int | None = None
    reason: str | None = None
    principal: str | None = None


class WhyAnswer(Outgoing):
    """Why the item is not running. No gates: it is next."""

    sequence_id: int
    state: ItemState
    gates: list[Gate]
    intake: str | None = None
    """Why the shard takes no new items now, when it does not. No gate of this item, but of those it could bring."""


def why_answer(answer: answers.WhyAnswer) -> WhyAnswer:
    return WhyAnswer(
        sequence_id=answer.sequence_id,
        state=answer.state,
        gates=[
            Gate(
                gate=gate.gate,
                message=gate.message,
                until=instant_or_none(gate.until),
                held_by=gate.held_by,
                owner_peer_id=gate.owner_peer_id,
                used=gate.used,
                max=gate.max,
                ahead=gate.ahead,
                reason=gate.reason,
                principal=gate.principal,
            )
            for gate in answer.gates
        ],
        intake=answer.intake,
    )


class ErrorBody(Outgoing):
    """The body of every answer that is not 2xx."""

    message: str
    status: str
    code: str
    metadata: dict[str, str] | None = None
    retry_after_ms: int | None = None


def error_body_of(error: OmniRelayError) -> ErrorBody:
    metadata = {name: _plain(value) for name, value in error.details.items() if value is not None}
    return ErrorBody(
        message=error.message,
        status=error.status.name,
        code=error.code,
        metadata=metadata or None,
        retry_after_ms=error.retry_after_ms,
    )


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
