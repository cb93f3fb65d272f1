"""What every stream of the log does, and the stream for Sparks before 4.2, which let a source set no limit.

An offset says of each shard the last event that was read, and of which log (`source_offsets`). A batch that Spark
repeats after a crash is planned from the same two offsets and gives the same events: nothing in a log changes. `commit`
does nothing: Spark calls it too late to rely on, so nothing is ever trimmed because of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from omnirelay.errors import InvalidArgument, LogRegressed
from omnirelay.lakehouse.shards import check_named
from omnirelay.lakehouse.source import PiecePartition
from omnirelay.lakehouse.source_filters import Wanted
from omnirelay.lakehouse.source_offsets import Offset, log_ids_of
from omnirelay.lakehouse.source_options import SourceOptions
from omnirelay.lakehouse.source_pieces import Extent, check_shards, extents, pieces_between, read_piece

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader):
    """Where a stream begins, and what lies between two offsets. Where the next batch ends is for others to say."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def initialOffset(self) -> dict[str, Any]:
        return (self._ends() if self.options.from_latest else Offset(self.options.after)).stored()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ends = Offset.read(start), Offset.read(end)
        moved = [shard for shard, sequence in ends.sequences.items() if sequence > begun.sequences.get(shard, 0)]
        if not moved:
            return []
        found = extents(self.options, begun.sequences, moved)
        begun.check_logs(found)
        ends.check_logs(found)
        return [
            PiecePartition(piece)
            for shard, extent in found.items()
            for piece in pieces_between(
                extent,
                begun.sequences.get(shard, 0),
                ends.sequences[shard],
                Wanted(),
                fail_on_data_loss=self.options.fail_on_data_loss,
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, PiecePartition):
            yield from read_piece(self.options, partition.piece, Wanted())

    def _found(self, after: Mapping[str, int] | None) -> dict[str, Extent]:
        found = extents(self.options, after, self.options.shards)
        check_shards(self.options, found)
        return found

    def _miss(self, begun: Offset, found: Mapping[str, Extent]) -> None:
        """Raises FailedPrecondition for a shard that has another log than the one that was read. Raises NotFound for
        one that is not there any more, and LogRegressed for one that ends before what was read of it, unless told to go
        on. Waiting until its numbers get there would leave out what it has: it is another log, or lost its end.
        """
        begun.check_logs(found)
        if not self.options.fail_on_data_loss:
            return
        known = begun.sequences
        chosen = known if self.options.shards is None else set(known).intersection(self.options.shards)
        check_named("the checkpoint", chosen, found, "; option failOnDataLoss=false goes on without it")
        for shard, extent in found.items():
            if extent.last < known.get(shard, 0):
                raise LogRegressed(
                    f"{shard!r} ends with event {extent.last}, and was read up to {known[shard]}: it is another log, an"
                    " old copy, or has lost its end; begin with a new checkpoint, or option failOnDataLoss=false waits"
                    " for what comes behind that",
                    shard=shard,
                    sequence=extent.last,
                )

    def _ends(self) -> Offset:
        found = self._found(None)
        return Offset(self._ends_of(found), log_ids_of(found))

    def _ends_of(self, found: Mapping[str, Extent]) -> dict[str, int]:
        return {shard: self.options.end_of(shard, extent.last) for shard, extent in found.items()}


class UnlimitedLogStreamReader(StreamReader):
    """Every batch takes all there is. Sparks before 4.2 do not say where the last one ended, so it is remembered."""

    def __init__(self, options: SourceOptions) -> None:
        if options.max_events is not None:
            raise InvalidArgument(
                "option maxEventsPerTrigger needs Spark 4.2 or later; without it a batch takes all there is",
                field="maxEventsPerTrigger",
            )
        super().__init__(options)
        self.reached = Offset({})

    def initialOffset(self) -> dict[str, Any]:
        stored = super().initialOffset()
        self.reached = Offset.read(stored)
        return stored

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # As it was before 4.2.
        found = self._found(None)
        self._miss(self.reached, found)
        self.reached = self.reached.moved_to(self._ends_of(found), log_ids_of(found))
        return self.reached.stored()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # A stream that goes on from a checkpoint is not asked where it begins.
        for each in (Offset.read(end), Offset.read(start)):
            self.reached = Offset(each.sequences | self.reached.sequences, each.log_ids | self.reached.log_ids)
        return super().partitions(start, end)
