"""Events in an object store: as segments, or one object each.

A delivery becomes one segment, and counts when the manifest lists it. There is nothing to roll, and nothing that waits
in memory: how large segments are and how late they come is a matter of `batch_bytes` and `linger`, and small ones are
merged afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from omnirelay.log.base import Frame
from omnirelay.replication.commits import Commits
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.extras import extra
from omnirelay.replication.settings import SEGMENT_BYTES
from omnirelay.replication.sinks import SinkUnusable
from omnirelay.replication.workshop import IN_THREAD, Maker
from omnirelay.segments.connecting import connect
from omnirelay.segments.errors import (
    BucketMissing,
    ObjectMissing,
    SegmentsDamaged,
    SegmentsFenced,
    SegmentStoreUnusable,
)
from omnirelay.segments.store import ObjectStore

with extra("segments"):
    from omnirelay.segments.archive import Archive
    from omnirelay.segments.keeping import Keeper, UpkeepSettings
    from omnirelay.segments.segment import SegmentFormat
    from omnirelay.segments.threads import in_thread
    from omnirelay.segments.upkeep import COMPACT_AT
    from omnirelay.segments.writer import SegmentWriter

_AT_ONCE: Final = 32
"""Objects that are put at the same time."""


@contextmanager
def _explained() -> Iterator[None]:
    """What trying again cannot mend makes the sink fail, with its reason."""
    try:
        yield
    except (SegmentStoreUnusable, SegmentsFenced, SegmentsDamaged) as error:
        raise SinkUnusable(error.message) from error


class SegmentSink:
    """Whole frames in segments below `{address}/{shard}/`. The manifest says how far they reach."""

    # No event can be left out, the chain sees to that; but a log that was trimmed may be followed from its start on.
    rebuilds_state = False
    takes_commits = True
    prepares_ahead = 2
    maker: Maker = IN_THREAD

    def __init__(
        self,
        address: str,
        *,
        kind: SegmentFormat = "parquet",
        options: Mapping[str, Any] | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        compact_at: int = COMPACT_AT,
        retention_ms: int = 0,
        writer: str = "",
    ) -> None:
        """Small segments are merged up to `segment_bytes` when there are `compact_at` in a row (0: never), and dropped
        when they are older than `retention_ms` (0: never).
        """
        self._address = address
        self._kind: SegmentFormat = kind
        self._options = options
        self._upkeep = UpkeepSettings(segment_bytes=segment_bytes, compact_at=compact_at, retention_ms=retention_ms)
        self._name = writer
        self._writer: SegmentWriter | None = None
        self._keeper: Keeper | None = None

    async def open(self, shard: str) -> int | None:
        await self.close()
        with _explained():
            store = await connect(self._address, self._options)
            archive = Archive(store, shard, writer=self._name)
            writer = SegmentWriter(archive, kind=self._kind)
            manifest = await archive.newest()
        self._writer, self._keeper = writer, Keeper(archive, self._upkeep)
        self._keeper.start()
        return 0 if manifest is None else manifest.last

    async def holds(self, shard: str) -> int:
        """Up to where the segments reach: behind that only what continues their chain is taken."""
        with _explained():
            store = await connect(self._address, self._options, writable=False)
            try:
                manifest = await Archive(store, shard).newest()
            except BucketMissing:
                return 0
        return 0 if manifest is None else manifest.last

    async def prepare(self, commits: Commits) -> None:
        """Encode the next segment while the store is busy with the one before it."""
        commits.made = await self.maker.make(self._kind, commits)

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        assert self._writer is not None
        assert self._keeper is not None
        if not events:
            return
        made = None
        is_read = isinstance(events, Commits)  # By the cursor, one frame behind the other.
        if isinstance(events, Commits):
            region, frames, made = events.region, list(events.frames), events.made
        else:
            region, frames = events[0].region, await in_thread(_frames_of, events)
        self._writer.region = region
        encoded = made.parts[0] if made is not None and made.parts else None
        with _explained():
            manifest = await self._writer.append(frames, encoded, linked=is_read)
        if manifest is not None:
            self._keeper.look(manifest)

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        self._writer = None
        if keeper is not None:
            await keeper.close()


def _frames_of(events: Sequence[ReplicatedEvent]) -> list[Frame]:
    """The frames these events are of, each once. The last one whole, too, when only its beginning was delivered."""
    frames: list[Frame] = []
    for event in events:
        if event.frame is None:
            raise SinkUnusable("segments are made of frames, and these events come without theirs")
        if not frames or frames[-1] is not event.frame:
            frames.append(event.frame)
    return sorted({frame.first: frame for frame in frames}.values(), key=lambda frame: frame.first)


class _Identity(msgspec.Struct, rename="camel"):
    """What tells two events of one number apart."""

    event_type: str
    sequence_number: int
    timestamp: str


_read_identity = msgspec.json.Decoder(_Identity).decode


class ObjectPerEventSink:
    """One JSON object per event, `{address}/{shard}/{20 digits}.json`, as readers of the older system know it.

    Created, never overwritten. It keeps no account of how far it is: finding that out would mean listing every event.
    So a log that was restored from before its end is noticed where its numbers jump: there must be nothing between.
    """

    rebuilds_state = False

    def __init__(self, address: str, *, options: Mapping[str, Any] | None = None) -> None:
        self._address = address
        self._options = options
        self._store: ObjectStore | None = None

    async def open(self, shard: str) -> int | None:
        with _explained():
            self._store = await connect(self._address, self._options)
        return None

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        for event in events:
            if event.sequence > event.previous + 1:
                await self._check_jump(event)
        # In rows, so that what a crash leaves has gaps only within the last row; that one comes again.
        for at in range(0, len(events), _AT_ONCE):
            with _explained():
                outcomes = await asyncio.gather(
                    *(self._put(event) for event in events[at : at + _AT_ONCE]), return_exceptions=True
                )
                for outcome in outcomes:
                    if isinstance(outcome, BaseException):
                        raise outcome

    async def _check_jump(self, event: ReplicatedEvent) -> None:
        """Raises SinkUnusable when there are events which the log of today never had."""
        # As many as there may be gaps in what a crash left.
        passed = range(event.previous + 1, min(event.sequence, event.previous + 1 + _AT_ONCE))
        with _explained():
            there = await asyncio.gather(*(self._is_there(_key(event.shard, sequence)) for sequence in passed))
        if any(there):
            raise SinkUnusable(
                f"{_key(event.shard, passed[there.index(True)])} in {self._address} is an event that the log does not"
                f" have: it goes on with {event.sequence} behind {event.previous}, because it was restored from before"
                " its end; give the sink another place, or remove what is there behind that event, then resume"
            )

    async def _is_there(self, key: str) -> bool:
        assert self._store is not None
        try:
            await self._store.get(key, 0, 1)
        except ObjectMissing:
            return False
        return True

    async def _put(self, event: ReplicatedEvent) -> None:
        assert self._store is not None
        key = _key(event.shard, event.sequence)
        data = event.json()
        if await self._store.put_if_absent(key, data):
            return
        held = await self._store.get(key)
        # Not byte for byte: a newer version may say more about the same event.
        if held != data and _identity(held) != _identity(data):
            raise SinkUnusable(
                f"{key} in {self._store.address} is another event than the one of the log; give the sink another place"
            )

    async def close(self) -> None:
        self._store = None


def _key(shard: str, sequence: int) -> str:
    return f"{shard}/{sequence:020d}.json"


def _identity(data: bytes) -> _Identity | None:
    try:
        return _read_identity(data)
    except msgspec.DecodeError:
        return None
