"""`SegmentReader`: frames, events and Arrow batches out of the segments of a shard, as the newest manifest lists them.

Segments may be compacted and dropped while somebody reads. Dropped objects stay for a while, so that hardly anybody
notices; who is slower than that looks at the newest manifest and goes on where it was, if that is still there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from omnirelay.errors import LogTrimmed
from omnirelay.log.base import Frame
from omnirelay.segments.archive import Archive
from omnirelay.segments.errors import ObjectMissing, SegmentsDamaged
from omnirelay.segments.manifest import Entry, Manifest, segment_key
from omnirelay.segments.segment import decode_segment
from omnirelay.segments.store import ObjectStore
from omnirelay.segments.threads import in_thread
from omnirelay.segments.unlisted import without_manifest

if TYPE_CHECKING:
    import pyarrow as pa


async def load_frames(archive: Archive, manifest: Manifest, entry: Entry) -> list[Frame]:
    """The frames of one segment, checked. Raises ObjectMissing, SegmentsDamaged."""
    data = await archive.store.get(segment_key(archive.shard, entry.name))
    return await in_thread(decode_segment, entry, data, shard=archive.shard, log_id=manifest.log_id)


async def shards_in(store: ObjectStore) -> list[str]:
    """The shards that have segments in a store."""
    listed = await store.list("")
    found = {each.key.partition("/manifest/")[0] for each in listed if "/manifest/" in each.key}
    return sorted(found)


class SegmentReader:
    """Reads only; any number of readers may, while somebody writes."""

    def __init__(self, store: ObjectStore, shard: str) -> None:
        self.archive = Archive(store, shard)
        self.shard = shard

    async def manifest(self) -> Manifest:
        """The newest. Raises NotFound when this shard has no segments here, SegmentsDamaged when it had a manifest."""
        manifest = await self.archive.newest()
        if manifest is None:
            raise await without_manifest(self.archive.store, self.shard)
        return manifest

    async def segments(self, first: int = 1, last: int | None = None) -> list[Entry]:
        """The segments that hold an event from `first` to `last`, in order. Raises as `listed` does."""
        return (await self.listed(first, last))[1]

    async def listed(self, first: int = 1, last: int | None = None) -> tuple[Manifest, list[Entry]]:
        """The newest manifest and its segments that hold an event from `first` to `last`, in order.

        Raises as `manifest` does, and SegmentsDamaged when an index that it lists is damaged or gone.
        """
        manifest = await self.manifest()
        while True:
            try:
                return manifest, [entry async for entry in self.archive.segments(manifest, first, last)]
            except ObjectMissing as error:
                manifest = await self._newer_than(manifest, error, first)

    async def frames(self, first: int | None = None, last: int | None = None) -> AsyncIterator[Frame]:
        """Frames that hold an event from `first` (None: what there is) to `last`, in order, checked.

        Raises LogTrimmed when `first` was dropped, or while this reads what comes next; SegmentsDamaged naming segment
        and place.
        """
        async for _, frames in self._pieces(first, last):
            for frame in frames:
                yield frame

    async def batches(
        self, first: int | None = None, last: int | None = None, columns: Sequence[str] | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        """Events as Arrow, one batch per segment, in the schema of segments or only these `columns`."""
        from omnirelay.segments.arrow import frames_to_arrow
        from omnirelay.segments.ranges import rows_between

        async for _, frames in self._pieces(first, last):
            batch = await in_thread(frames_to_arrow, frames, None)
            batch = rows_between(batch, first, last)
            yield batch if columns is None else batch.select(list(columns))

    async def _pieces(self, first: int | None, last: int | None) -> AsyncIterator[tuple[Entry, list[Frame]]]:
        manifest = await self.manifest()
        at = manifest.anchor.sequence + 1 if first is None else first
        while True:
            # Here each time: what a newer manifest no longer has must not be passed over.
            if at <= manifest.anchor.sequence:
                raise LogTrimmed(
                    f"the segments of {self.shard!r} begin behind event {manifest.anchor.sequence}, {at} is not there",
                    shard=self.shard,
                    sequence=at,
                    found=manifest.anchor.sequence,
                )
            try:
                async for entry in self.archive.segments(manifest, at, last):
                    frames = await load_frames(self.archive, manifest, entry)
                    wanted = [frame for frame in frames if frame.last >= at and (last is None or frame.first <= last)]
                    if wanted:
                        yield entry, wanted
                    at = entry.last + 1
                return
            except ObjectMissing as error:
                manifest = await self._newer_than(manifest, error, at)

    async def _newer_than(self, manifest: Manifest, error: ObjectMissing, at: int) -> Manifest:
        """The manifest that no longer lists what is gone. Without one it is damage: this one does."""
        newer = await self.manifest()
        if newer.version == manifest.version:
            raise SegmentsDamaged(
                f"{error.message}, although the manifest of {self.shard!r} lists it",
                shard=self.shard,
                segment=str(error.details.get("key")),
                sequence=at,
            ) from error
        return newer
