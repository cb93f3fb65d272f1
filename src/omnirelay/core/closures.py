"""What closes the intake of a shard besides how much is pending: causes outside of it, each with its reason."""

from __future__ import annotations

from typing import Final

import msgspec

DEPTH: Final = "depth"
"""The cause that the shard finds by itself: as many items are pending as the high watermark says."""

CLOSURES_MAX: Final = 1_000
"""Most causes from outside that may close intake at a time."""


class Closure(msgspec.Struct, array_like=True, frozen=True):
    """One cause that keeps intake closed. Part of snapshots."""

    cause: str
    """Its name: the same cause closes once, and only it opens again what it closed."""
    reason: str
    """For people, as it was when intake closed."""
    since: int
