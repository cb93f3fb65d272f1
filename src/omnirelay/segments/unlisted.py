"""Segments that no manifest lists: somebody removed the manifests, or the first commit never came about.

A writer puts its first segment before its first manifest, so after a crash between the two there may be a segment, or
several tries of it, that begin at the same event. More than that was committed once: then something is lost.
"""

from __future__ import annotations

from omnirelay.errors import NotFound
from omnirelay.segments.errors import SegmentsDamaged
from omnirelay.segments.manifest import index_prefix, manifest_prefix, segments_prefix
from omnirelay.segments.store import ObjectStore


async def without_manifest(store: ObjectStore, shard: str) -> NotFound | SegmentsDamaged:
    """What to raise where a shard has no manifest: damage when one must have been there, otherwise NotFound.

    NotFound bears as `unlisted` how many segments there are all the same.
    """
    segments = await store.list(segments_prefix(shard))
    indexes = await store.list(index_prefix(shard))
    beginnings = {each.key.rpartition("/")[2].partition("-")[0] for each in segments}
    if indexes or len(beginnings) > 1:
        return manifests_gone(store, shard, len(segments))
    found = (
        f"there is no manifest of {shard!r} in {store.address} yet, only a segment that was never committed"
        if segments
        else f"there are no segments of {shard!r} in {store.address}"
    )
    return NotFound(found, code="error.segments.none", shard=shard, unlisted=len(segments))


def manifests_gone(store: ObjectStore, shard: str, segments: int) -> SegmentsDamaged:
    key = manifest_prefix(shard)
    return SegmentsDamaged(
        f"{key} is empty, although there are {segments} segments of {shard!r} in {store.address}: somebody removed the"
        " manifests, and only they say which segments count; put the newest of them back from a copy of the store",
        shard=shard,
        segment=key,
    )
