"""`Piece`: a part of the log that one task reads, either out of a segment or out of a node's tail; and its planning."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from omnirelay.client.addresses import without_password
from omnirelay.errors import FailedPrecondition, LogTrimmed, NotFound
from omnirelay.lakehouse.columns import conformed
from omnirelay.lakehouse.segment_files import ShardSegments, list_segments
from omnirelay.lakehouse.shards import check_named, shards_at
from omnirelay.lakehouse.source_filters import Wanted
from omnirelay.lakehouse.source_options import SourceOptions
from omnirelay.lakehouse.tail import Live, first_behind, live_shards, tail_batches
from omnirelay.lakehouse.waiting import waited
from omnirelay.segments.connecting import connect
from omnirelay.segments.errors import ObjectMissing
from omnirelay.segments.manifest import Entry, segment_key
from omnirelay.segments.reader import SegmentReader
from omnirelay.segments.segment import damaged, decode_segment, format_of

if TYPE_CHECKING:
    import pyarrow as pa


class Piece(msgspec.Struct, frozen=True):
    """Events `first` to `last` of a shard. Without an entry they are read from the node."""

    shard: str
    first: int
    last: int
    entry: Entry | None = None
    log_id: str = ""


class Extent(msgspec.Struct, frozen=True):
    """What there is of a shard at this moment."""

    shard: str
    sealed: ShardSegments | None
    live_last: int | None
    """The last event at the node; None when no node is asked, or it does not have the shard."""
    log_id: str | None = None
    """None when nobody tells: older nodes do not."""

    @property
    def last(self) -> int:
        return max(self.live_last or 0, 0 if self.sealed is None else self.sealed.last)

    @property
    def anchor(self) -> int:
        return 0 if self.sealed is None else self.sealed.anchor


def extents(
    options: SourceOptions, after: Mapping[str, int] | None, shards: Collection[str] | None
) -> dict[str, Extent]:
    """Every shard that is asked for, as it is now; segments only behind `after`, none at all when that is None.

    Raises FailedPrecondition when the node has another history of a shard than the segments.
    """
    live = {} if options.url is None else live_shards(options.url, shards)
    sealed = {} if options.address is None else _sealed(options, options.address, after, shards, live)
    there = {*sealed, *live}
    wanted = there if shards is None else set(shards)
    check_named("option shards", wanted, there)
    for name in sorted(wanted & sealed.keys() & live.keys()):
        _check_history(options, sealed[name], live[name])
    return {name: _extent(name, sealed.get(name), live.get(name)) for name in sorted(wanted)}


def _extent(name: str, sealed: ShardSegments | None, live: Live | None) -> Extent:
    told = None if live is None else live.log_id
    return Extent(name, sealed, None if live is None else live.last, told if sealed is None else sealed.log_id)


def _check_history(options: SourceOptions, sealed: ShardSegments, live: Live) -> None:
    """Segments and node have to be of one log: the end of one put behind the other would be a history nobody had."""
    assert options.url is not None
    if live.log_id is None or live.generation is None:
        return
    same = live.log_id == sealed.log_id and live.generation >= sealed.generation
    if same and 0 < sealed.generation < live.generation:
        # The log was restored since, perhaps from before the end of the segments: then it jumps over that end.
        same = first_behind(options.url, sealed.shard, sealed.last - 1) == sealed.last
    if not same:
        raise FailedPrecondition(
            f"the node at {without_password(options.url)} has another history of {sealed.shard!r} than the segments in"
            f" {options.address}: it is another log, or was restored from before event {sealed.last}; read one of them",
            shard=sealed.shard,
            sequence=sealed.last,
        )


def _sealed(
    options: SourceOptions,
    address: str,
    after: Mapping[str, int] | None,
    shards: Collection[str] | None,
    live: Collection[str],
) -> dict[str, ShardSegments]:
    names = None if shards is None else sorted(set(shards))
    if live:
        # What is new, a shard or all of them, may be at the node only.
        try:
            there = waited(shards_at(address, options.store))
        except NotFound:
            there = []
        names = there if names is None else [name for name in names if name in there or name not in live]
    found = waited(
        list_segments(address, after=after or {}, shards=names, options=options.store, ends_only=after is None)
    )
    return {each.shard: each for each in found}


def check_shards(options: SourceOptions, found: Collection[str]) -> None:
    """Raises NotFound when an option says where to begin or to end in a shard that is not read."""
    check_named("option after", options.after, found)
    check_named("option upTo", options.up_to, found)


def pieces_between(
    extent: Extent, after: int, up_to: int, wanted: Wanted, *, fail_on_data_loss: bool = True
) -> list[Piece]:
    """The pieces that hold what is wanted of the events behind `after`, up to `up_to`."""
    if 0 < after < extent.anchor and fail_on_data_loss:
        raise LogTrimmed(
            f"the segments of {extent.shard!r} begin behind event {extent.anchor}, those behind {after} were dropped"
            " before they were read; option failOnDataLoss=false goes on with what is there",
            shard=extent.shard,
            sequence=after + 1,
            found=extent.anchor,
        )
    if wanted.shards is not None and extent.shard not in wanted.shards:
        return []
    first = max(after + 1, extent.anchor + 1, wanted.first or 0)
    last = up_to if wanted.last is None else min(up_to, wanted.last)
    pieces = []
    entries = () if extent.sealed is None else extent.sealed.entries
    log_id = "" if extent.sealed is None else extent.sealed.log_id
    earliest_us = None
    for entry in entries:
        # Time never goes back in a log: nothing here is older than the end of the segment before.
        too_new = wanted.to_us is not None and earliest_us is not None and earliest_us > wanted.to_us
        earliest_us = entry.to_ms * 1000
        too_old = wanted.from_us is not None and entry.to_ms * 1000 + 999 < wanted.from_us
        if not too_old and not too_new and entry.first <= last and entry.last >= first:
            pieces.append(Piece(extent.shard, max(first, entry.first), min(last, entry.last), entry, log_id))
    tail_first = max(first, (0 if extent.sealed is None else extent.sealed.last) + 1)
    if extent.live_last is not None and tail_first <= last:
        pieces.append(Piece(extent.shard, tail_first, last, log_id=extent.log_id or ""))
    return pieces


def read_piece(options: SourceOptions, piece: Piece, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The events of a piece as Spark takes them. Raises SegmentsDamaged naming segment and place, Unavailable."""
    within = msgspec.structs.replace(
        wanted.and_types(options.types),
        first=max(piece.first, wanted.first or 0),
        last=piece.last if wanted.last is None else min(piece.last, wanted.last),
    )
    for batch in _batches(options, piece, within.types):
        rows = within.rows(conformed(batch))
        if rows.num_rows:
            yield rows


