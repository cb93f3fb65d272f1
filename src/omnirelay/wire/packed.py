"""Reading MessagePack as the stream carries it: the names and values of the JSON form, with bytes as they are.

What comes by the thousand may come in a compact form besides, by position and without names: `items` of an enqueue and
`acks` of acknowledgements. It is read straight into what core takes. What does not fit at first sight is turned into
JSON and goes the way of JSON from there, so that both forms are as lenient as each other and have the same errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from omnirelay.core.intake import ATTRIBUTES_MAX, BATCH_ITEMS_MAX, TIME_MAX_MS
from omnirelay.core.payload import DEFAULT_PRIORITY, DEFAULT_WEIGHT, NewItem, OwnershipToken, Payload
from omnirelay.errors import TOO_LARGE, InvalidArgument
from omnirelay.wire import requests as asked
from omnirelay.wire.instants import instant
from omnirelay.wire.reading import OBJECTS_MAX, Reader

T = TypeVar("T")
A = TypeVar("A", bound=asked.Acknowledgement)

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading bytes of a peer may raise."""


class CompactItem(msgspec.Struct, array_like=True, gc=False):
    """An item to enqueue, by position. Core checks what is in it, but for how many elements that is."""

    resource_type: str
    resource_id: str
    body: bytes = b""
    payload_encoding: str | None = None
    partition_key: str | None = None
    attributes: Annotated[dict[str, str], Meta(max_length=ATTRIBUTES_MAX)] | None = None
    request_id: str | None = None
    priority: int = DEFAULT_PRIORITY
    weight: int = DEFAULT_WEIGHT
    delay_ms: int | None = None
    not_before_ms: int | None = None
    max_attempts: int | None = None


class CompactEnqueue(asked.Incoming):
    """A batch of items by position."""

    items: Annotated[list[CompactItem], Meta(min_length=1, max_length=BATCH_ITEMS_MAX)]
    wait_ms: asked.WaitMs | None = None

    def values(self) -> list[NewItem]:
        values = []
        for item in self.items:
            (
                resource_type,
                resource_id,
                body,
                encoding,
                partition_key,
                attributes,
                request_id,
                priority,
                weight,
                delay_ms,
                not_before_ms,
                max_attempts,
            ) = astuple(item)
            payload = Payload(resource_type, resource_id, partition_key, encoding, body, attributes or None, request_id)
            values.append(NewItem(payload, priority, weight, not_before_ms, delay_ms, max_attempts))
        return values


class CompactAcks(asked.Incoming):
    """Acknowledgements that say nothing but which leases they are about."""

    acks: Annotated[list[tuple[int, int, str, int | None]], Meta(min_length=1, max_length=BATCH_ITEMS_MAX)]

    def tokens(self) -> list[OwnershipToken]:
        return [OwnershipToken(*token) for token in self.acks]

    def spelled_out(self, kind: type[A]) -> list[A]:
        """The same with names."""
        return [
            kind(
                ownership_token=asked.IncomingToken(
                    sequence_id=sequence_id, attempt=attempt, lease_id=lease_id, fence=fence
                )
            )
            for sequence_id, attempt, lease_id, fence in self.acks
        ]


_PAYLOAD_NAMES: Final = (
    "resourceType",
    "resourceId",
    "body",
    "payloadEncoding",
    "partitionKey",
    "attributes",
    "requestId",
)
_ITEM_NAMES: Final = ("priority", "weight", "delayMs", "notBefore", "maxAttempts")
_TOKEN_NAMES: Final = ("sequenceId", "attempt", "leaseId", "fence")


def _item(row: list[Any]) -> dict[str, Any]:
    """A compact item as JSON has it."""
    item = dict(zip(_ITEM_NAMES, row[len(_PAYLOAD_NAMES) :], strict=False))
    not_before = item.get("notBefore")
    if type(not_before) is int and 0 <= not_before <= TIME_MAX_MS:
        item["notBefore"] = instant(not_before)
    item["payload"] = dict(zip(_PAYLOAD_NAMES, row, strict=False))
    return item


def _ack(row: list[Any]) -> dict[str, Any]:
    return {"ownershipToken": dict(zip(_TOKEN_NAMES, row, strict=False))}


_COMPACT: Final[dict[Any, tuple[Any, str, Callable[[list[Any]], dict[str, Any]]]]] = {
    asked.EnqueueRequest: (CompactEnqueue, "items", _item),
    asked.HeartbeatRequest: (CompactAcks, "acks", _ack),
    asked.CompleteRequest: (CompactAcks, "acks", _ack),
    asked.FailRequest: (CompactAcks, "acks", _ack),
    asked.ReleaseRequest: (CompactAcks, "acks", _ack),
}
"""By the type of a request: its compact form, the field that has one, and how an element of it reads as JSON."""


_WITH_PROGRESS: Final = (asked.HeartbeatRequest, asked.RestoreRequest)


