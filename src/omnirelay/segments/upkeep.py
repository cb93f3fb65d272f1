"""Keeping segments in order: small ones merged, old ones dropped, objects that nobody lists removed.

All of it works beside a writer and beside readers. What is replaced or dropped leaves the manifest first and the store
only after a grace period, so that whoever began to read before can finish.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from omnirelay.log.base import Frame
from omnirelay.segments.archive import Archive
from omnirelay.segments.manifest import (
    Before,
    Dropped,
    Entry,
    Manifest,
    index_prefix,
    key_of,
    segment_key,
    segments_prefix,
)
from omnirelay.segments.segment import decode_segment, entry_of, format_of, merge_objects
from omnirelay.segments.threads import in_thread

COMPACT_AT: Final = 16
"""So many small segments in a row are merged. With fewer the same events would be rewritten too often."""
GRACE_MS: Final = 900_000
"""How long an object stays after it was dropped."""
_DROPS_MAX: Final = 256
"""Most segments that one manifest drops."""
_DROPPED_MAX: Final = 512
"""With more dropped objects still to be removed nothing else is dropped: a manifest has to stay small."""
_TRIES: Final = 3


# -- compaction ----------------------------------------------------------------------------------


async def compact(archive: Archive, *, segment_bytes: int, at_least: int = COMPACT_AT) -> int:
    """Merge one row of neighbouring small segments into one of at most `segment_bytes` of frames; how many were merged.

    Only segments that the manifest names itself are looked at: older ones had their chance.
    """
    manifest = await archive.newest()
    small = () if manifest is None else small_row(manifest.recent, segment_bytes, at_least)
    if manifest is None or not small:
        return 0
    objects = [await archive.store.get(segment_key(archive.shard, entry.name)) for entry in small]
    merged, data = await in_thread(_merged, small, objects, archive.shard, manifest.log_id)
    await archive.store.put_if_absent(segment_key(archive.shard, merged.name), data)
    sweeps = manifest.sweeps
    done = 0

    def replaced(newest: Manifest | None) -> Manifest | None:
        nonlocal done
        done = 0
        at = None if newest is None or newest.sweeps != sweeps else _place(newest.recent, small)
        if newest is None or at is None:
            return None  # Somebody else was at it. Our object is listed nowhere, or was and is no longer.
        done = len(small)
        recent = (*newest.recent[:at], merged, *newest.recent[at + len(small) :])
        return _dropping(archive, newest.with_recent(recent), [(0, entry) for entry in small])

    await archive.change(replaced)
    return done


def small_row(entries: Sequence[Entry], segment_bytes: int, at_least: int) -> tuple[Entry, ...]:
    """The first row of neighbours of one format that together fit, if it is long enough; none otherwise."""
    row: list[Entry] = []
    size = 0
    for entry in entries:
        fits = size + entry.raw_bytes <= segment_bytes and (not row or format_of(entry.name) == format_of(row[0].name))
        if row and not fits:
            if len(row) >= at_least:
                break
            row, size = [], 0
        if entry.raw_bytes <= segment_bytes:
            row.append(entry)
            size += entry.raw_bytes
    return tuple(row) if len(row) >= at_least else ()


def _merged(entries: Sequence[Entry], objects: Sequence[bytes], shard: str, log_id: str) -> tuple[Entry, bytes]:
    frames: list[Frame] = []
    for entry, data in zip(entries, objects, strict=True):
        frames += decode_segment(entry, data, shard=shard, log_id=log_id)
    kind = format_of(entries[0].name)
    assert kind is not None  # decode_segment has refused any other.
    data = merge_objects(kind, objects)
    return entry_of(frames, entries[0].before, kind, data), data


def _place(recent: Sequence[Entry], row: Sequence[Entry]) -> int | None:
    for at, entry in enumerate(recent):
        if entry == row[0]:
            return at if tuple(recent[at : at + len(row)]) == tuple(row) else None
    return None


def _dropping(archive: Archive, manifest: Manifest, entries: Sequence[tuple[int, Entry]]) -> Manifest:
    now = archive.clock()
    dropped = (Dropped(key_of(archive.shard, level, entry), now) for level, entry in entries)
    return msgspec.structs.replace(manifest, dropped=(*manifest.dropped, *dropped))


# -- retention -----------------------------------------------------------------------------------


async def expire(archive: Archive, *, retention_ms: int) -> int:
    """Drop segments whose last event is older than that, oldest first; how many were dropped.

    The end of what was dropped stays as the anchor, so that the rest can still be checked and extended.
    """
    horizon = archive.clock() - retention_ms
    for _ in range(_TRIES):
        manifest = await archive.newest()
        if manifest is None or len(manifest.dropped) > _DROPPED_MAX:
            return 0
        shorter, count = await _without_old(archive, manifest, horizon)
        if count == 0 or await _swap(archive, manifest, shorter):
            return count
    return 0  # A busy writer came first every time; the next upkeep tries again.


async def _without_old(archive: Archive, manifest: Manifest, horizon: int) -> tuple[Manifest, int]:
    gone: list[tuple[int, Entry]] = []
    levels = list(manifest.levels)
    for level in reversed(range(len(levels))):
        levels[level] = await _later(archive, level, levels[level], horizon, gone)
        if levels[level]:
            break  # What is behind it is younger.
    while len(levels) > 1 and not levels[-1]:
        levels.pop()
    dropped = [entry for level, entry in gone if level == 0]
    anchor = Before.of(dropped[-1].end) if dropped else manifest.anchor
    shorter = msgspec.structs.replace(manifest, levels=tuple(levels), anchor=anchor)
    return _dropping(archive, shorter, gone), len(dropped)


async def _later(
    archive: Archive, level: int, entries: tuple[Entry, ...], horizon: int, gone: list[tuple[int, Entry]]
) -> tuple[Entry, ...]:
    """Entries without those that are old, which are added to `gone`. An index that is old in part is written anew."""
    while entries:
        oldest = entries[0]
        rest: Entry | None = None
        if level == 0:
            if oldest.to_ms >= horizon or len(gone) >= _DROPS_MAX:
                break
        else:
            if oldest.from_ms >= horizon:
                break
            inside = await archive.entries_in(oldest)
            left = await _later(archive, level - 1, inside, horizon, gone)
            if left == inside:
                break
            rest = await archive.index(left) if left else None
        gone.append((level, oldest))
        entries = entries[1:] if rest is None else (rest, *entries[1:])
        if rest is not None:
            break
    return entries


# -- what is no longer listed --------------------------------------------------------------------


async def purge(archive: Archive, *, grace_ms: int = GRACE_MS) -> int:
    """Remove objects that were dropped long enough ago; how many."""
    manifest = await archive.newest()
    due = () if manifest is None else _due(manifest, archive.clock() - grace_ms)
    for each in due:
        await archive.store.delete(each.key)
    if due:
        gone = frozenset(due)

        def forgetting(newest: Manifest | None) -> Manifest | None:
            if newest is None or gone.isdisjoint(newest.dropped):
                return None
            left = tuple(each for each in newest.dropped if each not in gone)
            return msgspec.structs.replace(newest, dropped=left)

        await archive.change(forgetting)
    return len(due)


def _due(manifest: Manifest, horizon: int) -> tuple[Dropped, ...]:
    return tuple(each for each in manifest.dropped if each.at_ms <= horizon)


async def sweep(archive: Archive, *, grace_ms: int = GRACE_MS) -> int:
    """Remove objects that no manifest ever listed: what writers left that crashed before their commit. How many.

    A writer may be slow instead of dead, and about to list such an object. So the manifest is told of the sweep first:
    whoever put an object before that finds it there, and puts it again by another name.
    """
    horizon = archive.clock() - grace_ms
    for _ in range(_TRIES):
        listed = [
            each.key
            for prefix in (segments_prefix(archive.shard), index_prefix(archive.shard))
            for each in await archive.store.list(prefix)
            if each.modified_ms <= horizon
        ]
        manifest = await archive.newest()
        if manifest is None:
            return 0
        known = {each.key for each in manifest.dropped}
        for level, entry in manifest.oldest_first():
            known |= await _keys(archive, level, entry)
        unlisted = [key for key in listed if key not in known]
        if not unlisted:
            return 0
        if await _swap(archive, manifest, msgspec.structs.replace(manifest, sweeps=manifest.sweeps + 1)):
            for key in unlisted:
                await archive.store.delete(key)
            return len(unlisted)
    return 0


async def _keys(archive: Archive, level: int, entry: Entry) -> set[str]:
    keys = {key_of(archive.shard, level, entry)}
    if level:
        for inner in await archive.entries_in(entry):
            keys |= await _keys(archive, level - 1, inner)
    return keys


async def _swap(archive: Archive, old: Manifest, new: Manifest) -> bool:
    """Commit `new` if nothing has changed since `old`."""
    tried = False

    def swapped(newest: Manifest | None) -> Manifest | None:
        nonlocal tried
        tried = newest == old
        return new if tried else None

    await archive.change(swapped)
    return tried
