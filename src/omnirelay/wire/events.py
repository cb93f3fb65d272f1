"""Events as readers outside get them: as they are stored, with instants as ISO-8601 text."""

from __future__ import annotations

from typing import Any

import msgspec

from omnirelay.core.events import Event
from omnirelay.wire.instants import instant

_INSTANTS = frozenset({"timestamp", "expiresAt", "notBefore", "enqueuedAt", "until", "downFrom"})


def event_of(event: Event) -> dict[str, Any]:
    """The event as a JSON object, in the names of the log."""
    stored: dict[str, Any] = msgspec.to_builtins(event)
    progress = getattr(event, "progress", None)
    if progress is not None and "progress" in stored:
        stored["progress"] = msgspec.Raw(bytes(progress))
    readable: dict[str, Any] = _readable(stored)
    return readable


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _text(each) if name in _INSTANTS else _readable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_readable(each) for each in value]
    return value


def _text(value: Any) -> Any:
    if isinstance(value, int):
        return instant(value)
    if isinstance(value, list):  # `Redriven.notBefore` runs beside its ids.
        return [_text(each) for each in value]
    return value