class PackedReader(Generic[T]):
    """Reads one type of request; `json` is who reads it in the other form."""

    def __init__(self, kind: type[T], json: Reader[T]) -> None:
        self._kind = kind
        self._json = json
        self._decoder = msgspec.msgpack.Decoder(kind)
        compact, field, _ = _COMPACT.get(kind, (None, "", None))
        self._compact = None if compact is None else msgspec.msgpack.Decoder(compact)
        self._begins = msgspec.msgpack.encode(field)
        """How a request in the compact form goes on behind its first byte."""

    def read(self, body: bytes) -> Any:
        """The request in `body`, or its compact form; an empty body stands for an empty map. Raises InvalidArgument
        naming the field.
        """
        if self._compact is not None and body.startswith(self._begins, 1):
            try:
                return self._compact.decode(body)
            except UNREADABLE:
                pass  # By name, or wrong.
        check_elements(body, names=self._kind in _WITH_PROGRESS and has_progress(body))
        try:
            return self._decoder.decode(body or _EMPTY)
        except UNREADABLE:
            return self._json.read(json_of(self._kind, body))


_EMPTY: Final = b"\x80"


def json_of(kind: Any, body: bytes) -> bytes:
    """A request of that type as JSON would have it, without its compact forms."""
    return as_json(spelled_out(kind, parsed(body or _EMPTY)))


def spelled_out(kind: Any, request: Any) -> Any:
    """A request of that type without its compact forms."""
    _, field, by_name = _COMPACT.get(kind, (None, "", _item))
    if field and isinstance(request, dict):
        for name, batch in request.items():
            if isinstance(name, str) and name.lower() == field and isinstance(batch, list):
                request[name] = [by_name(each) if isinstance(each, list) else each for each in batch]
    return request


def parsed(data: bytes) -> Any:
    """Any MessagePack that is no burden: see `check_elements`."""
    check_elements(data, names=True)
    try:
        return msgspec.msgpack.decode(data)
    except UNREADABLE as error:
        raise not_packed(str(error)) from None


def as_json(value: Any) -> bytes:
    """What JSON would have said. MessagePack has a few values that JSON does not."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(f"the body has a value that JSON does not have: {error}", field="body") from None


def not_packed(why: str) -> InvalidArgument:
    return InvalidArgument(f"the body is not MessagePack: {why}", field="body")


_FIXED: Final = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 0),
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xCA: 4,
    0xCB: 8,
    0xD4: 2,
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
}
"""First bytes of values of one size: how many bytes follow."""
_SIZED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Bytes and text: how many bytes their length takes."""
_EXTENDED: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_ARRAYS: Final = {0xDC: 2, 0xDD: 4}
_MAPS: Final = {0xDE: 2, 0xDF: 4}


def has_progress(data: bytes) -> bool:
    """Whether there may be progress in it, the one part of what peers send that may hold anything at all."""
    return data.find(b"progress") >= 0  # `in` first takes the text for a number, and makes an error of that.


def check_elements(data: bytes, *, names: bool = False) -> None:
    """Refuse, before it is read, what can only be meant to be a burden: a byte of MessagePack may be an object. What is
    too short to have so many is not looked at, unless for its `names`: arrays can be chosen to have all the same hash,
    and a map of a few thousand of those would hold up everybody for seconds.
    """
    if len(data) <= OBJECTS_MAX and not names:
        return
    left, at, seen = 1, 0, 0
    within: list[tuple[int, bool]] = []
    """Of each array and map around: what is left behind it, and whether it is a map."""
    try:
        while left:
            first = data[at]
            if names:
                while within and left <= within[-1][0]:
                    within.pop()
                if 0x90 <= first < 0xA0 or first in _ARRAYS:
                    if within and within[-1][1] and (left - within[-1][0]) % 2 == 0:
                        raise InvalidArgument("the body has an array for a name; JSON has none", field="body")
                    within.append((left - 1, False))
                elif 0x80 <= first < 0x90 or first in _MAPS:
                    within.append((left - 1, True))
            at += 1
            left -= 1
            seen += 1
            if first < 0x80 or first >= 0xE0:
                continue
            if first < 0x90:
                left += 2 * (first & 0x0F)
            elif first < 0xA0:
                left += first & 0x0F
            elif first < 0xC0:
                at += first & 0x1F
            elif first in _FIXED:
                at += _FIXED[first]
            elif first in _SIZED:
                width = _SIZED[first]
                at += width + int.from_bytes(data[at : at + width], "big")
            elif first in _EXTENDED:
                width = _EXTENDED[first]
                at += width + 1 + int.from_bytes(data[at : at + width], "big")
            else:
                width = _ARRAYS.get(first) or _MAPS[first]
                count = int.from_bytes(data[at : at + width], "big")
                left += count if first in _ARRAYS else 2 * count
                at += width
            if seen + left > OBJECTS_MAX:
                raise InvalidArgument(
                    f"the body has more than {OBJECTS_MAX} elements; send fewer in one call",
                    code=TOO_LARGE,
                    field="body",
                    limit=OBJECTS_MAX,
                )
    except (IndexError, KeyError):
        raise not_packed("it ends too early, or has a byte that means nothing") from None
