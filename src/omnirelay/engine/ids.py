"""Lease ids: random lower-case UUIDs, made a few thousand at a time because one by one they are dear."""

from __future__ import annotations

import os
from typing import Final

_BATCH: Final = 4096
_TAILS: Final = tuple(f"{n:03x}" for n in range(_BATCH))


class LeaseIds:
    """Each call gives a new id. Ids of one batch share 60 random bits, each has 36 of its own, and a counter in
    the last three digits keeps them apart for certain."""

    __slots__ = ("_ready",)

    def __init__(self) -> None:
        self._ready: list[str] = []

    def __call__(self) -> str:
        if not self._ready:
            self._refill()
        return self._ready.pop()

    def _refill(self) -> None:
        digits = os.urandom(16 + 5 * _BATCH).hex()
        prefix = f"{digits[:8]}-{digits[8:12]}-4{digits[12:15]}-8{digits[15:18]}-"
        starts = range(32, len(digits), 10)
        self._ready = [prefix + digits[start : start + 9] + tail for start, tail in zip(starts, _TAILS, strict=True)]
