"""Restores leave a mark where they restored from, so that no two of them give out the same fences.

    SHARD/restores/00000000004294967311.json      numbers up to here are taken

A restored log starts a generation, a long way above everything its source tells of. Restored a second time from the
same source, before anything of the first restored log came back there, it would start at the very same number.
"""

from __future__ import annotations

from typing import Final

import msgspec

from omnirelay.core.rules.upkeep import GENERATION_JUMP
from omnirelay.errors import FailedPrecondition
from omnirelay.segments.manifest import version_of
from omnirelay.segments.store import ObjectStore

HIGHEST_RESTORED: Final = 1 << 62
"""Above it there is no room for generations to come: sequences have 63 bits."""


async def reserve_generation(store: ObjectStore, shard: str, highest_known: int, now_ms: int) -> int:
    """A number above which nobody else was or will be restored from here; the generation begins a jump above it.

    Raises FailedPrecondition when there is no such number, SegmentStoreUnusable where nothing may be written,
    Unavailable.
    """
    prefix = f"{shard}/restores"
    while True:
        taken = [number for each in await store.list(prefix) if (number := version_of(each.key)) is not None]
        highest = max([highest_known, *taken])
        check_room(shard, highest)
        begin = highest + GENERATION_JUMP
        if await store.put_if_absent(f"{prefix}/{begin:020d}.json", msgspec.json.encode({"restoredMs": now_ms})):
            return highest


def check_room(shard: str, highest: int) -> None:
    """Raises FailedPrecondition when no generation can begin above `highest`."""
    if highest > HIGHEST_RESTORED:
        raise FailedPrecondition(
            f"{shard!r} cannot go on above {highest}, fences end at {HIGHEST_RESTORED}: is that number in"
            f" {shard}/restores, or was it given as the highest one, by mistake?",
            shard=shard,
            highest=highest,
        )
