"""The records a shard keeps in memory, one of each per item and per lease.

Flat and slotted: with a million items, a dict per item would cost more than the item. What few
items need (errors, progress, results) sits in a `Trail` that is made on demand.

    DELAYED ──▶ READY ──▶ LEASED ──▶ COMPLETED
                  ▲          ├─────▶ DEAD ──▶ READY (redriven)
                  └──────────┘ └───▶ CANCELLED
"""

from __future__ import annotations

from sys import intern
from typing import Final

from omnirelay.core.payload import ErrorInfo, OwnershipToken, Payload

DELAYED: Final = 0
READY: Final = 1
LEASED: Final = 2
COMPLETED: Final = 3
DEAD: Final = 4
CANCELLED: Final = 5

STATE_NAMES: Final = ("delayed", "ready", "leased", "completed", "dead", "cancelled")

COMPLETE: Final = 1
FAIL: Final = 2
RELEASE: Final = 3
LOST: Final = 4
"""How a lease ended; LOST is an expiry or a forced cancel: no acknowledgement ended it."""

VERB_NAMES: Final = ("", "complete", "fail", "release", "")
NO_VERB: Final = 0


class Lease:
    """Who owns an item, and for how long. After its end it remembers the first answer.

    The fields below `verb` are set when the lease ends and not before: a grant is the hottest path
    there is, and storing seven empty fields is a quarter of what creating a lease costs.
    """

    verb: int
    ended_at: int
    answer_state: int
    answer_not_before: int | None
    follow_up_ids: list[int] | None

    __slots__ = (
        "answer_not_before",
        "answer_state",
        "deadline",
        "duration",
        "ended_at",
        "follow_up_ids",
        "granted_at",
        "heartbeat_at",
        "owner",
        "principal",
        "request_key",
        "token",
        "verb",
    )

    def __init__(
        self,
        token: OwnershipToken,
        owner: str,
        principal: str | None,
        granted_at: int,
        deadline: int,
        duration: int,
        request_key: str | None,
    ) -> None:
        self.token = token
        self.owner = owner
        self.principal = principal
        self.granted_at = granted_at
        self.deadline = deadline
        self.duration = duration
        self.request_key = request_key
        self.heartbeat_at = 0


class Trail:
    """What happened to an item beyond its plain life."""

    __slots__ = (
        "attempt_floor",
        "cancel_reason",
        "cancel_requested",
        "last_error",
        "last_token",
        "parent",
        "progress",
        "result",
        "result_encoding",
        "undelivered",
    )

    def __init__(self) -> None:
        self.last_error: ErrorInfo | None = None
        self.last_token: OwnershipToken | None = None
        self.progress: bytes | None = None
        self.result: bytes | None = None
        self.result_encoding: str | None = None
        self.parent: int | None = None
        self.cancel_requested = False
        self.cancel_reason: str | None = None
        self.undelivered = 0
        self.attempt_floor = 0
        """Attempts made before the last redrive: they no longer count against the limit."""


class Item:
    """One piece of work, from its enqueue until it is forgotten.

    `stamp` is the number of the event that put the item where it is now: queues recognise by it
    whether an entry still stands. `size` is what the item counts against byte capacities. `ended_at`
    is set when the item ends and not before.
    """

    ended_at: int

    __slots__ = (
        "attempt",
        "ended_at",
        "enqueued_at",
        "lease",
        "max_attempts",
        "not_before",
        "payload",
        "priority",
        "request_key",
        "sequence_id",
        "size",
        "stamp",
        "state",
        "trail",
        "weight",
    )

    def __init__(
        self,
        sequence_id: int,
        payload: Payload,
        state: int,
        stamp: int,
        attempt: int,
        priority: int,
        weight: int,
        max_attempts: int | None,
        enqueued_at: int,
        not_before: int | None,
        size: int,
        request_key: bytes | None,
    ) -> None:
        self.sequence_id = sequence_id
        self.payload = payload
        self.state = state
        self.stamp = stamp
        self.attempt = attempt
        self.priority = priority
        self.weight = weight
        self.max_attempts = max_attempts
        self.enqueued_at = enqueued_at
        self.not_before = not_before
        self.size = size
        self.request_key = request_key
        self.lease: Lease | None = None
        self.trail: Trail | None = None

    def with_trail(self) -> Trail:
        trail = self.trail
        if trail is None:
            trail = self.trail = Trail()
        return trail


def size_of(payload: Payload) -> int:
    """Bytes a payload counts for: its body and its attributes."""
    size = len(payload.body)
    if payload.attributes:
        for name, value in payload.attributes.items():
            size += len(name) + len(value)
    return size


def intern_strings(payload: Payload) -> None:
    """Share the strings that repeat across items; a million copies of "table" are 50 MB."""
    payload.resource_type = intern(payload.resource_type)
    if payload.payload_encoding is not None:
        payload.payload_encoding = intern(payload.payload_encoding)
    attributes = payload.attributes
    if attributes is not None:
        payload.attributes = {intern(name): intern(value) for name, value in attributes.items()} or None
