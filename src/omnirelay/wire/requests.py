"""What callers send: one struct per verb. `docs/reference/lease.md` describes every field.

Names travel in camelCase, durations in milliseconds, instants as ISO-8601 text. What a range says here is what the
schema says; rules that need the state are core's.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from omnirelay.core.commands import Progress
from omnirelay.core.events import RestoredItem
from omnirelay.core.intake import (
    ATTEMPTS_MAX,
    DELAY_MAX_MS,
    LEASES_MAX,
    WEIGHT_MAX,
    refuse,
)
from omnirelay.core.payload import (
    DEFAULT_PRIORITY,
    DEFAULT_WEIGHT,
    ErrorInfo,
    NewItem,
    OwnershipToken,
    Payload,
)
from omnirelay.core.views import PAGE_MAX
from omnirelay.errors import InvalidArgument
from omnirelay.wire.instants import read_instant, read_instant_or_none

ID_MAX = (1 << 63) - 1
WAIT_MAX_MS = 24 * 3_600_000

Instant = Annotated[
    str, Meta(description="An ISO-8601 instant with an offset.", extra_json_schema={"format": "date-time"})
]
SequenceId = Annotated[int, Meta(ge=0, le=ID_MAX)]
WaitMs = Annotated[int, Meta(ge=0, le=WAIT_MAX_MS)]
DelayMs = Annotated[int, Meta(ge=0, le=DELAY_MAX_MS)]
Metadata = dict[str, str]


class Incoming(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Base of everything read. Unknown fields are ignored all the same: see `reading`. What was read from text holds no
    cycles, so the garbage collector need not look at it.
    """


class IncomingPayload(Incoming):
    resource_type: str
    resource_id: str
    partition_key: str | None = None
    payload_encoding: str | None = None
    body: bytes = b""
    attributes: dict[str, str] | None = None
    request_id: str | None = None

    def value(self) -> Payload:
        """By position: names would cost half as much again, and this runs for every item."""
        return Payload(
            self.resource_type,
            self.resource_id,
            self.partition_key,
            self.payload_encoding,
            self.body,
            self.attributes or None,
            self.request_id,
        )


class IncomingToken(Incoming):
    """Read here and not as core's token: only a struct that forbids unknown fields has its names read in any case, and
    a `Fence` that is passed over would be a fence that nobody compares.
    """

    sequence_id: int
    attempt: int
    lease_id: str
    fence: int | None = None

    def value(self) -> OwnershipToken:
        return OwnershipToken(self.sequence_id, self.attempt, self.lease_id, self.fence)


class IncomingProgress(Incoming):
    fraction: float | None = None
    message: str | None = None
    data: Any = None

    def value(self) -> Progress:
        return Progress(fraction=self.fraction, message=self.message, data=self.data)


class IncomingError(Incoming):
    message: str
    code: str | None = None

    def value(self) -> ErrorInfo:
        return ErrorInfo(self.message, self.code)


class EnqueueItem(Incoming):
    payload: IncomingPayload | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] = DEFAULT_PRIORITY
    weight: Annotated[int, Meta(ge=1, le=WEIGHT_MAX)] = DEFAULT_WEIGHT
    not_before: Instant | None = None
    delay_ms: DelayMs | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)] | None = None

    def value(self) -> NewItem:
        if self.payload is None:
            refuse("payload", "is required", code="resourcelease.payload.required")
        return NewItem(
            payload=self.payload.value(),
            priority=self.priority,
            weight=self.weight,
            not_before_ms=None if self.not_before is None else read_instant("notBefore", self.not_before),
            delay_ms=self.delay_ms,
            max_attempts=self.max_attempts,
        )


def item_values(items: list[EnqueueItem | None]) -> list[NewItem]:
    """All items of a batch; the error of a bad one names its index."""
    values = []
    for index, item in enumerate(items):
        if item is None or item.payload is None:
            refuse("payload", "is required", code="resourcelease.payload.required", index=index)
        try:
            values.append(item.value())
        except InvalidArgument as error:
            error.details["index"] = index
            raise
    return values


