"""Which shards have segments at an address, and what to say where there are none.

    ADDRESS/SHARD/manifest/00000000000000000007.json

An address is easily one directory off: a node's data directory, or the directory of one shard. Then the right one is
named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from omnirelay.errors import NotFound
from omnirelay.lakehouse.waiting import side_by_side
from omnirelay.segments.connecting import connect
from omnirelay.segments.errors import BucketMissing
from omnirelay.segments.local import LocalObjectStore
from omnirelay.segments.manifest import index_prefix, manifest_prefix, segments_prefix
from omnirelay.segments.store import ObjectStore, StoredObject
from omnirelay.segments.unlisted import were_committed

_FOLDER: Final = "manifest"
NO_SEGMENTS: Final = "error.segments.none"
_AT_ONCE: Final = 16
"""Directories that are looked into at the same time. In a bucket each look is a request, and most of it is waiting."""
_NAMED_MAX: Final = 5
"""Shards, or directories, that a message names."""


async def shards_at(address: str, options: Mapping[str, Any] | None = None) -> list[str]:
    """The shards that have segments at an address. Raises as `shards_of` does."""
    return await shards_of(await connect(address, options, writable=False))


async def shards_of(store: ObjectStore, chosen: Collection[str] | None = None) -> list[str]:
    """The shards that have segments in a store, or of these the chosen ones, by name.

    One that has lost its manifests is among them: whoever reads it is told so, while leaving it out would lose it.
    Raises NotFound (`error.segments.none`) when there are none at all, or not of a chosen shard.
    """
    try:
        folders = await store.folders("")
    except BucketMissing as error:
        raise NotFound(f"there are no segments: {error.message}", code=NO_SEGMENTS, field="source") from None
    # Not everything that there is: that grows with the log, and here nobody asks for more than names.
    held = await side_by_side((_is_shard(store, name) for name in folders), _AT_ONCE)
    there = [name for name, holds in zip(folders, held, strict=True) if holds]
    if not there:
        listed = await store.list("")
        holders = {holder for each in listed if (holder := _holder(each.key)) is not None}
        raise NotFound(_without_any(store, holders), code=NO_SEGMENTS, field="source")
    for name in sorted(chosen or ()):
        if name not in there:
            raise NotFound(
                f"there are no segments of {name!r} in {store.address}; it has {_listed(there)}",
                code=NO_SEGMENTS,
                field="shard",
                shard=name,
            )
    return sorted(set(chosen)) if chosen else there


async def _is_shard(store: ObjectStore, name: str) -> bool:
    """Whether this directory right below the address holds segments of a shard, or has held a manifest of some."""
    if _right_in(await store.list(manifest_prefix(name)), manifest_prefix(name)):
        return True
    keys: list[str] = []
    for prefix in (segments_prefix(name), index_prefix(name)):
        keys += _right_in(await store.list(prefix), prefix)
    return were_committed(keys)


def _right_in(listed: Iterable[StoredObject], prefix: str) -> list[str]:
    """Those of a listing that do not lie deeper: what does is of another address."""
    return [each.key for each in listed if "/" not in each.key[len(prefix) + 1 :]]


def check_named(who: str, named: Iterable[str], there: Collection[str], remedy: str = "") -> None:
    """Raises NotFound for a shard that an option, say, names and that is not there: it would choose nothing."""
    for name in sorted(named):
        if name not in there:
            raise NotFound(
                f"{who} names the shard {name!r}; there are {_listed(sorted(there)) or 'none'}{remedy}",
                code=NO_SEGMENTS,
                shard=name,
            )


def _listed(names: Sequence[str]) -> str:
    """Names for a message, not too many."""
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def _holder(key: str) -> str | None:
    """The directory whose manifests this object is among: empty for the address itself, None when it is no manifest."""
    folders = key.split("/")[:-1]
    return "/".join(folders[:-1]) if folders[-1:] == [_FOLDER] else None


def _without_any(store: ObjectStore, holders: Collection[str]) -> str:
    """What to say of a store in which no directory right below its address is that of a shard."""
    address = store.address.rstrip("/")
    if isinstance(store, LocalObjectStore) and not Path(store.address).is_dir():
        return f"there are no segments in {address}: there is no such directory"
    looked = f"there are no segments in {address}: looked for SHARD/{_FOLDER}/*.json below it"
    below = sorted({f"{address}/{name.rpartition('/')[0]}" for name in holders if "/" in name})
    if below:
        return f"{looked}; they are in {_listed(below)}"
    if holders:
        above, _, shard = address.rpartition("/")
        return f"{looked}; this is the directory of the shard {shard!r}, say {above or '/'}"
    return f"{looked}; a sink of kind `objects` writes them"
