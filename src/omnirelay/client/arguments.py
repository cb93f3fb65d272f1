"""Arguments of calls that JSON would take for something else: refused here, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from omnirelay.core.intake import TIME_MAX_MS
from omnirelay.errors import InvalidArgument
from omnirelay.wire.instants import instant

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


def as_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        raise _wrong(field, f"must be {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}")


def as_header(field: str, value: str | None) -> None:
    """A text that every connection can send with a call."""
    if value is not None and not (isinstance(value, str) and value.isascii() and value.isprintable()):
        raise _wrong(field, f"must be printable ASCII, as headers are, not {value!r}")


def as_instant(field: str, ms: int | None) -> str | None:
    """Milliseconds since 1970 as they are sent."""
    if ms is None:
        return None
    if type(ms) is not int or not 0 <= ms <= TIME_MAX_MS:
        raise _wrong(field, f"must be milliseconds since 1970, up to the year 9999, not {ms!r}")
    return instant(ms)


def as_kind(field: str, value: T, kind: type[T]) -> T:
    """An object of ours, and not what resembles one."""
    if not isinstance(value, kind):
        raise _wrong(field, f"must be {kind.__name__}, not {type(value).__name__}")
    return value


def _wrong(field: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"{field} {what}", code=f"resourcelease.{field}.invalid", field=field)
