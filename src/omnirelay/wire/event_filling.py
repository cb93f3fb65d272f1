"""From the JSON of an event into its protobuf message."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import cache
from typing import Any, Final
from uuid import UUID

import msgspec

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.wire.event_classes import decode_error
from omnirelay.wire.event_messages import MessageField, messages
from omnirelay.wire.event_schema import FieldKind, column_of, event_types

UNKNOWN: Final = "protobuf.unknown"
"""Member of an object: base64 of the fields that a newer version wrote and this one cannot name."""

_INT64: Final = range(-(1 << 63), 1 << 63)
_NUMBERED_FROM_THE_START: Final = 22
"""Types up to this number are known to every reader of this form; those behind it bring their name along."""

_encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_number = msgspec.json.Decoder(int, strict=True).decode
_numbers = msgspec.json.Decoder(list[int], strict=True).decode
_text = msgspec.json.Decoder(str, strict=True).decode
_texts = msgspec.json.Decoder(list[str], strict=True).decode
_flag = msgspec.json.Decoder(bool, strict=True).decode
_text_map = msgspec.json.Decoder(dict[str, str], strict=True).decode


class _DoesNotFit(Exception):
    """The value cannot be said exactly by the field."""


def fill(message: Any, name: str, members: dict[str, msgspec.Raw]) -> None:
    """Put every member where it belongs, or into `extra`. Raises UnicodeDecodeError when the JSON is not UTF-8."""
    fields = _fields_of(name, _event_type(members) if name == "Event" else "")
    for member, value in members.items():
        try:
            if member == "eventType" and name == "Event":
                _set_event_type(message, _text(value))
            elif member == "leaseId" and name == "Ownership":
                _set_lease_id(message, _text(value))
            elif member == UNKNOWN:
                message.MergeFrom(type(message).FromString(_bytes(value)))
            elif member in fields:
                _set(message, fields[member], value)
            else:
                raise _DoesNotFit
        except (_DoesNotFit, msgspec.DecodeError, UnicodeEncodeError):
            message.extra[member] = bytes(value).decode()
        except decode_error():  # What claims to be unknown fields is none.
            message.extra[member] = bytes(value).decode()


def _event_type(members: dict[str, msgspec.Raw]) -> str:
    try:
        return _text(members["eventType"])
    except (KeyError, msgspec.DecodeError):
        return ""


def _set_event_type(message: Any, name: str) -> None:
    number = message.event_type = EVENT_NUMBERS.get(name, 0)
    if not 0 < number <= _NUMBERED_FROM_THE_START:
        message.event_type_name = name


def _set_lease_id(message: Any, text: str) -> None:
    message.lease_id_text = text
    try:
        message.lease_id = UUID(text).bytes_le
    except ValueError:
        return  # Not a UUID; then only the text says it.


def _set(message: Any, field: MessageField, value: msgspec.Raw) -> None:
    """Raises _DoesNotFit or a DecodeError, and has changed nothing then."""
    if field.kind == "object":
        members = _members(value)
        part = getattr(message, field.name)
        part.SetInParent()  # An empty object is there all the same.
        fill(part, field.type, members)
    elif field.kind == "list of objects":
        parts = [_members(each) for each in _some(_elements(value))]
        for members in parts:
            fill(getattr(message, field.name).add(), field.type, members)
    elif field.shape == "one":
        setattr(message, field.name, _READ_ONE[field.kind](value))
    elif field.shape == "list":
        read = _numbers_of if field.kind == "list of whole numbers" else _texts_of
        getattr(message, field.name).extend(read(value))
    else:
        getattr(message, field.name).update(_map_of(value))


def _some(values: Any) -> Any:
    if not values:
        raise _DoesNotFit  # An empty list cannot be told from one that is missing.
    return values


def _whole(value: msgspec.Raw) -> int:
    found = _number(value)
    if found not in _INT64 or _encode(found) != bytes(value):
        raise _DoesNotFit
    return found


def _numbers_of(value: msgspec.Raw) -> list[int]:
    found: list[int] = _some(_numbers(value))
    if any(each not in _INT64 for each in found):
        raise _DoesNotFit
    return found


def _text_of(value: msgspec.Raw) -> str:
    return _plain(_text(value))


def _texts_of(value: msgspec.Raw) -> list[str]:
    return [_plain(each) for each in _some(_texts(value))]


def _map_of(value: msgspec.Raw) -> dict[str, str]:
    return {_plain(name): _plain(text) for name, text in _some(_text_map(value)).items()}


def _plain(text: str) -> str:
    text.encode()  # Half a surrogate pair cannot be sent; the escape in JSON text can.
    return text


def _bytes(value: msgspec.Raw) -> bytes:
    text = _text(value)
    try:
        found = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _DoesNotFit from None
    if b64encode(found).decode() != text:
        raise _DoesNotFit
    return found


def _json(value: msgspec.Raw) -> str:
    return bytes(value).decode()


_READ_ONE: Final[dict[FieldKind, Callable[[msgspec.Raw], Any]]] = {
    "text": _text_of,
    "instant": _text_of,
    "whole number": _whole,
    "yes or no": _flag,
    "bytes": _bytes,
    "JSON": _json,
}


@cache
def _fields_of(message: str, event_type: str) -> dict[str, MessageField]:
    """Fields by their name in a document; which of two that share a name is meant depends on the type of the event."""
    named = {field.name: field for field in messages()[message]}
    if message != "Event":
        return {field.json: field for field in named.values() if field.json}
    # For a type that is not known here, a name means what it means in most.
    fields = {field.json: field for field in reversed(named.values()) if field.json}
    for known in event_types():
        if known.name == event_type:
            columns = {field.name: column_of(event_type, field.name) for field in known.fields}
            fields |= {json: named[column] for json, column in columns.items() if column in named}
    return fields
