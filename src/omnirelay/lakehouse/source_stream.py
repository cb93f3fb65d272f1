"""The log as a stream. An offset is {shard: the last event that was read}.

A batch that Spark repeats after a crash is planned from the same two offsets and gives the same events: nothing in a
log changes. `commit` does nothing: Spark calls it too late to rely on, so nothing is ever trimmed because of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from omnirelay.lakehouse.source import PiecePartition
from omnirelay.lakehouse.source_filters import Wanted
from omnirelay.lakehouse.source_options import SourceOptions
from omnirelay.lakehouse.source_pieces import Extent, extents, pieces_between, read_piece
from omnirelay.lakehouse.tail import first_behind

if TYPE_CHECKING:
    import pyarrow as pa


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.target: dict[str, int] | None = None
        """Where a stream that ends with what is there now ends."""

    def initialOffset(self) -> dict[str, int]:
        if self.options.from_latest:
            return self._ends()
        return dict(self.options.after)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.options.max_events is None else ReadMaxRows(self.options.max_events)

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self._ends()

    def reportLatestOffset(self) -> dict[str, int]:
        return self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, int]:
        found = extents(self.options, start, self.options.shards)
        ends = {shard: extent.last for shard, extent in found.items()}
        if self.target is not None:
            ends = {shard: min(end, self.target.get(shard, 0)) for shard, end in ends.items()}
        # A shard never goes back, also when it is not to be seen for a moment.
        ends = {**start, **{shard: max(end, start.get(shard, 0)) for shard, end in ends.items()}}
        if isinstance(limit, ReadMaxRows):
            ends = self._limited(found, start, ends, limit.max_rows)
        return {shard: end for shard, end in ends.items() if end}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        moved = [shard for shard in end if end[shard] > start.get(shard, 0)]
        if not moved:
            return []
        found = extents(self.options, start, moved)
        return [
            PiecePartition(piece)
            for shard, extent in found.items()
            for piece in pieces_between(
                extent,
                start.get(shard, 0),
                end[shard],
                Wanted(),
                fail_on_data_loss=self.options.fail_on_data_loss,
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, PiecePartition):
            yield from read_piece(self.options, partition.piece, Wanted())

    def _ends(self) -> dict[str, int]:
        found = extents(self.options, None, self.options.shards)
        return {shard: extent.last for shard, extent in found.items() if extent.last}

    def _limited(
        self, found: Mapping[str, Extent], start: Mapping[str, int], ends: Mapping[str, int], most: int
    ) -> dict[str, int]:
        """The same ends, moved back so that about `most` events lie before them, shared out evenly.

        With more shards than that, those that are furthest behind come first.
        """
        behind = {shard: end - start.get(shard, 0) for shard, end in ends.items() if end > start.get(shard, 0)}
        limited = dict(ends)
        left = most
        for at, shard in enumerate(sorted(behind, key=lambda each: (-behind[each], each))):
            share = -(-left // (len(behind) - at))
            begun = start.get(shard, 0)
            limited[shard] = begun if share == 0 else self._behind(found[shard], begun, ends[shard], share)
            left -= min(share, limited[shard] - begun)
        return limited

    def _behind(self, extent: Extent, after: int, end: int, count: int) -> int:
        """The place `count` events behind `after`, at most `end`.

        Numbers jump where a new generation begins. A segment in which they do is taken whole: it does not tell where.
        """
        if end - after <= count:
            return end
        entries = () if extent.sealed is None else extent.sealed.entries
        place = max(after, extent.anchor)
        for entry in entries:
            begin = max(place, entry.first - 1)
            if entry.last - entry.first + 1 != entry.events:
                place, count = entry.last, count - entry.events
            else:
                place, count = min(begin + count, entry.last), count - (entry.last - begin)
            if count <= 0 or place >= end:
                return min(place, end)
        next_one = None if self.options.url is None else first_behind(self.options.url, extent.shard, place)
        if next_one is None:
            return min(place, end)
        return min(next_one - 1 + count, end)
