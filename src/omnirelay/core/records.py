"""Items and leases as they lie in a snapshot: arrays, whose new fields go to the end and have defaults.

`omnirelay.core.recording` makes them, and what they stand for.
"""

from __future__ import annotations

import msgspec

from omnirelay.core.items import LEASED, NO_VERB
from omnirelay.core.payload import OwnershipToken, Payload
from omnirelay.core.trail import Trail


class LeaseRecord(msgspec.Struct, array_like=True, gc=False):
    token: OwnershipToken
    owner: str
    principal: str | None
    granted_at: int
    deadline: int
    duration: int
    request_key: str | None
    heartbeat_at: int = 0
    verb: int = NO_VERB
    ended_at: int = 0
    answer_state: int = LEASED
    answer_not_before: int | None = None
    follow_up_ids: list[int] | None = None


class ItemRecord(msgspec.Struct, array_like=True, gc=False):
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
    lease: LeaseRecord | None = None
    trail: Trail | None = None
    ended_at: int = 0
