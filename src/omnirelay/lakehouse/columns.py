"""The columns of segments as Spark has them: the same names, instants in microseconds."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from omnirelay.segments.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@cache
def spark_schema() -> StructType:
    """The schema of segments. Everything may be null: old segments lack what came later."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    found = from_arrow_schema(arrow_schema())
    return StructType([StructField(field.name, field.dataType, True) for field in found.fields])


@cache
def arrow_for_spark() -> pa.Schema:
    """The schema that Spark takes Arrow in."""
    import pyarrow as pa

    def kind(field: pa.Field) -> pa.DataType:
        return pa.timestamp("us", tz="UTC") if pa.types.is_timestamp(field.type) else field.type

    return pa.schema([pa.field(field.name, kind(field), True) for field in arrow_schema()])


def conformed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of a segment as Spark takes it: columns it lacks are null, columns that came later are left out."""
    import pyarrow as pa

    schema = arrow_for_spark()
    names = set(batch.schema.names)
    arrays = [
        batch[field.name].cast(field.type) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def names_in(data: bytes) -> frozenset[str]:
    """The columns of a Parquet file, from its footer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return frozenset(pq.read_schema(pa.BufferReader(data)).names)
