"""What every stream of the log does, and the stream for Sparks before 4.2, which let a source set no limit.

An offset is {shard: the last event that was read}. A batch that Spark repeats after a crash is planned from the same
two offsets and gives the same events: nothing in a log changes. `commit` does nothing: Spark calls it too late to rely
on, so nothing is ever trimmed because of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from omnirelay.errors import InvalidArgument
from omnirelay.lakehouse.source import PiecePartition
from omnirelay.lakehouse.source_filters import Wanted
from omnirelay.lakehouse.source_options import SourceOptions
from omnirelay.lakehouse.source_pieces import extents, pieces_between, read_piece

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader):
    """Where a stream begins, and what lies between two offsets. Where the next batch ends is for others to say."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def initialOffset(self) -> dict[str, int]:
        if self.options.from_latest:
            return self._ends()
        return dict(self.options.after)

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


class UnlimitedLogStreamReader(StreamReader):
    """Every batch takes all there is. Sparks before 4.2 do not say where the last one ended, so it is remembered."""

    def __init__(self, options: SourceOptions) -> None:
        if options.max_events is not None:
            raise InvalidArgument(
                "option maxEventsPerTrigger needs Spark 4.2 or later; without it a batch takes all there is",
                field="maxEventsPerTrigger",
            )
        super().__init__(options)
        self.reached: dict[str, int] = {}

    def initialOffset(self) -> dict[str, int]:
        self.reached = super().initialOffset()
        return dict(self.reached)

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # As it was before 4.2.
        ends = self._ends()
        # A shard never goes back, also when it is not to be seen for a moment.
        self.reached |= {shard: max(end, self.reached.get(shard, 0)) for shard, end in ends.items()}
        return dict(self.reached)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # A stream that goes on from a checkpoint is not asked where it begins.
        self.reached = {**start, **end, **self.reached}
        return super().partitions(start, end)
