"""Instants on the wire: ISO-8601 with an offset outside, integer milliseconds inside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from omnirelay.core.intake import TIME_MAX_MS, refuse

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@lru_cache(maxsize=4096)
def instant(ms: int) -> str:
    """An instant for readers outside. The leases of one frame share their times, so most come from the cache."""
    seconds, left = divmod(ms, 1000)
    return f"{_second(seconds)}.{left:03d}+00:00"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    """The calendar is asked once for each second: it takes longer than all the rest of a small answer's text."""
    return (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()


def instant_or_none(ms: int | None) -> str | None:
    return None if ms is None else instant(ms)


def read_instant(field: str, text: str) -> int:
    """Milliseconds of an instant that somebody sent; without an offset it is taken as UTC."""
    try:
        at = datetime.fromisoformat(text.strip())
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        ms = (at - _EPOCH) // _MILLISECOND
    except (ValueError, OverflowError):
        refuse(field, f"must be an ISO-8601 instant such as 2026-01-31T08:00:00+00:00, got {text[:64]!r}")
    if not 0 <= ms <= TIME_MAX_MS:
        refuse(field, "must lie between the years 1970 and 9999")
    return ms


def read_instant_or_none(field: str, text: str | None) -> int | None:
    return None if text is None else read_instant(field, text)
