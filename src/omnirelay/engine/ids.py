"""Lease ids: random lower-case UUIDs, made a few hundred at a time because one by one they are dear."""

from __future__ import annotations

import os
from itertools import chain
from typing import Final

from omnirelay.core.decide import Ids

_BATCH: Final = 256
_COUNTER: Final = bytes(range(_BATCH))


def lease_ids() -> Ids:
    """Each call of the result gives a new id."""
    return chain.from_iterable(iter(_more, [])).__next__


def _more() -> list[str]:
    """Ids of one batch share 72 random bits, each has 40 of its own, and a counter in the last two digits keeps them
    apart for certain."""
    digits = os.urandom(9).hex()
    prefix = f"{digits[:8]}-{digits[8:12]}-4{digits[12:15]}-8{digits[15:18]}-"
    nodes = bytearray(os.urandom(6 * _BATCH))
    nodes[5::6] = _COUNTER
    return (prefix + nodes.hex("\n", 6).replace("\n", "\n" + prefix)).split("\n")
