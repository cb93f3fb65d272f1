"""Segments that Spark's own scan cannot read, kept on this machine as Parquet for as long as SQL asks about them.

Those are segments of lines, and all in a bucket: for one Spark wants a library and settings of its own, and knows
nothing of the options that everything else here reads it with. On a cluster other machines cannot read what is kept
here. There segments in a bucket are left to Spark, and those of lines are not read with SQL.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from omnirelay.errors import Unavailable
from omnirelay.lakehouse.audit_segments import frames_in
from omnirelay.lakehouse.waiting import waited
from omnirelay.segments.connecting import connect
from omnirelay.segments.manifest import Entry, segment_key
from omnirelay.segments.parquet import encode_parquet
from omnirelay.segments.segment import format_of
from omnirelay.segments.store import ObjectStore
from omnirelay.segments.threads import in_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AT_ONCE: Final = 4
"""Segments that are in memory at the same time."""


@contextmanager
def staged(
    spark: SparkSession, address: str, options: Mapping[str, Any] | None, entries: Mapping[str, Sequence[Entry]]
) -> Iterator[dict[str, str]]:
    """The addresses of segments that were put elsewhere, by their keys; they are gone afterwards."""
    keys = _not_for_spark(address, entries)
    if not keys or not _is_here(spark):
        yield {}
        return
    directory = Path(tempfile.mkdtemp(prefix="omnirelay-audit-"))
    try:
        yield waited(_fetched(address, options, keys, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def are_read_in_place(spark: SparkSession, address: str, entries: Mapping[str, Sequence[Entry]]) -> bool:
    """Whether Spark, in this process, reads all segments from where they are."""
    return _is_here(spark) and not _not_for_spark(address, entries)


def _not_for_spark(address: str, entries: Mapping[str, Sequence[Entry]]) -> dict[str, Entry]:
    in_bucket = "://" in address and not address.startswith("file://")
    return {
        segment_key(shard, entry.name): entry
        for shard, each in entries.items()
        for entry in each
        if in_bucket or format_of(entry.name) != "parquet"
    }


def _is_here(spark: SparkSession) -> bool:
    """Whether all work is done in this process, which reads what this process writes."""
    return hasattr(spark, "_jsparkSession") and (spark.conf.get("spark.master", None) or "").startswith("local")


async def _fetched(
    address: str, options: Mapping[str, Any] | None, keys: Mapping[str, Entry], directory: Path
) -> dict[str, str]:
    store = await connect(address, options, writable=False)
    limit = asyncio.Semaphore(_AT_ONCE)

    async def fetch(key: str, entry: Entry) -> str:
        async with limit:
            return await _one(store, key, entry, directory)

    return dict(zip(keys, await asyncio.gather(*(fetch(*each) for each in keys.items())), strict=True))


async def _one(store: ObjectStore, key: str, entry: Entry, directory: Path) -> str:
    data = await store.get(key)
    path = directory / f"{key}.parquet"
    await in_thread(_write, path, data, entry)
    # As it stands: Hadoop would look for what is %20 in an address as %20.
    return f"file://{path}"


def _write(path: Path, data: bytes, entry: Entry) -> None:
    if format_of(entry.name) != "parquet":
        data = encode_parquet(frames_in(entry.name, data), None)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror or error}") from None
