"""A node under a steady load: how long callers wait, and how far a sink is behind them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from benchmarks.kernel import items
from omnirelay.core.commands import CompleteItem
from omnirelay.engine.shard import Shard
from omnirelay.replication.following import Follower
from omnirelay.replication.sources import Happened

BATCH = 100
CALLS_PER_SECOND = 200


class Waits(msgspec.Struct):
    """Milliseconds, at the median and at worst but for one in a hundred."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Waits:
        ordered = sorted(seconds)
        return cls(ordered[len(ordered) // 2] * 1000, ordered[int(len(ordered) * 0.99)] * 1000)

    def __str__(self) -> str:
        return f"{self.p50:,.1f}/{self.p99:,.1f}"


async def _paced(every: float, until: float, enough: Callable[[], bool], work: Callable[[], Awaitable[None]]) -> None:
    """Not later for having been late: who is behind comes again at once."""
    at = time.perf_counter()
    while at < until and not enough():
        await work()
        at += every
        await asyncio.sleep(max(0.0, at - time.perf_counter()))


async def loaded(
    shard: Shard, seconds: float, events_per_second: int, enough: Callable[[], bool] = lambda: False
) -> tuple[Waits, float]:
    """How long an enqueue of one item took beside cycles in batches, and the events/s that there were in all.

    For so many seconds, or until it is `enough`.
    """
    waits: list[float] = []

    async def cycle() -> None:
        await shard.enqueue(items(BATCH))
        leases = await shard.lease(max_items=BATCH)
        await shard.acknowledge([CompleteItem(lease.token) for lease in leases])

    async def call() -> None:
        [item] = items(1)
        began = time.perf_counter()
        await shard.enqueue(item)
        waits.append(time.perf_counter() - began)

    first, began = shard.last_sequence, time.perf_counter()
    until = began + seconds
    await asyncio.gather(
        _paced(3 * BATCH / events_per_second, until, enough, cycle),
        _paced(1 / CALLS_PER_SECOND, until, enough, call),
    )
    return Waits.of(waits), (shard.last_sequence - first) / (time.perf_counter() - began)


class LagMeter:
    """From when an event was durable until its sink had confirmed it, every event counted."""

    def __init__(self, shard: Shard, follower: Follower) -> None:
        self._follower = follower
        self._open: list[tuple[int, int, float]] = []
        self._lags: list[float] = []
        self._shard = shard
        shard.add_event_listener(self._happened)
        self._watching = asyncio.create_task(self._watch())

    def _happened(self, events: Sequence[Happened]) -> None:
        self._open.append((events[-1].sequence_number, len(events), time.perf_counter()))

    async def _watch(self) -> None:
        done = self._follower.checkpoint
        while True:
            await self._follower.wait_confirmed(done + 1)
            done, now = self._follower.checkpoint, time.perf_counter()
            confirmed = [each for each in self._open if each[0] <= done]
            self._open = [each for each in self._open if each[0] > done]
            for _, count, at in confirmed:
                self._lags += [now - at] * count

    async def stop(self) -> Waits:
        """Everything that happened up to here has to be confirmed first."""
        await self._follower.wait_confirmed(self._shard.last_sequence)
        await asyncio.sleep(0)
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        return Waits.of(self._lags)
