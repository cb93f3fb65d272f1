"""Messages of the lease stream. One WebSocket message is one of these, or an array of them; `docs/protocol.md`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from omnirelay.core.answers import GrantedLease
from omnirelay.core.payload import OwnershipToken
from omnirelay.errors import TOO_LARGE, InvalidArgument
from omnirelay.wire.answers import ErrorBody, Lease, Outcome, Outgoing
from omnirelay.wire.reading import Budget, Reader, check_objects
from omnirelay.wire.requests import (
    CompleteRequest,
    EnqueueItem,
    EnqueueRequest,
    FailAck,
    Incoming,
    IncomingProgress,
    LeaseRequest,
)

CREDIT_MAX = 100_000
MESSAGES_MAX = 10_000
"""Most messages in one array."""
CONVERTED_COST = 4
"""What it takes to look at a message or an acknowledgement by itself, in names."""
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
    compact: bool = False
    """The peer reads the compact form of leases. Only MessagePack has one."""


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
    request: msgspec.Raw = msgspec.Raw()
    """Without one it is an empty object."""
    ttl_ms: Annotated[float, Meta(ge=0)] | None = None
    compact: bool = False
    """The caller reads the compact forms of answers. Only MessagePack has some."""


class StreamMessage(Incoming):
    """What a peer sends. `id` comes back with the answer."""

    id: CallId | None = None
    open: StreamOpen | None = None
    withdraw: bool = False
    """Credit that is not used up counts no more; looked at before `credit`, which counts from then on."""
    credit: Annotated[int, Meta(ge=0, le=CREDIT_MAX)] | None = None
    begin: list[OwnershipToken] | None = None
    acks: list[StreamAck] | None = None
    call: StreamCall | None = None
    abandon: list[CallId] | None = None
    """Calls of this stream that nobody waits for any more: what they wait for goes to others."""
    clock: float | None = None
    """Any time of the peer's own; the latest comes back with leases, which were pushed later than that."""


class StreamAnswer(Outgoing):
    """What the node sends. `error` with an id refuses that call; without one it is the reason why the stream ends."""

    id: CallId | None = None
    leases: list[Lease] | list[GrantedLease] | None = None
    """By name, or in the compact form: as core made them."""
    clock: float | None = None
    results: list[Outcome] | None = None
    answer: Any = None
    cancel: list[OwnershipToken] | None = None
    lost: list[OwnershipToken] | None = None
    error: ErrorBody | None = None


# -- reading -------------------------------------------------------------------------------------


class Received(msgspec.Struct):
    """One message as it was read. What does not fit is refused where it stands: other messages, and other
    acknowledgements of the same one, are those of jobs that have nothing to do with it.
    """

    message: StreamMessage
    acks: Sequence[StreamAck | InvalidArgument] | None = None
    packed: bool = False
    """The request of its call is MessagePack."""
    request: Any = None
    """The request of its call, when that was read along with it; then the call itself has none."""
    error: InvalidArgument | None = None
    """Why the message as a whole was not understood; then only its id is known, if any."""


_messages = Reader(StreamMessage)
_acks = Reader(StreamAck)


R = TypeVar("R")


class _TypedCall(Incoming, Generic[R]):
    verb: str
    request: R
    ttl_ms: Annotated[float, Meta(ge=0)] | None = None
    compact: bool = False


class _TypedMessage(Incoming, Generic[R]):
    id: CallId
    call: _TypedCall[R]


_CALL = re.compile(rb'\{"id":\d+,"call":\{"verb":"(\w+)","request":\{')
"""How a call begins as our own clients write it."""
_TYPED: dict[bytes, msgspec.json.Decoder[Any]] = {
    b"enqueue": msgspec.json.Decoder(_TypedMessage[EnqueueRequest]),
    b"lease": msgspec.json.Decoder(_TypedMessage[LeaseRequest]),
    b"complete": msgspec.json.Decoder(_TypedMessage[CompleteRequest]),
}
"""The verbs of the lease cycle, whose requests may be large: read with the message, not after it."""


def _typed(data: bytes) -> Received | None:
    """The one message in `data` when it is a call that can be read in one step."""
    begins = _CALL.match(data)
    decoder = None if begins is None else _TYPED.get(begins.group(1))
    if decoder is None:
        return None
    try:
        message = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # The long way finds out what is wrong with it, or that nothing is.
    call = StreamCall(verb=message.call.verb, ttl_ms=message.call.ttl_ms)
    return Received(StreamMessage(id=message.id, call=call), request=message.call.request)


def read_messages(data: bytes) -> list[Received]:
    """One message or an array of them. Raises InvalidArgument when it is not JSON, or not made of objects."""
    check_objects(data)
    typed = _typed(data)
    if typed is not None:
        return [typed]
    if data[:1].isspace():
        data = data.lstrip()
    try:
        messages = _messages.read_many(data)
        _check_count(messages)
        return [Received(message, message.acks) for message in messages]
    except InvalidArgument as error:
        if error.code == TOO_LARGE:
            raise
        try:
            parsed = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise error from None
        values = parsed if isinstance(parsed, list) else [parsed]
        if not all(isinstance(value, dict) for value in values):
            raise
        _check_count(values)
        budget = Budget()
        budget.spend(CONVERTED_COST * len(values))
        return [_received(value, budget) for value in values]


def _check_count(messages: list[Any]) -> None:
    if len(messages) > MESSAGES_MAX:
        raise InvalidArgument(
            f"an array must hold at most {MESSAGES_MAX} messages, got {len(messages)}",
            code=TOO_LARGE,
            field="body",
            limit=MESSAGES_MAX,
        )


def _received(value: dict[str, Any], budget: Budget) -> Received:
    by_name = {name.lower(): each for name, each in value.items()}
    acks = by_name.get("acks")
    try:
        message = _messages.convert({name: each for name, each in value.items() if name.lower() != "acks"}, budget)
        if acks is not None and not isinstance(acks, list):
            raise InvalidArgument("acks must be an array", code="resourcelease.acks.invalid", field="acks")
    except InvalidArgument as error:
        call_id = by_name.get("id")
        return Received(StreamMessage(id=call_id if isinstance(call_id, int | str) else None), error=error)
    if acks is None:
        return Received(message)
    budget.spend(CONVERTED_COST * len(acks))
    return Received(message, [_ack(each, budget) for each in acks])


def _ack(value: Any, budget: Budget) -> StreamAck | InvalidArgument:
    try:
        return _acks.convert(value, budget)
    except InvalidArgument as error:
        return error
