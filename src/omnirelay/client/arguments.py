"""Arguments of calls that JSON would take for something else: refused here, before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from omnirelay.core.intake import DELAY_MAX_MS, TIME_MAX_MS
from omnirelay.errors import InvalidArgument
from omnirelay.wire.instants import instant
from omnirelay.wire.requests import WAIT_MAX_MS

T = TypeVar("T")
N = TypeVar("N", int, float)

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


def as_text(field: str, value: T) -> T:
    """A name. Bytes are refused: JSON would have their base64. What has a text in JSON (a UUID, an enum) passes."""
    given: Any = value
    if isinstance(given, bytes | bytearray | memoryview):
        raise _wrong(field, f"must be text, not {type(given).__name__}; decode it first, for instance with .decode()")
    return value


def as_texts(field: str, values: T) -> T:
    """Names and values, none of them bytes."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            as_text(field, name)
            as_text(field, value)
    return values


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


def as_text_list(field: str, values: Iterable[T] | None) -> list[T] | None:
    """Several names, or None for all; as with one name, bytes are refused."""
    given = as_list(field, values)
    for each in given or ():
        as_text(field, each)
    return given


def as_given_list(field: str, values: Iterable[T]) -> list[T]:
    """Several values, of which None does not stand for all."""
    found = as_list(field, values)
    if found is None:
        raise _wrong(field, "must be a list, not None")
    return found


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


def as_whole(field: str, value: int) -> int:
    """A whole number, also as a float. One that is not finite is refused: it would be sent as nothing at all."""
    given: Any = value
    if isinstance(given, int):
        return given
    if isinstance(given, float) and given.is_integer():
        return int(given)
    raise _wrong(field, f"must be a whole number, not {given!r}")


def as_whole_or_none(field: str, value: int | None) -> int | None:
    return None if value is None else as_whole(field, value)


def as_delay(field: str, ms: int | None) -> int | None:
    """How long an item is to rest, or None for what the shard says."""
    whole = as_whole_or_none(field, ms)
    if whole is not None and not 0 <= whole <= DELAY_MAX_MS:
        raise _wrong(field, f"must be from 0 to {DELAY_MAX_MS} milliseconds, not {ms!r}")
    return whole


def as_finite_or_none(field: str, value: float | None) -> float | None:
    """A number of any sort that JSON has."""
    given: Any = value
    if given is not None and not isinstance(given, int) and not (isinstance(given, float) and math.isfinite(given)):
        raise _wrong(field, f"must be a number, not {given!r}")
    return value


def as_timeout(field: str, ms: N) -> N:
    """How long to wait: some time, and not for ever."""
    given: Any = ms
    if not isinstance(given, int | float) or not 0 < given <= TIME_MAX_MS:
        raise _wrong(field, f"must be more than 0 milliseconds and have an end, not {given!r}")
    return ms


def as_wait(field: str, ms: int) -> int:
    """How long a node is to wait: not at all, or some time."""
    whole = as_whole(field, ms)
    if not 0 <= whole <= WAIT_MAX_MS:
        raise _wrong(field, f"must be from 0 to {WAIT_MAX_MS} milliseconds, not {ms!r}")
    return whole


def as_names(field: str, values: Iterable[str] | None) -> list[str] | None:
    """Several texts, or None for all."""
    names = as_list(field, values)
    for each in names or ():
        as_kind(field, each, str)
    return names


def as_some_names(field: str, values: Iterable[str] | None) -> list[str] | None:
    """The same where none at all cannot be meant: in a query it would be all, and a worker would wait for ever."""
    names = as_names(field, values)
    if names is not None and not names:
        raise _wrong(field, "must have at least one name, or be None for all")
    return names


def as_mapping(field: str, values: Mapping[str, str]) -> dict[str, str]:
    """Names and values."""
    if not isinstance(values, Mapping):
        raise _wrong(field, f"must be names and values, as a dict has them, not {type(values).__name__}")
    return dict(values)


def as_kind(field: str, value: T, kind: type[T]) -> T:
    """An object of ours, and not what resembles one."""
    if not isinstance(value, kind):
        raise _wrong(field, f"must be {kind.__name__}, not {type(value).__name__}")
    return value


def _wrong(field: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"{field} {what}", code=f"resourcelease.{field}.invalid", field=field)
