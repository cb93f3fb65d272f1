"""The records a shard keeps in memory, one of each per item and per lease.

Flat structs that hold no cycles, so the garbage collector never looks at them: with a million
items that is the difference between a pause and none, and creating one is cheaper than with a plain
class. What few items need (errors, progress, results) sits in a `Trail` made on demand.
Snapshots hold these very records, as arrays: a new field goes to the end and has a default.

    DELAYED ──▶ READY ──▶ LEASED ──▶ COMPLETED
                  ▲          ├─────▶ DEAD ──▶ READY (redriven)
                  └──────────┘ └───▶ CANCELLED
"""

from __future__ import annotations

from sys import intern
from typing import Final

import msgspec

from omnirelay.core.payload import ErrorInfo, OwnershipToken, Payload

DELAYED: Final = 0
READY: Final = 1
LEASED: Final = 2
COMPLETED: Final = 3
DEAD: Final = 4
CANCELLED: Final = 5

STATE_NAMES: Final = ("delayed", "ready", "leased", "completed", "dead", "cancelled")

NO_VERB: Final = 0
COMPLETE: Final = 1
FAIL: Final = 2
RELEASE: Final = 3
LOST: Final = 4
"""How a lease ended; LOST is an expiry or a forced cancel: no acknowledgement ended it."""

VERB_NAMES: Final = ("", "complete", "fail", "release", "")


class Lease(msgspec.Struct, array_like=True, eq=False, gc=False):
    """Who owns an item, and for how long. From `verb` on it is how the lease ended, for repeated acknowledgements."""

    token: OwnershipToken
    owner: str
    principal: str | None
    granted_at: int
    deadline: int
    duration: int
    request_key: str | None
    heartbeat_at: int = 0
    """When the last heartbeat came; 0 while none has."""
    verb: int = NO_VERB
    ended_at: int = 0
    answer_state: int = LEASED
    answer_not_before: int | None = None
    follow_up_ids: list[int] | None = None


class Trail(msgspec.Struct, array_like=True, eq=False, gc=False):
    """What happened to an item beyond its plain life."""

    last_error: ErrorInfo | None = None
    last_token: OwnershipToken | None = None
    progress: bytes | None = None
    result: bytes | None = None
    result_encoding: str | None = None
    parent: int | None = None
    cancel_requested: bool = False
    cancel_reason: str | None = None
    undelivered: int = 0
    attempt_floor: int = 0
    """Attempts made before the last redrive: they no longer count against the limit."""


class Item(msgspec.Struct, array_like=True, eq=False, gc=False):
    """One piece of work, from its enqueue until it is forgotten.

    `stamp` is the number of the event that put the item where it is now: queues recognise by it
    whether an entry still stands. `size` is what the item counts against byte capacities.
    """

    sequence_id: int
    payload: Payload
    state: int
    stamp: int
    attempt: int
    priority: int
    weight: int
    max_attempts: int | None
    enqueued_at: int
    not_before: int | None
    size: int
    request_key: bytes | None
    order: int
    """Its place among others: its sequence id, or a later one when it was redriven to the tail of a queue."""
    lease: Lease | None = None
    trail: Trail | None = None
    ended_at: int = 0

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


NO_BODY: Final = Payload(resource_type="", resource_id="").body
"""The one empty body. Encoders leave defaults out by identity, and not every empty `bytes` is the same object."""


def intern_strings(payload: Payload) -> None:
    """Share the strings that repeat across items; a million copies of "table" are 50 MB."""
    payload.resource_type = intern(payload.resource_type)
    if not payload.body:
        payload.body = NO_BODY
    if payload.payload_encoding is not None:
        payload.payload_encoding = intern(payload.payload_encoding)
    attributes = payload.attributes
    if attributes is not None:
        payload.attributes = {intern(name): intern(value) for name, value in attributes.items()} or None