def refuse_beside(batch: str, request: Incoming, *allowed: str) -> None:
    """Refuse a request that has more than its batch, and fields that are for all of it: they would be lost."""
    for field, name, default in _optional_fields(type(request)):
        if getattr(request, field) != default and field not in (batch, *allowed):
            refuse(batch, f"and {name} exclude each other: each element of {batch} has its own", beside=name)


@cache
def _optional_fields(kind: type[Incoming]) -> list[tuple[str, str, Any]]:
    return [(each.name, each.encode_name, each.default) for each in msgspec.structs.fields(kind)]


class EnqueueRequest(EnqueueItem):
    """One item, or with `items` a batch that comes in whole or not at all."""

    items: list[EnqueueItem | None] | None = None
    wait_ms: WaitMs | None = None


class LeaseRequest(Incoming):
    peer_id: str | None = None
    wait_ms: WaitMs | None = None
    lease_duration_ms: Annotated[int, Meta(ge=1)] | None = None
    resource_types: list[str] | None = None
    tenants: list[str] | None = None
    request_id: str | None = None
    metadata: Metadata | None = None
    """Taken from callers of old, and kept nowhere: no event has a place for it."""
    max_items: Annotated[int, Meta(ge=1, le=LEASES_MAX)] | None = None


class Acknowledgement(Incoming):
    """Base of heartbeat, complete, fail and release. `peer_id` names the caller as the headers would."""

    ownership_token: IncomingToken | None = None
    peer_id: str | None = None

    def token(self) -> OwnershipToken:
        if self.ownership_token is None:
            refuse("ownershipToken", "is required")
        return self.ownership_token.value()


class HeartbeatAck(Acknowledgement):
    progress: IncomingProgress | None = None
    metadata: Metadata | None = None
    """Taken from callers of old, and kept nowhere, as that of a lease call; `progress` is what others see."""


class CompleteAck(Acknowledgement):
    result: bytes | None = None
    result_encoding: str | None = None
    follow_ups: list[EnqueueItem | None] | None = None


class FailAck(Acknowledgement):
    reason: str | None = None
    error_code: str | None = None
    requeue: bool = True
    mode: str | None = None
    delay_ms: DelayMs | None = None
    metadata: Metadata | None = None


class ReleaseAck(Acknowledgement):
    delay_ms: DelayMs | None = None


class HeartbeatRequest(HeartbeatAck):
    acks: list[HeartbeatAck] | None = None


class CompleteRequest(CompleteAck):
    acks: list[CompleteAck] | None = None


class FailRequest(FailAck):
    acks: list[FailAck] | None = None


class ReleaseRequest(ReleaseAck):
    acks: list[ReleaseAck] | None = None


class GetRequest(Incoming):
    sequence_id: SequenceId | None = None
    request_id: str | None = None
    wait_ms: WaitMs = 0


class DrainRequest(Incoming):
    max_items: Annotated[int, Meta(ge=1)] = 10_000
    pause_intake: bool = False


