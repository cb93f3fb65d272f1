"""What the tests of restoring share: real shards with a past, their segments, and what lies in a directory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from omnirelay.core.snapshot import digest
from omnirelay.engine.recovery import rebuild
from omnirelay.engine.shard import Shard
from omnirelay.engine.snapshotter import make_snapshot
from omnirelay.log import EventLog, SqliteLog
from omnirelay.log.base import Frame
from omnirelay.segments.archive import Archive
from omnirelay.segments.local import LocalObjectStore
from omnirelay.segments.segment import SegmentFormat
from omnirelay.segments.store import ObjectStore
from omnirelay.segments.writer import SegmentWriter
from tests.integration.shards import NAMESPACE, WORKER, enqueued, frames_of, items


async def work(shard: Shard, seed: int = 1, steps: int = 12) -> None:
    """Some of everything, so that the state depends on all of it."""
    chance = random.Random(seed)
    for _ in range(steps):
        await enqueued(shard, *items(chance.randint(1, 4), f"t{chance.randint(0, 9)}"))
        for lease in await shard.lease(WORKER, max_items=chance.randint(1, 3)):
            match chance.randint(0, 3):
                case 0:
                    await shard.complete(lease.token)
                case 1:
                    await shard.fail(lease.token, mode="dead")
                case 2:
                    await shard.heartbeat(lease.token)


async def shard_with_past(data: Path, seed: int = 1, steps: int = 12) -> list[Frame]:
    """A shard worked and was closed; its frames."""
    async with await Shard.open(SqliteLog.open(data, NAMESPACE)) as shard:
        await work(shard, seed, steps)
        return await frames_of(shard.log, (await shard.log.anchor()).sequence + 1)


async def add_snapshot(data: Path) -> int:
    """Snapshot a closed log; the event it stands at."""
    log = SqliteLog.open(data, NAMESPACE)
    try:
        acquired = await log.acquire("tests")
        record = await make_snapshot(log, 1)
        await log.add_snapshot(record, acquired.epoch)
    finally:
        await log.close()
    return record.sequence


async def trim(data: Path, below: int) -> None:
    log = SqliteLog.open(data, NAMESPACE)
    try:
        await log.trim(below, (await log.acquire("tests")).epoch)
    finally:
        await log.close()


async def segments_of(
    store: ObjectStore | Path, frames: Sequence[Frame], kind: SegmentFormat = "parquet", each: int = 5
) -> ObjectStore:
    store = LocalObjectStore(store) if isinstance(store, Path) else store
    writer = SegmentWriter(Archive(store, NAMESPACE), kind=kind)
    for at in range(0, len(frames), each):
        await writer.append(frames[at : at + each])
    return store


async def digest_at(log: EventLog, sequence: int | None = None) -> str:
    return digest((await rebuild(log, sequence)).state)


async def digest_in(data: Path, sequence: int | None = None) -> str:
    log = SqliteLog.open(data, NAMESPACE, read_only=True)
    try:
        return await digest_at(log, sequence)
    finally:
        await log.close()


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory; {} when it is not there."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
