"""Logs that the real engine wrote under a seeded random load, and their segments."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omnirelay.core.answers import GrantedLease
from omnirelay.core.events import Event
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, NewItem, Payload
from omnirelay.engine.shard import Shard
from omnirelay.errors import OmniRelayError
from omnirelay.log import MemoryLog
from omnirelay.log.base import Frame
from omnirelay.log.frame import decode_frame
from omnirelay.segments.archive import Archive
from omnirelay.segments.connecting import connect
from omnirelay.segments.writer import SegmentWriter
from omnirelay.testing.clock import FakeClock

PEERS = ("ada", "bob", "cid")
OPTIONS = QueueOptions(
    lease_duration_ms=20_000, heartbeat_interval_ms=2_000, capacity=400, high_watermark=30, max_delivery_attempts=3
)


class Recorded:
    """The frames of a shard."""

    def __init__(self, shard: str, frames: Sequence[Frame], log_id: str) -> None:
        self.shard = shard
        self.frames = list(frames)
        self.log_id = log_id

    @property
    def events(self) -> list[Event]:
        return [event for frame in self.frames for event in decode_frame(frame, shard=self.shard, log_id=self.log_id)]


START_MS = 1_700_000_000_000
MIDNIGHT_MS = 1_700_006_400_000
"""The first one, in UTC, behind the usual start."""


def recorded(
    shard: str = "jobs", *, seed: int = 1, steps: int = 250, options: QueueOptions = OPTIONS, start_ms: int = START_MS
) -> Recorded:
    return asyncio.run(_record(shard, seed, steps, options, FakeClock(start_ms)))


async def _record(name: str, seed: int, steps: int, options: QueueOptions, clock: FakeClock) -> Recorded:
    log = MemoryLog(name)
    load = _Load(await Shard.open(log, clock=clock, options=options), clock, random.Random(seed))
    for _ in range(steps):
        await load.step()
    frames = [frame async for frame in log.read(1)]
    await load.shard.close()
    return Recorded(name, frames, log.log_id)


class _Load:
    def __init__(self, shard: Shard, clock: FakeClock, choice: random.Random) -> None:
        self.shard = shard
        self.clock = clock
        self.choice = choice
        self.held: list[tuple[GrantedLease, Caller]] = []
        self.drained: list[Any] = []

    async def step(self) -> None:
        steps = (
            (self.enqueue, 8),
            (self.lease, 9),
            (self.finish, 9),
            (self.heartbeat, 4),
            (self.cancel, 1),
            (self.redrive, 1),
            (self.drain, 0.3),
            (self.restore, 0.5),
            (self.edit, 0.5),
            (self.close_intake, 0.5),
            (self.open_intake, 0.5),
            (self.wait, 6),
        )
        [step] = self.choice.choices([each for each, _ in steps], [weight for _, weight in steps])
        try:
            await step()
        except OmniRelayError:
            return  # An item that is no longer there, or no room: that is part of the load.

    async def enqueue(self) -> None:
        number = self.choice.randint(1, 4)
        items = [
            NewItem(
                payload=Payload(
                    resource_type=self.choice.choice(("table", "file")),
                    resource_id=f"r{self.choice.randint(1, 6)}",
                    partition_key=self.choice.choice((None, "p")),
                ),
                priority=self.choice.randint(0, 9),
                delay_ms=self.choice.choice((None, None, 3_000)),
            )
            for _ in range(number)
        ]
        await self.shard.enqueue(items, caller=Caller(principal="me", peer_id="producer"))

    async def lease(self) -> None:
        caller = Caller(peer_id=self.choice.choice(PEERS), principal=self.choice.choice((None, "svc")))
        granted = await self.shard.lease(caller, max_items=self.choice.randint(1, 3))
        self.held += [(lease, caller) for lease in granted]

    def taken(self) -> tuple[GrantedLease, Caller]:
        return self.held.pop(self.choice.randrange(len(self.held)))

    async def finish(self) -> None:
        if not self.held:
            return
        lease, caller = self.taken()
        token = lease.token
        match self.choice.randint(0, 6):
            case 0:
                await self.shard.fail(token, caller=caller, reason="no", error_code="E1", delay_ms=2_000)
            case 1:
                await self.shard.fail(token, caller=caller, reason="never", mode="dead")
            case 2:
                await self.shard.release(token, caller=caller)
            case 3:
                follow = [NewItem(payload=Payload(resource_type="table", resource_id="next"))]
                await self.shard.complete(token, caller=caller, follow_ups=follow)
            case 4:
                return  # Never heard of again.
            case _:
                result = b'{"tableVersion": 7}'
                await self.shard.complete(token, caller=caller, result=result, result_encoding="application/json")

    async def heartbeat(self) -> None:
        if self.held:
            lease, caller = self.choice.choice(self.held)
            await self.shard.heartbeat(lease.token, caller=caller)

    async def cancel(self) -> None:
        item = self.choice.randint(1, max(1, self.shard.state.next_sequence_id - 1))
        await self.shard.cancel(item, reason="enough", force=self.choice.random() < 0.6)

    async def redrive(self) -> None:
        await self.shard.redrive(everything=True, rate_per_second=self.choice.choice((None, 1.0)))

    async def drain(self) -> None:
        answer = await self.shard.drain(max_items=3)
        self.drained += answer.items

    async def restore(self) -> None:
        items, self.drained = self.drained, []
        if items:
            await self.shard.restore(items)

    async def edit(self) -> None:
        page = await self.shard.dead_letters(max_items=1)
        for view in page.items:
            await self.shard.edit(view.sequence_id, Payload(resource_type="table", resource_id="edited"))

    async def close_intake(self) -> None:
        await self.shard.close_intake("sink", "the sink is behind")

    async def open_intake(self) -> None:
        await self.shard.open_intake("sink")

    async def wait(self) -> None:
        await self.clock.advance(self.choice.choice((10, 10, 700, 700, 5_000, 5_000, 25_000, 200_000)))


async def _append(directory: Path, log: Recorded, frames: Sequence[Frame], region: str | None) -> None:
    store = await connect(str(directory))
    await SegmentWriter(Archive(store, log.shard), region=region).append(frames)


def write_segments(
    directory: Path,
    log: Recorded,
    *,
    first: int = 0,
    last: int | None = None,
    pieces: int = 1,
    region: str | None = "eu",
) -> None:
    """Frames `first` to `last` of a log as so many segments."""
    frames = log.frames[first:last]
    size = -(-len(frames) // pieces)
    for at in range(0, len(frames), size):
        asyncio.run(_append(directory, log, frames[at : at + size], region))


def instant(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
