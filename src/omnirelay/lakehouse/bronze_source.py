"""What is new in the segments of a source: which of them to read, and which to refuse.

Only what the newest manifest lists counts. Every segment is checked before Spark sees it: its digest, its frames and
their chain, and that it continues what bronze ends with. Behind one that does not check out the shard stands still; the
other shards go on.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from omnirelay.errors import LogDamaged, NotFound, Unavailable
from omnirelay.lakehouse.columns import names_in
from omnirelay.lakehouse.progress import End, Progress
from omnirelay.lakehouse.shards import shards_of
from omnirelay.lakehouse.waiting import side_by_side
from omnirelay.log.base import Frame
from omnirelay.log.files import make_directories, write_file
from omnirelay.segments.connecting import connect
from omnirelay.segments.errors import ObjectMissing
from omnirelay.segments.local import LocalObjectStore
from omnirelay.segments.manifest import Before, Entry, Manifest, manifest_prefix, segment_key
from omnirelay.segments.parquet import encode_parquet
from omnirelay.segments.reader import SegmentReader
from omnirelay.segments.segment import decode_segment, format_of
from omnirelay.segments.store import ObjectStore
from omnirelay.segments.threads import in_thread

_AT_ONCE: Final = 4
"""Segments that are in memory at the same time while they are checked."""
_SHARDS_AT_ONCE: Final = 16
"""Shards that are looked at at the same time. Of each there is a manifest in memory, which is small."""
_LOOKS: Final = 3
"""How often a shard is looked at anew when segments vanish because they are being merged."""


class Refused(msgspec.Struct, frozen=True):
    """A segment that is not taken."""

    shard: str
    segment: str
    sequence: int
    reason: str


class ShardPlan(msgspec.Struct, frozen=True):
    """What is to be read of one shard."""

    shard: str
    end: End | None
    """Where bronze will end; None when it stays without anything of this shard."""
    paths: tuple[str, ...] = ()
    """Files for Spark, in order of the log."""
    events: int = 0
    """In them that are new."""
    columns: frozenset[str] = frozenset()
    """All that any of the files has."""
    refused: Refused | None = None


class _Checked(msgspec.Struct, frozen=True):
    """A segment in which everything is as it should be."""

    path: str
    events: int
    columns: frozenset[str]


class _Stopped(Exception):
    """A segment is refused; what comes before it is fine."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.reason)
        self.refused = refused


async def find_new(
    address: str,
    after: Progress,
    staging: Path,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
    *,
    gone: Collection[str] = (),
) -> list[ShardPlan]:
    """Look at every shard of a source. `progress(segments checked)` is called as it goes on.

    A shard of the table that is not in the source is refused, unless it is known to be `gone` for good. Raises NotFound
    when there are no segments at the address, SegmentStoreUnusable, Unavailable.
    """
    store = await connect(address, options, writable=False)
    there = await shards_of(store)
    shards = sorted({*there, *(shard for shard in after if shard not in gone)})
    return await look_at(store, shards, after, staging, progress)


async def look_at(
    store: ObjectStore,
    shards: Sequence[str],
    after: Progress,
    staging: Path,
    progress: Callable[[int], None] | None = None,
) -> list[ShardPlan]:
    """Look at these shards of a store, several at the same time: most have nothing new, and one waits for manifests."""
    checked = 0

    def one_more() -> None:
        nonlocal checked
        checked += 1
        if progress is not None:
            progress(checked)

    # Of all shards together: what is in memory must not grow with how many there are.
    checking = asyncio.Semaphore(_AT_ONCE)
    plans = (_Shard(store, shard, after.get(shard), staging, one_more, checking).plan() for shard in shards)
    return await side_by_side(plans, _SHARDS_AT_ONCE)


