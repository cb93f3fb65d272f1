"""`Archive`: the segments of one shard in a store, as the newest manifest lists them, and how that is changed.

Who changes it makes the next version from the newest and puts it if it is absent: one of several wins, the others look
again. Old versions are removed after a while, and then a writer that slept could "win" a version that is long past. So
whoever has put a version looks whether there is a newer one; the newest is never removed, so it would be seen. Then
the put counts for nothing by itself: the change is made again on the newest, and finds there what it wanted, or not.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeAlias

import msgspec

from omnirelay.errors import OmniRelayError
from omnirelay.segments.errors import ObjectMissing, SegmentsDamaged
from omnirelay.segments.manifest import (
    FAN,
    Entry,
    Manifest,
    decode_index,
    decode_manifest,
    encode_index,
    encode_manifest,
    index_entry,
    index_key,
    manifest_key,
    manifest_prefix,
    version_of,
)
from omnirelay.segments.store import ObjectStore

_log = logging.getLogger("omnirelay.segments")

Change: TypeAlias = Callable[[Manifest | None], Manifest | None]
"""Makes of the newest manifest (None: there is none yet) the next one, or None when there is nothing to change. It may
be called several times, and raises to give up. Version, writer and time are filled in for it.
"""

VERSIONS_KEPT: Final = 20
"""Older manifests are removed. These stay for readers that are just about to open one, and for people."""


_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps, where there is such a clock, and nobody can set it."""
_WALL_AHEAD_NS: Final = time.time_ns() - time.clock_gettime_ns(_STEADY)


def now_ms() -> int:
    """By the wall clock as it was when the process began. What is removed for good must not hang on its being set."""
    return (_WALL_AHEAD_NS + time.clock_gettime_ns(_STEADY)) // 1_000_000


class Archive:
    """One object for one event loop; any number of them, anywhere, may work on the same segments."""

    def __init__(self, store: ObjectStore, shard: str, *, writer: str = "", clock: Callable[[], int] = now_ms) -> None:
        self.store = store
        self.shard = shard
        self.clock = clock
        self._writer = writer or secrets.token_hex(4)
        self._known: Manifest | None = None
        self._looked = False
        """What is known was the newest a moment ago. If it no longer is, putting the next version will show it."""
        self._changing = asyncio.Lock()

    async def newest(self) -> Manifest | None:
        """The manifest that counts now, None when there is none."""
        after = None if self._known is None else manifest_key(self.shard, self._known.version - 1)
        # A version may be removed between the listing and the reading; then there are newer ones.
        for _ in range(5):
            versions = await self._versions(after)
            if not versions:
                if self._known is None:
                    return None
                raise SegmentsDamaged(
                    f"manifest {self._known.version} of {self.shard!r} is gone, and there is none behind it:"
                    f" somebody removed it from {self.store.address}",
                    shard=self.shard,
                    segment=manifest_key(self.shard, self._known.version),
                )
            key = manifest_key(self.shard, versions[-1])
            if self._known is not None and self._known.version >= versions[-1]:
                return self._known
            try:
                data = await self.store.get(key)
            except ObjectMissing:
                continue
            found = decode_manifest(data, key=key, shard=self.shard)
            # While this was read, somebody else here may have got to know, or put, a newer one.
            if self._known is None or self._known.version < found.version:
                self._known = found
            return self._known
        raise SegmentsDamaged(f"the manifests of {self.shard!r} vanish while they are read", shard=self.shard)

    async def _versions(self, after: str | None = None) -> list[int]:
        listed = await self.store.list(manifest_prefix(self.shard), after)
        return sorted(version for each in listed if (version := version_of(each.key)) is not None)

    async def change(self, change: Change) -> Manifest | None:
        """Commit a change; the manifest that holds it. Durable when it returns, undecided when it raises.

        After it raised, make the same change again: it sees for itself what has come of it.
        """
        async with self._changing:
            try:
                while True:
                    looked, self._looked = self._looked, False
                    base = self._known if looked else await self.newest()
                    changed = change(base)
                    if changed is None:
                        if looked:
                            continue  # Nobody is told that there is nothing to do because of what was there before.
                        self._looked = True
                        return base
                    changed = await self._bounded(self._stamped(base, changed))
                    if await self._put(changed):
                        self._looked = True
                        return changed
            except BaseException:
                self._looked = False
                raise

    def _stamped(self, base: Manifest | None, changed: Manifest) -> Manifest:
        version = 1 if base is None else base.version + 1
        return msgspec.structs.replace(changed, version=version, writer=self._writer, written_ms=self.clock())

    async def _put(self, manifest: Manifest) -> bool:
        key = manifest_key(self.shard, manifest.version)
        won = await self.store.put_if_absent(key, encode_manifest(manifest))
        if won and not await self._versions(key):
            self._known = manifest
            await self._remove_old(manifest.version)
            return True
        return False

    async def _remove_old(self, newest: int) -> None:
        if newest % VERSIONS_KEPT:
            return  # One listing for many versions.
        try:
            for version in await self._versions():
                if version <= newest - VERSIONS_KEPT:
                    await self.store.delete(manifest_key(self.shard, version))
        except OmniRelayError as error:
            # The commit stands. What could not be removed now is removed with the next ones.
            _log.warning("manifests_not_removed", extra={"shard": self.shard, "reason": error.message})

    # -- indexes -------------------------------------------------------------------------------

    async def _bounded(self, manifest: Manifest) -> Manifest:
        """The same with long levels moved into index objects. One that is not committed is left for the sweep."""
        levels = list(manifest.levels)
        at = 0
        while at < len(levels):
            while len(levels[at]) >= 2 * FAN:
                packed, levels[at] = levels[at][:FAN], levels[at][FAN:]
                if at + 1 == len(levels):
                    levels.append(())
                levels[at + 1] = (*levels[at + 1], await self.index(packed))
            at += 1
        return msgspec.structs.replace(manifest, levels=tuple(levels))

    async def index(self, entries: tuple[Entry, ...]) -> Entry:
        """Put an index of these; one entry that stands for them. Until a manifest lists it, it counts for nothing."""
        data = encode_index(entries)
        name = f"{entries[0].first:020d}-{entries[-1].last:020d}-{secrets.token_hex(8)}.json"
        await self.store.put_if_absent(index_key(self.shard, name), data)
        return index_entry(name, entries, hashlib.sha256(data).hexdigest())

    async def entries_in(self, index: Entry) -> tuple[Entry, ...]:
        """What an index entry stands for. Raises SegmentsDamaged, ObjectMissing."""
        key = index_key(self.shard, index.name)
        data = await self.store.get(key)
        if hashlib.sha256(data).hexdigest() != index.digest:
            raise SegmentsDamaged(
                f"the index {key} is not what was written", shard=self.shard, segment=key, sequence=index.first
            )
        return decode_index(data, key=key, shard=self.shard)

    async def segments(self, manifest: Manifest, first: int = 1, last: int | None = None) -> AsyncIterator[Entry]:
        """Segments that hold an event from `first` to `last`, in order."""
        for level, entry in manifest.oldest_first():
            async for segment in self._below(level, entry, first, last):
                yield segment

    async def _below(self, level: int, entry: Entry, first: int, last: int | None) -> AsyncIterator[Entry]:
        if entry.last < first or (last is not None and entry.first > last):
            return
        if level == 0:
            yield entry
            return
        for inner in await self.entries_in(entry):
            async for segment in self._below(level - 1, inner, first, last):
                yield segment
