"""Rows of a batch between two sequences."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def rows_between(batch: pa.RecordBatch, first: int | None, last: int | None) -> pa.RecordBatch:
    """Only the rows from `first` to `last`; the same batch when that is all of them."""
    if first is not None and batch.num_rows and batch["sequence"][0].as_py() < first:
        batch = batch.filter(pc.greater_equal(batch["sequence"], first))
    if last is not None and batch.num_rows and batch["sequence"][-1].as_py() > last:
        batch = batch.filter(pc.less_equal(batch["sequence"], last))
    return batch
