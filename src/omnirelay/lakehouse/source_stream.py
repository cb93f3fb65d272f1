"""The log as a stream with limits: how far the next batch goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from omnirelay.lakehouse.source_offsets import Offset, log_ids_of
from omnirelay.lakehouse.source_options import SourceOptions
from omnirelay.lakehouse.source_pieces import Extent
from omnirelay.lakehouse.source_stream_base import StreamReader
from omnirelay.lakehouse.tail import first_behind


class LogStreamReader(StreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self.target: dict[str, int] | None = None
        """Where a stream that ends with what is there now ends."""

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.options.max_events is None else ReadMaxRows(self.options.max_events)

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self._ends().sequences

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._ends().stored()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = Offset.read(start)
        found = self._found(begun.sequences)
        self._miss(begun, found)
        ends = self._ends_of(found)
        if self.target is not None:
            ends = {shard: min(end, self.target.get(shard, 0)) for shard, end in ends.items()}
        reached = begun.moved_to(ends, log_ids_of(found))
        if isinstance(limit, ReadMaxRows):
            limited = self._limited(found, begun.sequences, reached.sequences, limit.max_rows)
            reached = Offset(limited, reached.log_ids)
        return reached.stored()

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
