"""Messages of a node as a client reads them, in either form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from omnirelay.core.answers import GrantedLease
from omnirelay.core.payload import OwnershipToken
from omnirelay.wire.answers import ErrorBody, Lease, Outcome
from omnirelay.wire.forms import is_array, is_packed

L = TypeVar("L")


class Message(msgspec.Struct, Generic[L], rename="camel", kw_only=True):
    """One message of the node, as a client reads it: the answer stays encoded for whoever asked."""

    id: int | None = None
    leases: list[L] | None = None
    clock: float | None = None
    results: list[Outcome] | None = None
    answer: msgspec.Raw = msgspec.Raw(b"")
    cancel: list[OwnershipToken] | None = None
    lost: list[OwnershipToken] | None = None
    error: ErrorBody | None = None


_ANSWER = re.compile(rb'\{"id":(\d+),"answer":')
"""How an answer begins as nodes write it: the rest of the message, but for its last brace, is the answer."""

PushedMessage = Message[Lease]

_decode_one = msgspec.json.Decoder(PushedMessage).decode
_decode_many = msgspec.json.Decoder(list[PushedMessage]).decode
_unpack_one = msgspec.msgpack.Decoder(Message[GrantedLease]).decode
_unpack_many = msgspec.msgpack.Decoder(list[Message[GrantedLease]]).decode

_PACKED_ID: Final = b"\x82\xa2id"
_PACKED_ANSWER: Final = b"\xa6answer"
_ID_WIDTHS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
"""How many bytes an id has, by the byte before it."""


def answer_in(data: bytes) -> tuple[int, int, int] | None:
    """Which call a message answers and where the answer begins and ends, when it is what most messages are: an answer
    as nodes write it.
    """
    if data.startswith(_PACKED_ID):
        end = len(_PACKED_ID) + 1
        call_id = data[end - 1]
        if call_id >= 0x80:
            width = _ID_WIDTHS.get(call_id, 0)
            call_id = int.from_bytes(data[end : end + width], "big")
            end += width
        return (call_id, end + len(_PACKED_ANSWER), len(data)) if data.startswith(_PACKED_ANSWER, end) else None
    begins = _ANSWER.match(data)
    return None if begins is None else (int(begins.group(1)), begins.end(), len(data) - 1)


def messages_in(data: bytes) -> Sequence[Message[Any]]:
    if is_packed(data):
        return _unpack_many(data) if is_array(data) else (_unpack_one(data),)
    return _decode_many(data) if data[:1] == b"[" else (_decode_one(data),)
