"""Messages of the lease stream. One WebSocket message is one of these, or an array of them; `docs/protocol.md`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from omnirelay.core.payload import OwnershipToken
from omnirelay.wire.answers import ErrorBody, Lease, Outcome, Outgoing
from omnirelay.wire.requests import EnqueueItem, FailAck, Incoming, IncomingProgress

CREDIT_MAX = 100_000
CallId = int | str


class StreamFilters(Incoming):
    resource_types: list[str] | None = None
    tenants: list[str] | None = None


class StreamOpen(Incoming):
    """Ask for leases: at most `credit` are pushed until more credit is given."""

    peer_id: str | None = None
    credit: Annotated[int, Meta(ge=0, le=CREDIT_MAX)] = 0
    filters: StreamFilters | None = None
    lease_duration_ms: Annotated[int, Meta(ge=1)] | None = None


class StreamAck(FailAck):
    """One acknowledgement: `verb` is heartbeat, complete, fail or release, the rest the fields of its request."""

    verb: str = ""
    progress: IncomingProgress | None = None
    result: bytes | None = None
    result_encoding: str | None = None
    follow_ups: list[EnqueueItem | None] | None = None


class StreamCall(Incoming):
    """Any unary verb of the namespace. `ttlMs` is the deadline of this call."""

    verb: str
    request: msgspec.Raw = msgspec.Raw(b"{}")
    ttl_ms: Annotated[float, Meta(ge=0)] | None = None


class StreamMessage(Incoming):
    """What a peer sends. `id` comes back with the answer."""

    id: CallId | None = None
    open: StreamOpen | None = None
    credit: Annotated[int, Meta(ge=0, le=CREDIT_MAX)] | None = None
    begin: list[OwnershipToken] | None = None
    acks: list[StreamAck] | None = None
    call: StreamCall | None = None
    clock: float | None = None
    """Any time of the peer's own; the latest comes back with leases, which were pushed later than that."""


class StreamAnswer(Outgoing):
    """What the node sends. `error` with an id refuses that call; without one it is the reason why the stream ends."""

    id: CallId | None = None
    leases: list[Lease] | None = None
    clock: float | None = None
    results: list[Outcome] | None = None
    answer: Any = None
    cancel: list[OwnershipToken] | None = None
    lost: list[OwnershipToken] | None = None
    error: ErrorBody | None = None
