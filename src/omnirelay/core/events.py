"""The events of the log: everything that ever changes a shard's state.

Stored as JSON objects tagged `eventType`. The names and numbers 1-7 are older than this
implementation and are never renumbered. Instants are integer milliseconds in the log; readers
outside get ISO-8601. `schemaVersion` is left out while it is 1.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import DEFAULT_PRIORITY, DEFAULT_WEIGHT, ErrorInfo, OwnershipToken, Payload

SCHEMA_VERSION: Final = 1
"""Version of the event schema and of the rules `evolve` applies to it."""


NO_PROGRESS: Final = msgspec.Raw(b"")
"""A missing progress. Raw JSON cannot be optional in a msgspec type, so its absence is this empty value."""


class _Event(
    msgspec.Struct,
    rename="camel",
    omit_defaults=True,
    kw_only=True,
    tag_field="eventType",
    tag=True,
    gc=False,
):
    sequence_number: int
    timestamp: int
    schema_version: int = 1


class Enqueue(_Event):
    """An item came in. `request_key` and `payload_digest` make a repeat recognisable."""

    sequence_id: int
    payload: Payload
    priority: int = DEFAULT_PRIORITY
    weight: int = DEFAULT_WEIGHT
    not_before: int | None = None
    max_attempts: int | None = None
    parent_sequence_id: int | None = None
    request_key: bytes | None = None
    payload_digest: bytes | None = None
    peer_id: str | None = None
    principal: str | None = None


class LeaseGranted(_Event):
    """A peer owns the item until `expires_at`. This event's sequence number is the fence.

    The duration that heartbeats renew is `expires_at - timestamp`.
    """

    ownership: OwnershipToken
    expires_at: int
    peer_id: str = ""
    principal: str | None = None
    request_key: str | None = None
    guard: bool = False
    """The starvation guard chose it, although another class came first."""


class Heartbeat(_Event):
    ownership: OwnershipToken
    expires_at: int
    progress: msgspec.Raw = NO_PROGRESS


class Completed(_Event):
    """The work is done. Follow-ups are the Enqueue events right behind it in the same frame."""

    ownership: OwnershipToken
    result: bytes | None = None
    result_encoding: str | None = None
    follow_up_ids: list[int] | None = None


FailMode: TypeAlias = Literal["retry", "release", "dead"]


class Failed(_Event):
    """The owner gave up. Attempts used up, or mode `dead`: a DeadLettered event follows."""

    ownership: OwnershipToken
    error: ErrorInfo
    mode: FailMode
    next_attempt: int | None = None
    not_before: int | None = None
    metadata: dict[str, str] | None = None


class DrainSnapshot(_Event):
    """These pending items left the shard in the answer to a drain."""

    sequence_ids: list[int]
    principal: str | None = None


class RestoredItem(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A pending item as drain hands it out and restore takes it in."""

    sequence_id: int
    payload: Payload
    attempt: int = 1
    enqueued_at: int = 0
    priority: int = DEFAULT_PRIORITY
    weight: int = DEFAULT_WEIGHT
    not_before: int | None = None
    max_attempts: int | None = None
    last_error: ErrorInfo | None = None
    last_ownership_token: OwnershipToken | None = None
    progress: msgspec.Raw = NO_PROGRESS
    parent_sequence_id: int | None = None
    request_key: bytes | None = None
    payload_digest: bytes | None = None
    attempt_floor: int = 0
    """Attempts made before it was last redriven."""
    undelivered: int = 0
    """Leases in a row that ran out without any sign of life."""


class RestoreSnapshot(_Event):
    items: list[RestoredItem]
    principal: str | None = None


class Expired(_Event):
    """The lease ran out. `undelivered`: no sign of life ever came, so no attempt is burned."""

    ownership: OwnershipToken
    undelivered: bool = False
    next_attempt: int | None = None
    not_before: int | None = None


class DeadLettered(_Event):
    """Follows the Failed or Expired event that ended the last attempt; `error` says why it was the last."""

    sequence_id: int
    error: ErrorInfo


class Redriven(_Event):
    """Dead items are pending again; `not_before` runs beside `sequence_ids` when a rate was asked for."""

    sequence_ids: list[int]
    not_before: list[int] | None = None
    principal: str | None = None


class Released(_Event):
    """The item is pending again and the attempt is not burned."""

    ownership: OwnershipToken
    not_before: int | None = None
    undelivered: bool = False


class Cancelled(_Event):
    sequence_id: int
    reason: str | None = None
    principal: str | None = None


class Paused(_Event):
    """A resource type, a tenant, or with neither the whole shard, grants nothing until it is resumed or `until`."""

    resource_type: str | None = None
    tenant: str | None = None
    intake: bool = False
    reason: str | None = None
    until: int | None = None
    principal: str | None = None


class Resumed(_Event):
    resource_type: str | None = None
    tenant: str | None = None
    principal: str | None = None


class BackpressureChanged(_Event):
    """Something closes intake, or no longer does: how much is pending, or what `cause` names.

    Every cause closes and opens for itself; intake is open when none is left.
    """

    active: bool
    pending: int
    high_watermark: int
    low_watermark: int
    cause: str | None = None
    """None: how much is pending."""
    reason: str | None = None
    others: list[str] | None = None
    """The causes that keep intake closed whatever this one does."""


class LeaderElected(_Event):
    """A writer took over, or goes on after it could not write or did not run for a while. Live leases move by
    `timestamp - down_from`: nobody could heartbeat.
    """

    down_from: int
    epoch: int
    owner: str


class CancelRequested(_Event):
    sequence_id: int
    reason: str | None = None
    principal: str | None = None


class DeadLetterEdited(_Event):
    sequence_id: int
    payload: Payload
    principal: str | None = None


class Purged(_Event):
    """Ended items were forgotten: named ones, or every completed and cancelled one up to an event."""

    sequence_ids: list[int] | None = None
    ended_up_to: int | None = None
    reason: Literal["purge", "cap"] = "purge"
    principal: str | None = None


class OptionsChanged(_Event):
    options: QueueOptions
    principal: str | None = None


class GenerationStarted(_Event):
    """History up to here is not proven complete: sequence numbers and item ids jump ahead of it."""

    generation: int
    reason: str
    next_sequence_id: int


class TimeAdvanced(_Event):
    """Time went by: delays ended and memories ran out, up to this event's timestamp."""


Event: TypeAlias = (
    Enqueue
    | LeaseGranted
    | Heartbeat
    | Completed
    | Failed
    | DrainSnapshot
    | RestoreSnapshot
    | Expired
    | DeadLettered
    | Redriven
    | Released
    | Cancelled
    | Paused
    | Resumed
    | BackpressureChanged
    | LeaderElected
    | CancelRequested
    | DeadLetterEdited
    | Purged
    | OptionsChanged
    | GenerationStarted
    | TimeAdvanced
)

EVENT_NUMBERS: Final[dict[str, int]] = {
    "Enqueue": 1,
    "LeaseGranted": 2,
    "Heartbeat": 3,
    "Completed": 4,
    "Failed": 5,
    "DrainSnapshot": 6,
    "RestoreSnapshot": 7,
    "Expired": 8,
    "DeadLettered": 9,
    "Redriven": 10,
    "Released": 11,
    "Cancelled": 12,
    "Paused": 13,
    "Resumed": 14,
    "BackpressureChanged": 15,
    "LeaderElected": 16,
    "CancelRequested": 17,
    "DeadLetterEdited": 18,
    "Purged": 19,
    "OptionsChanged": 20,
    "GenerationStarted": 21,
    "TimeAdvanced": 22,
}
