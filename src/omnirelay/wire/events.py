"""Events as readers outside get them: as they are stored, with instants as ISO-8601 text."""

from __future__ import annotations

from typing import Any

import msgspec

from omnirelay.core.events import Event
from omnirelay.wire.instants import instant

INSTANTS = frozenset({"timestamp", "expiresAt", "notBefore", "enqueuedAt", "until", "downFrom"})

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


def event_of(event: Event) -> dict[str, Any]:
    """The event as a JSON object, in the names of the log. What callers sent stays as they wrote it."""
    return readable(_encode(event))


def readable(stored: bytes | msgspec.Raw) -> dict[str, Any]:
    """A stored event as readers outside get it; also one of a newer version, with all that this one does not know.

    Only names of the log are looked at: a `timestamp` in somebody's progress is none of ours.
    """
    document: dict[str, Any] = {}
    for name, value in _fields(stored).items():
        if name in INSTANTS:
            document[name] = _text(_decode(value))
        elif name == "items":
            document[name] = [readable(each) for each in _elements(value)]
        else:
            document[name] = value
    return document


def _text(value: Any) -> Any:
    if isinstance(value, int):
        return instant(value)
    if isinstance(value, list):  # `Redriven.notBefore` runs beside its ids.
        return [_text(each) for each in value]
    return value
