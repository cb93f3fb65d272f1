"""The schema of the events, derived from their one definition in `omnirelay.core.events`.

Every other form of an event (protobuf, Arrow columns, the page of the documentation) takes names and kinds from here,
so that a field which is added to an event is in all of them, or a test says what is missing.

    EventType ── fields ──▶ EventField ── fields ──▶ EventField   (members of an object)
    flat_fields(): one list over all types, in which the members of small objects stand by themselves
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec import inspect

from omnirelay.core.events import EVENT_NUMBERS, Event
from omnirelay.errors import Internal
from omnirelay.wire.event_meanings import meaning_of
from omnirelay.wire.events import INSTANTS

FieldKind = Literal[
    "text",
    "whole number",
    "yes or no",
    "instant",
    "bytes",
    "JSON",
    "map of texts",
    "list of texts",
    "list of whole numbers",
    "list of instants",
    "object",
    "list of objects",
]
"""Instants are whole milliseconds in the log and ISO-8601 text in documents; bytes are base64 in both. `JSON` is an
object that is not looked into: what a caller sent, or options that change with every version.
"""

SINCE: Final[dict[str, int]] = {}
"""Schema version in which an event type (`Teleported`) or a field (`Enqueue.colour`, `payload.colour`) came; what is
not named here is as old as version 1.
"""

_EVERYWHERE: Final = ("sequenceNumber", "timestamp", "schemaVersion")
_NOT_LOOKED_INTO: Final = frozenset({"options"})

FLATTENED: Final = frozenset({"ownership", "payload", "error"})
"""Objects whose members stand by themselves in a flat form. Others are kept as JSON."""

_COLUMNS: Final = {
    # Two names that do not mean the same in every type: a flat form needs one kind for each.
    ("LeaseGranted", "requestKey"): "lease_request_id",
    ("Redriven", "notBefore"): "not_before_each",
    ("Failed", "metadata"): "failure_metadata",
}


class EventField(msgspec.Struct, frozen=True):
    """One field, by its name in JSON."""

    name: str
    kind: FieldKind
    required: bool
    """Written always; any other is left out when it has its default."""
    since: int
    """The schema version it came with."""
    meaning: str
    choices: tuple[str, ...] = ()
    """The only texts it takes, when there is such a list."""
    fields: tuple[EventField, ...] = ()
    """Members, when it is an object or a list of them."""


class EventType(msgspec.Struct, frozen=True):
    """One type of event. The fields that every type has come first."""

    name: str
    number: int
    since: int
    meaning: str
    fields: tuple[EventField, ...]


class FlatField(msgspec.Struct, frozen=True):
    """One field of any type, members of small objects by themselves, by the name that a flat form gives it."""

    column: str
    """Snake case: `sequence_number`, `payload_resource_id`."""
    path: tuple[str, ...]
    """Names in JSON from the event to it: `("payload", "resourceId")`."""
    kind: FieldKind
    since: int
    meaning: str
    types: tuple[str, ...]
    """The event types that have it."""


@cache
def event_types() -> tuple[EventType, ...]:
    """Every type, by its number."""
    types = (_event_type(each) for each in get_args(Event))
    return tuple(sorted(types, key=lambda each: each.number))


@cache
def flat_fields() -> tuple[FlatField, ...]:
    """Every field of every type once, in the order of the types. No two have the same column."""
    found: dict[str, FlatField] = {}
    for event_type in event_types():
        for path, field in _leaves(event_type.fields):
            column = column_of(event_type.name, *path)
            known = found.get(column)
            if known is None:
                types: tuple[str, ...] = (event_type.name,)
                found[column] = FlatField(column, path, field.kind, field.since, field.meaning, types)
            elif (known.path, known.kind) != (path, field.kind):
                raise Internal(f"{event_type.name} and {known.types[0]} do not mean the same by column {column}")
            else:
                since = min(known.since, field.since)
                found[column] = msgspec.structs.replace(known, types=(*known.types, event_type.name), since=since)
    return tuple(found.values())


def _leaves(fields: tuple[EventField, ...]) -> list[tuple[tuple[str, ...], EventField]]:
    leaves: list[tuple[tuple[str, ...], EventField]] = []
    for field in fields:
        if field.name in FLATTENED:
            leaves += [((field.name, member.name), member) for member in field.fields]
        else:
            leaves.append(((field.name,), field))
    return leaves


def column_of(event_type: str, *path: str) -> str:
    """The name of a field in a flat form; `path` are its names in JSON, from the event to it."""
    named = _COLUMNS.get((event_type, path[-1])) if len(path) == 1 else None
    if named is not None:
        return named
    *owners, name = (snake(each) for each in path)
    # `payload.payloadEncoding` need not say it twice.
    return "_".join((*owners, name.removeprefix("".join(f"{owner}_" for owner in owners))))


def snake(name: str) -> str:
    """`resourceId` as `resource_id`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


# -- reading the definition ----------------------------------------------------------------------


def _event_type(definition: Any) -> EventType:
    info = inspect.type_info(definition)
    assert isinstance(info, inspect.StructType)
    name = str(info.tag)
    tag = EventField("eventType", "text", True, 1, meaning_of(name, "eventType"), (name,))
    own = sorted(_fields(info, name), key=lambda field: _order(field.name))
    fields = (tag, *own)
    return EventType(name, EVENT_NUMBERS[name], SINCE.get(name, 1), meaning_of(name), fields)


def _order(name: str) -> int:
    return _EVERYWHERE.index(name) if name in _EVERYWHERE else len(_EVERYWHERE)


def _fields(struct: inspect.StructType, owner: str) -> tuple[EventField, ...]:
    """`owner` is the event type, or the name of the object that these are members of."""
    return tuple(_field(field, owner) for field in struct.fields)


def _field(field: inspect.Field, owner: str) -> EventField:
    name = field.encode_name
    shape = _without_none(field.type)
    members: tuple[EventField, ...] = ()
    element = shape.item_type if isinstance(shape, inspect.ListType) else shape
    if isinstance(element, inspect.StructType) and name not in _NOT_LOOKED_INTO:
        members = _fields(element, name)
    choices = tuple(str(value) for value in element.values) if isinstance(element, inspect.LiteralType) else ()
    since = max(SINCE.get(owner, 1), SINCE.get(f"{owner}.{name}", 1))
    return EventField(name, _kind(name, shape), field.required, since, meaning_of(owner, name), choices, members)


def _without_none(shape: inspect.Type) -> inspect.Type:
    if not isinstance(shape, inspect.UnionType):
        return shape
    [only] = [each for each in shape.types if not isinstance(each, inspect.NoneType)]
    return only


def _kind(name: str, shape: inspect.Type) -> FieldKind:
    match shape:
        case inspect.IntType():
            return "instant" if name in INSTANTS else "whole number"
        case inspect.StrType() | inspect.LiteralType():
            return "text"
        case inspect.BoolType():
            return "yes or no"
        case inspect.BytesType():
            return "bytes"
        case inspect.RawType():
            return "JSON"
        case inspect.StructType():
            return "JSON" if name in _NOT_LOOKED_INTO else "object"
        case inspect.ListType(item_type=inspect.IntType()):
            return "list of instants" if name in INSTANTS else "list of whole numbers"
        case inspect.ListType(item_type=inspect.StrType()):
            return "list of texts"
        case inspect.ListType(item_type=inspect.StructType()):
            return "list of objects"
        case inspect.DictType(value_type=inspect.StrType()):
            return "map of texts"
    raise Internal(f"a field {name} of the form {shape!r} has no kind yet")