class _Shard:
    def __init__(
        self,
        store: ObjectStore,
        shard: str,
        known: End | None,
        staging: Path,
        checked: Callable[[], None],
        checking: asyncio.Semaphore,
    ) -> None:
        self._store = store
        self._shard = shard
        self._known = known
        self._staging = staging
        self._checked = checked
        self._checking = checking

    async def plan(self) -> ShardPlan:
        for _ in range(_LOOKS - 1):
            try:
                return await self._look()
            except ObjectMissing:
                continue
        try:
            return await self._look()
        except ObjectMissing as error:
            refused = self._refused(str(error.details.get("key")), None, f"{error.message}, although it is listed")
            return ShardPlan(self._shard, self._known, refused=refused.refused)

    async def _look(self) -> ShardPlan:
        reader = SegmentReader(self._store, self._shard)
        after = 0 if self._known is None else self._known.sequence
        end = self._known
        taken: list[_Checked] = []
        refused = None
        try:
            manifest, entries = await self._listed(reader, after)

            async def checked(entry: Entry) -> _Checked | _Stopped:
                async with self._checking:
                    try:
                        return await self._check(manifest, entry)
                    except _Stopped as stop:
                        return stop

            for entry, outcome in zip(entries, await asyncio.gather(*map(checked, entries)), strict=True):
                self._continues(manifest, entry, end)
                if isinstance(outcome, _Stopped):
                    raise outcome
                taken.append(outcome)
                events = (0 if end is None else end.count) + outcome.events
                end = End(entry.last, entry.chain, manifest.log_id, events)
        except _Stopped as stop:
            refused = stop.refused
        return ShardPlan(
            self._shard,
            end,
            tuple(each.path for each in taken),
            sum(each.events for each in taken),
            frozenset().union(*(each.columns for each in taken)),
            refused,
        )

    async def _listed(self, reader: SegmentReader, after: int) -> tuple[Manifest, list[Entry]]:
        try:
            manifest, entries = await reader.listed(after + 1)
        except LogDamaged as error:
            raise self._refused(str(error.details.get("segment")), after + 1, error.message) from None
        except NotFound as error:
            raise self._refused(
                manifest_prefix(self._shard),
                after + 1,
                f"{error.message}, and the tables hold it up to event {after}; is it the right source? Bring the"
                f" segments back, or say --gone {shlex.quote(self._shard)} when they are gone for good",
            ) from None
        if self._known is not None:
            self._reaches(manifest, self._known)
            if not entries and manifest.anchor.sequence > self._known.sequence:
                raise self._dropped(manifest_prefix(self._shard), self._known, manifest.anchor)
        return manifest, entries

    def _reaches(self, manifest: Manifest, known: End) -> None:
        """The segments have to be of the same log, and to reach to where the table ends, also when none is new."""
        # Named alike whatever the version, so that it is put down once.
        name = manifest_prefix(self._shard)
        if manifest.log_id != known.log_id:
            raise self._refused(name, None, "the segments are of another log than the table; rebuild it")
        if manifest.last < known.sequence:
            raise self._refused(
                name, None, f"the segments end before event {known.sequence}, which the table holds: is it an old copy?"
            )

    def _continues(self, manifest: Manifest, entry: Entry, end: End | None) -> None:
        """A segment has to begin where the one before it, or the table, ends."""
        if end is None:
            if entry.before.sequence != manifest.anchor.sequence:
                raise self._refused(entry.name, entry.first, "segments before it are missing")
            return
        if entry.before.sequence > end.sequence:
            raise self._dropped(entry.name, end, entry.before)
        if entry.before.sequence == end.sequence and entry.before.chain not in (None, end.chain):
            raise self._refused(entry.name, entry.first, "it continues another history than the table's")

    async def _check(self, manifest: Manifest, entry: Entry) -> _Checked:
        """A segment for Spark, after everything in it was checked."""
        key = segment_key(self._shard, entry.name)
        data = await self._store.get(key)
        try:
            frames = await in_thread(decode_segment, entry, data, shard=self._shard, log_id=manifest.log_id)
        except LogDamaged as error:
            place = error.details.get("sequence")
            raise self._refused(entry.name, place if isinstance(place, int) else entry.first, error.message) from None
        self._holds_end(entry, frames)
        self._checked()
        after = 0 if self._known is None else self._known.sequence
        events = sum(frame.count for frame in frames if frame.last > after)
        if format_of(entry.name) != "parquet":
            data = await in_thread(encode_parquet, frames, None)
        columns = names_in(data)
        if format_of(entry.name) == "parquet" and isinstance(self._store, LocalObjectStore):
            return _Checked(f"{self._store.address}/{key}", events, columns)
        return _Checked(await in_thread(self._stage, entry.name, data), events, columns)

    def _holds_end(self, entry: Entry, frames: list[Frame]) -> None:
        """Merged segments reach back behind the end of the table: there it has to be the same history."""
        known = self._known
        if known is None or not entry.first <= known.sequence <= entry.last:
            return
        if not any(frame.last == known.sequence and frame.chain.hex() == known.chain for frame in frames):
            raise self._refused(entry.name, known.sequence, "it holds another history than the table's")

    def _stage(self, name: str, data: bytes) -> str:
        """Keep a checked segment where Spark can read it."""
        path = self._staging / f"{name}.parquet"
        try:
            make_directories(path.parent)
            path.unlink(missing_ok=True)
            write_file(path, (data,))
        except OSError as error:
            raise Unavailable(f"cannot write {path}: {error.strerror or error}") from None
        return str(path)

    def _dropped(self, segment: str, end: End, before: Before) -> _Stopped:
        missing = f"events {end.sequence + 1} to {before.sequence} were dropped before they were taken"
        return self._refused(segment, end.sequence + 1, missing)

    def _refused(self, segment: str, sequence: int | None, reason: str) -> _Stopped:
        after = 0 if self._known is None else self._known.sequence
        return _Stopped(Refused(self._shard, segment, after + 1 if sequence is None else sequence, reason))
