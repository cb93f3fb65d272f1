"""What callers get back. Values of the moment of decision: later changes never show in them."""

from __future__ import annotations

from typing import Literal

import msgspec

from omnirelay.core.closures import Closure
from omnirelay.core.events import RestoredItem
from omnirelay.core.pauses import Pause
from omnirelay.core.payload import ErrorInfo, OwnershipToken, Payload


class EnqueueResult(msgspec.Struct, rename="camel", frozen=True, gc=False):
    sequence_id: int
    duplicate: bool


class EnqueueAnswer(msgspec.Struct, frozen=True):
    results: list[EnqueueResult]
    pending_count: int
    active_lease_count: int
    all_new: bool = False
    """None is a duplicate; then their numbers follow one another."""


class GrantedLease(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A lease as its owner gets it. `remaining_ms` counts from the moment of the grant.

    In the shard's own process `payload` is the very one that the shard keeps, because a copy for every lease would cost
    too much. It MUST NOT be changed, its attributes neither: the state would no longer be what its log says.
    """

    payload: Payload
    token: OwnershipToken
    owner: str
    expires_at: int
    remaining_ms: int
    heartbeat_after_ms: int
    enqueued_at: int
    priority: int
    last_error: ErrorInfo | None = None
    progress: bytes | None = None

    @property
    def sequence_id(self) -> int:
        return self.token.sequence_id

    @property
    def attempt(self) -> int:
        return self.token.attempt

    @property
    def fence(self) -> int:
        fence = self.token.fence
        assert fence is not None, "a granted token always bears its fence"
        return fence


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    extended: bool
    expires_at: int
    remaining_ms: int
    heartbeat_after_ms: int
    cancel_requested: bool


class CompleteAnswer(msgspec.Struct, frozen=True):
    follow_up_ids: list[int] | None = None


class FailAnswer(msgspec.Struct, frozen=True):
    """Answer to fail and release: where the item is now."""

    state: str
    not_before: int | None = None


class CancelAnswer(msgspec.Struct, frozen=True):
    """`success` is false when the item had ended before; `state` says how."""

    success: bool
    state: str
    cancel_requested: bool


class DrainAnswer(msgspec.Struct, frozen=True):
    items: list[RestoredItem]
    remaining_count: int


class Renumbered(msgspec.Struct, frozen=True):
    """An item whose number stood for another one here, and the number it got instead."""

    sequence_id: int
    new_sequence_id: int


class RestoreAnswer(msgspec.Struct, frozen=True):
    """Everything that came in or was there already; `renumbered` ones are among those that came in."""

    restored_count: int
    duplicate_count: int
    renumbered: list[Renumbered] = []


class PauseAnswer(msgspec.Struct, frozen=True):
    """Everything that is paused after the call."""

    pauses: list[Pause]


class CountAnswer(msgspec.Struct, frozen=True):
    """How many dead letters one step of a redrive or purge took, and where the next step goes on."""

    count: int
    next: int | None = None


class RedriveAnswer(msgspec.Struct, frozen=True):
    """How many dead letters were redriven, and how many of those meant stay dead because there was no room."""

    count: int
    left_count: int = 0


class ItemView(msgspec.Struct, frozen=True, kw_only=True):
    """An item with everything the shard knows of it."""

    sequence_id: int
    state: str
    payload: Payload
    attempt: int
    priority: int
    weight: int
    enqueued_at: int
    not_before: int | None = None
    max_attempts: int | None = None
    last_error: ErrorInfo | None = None
    ownership_token: OwnershipToken | None = None
    owner_peer_id: str | None = None
    principal: str | None = None
    granted_at: int | None = None
    last_heartbeat_at: int | None = None
    expires_at: int | None = None
    progress: bytes | None = None
    cancel_requested: bool = False
    cancel_reason: str | None = None
    result: bytes | None = None
    result_encoding: str | None = None
    parent_sequence_id: int | None = None
    ended_at: int | None = None


class Page(msgspec.Struct, frozen=True):
    """Part of a listing. `next` goes into the following call; None at the end."""

    items: list[ItemView]
    next: int | None
    total: int


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why an item is not the next grant. Undoing every gate that is named makes it the next."""

    gate: Literal["delay", "pause", "key", "limit", "tenantShare", "priority", "position", "leased", "ended"]
    message: str
    until: int | None = None
    held_by: int | None = None
    """The item that is in the way."""
    owner_peer_id: str | None = None
    used: int | None = None
    max: int | None = None
    ahead: int | None = None
    reason: str | None = None
    principal: str | None = None


class WhyAnswer(msgspec.Struct, frozen=True):
    sequence_id: int
    state: str
    gates: list[Gate]
    """Empty: the item is next."""
    intake: str | None = None
    """Why the shard takes no new items now; None while it does. No gate of this item, but of those it could bring."""


class BackpressureSignal(msgspec.Struct, frozen=True, kw_only=True):
    """Whether intake is closed, why, and since when."""

    active: bool
    pending: int
    high_watermark: int
    low_watermark: int
    since: int | None = None
    """When the oldest of its causes began; while intake is open, when it last changed. None when it never has."""
    shard: str = ""
    causes: tuple[Closure, ...] = ()
    """Everything that keeps it closed: how much is pending (`depth`), and what something else had to say."""

    @property
    def reason(self) -> str | None:
        """Why intake is closed, for people; None while it is open."""
        return "; ".join(cause.reason for cause in self.causes) or None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    pending_count: int
    ready_count: int
    delayed_count: int
    active_lease_count: int
    dead_letter_count: int
    completed_count: int
    oldest_ready_age_ms: int
    live_bytes: int
    last_sequence: int
    generation: int
    backpressure: BackpressureSignal
    pauses: list[Pause]
