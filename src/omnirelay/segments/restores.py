"""Restores leave a mark where they restored from, so that no two of them give out the same fences.

    SHARD/restores/00000000004294967311.json      numbers up to here are taken

A restored log starts a generation, a long way above everything its source tells of. Restored a second time from the
same source, before anything of the first restored log came back there, it would start at the very same number.
"""

from __future__ import annotations

import msgspec

from omnirelay.core.rules.upkeep import GENERATION_JUMP
from omnirelay.segments.manifest import version_of
from omnirelay.segments.store import ObjectStore


async def reserve_generation(store: ObjectStore, shard: str, highest_known: int, now_ms: int) -> int:
    """A number above which nobody else was or will be restored from here; the generation begins a jump above it.

    Raises SegmentStoreUnusable where nothing may be written, Unavailable.
    """
    prefix = f"{shard}/restores"
    while True:
        taken = [number for each in await store.list(prefix) if (number := version_of(each.key)) is not None]
        highest = max([highest_known, *taken])
        begin = highest + GENERATION_JUMP
        if await store.put_if_absent(f"{prefix}/{begin:020d}.json", msgspec.json.encode({"restoredMs": now_ms})):
            return highest