def _batches(options: SourceOptions, piece: Piece, types: frozenset[str] | None) -> Iterator[pa.RecordBatch]:
    if piece.entry is None:
        assert options.url is not None
        yield from tail_batches(options.url, piece.shard, piece.first, piece.last, types, log_id=piece.log_id or None)
        return
    assert options.address is not None
    try:
        data = waited(_object(options, piece.shard, piece.entry))
    except ObjectMissing:
        # Merged with others, or dropped, since the query was planned.
        yield from waited(_from_newest(options, piece))
        return
    yield from _of_object(piece, piece.entry, data)


def _of_object(piece: Piece, entry: Entry, data: bytes) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from omnirelay.segments.arrow import frames_to_arrow

    if format_of(entry.name) != "parquet":
        yield frames_to_arrow(decode_segment(entry, data, shard=piece.shard, log_id=piece.log_id), None)
        return
    if hashlib.sha256(data).hexdigest() != entry.digest:
        raise damaged(
            piece.shard, entry, entry.first, "is not what was written: its digest differs from the manifest's"
        )
    try:
        yield from pq.ParquetFile(pa.BufferReader(data)).iter_batches(batch_size=65_536)
    except (pa.ArrowException, OSError) as error:
        raise damaged(piece.shard, entry, entry.first, f"cannot be read: {error}") from None


async def _object(options: SourceOptions, shard: str, entry: Entry) -> bytes:
    assert options.address is not None
    store = await connect(options.address, options.store, writable=False)
    return await store.get(segment_key(shard, entry.name))


async def _from_newest(options: SourceOptions, piece: Piece) -> list[pa.RecordBatch]:
    assert options.address is not None
    store = await connect(options.address, options.store, writable=False)
    reader = SegmentReader(store, piece.shard)
    return [batch async for batch in reader.batches(piece.first, piece.last)]
