"""Proving segments: every object that the manifest lists is what was written, and together they are one history."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from omnirelay.errors import NotFound
from omnirelay.log.base import Frame, Position
from omnirelay.log.chain import Link
from omnirelay.segments.agreement import Difference, column_differences, line_differences
from omnirelay.segments.errors import ObjectMissing, SegmentsDamaged
from omnirelay.segments.manifest import Entry, Manifest, index_key, segment_key
from omnirelay.segments.parquet import made_table, read_table
from omnirelay.segments.reader import SegmentReader, load_frames
from omnirelay.segments.segment import damaged, format_of
from omnirelay.segments.store import ObjectStore
from omnirelay.segments.threads import in_thread
from omnirelay.segments.unlisted import manifests_gone


class SegmentsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify` walked over. There is one only when everything checked out."""

    shard: str
    log_id: str
    version: int
    """Of the manifest."""
    anchored: bool
    """False: the first frame's own chain had to be taken as it is, because nothing before it was ever here."""
    begin: int
    """The last event before the first segment: nothing up to here could be checked."""
    position: Position
    generation: int
    epoch: int
    segments: int
    frames: int
    events: int
    bytes: int
    """Of the objects."""


async def verify(store: ObjectStore, shard: str, progress: Callable[[int, int], None] | None = None) -> SegmentsReport:
    """Read and check everything; `progress(segments done, segments in all)` is called on the event loop.

    Each segment: the bytes against the digest in the manifest, every frame against the chain, columns or lines against
    the frames. Between them: each begins where the one before it ends. Raises SegmentsDamaged naming the first bad
    segment and event, or the index that is gone, or that the manifests are; NotFound when there are no segments.
    """
    reader = SegmentReader(store, shard)
    gone: str | None = None
    while True:
        manifest = await _newest(reader)
        walk = _Walk(reader, manifest)
        try:
            return await walk.run(progress)
        except ObjectMissing as error:
            # Compacted or dropped while this ran, if a newer manifest does without it.
            key = str(error.details.get("key"))
            if key == gone or (await _newest(reader)).version == manifest.version:
                raise _missing(shard, key, walk.reached + 1) from None
            gone = key


async def _newest(reader: SegmentReader) -> Manifest:
    try:
        return await reader.manifest()
    except NotFound as error:
        # Whoever has it verified believes that something is there; one segment that nobody lists may be all of it.
        if unlisted := int(str(error.details.get("unlisted", 0))):
            raise manifests_gone(reader.archive.store, reader.shard, unlisted) from None
        raise


def _missing(shard: str, key: str, sequence: int) -> SegmentsDamaged:
    kind = "index" if key.startswith(index_key(shard, "")) else "segment"
    name = key.rpartition("/")[2]
    return SegmentsDamaged(
        f"{kind} {name} of {shard!r} is missing, although the manifest lists it",
        shard=shard,
        segment=name,
        sequence=sequence,
    )


class _Walk:
    """Over the segments that one manifest lists."""

    def __init__(self, reader: SegmentReader, manifest: Manifest) -> None:
        self._reader = reader
        self._manifest = manifest
        self._link = manifest.anchor.link()

    @property
    def reached(self) -> int:
        """The last event that is proved."""
        return self._manifest.anchor.sequence if self._link is None else self._link.sequence

    async def run(self, progress: Callable[[int, int], None] | None) -> SegmentsReport:
        """Raises SegmentsDamaged, and ObjectMissing for an index or a segment."""
        manifest = self._manifest
        done = frames = events = size = 0
        async for entry in self._reader.archive.segments(manifest):
            self._link = await _verified(self._reader, manifest, entry, self._link)
            done += 1
            frames += entry.frames
            events += entry.events
            size += entry.bytes
            if progress is not None:
                progress(done, manifest.segments)
        link = self._link
        return SegmentsReport(
            shard=self._reader.shard,
            log_id=manifest.log_id,
            version=manifest.version,
            anchored=manifest.anchor.chain is not None,
            begin=manifest.anchor.sequence,
            position=Position(manifest.last, b"" if link is None else link.chain),
            generation=manifest.anchor.generation if link is None else link.generation,
            epoch=manifest.epoch,
            segments=done,
            frames=frames,
            events=events,
            bytes=size,
        )


async def _verified(reader: SegmentReader, manifest: Manifest, entry: Entry, link: Link | None) -> Link:
    shard = reader.shard
    if entry.before.link() != link:
        expected = manifest.anchor.sequence if link is None else link.sequence
        raise damaged(
            shard,
            entry,
            entry.first,
            f"follows event {entry.before.sequence}, but {expected} comes before it: segments are missing, or not of"
            " one history",
        )
    try:
        loaded = await load_frames(reader.archive, manifest, entry)
        data = await reader.archive.store.get(segment_key(shard, entry.name))
        different = await in_thread(_difference, entry.name, data, loaded)
    except ValueError as error:
        raise damaged(shard, entry, entry.first, f"cannot be read: {error}") from None
    if different is not None:
        place = entry.first if different.sequence is None else different.sequence
        raise damaged(shard, entry, place, f"says something else than its frames: {different.what}")
    counted = (len(loaded), sum(frame.count for frame in loaded))
    if counted != (entry.frames, entry.events):
        raise damaged(shard, entry, entry.first, f"holds {counted[0]} frames and {counted[1]} events, not as listed")
    return entry.end


def _difference(name: str, data: bytes, frames: Sequence[Frame]) -> Difference | None:
    """The first that there is between the columns, or the lines, and the frames. Raises ValueError."""
    if format_of(name) == "parquet":
        return next(column_differences(read_table(data), made_table(frames)), None)
    return next(line_differences(data, frames), None)
