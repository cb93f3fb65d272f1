"""A long log for the lakehouse, written by the engine itself under a clock that runs quickly, as segments.

A batch of 500 items is enqueued every two minutes and leased by twenty peers; some leases are kept alive, nine in ten
are completed, some fail and come again, a few run out. So a million events take up two and a half days.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from omnirelay.core.commands import CompleteItem, ExtendLease, FailItem
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, NewItem, Payload
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.shard import Shard
from omnirelay.log import MemoryLog
from omnirelay.log.base import Frame
from omnirelay.segments.archive import Archive
from omnirelay.segments.connecting import connect
from omnirelay.segments.writer import SegmentWriter
from omnirelay.testing.clock import FakeClock

SHARD_EVENTS_MAX: Final = 1_250_000
SEGMENT_EVENTS: Final = 125_000
_BATCH: Final = 500
_PEERS: Final = 20
_RESOURCES: Final = 2_000
_STEP_MS: Final = 120_000
_OPTIONS: Final = QueueOptions(
    lease_duration_ms=60_000,
    heartbeat_interval_ms=5_000,
    capacity=1_000_000,
    high_watermark=900_000,
    max_delivery_attempts=5,
)


class Written(msgspec.Struct, frozen=True):
    events: int
    segments: int
    later: int = 0
    """Events that are only in the copy."""


class Later(msgspec.Struct, frozen=True):
    """A copy of the segments in which the first shard goes on."""

    directory: Path
    events: int
    """How many more it has, at least."""


async def write_log(directory: Path, events: int, *, name: str = "bench", later: Later | None = None) -> Written:
    """At least so many events as segments, in as many shards as that takes."""
    shards = max(1, -(-events // SHARD_EVENTS_MAX))
    own = events // shards
    total = segments = 0
    held_back: list[Frame] = []
    for number in range(shards):
        shard = f"{name}-{number}"
        writer = await _writer(directory, shard)
        more = later.events if later is not None and number == 0 else 0
        async for frames in _recorded(shard, own + more, seed=number):
            now = [frame for frame in frames if frame.first <= own] if more else frames
            held_back += frames[len(now) :]
            if now:
                await writer.append(now)
                total += sum(frame.count for frame in now)
                segments += 1
    if later is not None:
        shutil.copytree(directory, later.directory)
        await (await _writer(later.directory, f"{name}-0")).append(held_back)
    return Written(total, segments, sum(frame.count for frame in held_back))


async def _writer(directory: Path, shard: str) -> SegmentWriter:
    return SegmentWriter(Archive(await connect(str(directory)), shard), region="here")


async def _recorded(name: str, events: int, *, seed: int) -> AsyncIterator[list[Frame]]:
    """The frames of a shard, a segment at a time."""
    log, clock = MemoryLog(name), FakeClock()
    settings = EngineSettings(snapshot_every_events=0)
    shard = await Shard.open(log, clock=clock, options=_OPTIONS, settings=settings)
    load = _Load(shard, clock, random.Random(seed))
    done = 0
    try:
        while done < events:
            target = min(events, done + SEGMENT_EVENTS)
            while shard.last_sequence < target:
                await load.batch()
            frames = [frame async for frame in log.read(done + 1)]
            done = shard.last_sequence
            yield frames
    finally:
        await shard.close()


class _Load:
    def __init__(self, shard: Shard, clock: FakeClock, choice: random.Random) -> None:
        self.shard = shard
        self.clock = clock
        self.choice = choice
        self.peers = [Caller(peer_id=f"peer-{number}", principal="svc") for number in range(_PEERS)]

    def _item(self) -> NewItem:
        return NewItem(
            payload=Payload(
                resource_type="table", resource_id=f"sales.orders-{self.choice.randrange(_RESOURCES)}", body=b"compact"
            )
        )

    async def batch(self) -> None:
        producer = Caller(peer_id="producer", principal="svc")
        await self.shard.enqueue([self._item() for _ in range(_BATCH)], caller=producer)
        await self.clock.advance(self.choice.randrange(100, 3_000))
        held = []
        for caller in self.peers:
            leases = await self.shard.lease(caller, max_items=_BATCH // _PEERS + 5)
            held += [(lease.token, caller) for lease in leases]
        await self.clock.advance(6_000)
        await self.shard.acknowledge([ExtendLease(token, caller, None) for token, caller in held[::2]])
        await self.clock.advance(self.choice.randrange(1_000, 20_000))
        ends: list[CompleteItem | FailItem] = []
        for token, caller in held:
            chance = self.choice.random()
            if chance < 0.90:
                ends.append(
                    CompleteItem(token, caller, result=b'{"tableVersion": 7}', result_encoding="application/json")
                )
            elif chance < 0.98:
                ends.append(FailItem(token, caller, reason="the table was busy", error_code="busy"))
        await self.shard.acknowledge(ends)
        await self.clock.advance(_STEP_MS)
