"""Sealed segments as files for Spark's own Parquet scan, which is twice as quick as any scan through Python.

Only what the manifests list is read: what a crash left behind, or compaction replaced, is not. The scan itself checks
no digests; `segments.verification.verify` and the audit do.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import msgspec

from omnirelay.errors import InvalidArgument, LogTrimmed, NotFound
from omnirelay.lakehouse.columns import spark_schema
from omnirelay.lakehouse.shards import check_named, shards_of
from omnirelay.lakehouse.waiting import waited
from omnirelay.segments.connecting import connect, path_of
from omnirelay.segments.manifest import Entry, segment_key
from omnirelay.segments.reader import SegmentReader
from omnirelay.segments.segment import format_of
from omnirelay.segments.store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SCHEMES: Final = {"s3": "s3a", "az": "abfs"}
"""What Hadoop calls stores that go by another name here."""


class SegmentFile(msgspec.Struct, frozen=True):
    """A segment, and where Spark finds it."""

    shard: str
    uri: str
    entry: Entry


class ShardSegments(msgspec.Struct, frozen=True):
    """The segments of a shard that hold something behind a sequence."""

    shard: str
    log_id: str
    anchor: int
    """Segments begin behind this event; what was before was dropped, or never here."""
    last: int
    """The last event in segments."""
    generation: int
    """That of the last event; 0 when it is not known."""
    entries: tuple[Entry, ...]


def segment_files(
    address: str,
    *,
    after: Mapping[str, int] | None = None,
    shards: Collection[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[SegmentFile]:
    """The segments that hold an event behind `after` ({shard: sequence}), by shard and in order.

    `options` are those of the store. Raises NotFound for an address, or a shard, that has none, also in `after`,
    LogTrimmed when events behind `after` were dropped, SegmentsDamaged naming the manifest or index.
    """
    found = waited(list_segments(address, after=after, shards=shards, options=options))
    check_named("after", after or (), {each.shard for each in found})
    for each in found:
        begun = (after or {}).get(each.shard, 0)
        if 0 < begun < each.anchor:
            raise LogTrimmed(
                f"the segments of {each.shard!r} begin behind event {each.anchor}, those behind {begun} were dropped",
                shard=each.shard,
                sequence=begun + 1,
                found=each.anchor,
            )
    return [
        SegmentFile(each.shard, segment_uri(address, each.shard, entry), entry)
        for each in found
        for entry in each.entries
    ]


def read_segments(
    spark: SparkSession,
    address: str,
    *,
    after: Mapping[str, int] | None = None,
    shards: Collection[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """The events of sealed segments behind `after`, as a native scan of just the files that hold them."""
    return scan_of(spark, segment_files(address, after=after, shards=shards, options=options), after=after)


def scan_of(
    spark: SparkSession, files: Collection[SegmentFile], *, after: Mapping[str, int] | None = None
) -> DataFrame:
    """A native scan of these files; only events behind `after`, where a file holds some before it as well."""
    from pyspark.sql import functions as F

    strange = [each.uri for each in files if format_of(each.uri) != "parquet"]
    if strange:
        raise InvalidArgument(f'{strange[0]} is not Parquet; read it with format("omnirelay")', field="address")
    schema = spark_schema()
    if not files:
        return spark.createDataFrame([], schema)
    frame = spark.read.schema(schema).parquet(*(as_it_is(each.uri) for each in files))
    cut = {each.shard: sequence for each in files if each.entry.first <= (sequence := (after or {}).get(each.shard, 0))}
    tests: list[Column] = [(F.col("shard") != shard) | (F.col("sequence") > last) for shard, last in cut.items()]
    return frame.where(reduce(lambda one, other: one & other, tests)) if tests else frame


def segment_uri(address: str, shard: str, entry: Entry) -> str:
    """The address of a segment as Spark, and Hadoop below it, spell it."""
    key = segment_key(shard, entry.name)
    scheme, _, rest = address.rpartition("://")
    if scheme in ("", "file"):
        # Hadoop takes a path as it stands: what is %20 in an address would be looked for as %20.
        return f"file://{path_of(address).absolute() / key}"
    return f"{_SCHEMES.get(scheme, scheme)}://{rest.rstrip('/')}/{key}"


def as_it_is(path: str) -> str:
    """A path for `spark.read` that means itself, where Spark would take it for a pattern of paths."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", path)


async def list_segments(
    address: str,
    *,
    after: Mapping[str, int] | None = None,
    shards: Collection[str] | None = None,
    options: Mapping[str, Any] | None = None,
    ends_only: bool = False,
) -> list[ShardSegments]:
    """The same as values, without a word about what was dropped; with `ends_only` without the segments."""
    store = await connect(address, options, writable=False)
    names = sorted(shards) if shards is not None else await shards_of(store)
    begun = {name: None if ends_only else (after or {}).get(name, 0) for name in names}
    try:
        return list(await asyncio.gather(*(_of_shard(store, name, sequence) for name, sequence in begun.items())))
    except NotFound:
        # Only now is it worth listing what is there.
        await shards_of(store, shards)
        raise


async def _of_shard(store: ObjectStore, shard: str, after: int | None) -> ShardSegments:
    reader = SegmentReader(store, shard)
    manifest, entries = (await reader.manifest(), []) if after is None else await reader.listed(after + 1)
    generation = 0 if manifest.end is None else manifest.end.generation
    return ShardSegments(shard, manifest.log_id, manifest.anchor.sequence, manifest.last, generation, tuple(entries))
