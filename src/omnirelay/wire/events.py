"""Events as readers outside get them: as they are stored, with instants as ISO-8601 text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from omnirelay.core.events import EVENT_NUMBERS, Event
from omnirelay.core.intake import refuse
from omnirelay.wire.instants import instant

INSTANTS = frozenset({"timestamp", "expiresAt", "notBefore", "enqueuedAt", "until", "downFrom"})

_TYPES = {name.lower(): name for name in EVENT_NUMBERS}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode


def event_types_named(names: Iterable[str]) -> frozenset[str]:
    """The types of events that go by these names, in any case. Raises InvalidArgument when there is none of a name."""
    found = set()
    for name in names:
        known = _TYPES.get(name.strip().lower())
        if known is None:
            refuse("types", f"has {name[:64]!r}, which is no type of event; there are {', '.join(EVENT_NUMBERS)}")
        found.add(known)
    return frozenset(found)


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
            document[name] = _text(value)
        elif name == "items":
            document[name] = _items(value)
        else:
            document[name] = value
    return document


def _text(value: msgspec.Raw) -> Any:
    """Instants as text; what cannot be one, because a newer version means something else by the name, as it is."""
    try:
        found = _decode(value)
        if type(found) is int:
            return instant(found)
        if type(found) is list and all(type(each) is int for each in found):  # `Redriven.notBefore`
            return [instant(each) for each in found]
    except OverflowError:
        return value
    return value


def _items(value: msgspec.Raw) -> Any:
    try:
        return [readable(each) for each in _elements(value)]
    except msgspec.ValidationError:
        return value


def document_of(
    stored: bytes | msgspec.Raw, *, shard: str, region: str | None, pending: int | None, active: int | None
) -> dict[str, Any]:
    """A stored event as it leaves the node: readable, with `metadata` about the queue, the shard and the node."""
    document = readable(stored)
    document.setdefault("schemaVersion", 1)
    metadata = _members(document.get("metadata"))
    if metadata is None:
        return document  # A newer version keeps something else there; that goes before what we would add.
    metadata["shard.id"] = shard
    if region is not None:
        metadata["region"] = region
    if pending is not None:
        metadata["queue.pending"] = str(pending)
    if active is not None:
        metadata["queue.active"] = str(active)
    if "principal" in document:
        metadata["rpc.principal"] = document["principal"]
    if "principalThumbprint" in document:
        metadata["rpc.principal_thumbprint"] = document["principalThumbprint"]
    document["metadata"] = metadata
    return document


def _members(stored: msgspec.Raw | None) -> dict[str, Any] | None:
    """The members of an object, undecoded; none when it is missing. None when it is no object at all."""
    if stored is None or bytes(stored) == b"null":
        return {}
    try:
        return dict(_fields(stored))
    except msgspec.ValidationError:
        return None
