"""The data source `omnirelay`: the log as a DataFrame or a stream, and a DataFrame as items of a queue.

    spark.read.format("omnirelay").load("/lake/leases")                          sealed segments
    spark.read.format("omnirelay").option("url", NODE).load("/lake/leases")      and what the node has beyond them
    spark.readStream.format("omnirelay").option("url", NODE).load(…)             the same, and what comes
    df.write.format("omnirelay").mode("append").option("url", NODE).option("key", "table").save()

Options of reading are in `source_options`, those of writing in `writing`. Executors need this package installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)

from omnirelay.errors import InvalidArgument
from omnirelay.lakehouse.columns import spark_schema
from omnirelay.lakehouse.source_filters import Wanted, wanted_by
from omnirelay.lakehouse.source_options import SourceOptions, read_options
from omnirelay.lakehouse.source_pieces import Piece, check_shards, extents, pieces_between, read_piece

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "omnirelay"


def register(spark: SparkSession) -> None:
    """Make `format("omnirelay")` known to a session. Safe to call twice."""
    from pyspark.errors import AnalysisException

    # Spark looks for the name in the session that was active last, whichever session a table or a frame is of.
    spark.createDataFrame([], "makes_active int")
    try:
        spark.dataSource.register(OmniRelayDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


class OmniRelayDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        _check_schema(schema)
        return LogReader(read_options(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        _check_schema(schema)
        options = read_options(self.options)
        try:
            from omnirelay.lakehouse.source_stream import LogStreamReader
        except ImportError:
            # Sparks before 4.2, as that of Iceberg, do not have what a stream with limits takes.
            from omnirelay.lakehouse.source_stream_base import UnlimitedLogStreamReader

            return UnlimitedLogStreamReader(options)
        return LogStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from omnirelay.lakehouse.writing import ItemWriter, read_write_options

        return ItemWriter(read_write_options(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from omnirelay.lakehouse.writing import ItemStreamWriter, read_write_options

        return ItemStreamWriter(read_write_options(self.options, schema, overwrite))


def _check_schema(schema: StructType) -> None:
    """Raises InvalidArgument for columns of the caller's own (`.schema(…)`): a task would fail much later for them."""
    if [(field.name, field.dataType) for field in schema] != [(each.name, each.dataType) for each in spark_schema()]:
        raise InvalidArgument("the columns of omnirelay are its own: leave out schema(…), and select the ones you need")


class PiecePartition(InputPartition):
    def __init__(self, piece: Piece) -> None:
        self.piece = piece


class LogReader(DataSourceReader):
    """What is there when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        if options.from_latest:
            raise InvalidArgument(
                "option after=latest is for streams: a batch holds what is there when it is planned, and nothing is"
                ' behind that; say earliest, or where, as in {"orders": 12000}',
                field="after",
            )
        self.options = options
        self.wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        # All of them are left to Spark as well: what is chosen here is chosen coarsely.
        self.wanted = wanted_by(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        return [PiecePartition(piece) for piece in self.pieces()]

    def pieces(self) -> list[Piece]:
        """One task each."""
        options, wanted = self.options, self.wanted
        after = {shard: max(sequence, (wanted.first or 1) - 1) for shard, sequence in options.after.items()}
        found = extents(options, after, options.shards)
        check_shards(options, found)
        return [
            piece
            for shard, extent in found.items()
            for piece in pieces_between(
                extent,
                options.after.get(shard, 0),
                options.end_of(shard, extent.last),
                wanted,
                fail_on_data_loss=options.fail_on_data_loss,
            )
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is nothing to read, Spark has one task read a partition of its own.
        if isinstance(partition, PiecePartition):
            yield from read_piece(self.options, partition.piece, self.wanted)
