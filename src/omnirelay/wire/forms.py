"""The two forms of the stream: JSON in text frames, MessagePack in binary ones.

Both carry the same messages. The first byte of a message tells which form it has: JSON begins with a brace, a bracket
or white space, a map or an array of MessagePack never does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec

SUBPROTOCOL: Final = "omnirelay.v1+msgpack"
"""What a peer that wants MessagePack asks for when it connects, and a node that speaks it confirms."""

_pack = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode


def packed(value: Any) -> bytes:
    """A message or an answer of a node. JSON has whole numbers of any size and MessagePack does not: one beyond 64
    bits, in the progress of an item or as the id of a call, is sent as the text of its digits.
    """
    try:
        return _pack(value)
    except OverflowError:
        return _pack(_with_digits(msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True)))


def _with_digits(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_digits(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_digits(each) for each in value]
    return str(value) if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64 else value


@lru_cache(maxsize=64)
def _word(text: str) -> bytes:
    """Names and verbs, of which there are few."""
    return _pack(text)


class Form(Protocol):
    """How messages are written, in particular those whose largest part is encoded already."""

    binary: bool
    """It goes in binary frames."""
    encode: Callable[[Any], bytes]

    def message(self, call_id: int | str | None, name: str, value: bytes) -> bytes:
        """The message of that id that has one value."""
        ...

    def call(self, verb: str, request: bytes, ttl_ms: int, *, compact: bool) -> bytes:
        """A call, as the value of a message."""
        ...

    def array(self, values: Sequence[bytes]) -> bytes: ...


class JsonForm:
    binary = False
    encode = staticmethod(_json)

    @staticmethod
    def message(call_id: int | str | None, name: str, value: bytes) -> bytes:
        return b'{"id":%b,"%b":%b}' % (_json(call_id), name.encode(), value)

    @staticmethod
    def call(verb: str, request: bytes, ttl_ms: int, *, compact: bool) -> bytes:
        """JSON has no compact forms to ask for."""
        return b'{"verb":%b,"request":%b,"ttlMs":%d}' % (_json(verb), request, ttl_ms)

    @staticmethod
    def array(values: Sequence[bytes]) -> bytes:
        return b"[" + b",".join(values) + b"]"


class PackedForm:
    binary = True
    encode: Callable[[Any], bytes] = staticmethod(packed)

    @staticmethod
    def message(call_id: int | str | None, name: str, value: bytes) -> bytes:
        return b"\x82\xa2id%b%b%b" % (packed(call_id), _word(name), value)

    @staticmethod
    def call(verb: str, request: bytes, ttl_ms: int, *, compact: bool) -> bytes:
        message = b"%c\xa4verb%b\xa7request%b\xa5ttlMs%b" % (0x83 + compact, _word(verb), request, _pack(ttl_ms))
        return message + b"\xa7compact\xc3" if compact else message

    @staticmethod
    def array(values: Sequence[bytes]) -> bytes:
        return _array_head(len(values)) + b"".join(values)


JSON: Final = JsonForm()
PACKED: Final = PackedForm()


def is_packed(data: bytes) -> bool:
    """Whether a message is MessagePack: every first byte of JSON is below that of its maps and arrays."""
    return data[:1] >= b"\x80"


def is_array(data: bytes) -> bool:
    """Whether a message of MessagePack is an array of messages."""
    return b"\x90" <= data[:1] < b"\xde"


def _array_head(count: int) -> bytes:
    """What an array of so many elements begins with."""
    if count < 16:
        return b"%c" % (0x90 | count)
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
