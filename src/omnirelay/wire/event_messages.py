"""The protobuf messages of events: names, numbers and types, and the text of the `.proto` file made of them.

Numbers 1-8 of an event, and those of the objects in it, are older than this implementation. Ours come behind them. A
number is never given to another field, and a field that goes leaves its number unused.

Nothing here needs the protobuf library: `event_protobuf` does the work.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Literal

import msgspec

from omnirelay.errors import Internal
from omnirelay.wire.event_schema import EventField, FieldKind, column_of, event_types, snake

PACKAGE: Final = "omnirelay.events.v1"
FILE_NAME: Final = "omnirelay_events.proto"

EXTRA: Final = "extra"
"""Field of every message: what has no field of its own, or does not fit it, as JSON text by its name."""

Shape = Literal["one", "list", "map"]


class MessageField(msgspec.Struct, frozen=True):
    """`json` is the name in a document; two fields may share it, of different kinds."""

    name: str
    json: str
    number: int
    kind: FieldKind
    type: str
    """`string`, `int64`, `bool`, `bytes`, or the name of a message."""
    shape: Shape
    meaning: str


_NUMBERS: Final[dict[str, dict[str, int]]] = {
    "Event": {
        "sequence_number": 1, "event_type": 2, "timestamp": 3, "peer_id": 4, "ownership": 5, "payload": 6, "error": 7,
        "metadata": 8,
        "schema_version": 9, "event_type_name": 10, "sequence_id": 11, "principal": 12, "expires_at": 13,
        "progress": 14, "extra": 15, "priority": 16, "weight": 17, "not_before": 18, "max_attempts": 19,
        "parent_sequence_id": 20, "request_key": 21, "payload_digest": 22, "lease_request_id": 23, "guard": 24,
        "result": 25, "result_encoding": 26, "follow_up_ids": 27, "mode": 28, "next_attempt": 29, "sequence_ids": 30,
        "items": 31, "undelivered": 32, "not_before_each": 33, "reason": 34, "resource_type": 35, "tenant": 36,
        "intake": 37, "until": 38, "active": 39, "pending": 40, "high_watermark": 41, "low_watermark": 42,
        "down_from": 43, "epoch": 44, "owner": 45, "ended_up_to": 46, "options": 47, "generation": 48,
        "next_sequence_id": 49, "cause": 50, "others": 51,
    },
    "Ownership": {"sequence_id": 1, "attempt": 2, "lease_id": 3, "fence": 4, "lease_id_text": 5, "extra": 15},
    "Error": {"message": 1, "code": 2, "extra": 15},
    "Payload": {
        "resource_type": 1, "resource_id": 2, "partition_key": 3, "payload_encoding": 4, "body": 5, "attributes": 6,
        "request_id": 7, "extra": 15,
    },
    "RestoredItem": {
        "sequence_id": 1, "payload": 2, "attempt": 3, "enqueued_at": 4, "priority": 5, "weight": 6, "not_before": 7,
        "max_attempts": 8, "last_error": 9, "last_ownership_token": 10, "progress": 11, "parent_sequence_id": 12,
        "request_key": 13, "payload_digest": 14, "extra": 15, "attempt_floor": 16, "undelivered": 17,
    },
}  # fmt: skip

_MESSAGES: Final = {
    "payload": "Payload",
    "ownership": "Ownership",
    "lastOwnershipToken": "Ownership",
    "error": "Error",
    "lastError": "Error",
    "items": "RestoredItem",
}

_SCALARS: Final[dict[FieldKind, tuple[str, Shape]]] = {
    "text": ("string", "one"),
    "whole number": ("int64", "one"),
    "yes or no": ("bool", "one"),
    "instant": ("string", "one"),
    "bytes": ("bytes", "one"),
    "JSON": ("string", "one"),
    "map of texts": ("string", "map"),
    "list of texts": ("string", "list"),
    "list of whole numbers": ("int64", "list"),
    "list of instants": ("string", "list"),
}

_EXTRA_MEANING: Final = "What has no field here, or does not fit it: JSON text by its name in the document."
_EVENT_TYPE: Final = (
    ("event_type", "whole number", "int64", "Number of the type, 0 for one that the writer had no number for."),
    ("event_type_name", "text", "string", "Name of the type, when its number is 0."),
)
_LEASE_ID: Final = (
    (
        "lease_id",
        "bytes",
        "bytes",
        (
            "The 16 bytes of the lease's UUID in the order of the older system, which is not that of RFC 4122: the"
            " first three groups are little-endian. Read lease_id_text unless you have to."
        ),
    ),
    ("lease_id_text", "text", "string", "Id of the lease, a UUID in lower case."),
)


@cache
def messages() -> dict[str, tuple[MessageField, ...]]:
    """Every message with its fields, by number. Raises Internal when a field of an event has no number yet."""
    fields: dict[str, dict[str, MessageField]] = {name: {} for name in _NUMBERS}
    for event_type in event_types():
        for field in event_type.fields:
            _add(fields, "Event", field, column_of(event_type.name, field.name))
    _add(fields, "Event", EventField("metadata", "map of texts", False, 1, "Where the event is from, and more."))
    for message in fields:
        _put(fields, message, EXTRA, "", "map of texts", "string", "map", _EXTRA_MEANING)
    return {name: tuple(sorted(each.values(), key=lambda field: field.number)) for name, each in fields.items()}


def message_of(field: str) -> str:
    """The message that an object of this name in a document becomes."""
    return _MESSAGES[field]


def _add(
    fields: dict[str, dict[str, MessageField]], message: str, field: EventField, column: str | None = None
) -> None:
    special = {"eventType": _EVENT_TYPE, "leaseId": _LEASE_ID}.get(field.name)
    if special is not None:
        for name, kind, type_, meaning in special:
            _put(fields, message, name, field.name, kind, type_, "one", meaning)  # type: ignore[arg-type]
        return
    name = column or snake(field.name)
    if name == "failure_metadata":
        return  # A document keeps it in `metadata`, with what it says of the shard.
    if field.fields:
        type_ = _MESSAGES[field.name]
        shape: Shape = "list" if field.kind == "list of objects" else "one"
        for member in field.fields:
            _add(fields, type_, member)
    else:
        type_, shape = _SCALARS[field.kind]
    _put(fields, message, name, field.name, field.kind, type_, shape, field.meaning)


def _put(
    fields: dict[str, dict[str, MessageField]],
    message: str,
    name: str,
    json: str,
    kind: FieldKind,
    type_: str,
    shape: Shape,
    meaning: str,
) -> None:
    number = _NUMBERS[message].get(name)
    if number is None:
        raise Internal(f"the field {name} of the protobuf message {message} has no number yet")
    if name not in fields[message]:
        fields[message][name] = MessageField(name, json, number, kind, type_, shape, meaning)


# -- the file for other languages ----------------------------------------------------------------


def proto_text() -> str:
    """The `.proto` file, for other languages."""
    lines = [
        "// Events of OmniRelay. Made by `make schemas`; a test compares it with the definition.",
        "",
        'syntax = "proto3";',
        "",
        f"package {PACKAGE};",
    ]
    for name, fields in messages().items():
        lines += ["", f"message {name} {{"]
        for field in fields:
            lines += [*_comment(field.meaning), f"  {_declared(field)} {field.name} = {field.number};"]
        lines.append("}")
    return "\n".join(lines) + "\n"


def _declared(field: MessageField) -> str:
    match field.shape:
        case "map":
            return f"map<string, {field.type}>"
        case "list":
            return f"repeated {field.type}"
        case "one":
            return field.type if field.type[0].isupper() else f"optional {field.type}"


def _comment(text: str) -> list[str]:
    lines: list[str] = []
    line = "  //"
    for word in text.split():
        if len(line) + 1 + len(word) > 118:
            lines.append(line)
            line = "  //"
        line += f" {word}"
    return [*lines, line]
