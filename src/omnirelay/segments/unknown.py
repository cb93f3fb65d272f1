"""Events that a newer version wrote: what this one knows of them, and all the rest as it stands there."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from omnirelay.core.events import Event
from omnirelay.wire.event_schema import FLATTENED


class UnknownType(msgspec.Struct, rename="camel", frozen=True):
    """An event whose type, or form, this version does not know."""

    event_type: str
    sequence_number: int
    timestamp: int
    schema_version: int = 1


_read_known = msgspec.json.Decoder(Event).decode
_read_unknown = msgspec.json.Decoder(UnknownType).decode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def read_event(raw: bytes) -> tuple[Event | UnknownType, str | None]:
    """The event, and as JSON text what its type does not hold; None when that is nothing."""
    try:
        event: Event = _read_known(raw)
    except msgspec.ValidationError:
        return _read_unknown(raw), raw.decode()
    if _encode(event) == raw:
        return event, None
    extra = _beyond(event, raw)
    return event, _encode(extra).decode() if extra else None


def _beyond(known: msgspec.Struct, raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """Members of an object that its type does not have; nested ones whole when there is anything new inside."""
    extra: dict[str, Any] = {}
    kind: type[msgspec.Struct] = type(known)
    names = _names(kind)
    for name, value in _members(raw).items():
        if name not in names:
            extra[name] = value
            continue
        held = getattr(known, names[name])
        if name in FLATTENED and isinstance(held, msgspec.Struct):
            if inside := _beyond(held, value):
                extra[name] = inside
        elif isinstance(held, msgspec.Struct | list | dict) and _encode(held) != bytes(value):
            extra[name] = value
    return extra


@cache
def _names(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Names of the fields by their names in JSON. The tag is none of the fields, but known."""
    names = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
    tag = kind.__struct_config__.tag_field
    return names if tag is None else {**names, tag: "__class__"}
