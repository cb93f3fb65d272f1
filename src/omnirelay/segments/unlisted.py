"""Segments that no manifest lists: somebody removed the manifests, or the first commit never came about.

A writer puts its first segment before its first manifest, so after a crash between the two there may be a segment, or
several tries of it, that begin at the same event. More than that was committed once: then something is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from omnirelay.errors import NotFound
from omnirelay.segments.errors import SegmentsDamaged
from omnirelay.segments.manifest import index_prefix, manifest_prefix, segments_prefix
from omnirelay.segments.store import ObjectStore

_OWN_KEY: Final = re.compile(r"/(?P<folder>segments|index)/(?P<first>[0-9]{20})-[0-9]{20}-[^/]+$")
"""A segment or an index, as writers name them."""


async def without_manifest(store: ObjectStore, shard: str) -> NotFound | SegmentsDamaged:
    """What to raise where a shard has no manifest: damage when one must have been there, otherwise NotFound.

    NotFound bears as `unlisted` how many segments there are all the same.
    """
    segments = await store.list(segments_prefix(shard))
    indexes = await store.list(index_prefix(shard))
    if were_committed(each.key for each in (*segments, *indexes)):
        return manifests_gone(store, shard, len(segments))
    found = (
        f"there is no manifest of {shard!r} in {store.address} yet, only a segment that was never committed"
        if segments
        else f"there are no segments of {shard!r} in {store.address}"
    )
    return NotFound(found, code="error.segments.none", shard=shard, unlisted=len(segments))


def were_committed(keys: Iterable[str]) -> bool:
    """Whether these segments and indexes of a shard cannot all be tries of a first commit that never came about."""
    own = [found for key in keys if (found := _OWN_KEY.search(key))]
    return any(each["folder"] == "index" for each in own) or len({each["first"] for each in own}) > 1


def manifests_gone(store: ObjectStore, shard: str, segments: int) -> SegmentsDamaged:
    key = manifest_prefix(shard)
    return SegmentsDamaged(
        f"{key} is empty, although there are {segments} segments of {shard!r} in {store.address}: somebody removed the"
        " manifests, and only they say which segments count; put the newest of them back from a copy of the store",
        shard=shard,
        segment=key,
    )