class IncomingPendingItem(Incoming):
    """A pending item as drain handed it out. The fields after `last_ownership_token` are this system's own."""

    sequence_id: SequenceId
    payload: IncomingPayload | None = None
    attempt: Annotated[int, Meta(ge=1)] = 1
    enqueued_at: Instant | None = None
    last_error: IncomingError | None = None
    last_ownership_token: IncomingToken | None = None
    priority: int = DEFAULT_PRIORITY
    weight: int = DEFAULT_WEIGHT
    not_before: Instant | None = None
    max_attempts: int | None = None
    progress: IncomingProgress | None = None
    parent_sequence_id: int | None = None
    request_key: bytes | None = None
    payload_digest: bytes | None = None
    attempt_floor: int = 0
    undelivered: int = 0

    def value(self) -> RestoredItem:
        if self.payload is None:
            refuse("payload", "is required", code="resourcelease.payload.required")
        item = RestoredItem(
            sequence_id=self.sequence_id,
            payload=self.payload.value(),
            attempt=self.attempt,
            enqueued_at=0 if self.enqueued_at is None else read_instant("enqueuedAt", self.enqueued_at),
            priority=self.priority,
            weight=self.weight,
            not_before=read_instant_or_none("notBefore", self.not_before),
            max_attempts=self.max_attempts,
            last_error=None if self.last_error is None else self.last_error.value(),
            last_ownership_token=None if self.last_ownership_token is None else self.last_ownership_token.value(),
            parent_sequence_id=self.parent_sequence_id,
            request_key=self.request_key,
            payload_digest=self.payload_digest,
            attempt_floor=self.attempt_floor,
            undelivered=self.undelivered,
        )
        if self.progress is not None:
            item.progress = msgspec.Raw(msgspec.json.encode(self.progress.value()))
        return item


class RestoreRequest(Incoming):
    items: list[IncomingPendingItem | None] | None = None

    def values(self) -> list[RestoredItem]:
        if self.items is None:
            # Drained items exist nowhere else: a name that was misspelt must not pass for nothing to restore.
            refuse("items", "must be given, and may be empty")
        values = []
        for index, item in enumerate(self.items):
            if item is None:
                refuse(
                    "items",
                    "must not have an empty element",
                    code="resourcelease.restore.pending_item_required",
                    index=index,
                )
            try:
                values.append(item.value())
            except InvalidArgument as error:
                error.details["index"] = index
                raise
        return values


class CancelRequest(Incoming):
    sequence_id: SequenceId
    reason: str | None = None
    force: bool = False


class PauseRequest(Incoming):
    resource_type: str | None = None
    tenant: str | None = None
    intake: bool = False
    reason: str | None = None
    until: Instant | None = None


class ResumeRequest(Incoming):
    resource_type: str | None = None
    tenant: str | None = None
    intake: bool = False
    reason: str | None = None
    until: Instant | None = None


class DeadLettersRequest(Incoming):
    sequence_id: SequenceId | None = None
    resource_type: str | None = None
    error_code: str | None = None
    after: SequenceId = 0
    max_items: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100


class EditRequest(Incoming):
    sequence_id: SequenceId
    payload: IncomingPayload | None = None


class PurgeRequest(Incoming):
    """Which dead letters: exactly one of the fields."""

    sequence_ids: list[SequenceId] | None = None
    resource_type: str | None = None
    error_code: str | None = None
    all: bool = False


class RedriveRequest(PurgeRequest):
    rate_per_second: Annotated[float, Meta(gt=0)] | None = None


class StatsRequest(Incoming):
    pass


class PeekRequest(Incoming):
    state: str = "ready"
    resource_type: str | None = None
    tenant: str | None = None
    after: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    max_items: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 100


class WhyRequest(Incoming):
    sequence_id: SequenceId


class WatchRequest(Incoming):
    from_: Annotated[int, Meta(ge=1, le=ID_MAX)] | None = msgspec.field(default=None, name="from")
    types: list[str] | None = None
    until_caught_up: bool = False


REQUESTS: dict[str, Any] = {
    "enqueue": EnqueueRequest,
    "lease": LeaseRequest,
    "heartbeat": HeartbeatRequest,
    "complete": CompleteRequest,
    "fail": FailRequest,
    "release": ReleaseRequest,
    "get": GetRequest,
    "drain": DrainRequest,
    "restore": RestoreRequest,
    "cancel": CancelRequest,
    "pause": PauseRequest,
    "resume": ResumeRequest,
    "deadletters": DeadLettersRequest,
    "edit": EditRequest,
    "redrive": RedriveRequest,
    "purge": PurgeRequest,
    "stats": StatsRequest,
    "peek": PeekRequest,
    "why": WhyRequest,
    "watch": WatchRequest,
}
