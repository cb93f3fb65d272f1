"""`SegmentWriter`: adds frames of a log to the segments of a shard, once each, in order, and never out of another log.

    frames ──▶ segment object (new name) ──▶ next manifest = the commit
                    └── a crash in between leaves an object that nobody lists; the sweep removes it

Two writers may be at it at once, knowingly or because one was thought dead. Every frame has to continue the chain that
the manifest ends with, so it does not matter who is first: the other finds its frames there and goes on behind them,
or finds another history and stops with SegmentsFenced.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from omnirelay.errors import InvalidArgument, LogDamaged
from omnirelay.log.base import Frame
from omnirelay.log.chain import Link
from omnirelay.log.frame import decode_header, genesis_chain
from omnirelay.segments.archive import Archive
from omnirelay.segments.errors import SegmentsFenced
from omnirelay.segments.manifest import Before, Manifest, segment_key
from omnirelay.segments.reader import load_frames
from omnirelay.segments.segment import SegmentFormat, encode_frames, entry_of, follow_all
from omnirelay.segments.threads import in_thread


class SegmentWriter:
    """Calls of `append` must not overlap; maintenance beside them is fine."""

    def __init__(self, archive: Archive, *, kind: SegmentFormat = "parquet", region: str | None = None) -> None:
        self.archive = archive
        self.kind: SegmentFormat = kind
        self.region = region

    async def last(self) -> int:
        """The last event that is in a segment, 0 when there is none."""
        manifest = await self.archive.newest()
        return 0 if manifest is None else manifest.last

    async def append(
        self, frames: Sequence[Frame], encoded: bytes | None = None, *, linked: bool = False
    ) -> Manifest | None:
        """Add what is new of these frames as one segment; they are listed and durable when it returns.

        `encoded` is what `encode_frames` makes of all of them in this kind and for this region, if that is there.
        `linked`: they were read from a log just now, which has checked each against the one before it. To hash all of
        them once more would tell nothing new; that the first continues what is there is checked in any case.

        Raises SegmentsFenced when they do not continue what is there, LogDamaged for frames that do not continue each
        other, Unavailable. After it raised, come again with the same frames.
        """
        manifest = await self.archive.newest()
        while wanted := await self._new(manifest, frames):
            whole = encoded if len(wanted) == len(frames) else None
            manifest = await self._extend(manifest, wanted, whole, 1 if linked else len(wanted))
        return manifest

    async def _extend(
        self, manifest: Manifest | None, frames: Sequence[Frame], encoded: bytes | None, to_check: int
    ) -> Manifest | None:
        """Write a segment and list it; the newest manifest, which has the segment unless somebody else was quicker."""
        shard = self.archive.shard
        log_id = await in_thread(_log_id, frames[0], shard)
        before = await in_thread(_checked, shard, log_id, manifest, frames[:to_check])
        if encoded is None:
            encoded = await in_thread(encode_frames, frames, self.kind, self.region)
        entry = await in_thread(entry_of, frames, before, self.kind, encoded)
        await self.archive.store.put_if_absent(segment_key(shard, entry.name), encoded)

        def extended(newest: Manifest | None) -> Manifest | None:
            if not same_place(newest, manifest):
                return None  # Somebody else extended it; what is still new has to be found out again.
            start = _start(newest, shard, log_id, before)
            longer = start.with_recent((*start.recent, entry))
            return msgspec.structs.replace(longer, epoch=max(start.epoch, entry.epoch))

        return await self.archive.change(extended)

    async def _new(self, manifest: Manifest | None, frames: Sequence[Frame]) -> list[Frame]:
        """The frames behind the last segment. Raises SegmentsFenced when an older one is not the one that is there."""
        if manifest is None:
            return list(frames)
        new = [frame for frame in frames if frame.last > manifest.last]
        old = [frame for frame in frames if frame.last <= manifest.last]
        # The newest will do: its chain covers all that is before it.
        if old and not await self._holds(manifest, old[-1]):
            raise SegmentsFenced(
                f"event {old[-1].last} of {self.archive.shard!r} in {self.archive.store.address} has another history"
                " than the log: one of them was restored, or belongs to something else; give the segments another"
                " place",
                shard=self.archive.shard,
                sequence=old[-1].last,
            )
        return new

    async def _holds(self, manifest: Manifest, frame: Frame) -> bool:
        end = manifest.end
        if end is not None and frame.last == end.sequence:
            return frame.chain == end.chain
        if frame.last <= manifest.anchor.sequence:
            return True  # Dropped, or from before this began: nobody can tell any more.
        async for entry in self.archive.segments(manifest, frame.last, frame.last):
            if entry.last == frame.last:
                return entry.end.chain == frame.chain
            stored = await load_frames(self.archive, manifest, entry)
            return any(each.last == frame.last and each.chain == frame.chain for each in stored)
        return False


def same_place(newest: Manifest | None, known: Manifest | None) -> bool:
    """Whether a segment that was made for one manifest fits behind the other: same end, and no sweep in between.

    A sweep may have removed an object that was not listed yet.
    """
    if newest is None or known is None:
        return newest is known
    return newest.end == known.end and newest.sweeps == known.sweeps


def _log_id(frame: Frame, shard: str) -> str:
    header = decode_header(frame.data)
    if header.shard != shard:
        raise InvalidArgument(f"a frame of {header.shard!r} does not belong to {shard!r}", field="frames")
    return header.log_id


def _start(manifest: Manifest | None, shard: str, log_id: str, before: Before) -> Manifest:
    if manifest is not None:
        return manifest
    return Manifest(version=0, shard=shard, log_id=log_id, writer="", written_ms=0, epoch=0, anchor=before)


def _checked(shard: str, log_id: str, manifest: Manifest | None, frames: Sequence[Frame]) -> Before:
    """What the first of these frames follows, when all of them fit. Raises SegmentsFenced, LogDamaged."""
    first = frames[0]
    end = _end(shard, log_id, manifest, first)
    if manifest is not None:
        _fence(shard, log_id, manifest, first)
    if end is None:
        if manifest is None:
            before = Before(first.first - 1, None, first.generation)
        else:
            before = manifest.anchor
    else:
        before = Before.of(end)
        try:
            end = follow_all(end, frames[:1], shard=shard, log_id=log_id)
        except LogDamaged as error:
            # What it advises is for a log that is damaged. This one is as it should be.
            reason = error.message.partition("; ")[0]
            raise SegmentsFenced(
                f"event {first.first} does not continue the segments of {shard!r}, which end with event"
                f" {before.sequence}: {reason}; give the segments another place, or have what is missing delivered:"
                f" omnirelay replication reset SINK --shard {shard} --to {before.sequence}",
                shard=shard,
                sequence=first.first,
            ) from error
        frames = frames[1:]
    follow_all(end, frames, shard=shard, log_id=log_id)
    return before


def _end(shard: str, log_id: str, manifest: Manifest | None, first: Frame) -> Link | None:
    if manifest is not None:
        return manifest.end
    # Before the first event of a log there is only its genesis; before any other there is what we have never seen.
    return Link(0, genesis_chain(shard, log_id), first.generation) if first.first == 1 else None


def _fence(shard: str, log_id: str, manifest: Manifest, first: Frame) -> None:
    if manifest.log_id != log_id:
        raise SegmentsFenced(
            f"the segments of {shard!r} are of the log {manifest.log_id}, this one is {log_id};"
            " give the sink another place",
            shard=shard,
            sequence=first.first,
        )
    if first.epoch < manifest.epoch:
        raise SegmentsFenced(
            f"a writer with epoch {manifest.epoch} extended the segments of {shard!r}; frame {first.first} has"
            f" {first.epoch}",
            shard=shard,
            sequence=first.first,
            epoch=first.epoch,
            found_epoch=manifest.epoch,
        )
