"""Segments as Parquet: compressed with zstd, sorted by sequence, with statistics that let readers skip row groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from omnirelay.log.base import Frame
from omnirelay.segments.arrow import frames_of_arrow, frames_to_arrow
from omnirelay.segments.schema import FRAME_FIELDS, REPEATING

ROW_GROUP_ROWS: Final = 65_536

_WITHOUT_STATISTICS: Final = frozenset({"frame", "chain", "payload_body", "result", "extra", "items", "options"})
_SLICE_EVENTS: Final = 8_192
_LEVEL: Final = 1
"""Higher ones take twice the time for a few per cent."""


def encode_parquet(frames: Sequence[Frame], region: str | None, types: Counter[str] | None = None) -> bytes:
    """How many events of each type there are is added to `types`. Blocking and long: call it in a thread."""
    return encode_table(pa.Table.from_batches([frames_to_arrow(slice_, region, types) for slice_ in _slices(frames)]))


def _slices(frames: Sequence[Frame]) -> Iterator[Sequence[Frame]]:
    """Frames of a few thousand events at a time.

    A column is filled in one call that holds the interpreter lock, and the event loop waits for it.
    """
    start = events = 0
    for at, frame in enumerate(frames):
        if at > start and events + frame.count > _SLICE_EVENTS:
            yield frames[start:at]
            start, events = at, 0
        events += frame.count
    yield frames[start:]


def merge_parquet(objects: Sequence[bytes]) -> bytes:
    """The rows of several segments as those of one; columns that only some of them have are null in the others."""
    tables = [read_table(data) for data in objects]
    return encode_table(pa.concat_tables(tables, promote_options="default"))


def encode_table(table: pa.Table) -> bytes:
    """A table as the bytes of a Parquet file; its rows are sorted by sequence."""
    out = pa.BufferOutputStream()
    with parquet_writer(out, table.schema) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def parquet_writer(out: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer of files as segments are; rows have to come sorted by sequence."""
    return pq.ParquetWriter(
        out,
        schema,
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=[name for name in REPEATING if name in schema.names],
        write_statistics=[name for name in schema.names if name not in _WITHOUT_STATISTICS],
        write_page_index=True,
        sorting_columns=pq.SortingColumn.from_ordering(schema, [("sequence", "ascending")]),
    )


def decode_parquet(data: bytes) -> list[Frame]:
    """The frames of a segment. Raises ValueError for what is no segment."""
    return frames_of_arrow(read_table(data, [field.name for field in FRAME_FIELDS]))


def made_table(frames: Sequence[Frame]) -> pa.Table:
    """The rows that frames make, without a region."""
    return pa.Table.from_batches([frames_to_arrow(slice_, None) for slice_ in _slices(frames)])


def read_table(data: bytes, columns: Sequence[str] | None = None) -> pa.Table:
    try:
        return pq.read_table(pa.BufferReader(data), columns=None if columns is None else list(columns))
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError(str(error).splitlines()[0]) from None
