"""Lease ids: random lower-case UUIDs, made a few thousand at a time because one by one they are dear."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from omnirelay.core.decide import Ids

_BATCH: Final = 4096
_TAILS: Final = tuple(f"{n:03x}" for n in range(_BATCH))


def lease_ids() -> Ids:
    """Each call of the result gives a new id."""
    return _generate().__next__


def _generate() -> Iterator[str]:
    """Ids of one batch share 72 random bits, each has 36 of its own, and a counter in the last three digits keeps
    them apart for certain."""
    while True:
        digits = os.urandom(16 + 5 * _BATCH).hex()
        prefix = f"{digits[:8]}-{digits[8:12]}-4{digits[12:15]}-8{digits[15:18]}-"
        for start, tail in zip(range(32, len(digits), 10), _TAILS, strict=True):
            yield prefix + digits[start : start + 9] + tail
