"""Events as protobuf, there and back without loss.

    document (JSON) ── to_protobuf ──▶ bytes ── from_protobuf ──▶ the same document

Every field of a document that has one here and fits it goes there. Whatever else there is (a field of a newer version,
a null, an empty list, a text where a number belongs) is kept as JSON text in `extra` of its message. What a newer
writer put into fields that this version has no name for is kept too, in the member `protobuf.unknown` of the document.

The messages are built at run time from `event_messages`: nothing is generated, and only the protobuf library is needed.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final
from uuid import UUID

import msgspec

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.errors import DataLoss, InvalidArgument
from omnirelay.wire.event_classes import classes, decode_error, library
from omnirelay.wire.event_filling import UNKNOWN, fill
from omnirelay.wire.event_messages import EXTRA, MessageField, messages

_TYPE_NAMES: Final = {number: name for name, number in EVENT_NUMBERS.items()}

_encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_any = msgspec.json.Decoder(msgspec.Raw).decode


class _NoEvent(Exception):
    """A message that no writer of ours would have made."""


def to_protobuf(document: bytes) -> bytes:
    """The message of an event. `document` is its JSON, as sinks get it from `ReplicatedEvent.json`.

    Raises InvalidArgument when it is not a JSON object, FailedPrecondition when the protobuf library is missing.
    """
    try:
        members = _members(document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"not the JSON of an event: {error}", field="document") from None
    message = classes()["Event"]()
    try:
        fill(message, "Event", members)
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"the JSON of the event is not UTF-8: {error}", field="document") from None
    return bytes(message.SerializeToString(deterministic=True))


def from_protobuf(data: bytes) -> bytes:
    """The document of a message, as JSON. Its members may stand in another order than before.

    Raises DataLoss when the bytes are no such message, FailedPrecondition when the protobuf library is missing.
    """
    message = classes()["Event"]()
    try:
        message.ParseFromString(data)
        return _encode(_document(message, "Event"))
    except (decode_error(), _NoEvent) as error:
        raise DataLoss(f"the bytes are not the protobuf form of an event: {error}") from None


# -- to a document -------------------------------------------------------------------------------


def _document(message: Any, name: str) -> dict[str, Any]:
    by_number = {field.number: field for field in messages()[name]}
    document: dict[str, Any] = {}
    for descriptor, value in message.ListFields():
        field = by_number[descriptor.number]
        if field.name == EXTRA:
            document |= {member: _checked(member, text) for member, text in value.items()}
        elif field.json == "eventType":
            if field.name == "event_type_name":
                document["eventType"] = value
            elif value in _TYPE_NAMES:
                document["eventType"] = _TYPE_NAMES[value]
            elif value and not message.HasField("event_type_name"):
                raise _NoEvent(f"type {value} has no name here, and the message gives none")
        elif field.json == "leaseId":
            document["leaseId"] = value if field.name == "lease_id_text" else _lease_id(value)
        else:
            document[field.json] = _value(field, value)
    unknown = _unknown_fields(message)
    if unknown:
        document[UNKNOWN] = b64encode(unknown).decode()
    return document


def _value(field: MessageField, value: Any) -> Any:
    match field.kind:
        case "object":
            return _document(value, field.type)
        case "list of objects":
            return [_document(each, field.type) for each in value]
        case "bytes":
            return b64encode(value).decode()
        case "JSON":
            return _checked(field.json, value)
        case "map of texts":
            return dict(value)
        case "list of texts" | "list of instants" | "list of whole numbers":
            return list(value)
        case _:
            return value


def _checked(member: str, text: str) -> msgspec.Raw:
    try:
        return _any(text)
    except msgspec.DecodeError as error:
        raise _NoEvent(f"{member} is not JSON text: {error}") from None


def _lease_id(value: bytes) -> str:
    try:
        return str(UUID(bytes_le=value))
    except ValueError:
        raise _NoEvent(f"lease_id has {len(value)} bytes instead of 16") from None


def _unknown_fields(message: Any) -> bytes:
    if not len(library("unknown_fields").UnknownFieldSet(message)):
        return b""
    rest = type(message)()
    rest.CopyFrom(message)
    for descriptor in rest.DESCRIPTOR.fields:
        rest.ClearField(descriptor.name)
    return bytes(rest.SerializeToString())
