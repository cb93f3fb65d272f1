"""Segments as the origin of a log, by themselves or behind a backup."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from omnirelay.errors import FailedPrecondition, LogDamaged, NotFound
from omnirelay.log.base import Anchor, Frame
from omnirelay.log.chain import Link
from omnirelay.log.frame import genesis_chain
from omnirelay.log.sqlite.restoring import History
from omnirelay.replication.origins import Origin
from omnirelay.segments.libraries import library_for
from omnirelay.segments.manifest import Manifest
from omnirelay.segments.store import ObjectStore

with library_for("segments"):
    from omnirelay.segments.reader import SegmentReader

RESTORED_SEGMENTS: Final = "restored segments"


class SegmentOrigin:
    """The segments of a shard, from their first event or from the end of `base` on. Get one from `open`."""

    def __init__(self, reader: SegmentReader, history: History, base: Origin | None) -> None:
        self.history = history
        self._reader = reader
        self._base = base

    @classmethod
    async def open(cls, store: ObjectStore, shard: str, base: Origin | None = None) -> SegmentOrigin:
        """Raises NotFound without segments, FailedPrecondition when they do not begin where they have to."""
        reader = SegmentReader(store, shard)
        manifest, behind = await reader.listed(1 if base is None else base.history.end.sequence + 1)
        if manifest.end is None or manifest.last == 0:
            raise NotFound(f"the segments of {shard!r} in {store.address} hold no event yet", shard=shard)
        start = _from_nothing(manifest) if base is None else base.history
        _check_reach(manifest, start, store.address, base)
        if start.end.sequence >= manifest.last:
            return cls(reader, start, base)  # The backup is newer than the last segment.
        history = msgspec.structs.replace(
            start,
            end=manifest.end,
            epoch=max(start.epoch, manifest.epoch),
            time_ms=behind[-1].to_ms,
            highest_known=max(start.highest_known, manifest.last),
            # What the base has of the first of them counts twice; it is only for those who watch.
            events=start.events + sum(entry.events for entry in behind),
            reason=RESTORED_SEGMENTS,
        )
        return cls(reader, history, base)

    async def frames(self) -> AsyncIterator[Frame]:
        first = self.history.anchor.sequence + 1
        if self._base is not None:
            async for frame in self._base.frames():
                yield frame
                first = frame.last + 1
        if first <= self.history.end.sequence:
            async for frame in self._reader.frames(first, self.history.end.sequence):
                yield frame


def _from_nothing(manifest: Manifest) -> History:
    """The history of a log of which there are no frames yet."""
    anchor = Anchor(0, genesis_chain(manifest.shard, manifest.log_id), 0, 0)
    return History(
        shard=manifest.shard,
        log_id=manifest.log_id,
        created_ms=time.time_ns() // 1_000_000,
        anchor=anchor,
        end=Link.at_anchor(anchor),
        epoch=0,
        time_ms=0,
        highest_known=0,
        events=0,
        reason=RESTORED_SEGMENTS,
    )


def _check_reach(manifest: Manifest, start: History, address: str, base: Origin | None) -> None:
    shard = manifest.shard
    if start.log_id != manifest.log_id:
        raise LogDamaged(
            f"the segments of {shard!r} in {address} are of the log {manifest.log_id}, the backup is of {start.log_id}:"
            " they do not belong together",
            shard=shard,
        )
    if manifest.anchor.sequence <= start.end.sequence:
        return
    begin = manifest.anchor.sequence
    if base is None:
        raise FailedPrecondition(
            f"the segments of {shard!r} in {address} begin behind event {begin}: what was before is gone (retention, or"
            " the sink began late), and nothing there says what the state was; give a backup that reaches at least to"
            f" event {begin} as the base (--base)",
            shard=shard,
            sequence=1,
            found=begin,
        )
    raise FailedPrecondition(
        f"the segments of {shard!r} in {address} begin behind event {begin}, the backup ends with event"
        f" {start.end.sequence}: the events between them are nowhere; give a newer backup as the base (--base)",
        shard=shard,
        sequence=start.end.sequence + 1,
        found=begin,
    )
