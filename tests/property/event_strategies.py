"""Events of every type as they could be stored, made from the schema: also with what a newer version might add."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from typing import Any

from hypothesis import strategies as st

from omnirelay.wire.event_schema import EventField, EventType, FieldKind, event_types

MANY = (1 << 63) - 1
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
INSTANT = st.integers(0, 4_000_000_000_000)

_VALUES: dict[FieldKind, st.SearchStrategy[Any]] = {
    "text": TEXT,
    "whole number": st.integers(0, MANY),
    "yes or no": st.booleans(),
    "instant": INSTANT,
    "bytes": st.binary(max_size=12).map(lambda data: b64encode(data).decode()),
    "JSON": st.dictionaries(TEXT, JSON, max_size=3),
    "map of texts": st.dictionaries(TEXT, TEXT, max_size=3),
    "list of texts": st.lists(TEXT, max_size=3),
    "list of whole numbers": st.lists(st.integers(0, MANY), max_size=3),
    "list of instants": st.lists(INSTANT, max_size=3),
}


def _value(field: EventField) -> st.SearchStrategy[Any]:
    if field.name == "options":
        return st.just({})
    if field.choices:
        return st.sampled_from(field.choices)
    if field.fields:
        one = members(field.fields)
        return st.lists(one, max_size=2) if field.kind == "list of objects" else one
    return _VALUES[field.kind]


def members(fields: tuple[EventField, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with these fields; those that need not be there are left out now and then."""
    return st.fixed_dictionaries(
        {field.name: _value(field) for field in fields if field.required},
        optional={field.name: _value(field) for field in fields if not field.required},
    )


@cache
def stored(event_type: EventType) -> st.SearchStrategy[dict[str, Any]]:
    """What this version could have stored."""
    return members(event_type.fields).map(lambda each: {**each, "schemaVersion": 1})


@cache
def any_stored() -> st.SearchStrategy[dict[str, Any]]:
    return st.sampled_from(event_types()).flatmap(stored)


@st.composite
def of_a_newer_version(draw: st.DrawFn) -> dict[str, Any]:
    """An event of a type that may be new, whose fields may be new or mean something else by now."""
    event = draw(any_stored())
    if draw(st.booleans()):
        event["eventType"] = draw(st.sampled_from(["Teleported", "X", "23", ""]))
    names = st.sampled_from(sorted(event)) | TEXT
    for name, value in draw(st.dictionaries(names, JSON, max_size=4)).items():
        if name not in ("eventType", "sequenceNumber", "timestamp"):
            event[name] = value
    for inner in ("payload", "ownership"):
        if isinstance(event.get(inner), dict):
            event[inner] |= draw(st.dictionaries(TEXT, JSON, max_size=2))
    event["schemaVersion"] = draw(st.integers(2, 99))
    return event
