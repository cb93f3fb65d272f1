"""Arguments of calls that JSON would take for something else: refused here, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from omnirelay.errors import InvalidArgument

T = TypeVar("T")

Bytes = bytes | bytearray | memoryview


def as_bytes(field: str, value: Bytes) -> bytes:
    """A body or result. Text is refused: as JSON it would be read as base64, and other bytes be stored."""
    given: Any = value
    if type(given) is bytes:
        return given
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    advice = "; encode text first, for instance with .encode()" if isinstance(given, str) else ""
    raise _wrong(field, f"must be bytes, not {type(given).__name__}{advice}")


def as_list(field: str, values: Iterable[T] | None) -> list[T] | None:
    """Several values, or None for all. A single text is refused: it would become a list of its letters."""
    if values is None:
        return None
    if isinstance(values, str | bytes):
        raise _wrong(field, f"must be a list, not a single {type(values).__name__}: [{values!r}]")
    try:
        return list(values)
    except TypeError:
        raise _wrong(field, f"must be a list, not {type(values).__name__}") from None


def _wrong(field: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"{field} {what}", code=f"resourcelease.{field}.invalid", field=field)
