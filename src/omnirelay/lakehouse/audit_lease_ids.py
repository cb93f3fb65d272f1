"""That no two grants share a lease id, in a whole log and in little memory.

A task that has read a segment makes 8 bytes of each lease id that is granted there. Those of all segments are looked at
in the driver, a bounded number at a time. Two that are the same are a suspicion only: then SQL asks for the ids
themselves, and names the grants. So an id that came twice cannot be missed, and no other is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

Marks: TypeAlias = npt.NDArray[np.uint64]

MARKS: Final = pa.schema({"bucket": pa.int32(), "marks": pa.binary()})
"""The marks of one segment that fall into one bucket."""
_BUCKET_EVENTS: Final = 8_000_000
"""Events for which there is one bucket more. What the driver holds at once is at most as many marks, 64 MB."""
_LENGTH: Final = 36
"""Of the ids that nodes make: UUIDs."""
_WORDS: Final = 5
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFT: Final = np.uint64(29)


def buckets_for(events: int) -> int:
    return 1 + events // _BUCKET_EVENTS


def marks_of_grants(table: pa.Table, last: int, buckets: int) -> pa.RecordBatch | None:
    """The lease ids that the grants up to event `last` of a segment have, as `MARKS`; None when columns do not tell."""
    if "ownership_lease_id" not in table.column_names:
        return _batch({})
    try:
        granted = pc.and_(pc.equal(table["event_type"], "LeaseGranted"), pc.less_equal(table["sequence"], last))
        ids = table["ownership_lease_id"].filter(granted).cast(pa.string()).combine_chunks().drop_null()
    except (KeyError, pa.ArrowException):
        return None
    marks = _marks(ids)
    bucket = marks % np.uint64(buckets)
    return _batch({number: marks[bucket == number] for number in range(buckets)})


def _batch(by_bucket: dict[int, Marks]) -> pa.RecordBatch:
    there = {number: marks.tobytes() for number, marks in by_bucket.items() if len(marks)}
    return pa.RecordBatch.from_arrays(
        [pa.array(there.keys(), pa.int32()), pa.array(there.values(), pa.binary())], schema=MARKS
    )


def _marks(ids: pa.StringArray) -> Marks:
    """8 bytes of each id, the same for the same."""
    usual = pc.equal(pc.binary_length(ids), _LENGTH)
    others = ids.filter(pc.invert(usual)).to_pylist()
    digests = b"".join(blake2b(each.encode(), digest_size=8).digest() for each in others)
    return np.concatenate([_of_uuids(ids.filter(usual)), np.frombuffer(digests, np.uint64)])


def _of_uuids(ids: pa.StringArray) -> Marks:
    if not len(ids):
        return np.empty(0, np.uint64)
    _, offsets, data = ids.buffers()
    begin = int(np.frombuffer(offsets, np.int32)[ids.offset])
    text = np.frombuffer(data, np.uint8, len(ids) * _LENGTH, begin).reshape(len(ids), _LENGTH)
    padded = np.zeros((len(ids), _WORDS * 8), np.uint8)
    padded[:, :_LENGTH] = text
    words = padded.view(np.uint64)
    mixed: Marks = words[:, 0].copy()
    for at in range(1, _WORDS):
        mixed = (mixed ^ (mixed >> _SHIFT)) * _ODD + words[:, at]
    return (mixed ^ (mixed >> _SHIFT)) * _ODD


def suspected(first: Sequence[Row], rows: DataFrame, buckets: int) -> set[str]:
    """The shards in which two grants may share a lease id. `rows` have `MARKS` of segments, and `shard`; `first` are
    those of the first bucket.
    """
    found: set[str] = set()
    for number in range(buckets):
        of_shards: dict[str, list[Any]] = {}
        in_bucket = first if number == 0 else rows.where(f"bucket = {number}").select("shard", "marks").collect()
        for row in in_bucket:
            of_shards.setdefault(row["shard"], []).append(np.frombuffer(row["marks"], np.uint64))
        for shard, parts in of_shards.items():
            marks = np.sort(np.concatenate(parts))
            if bool(np.any(marks[1:] == marks[:-1])):
                found.add(shard)
    return found


def granted_again(events: DataFrame, shards: DataFrame) -> DataFrame:
    """Grants with the lease id of an earlier one. `shards` has `first` of each shard."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    grants = events.where(F.col("event_type") == "LeaseGranted").where("ownership_lease_id IS NOT NULL")
    by_id = Window.partitionBy("shard", "ownership_lease_id").orderBy("sequence")
    what = F.concat(
        F.lit("LeaseGranted: its lease id "), "ownership_lease_id", F.lit(" is that of the grant of event "), "before"
    )
    return (
        grants.select("shard", "sequence", "ownership_sequence_id", "ownership_lease_id")
        .withColumn("before", F.lag("sequence").over(by_id))
        .where("before IS NOT NULL")
        .join(F.broadcast(shards), "shard")
        .where(F.col("sequence") >= F.col("first"))
        .select(
            F.lit("lease-ids").alias("rule"),
            "shard",
            "sequence",
            F.col("ownership_sequence_id").alias("item"),
            what.alias("what"),
        )
    )
