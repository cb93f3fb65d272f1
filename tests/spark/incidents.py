"""Logs of days on which something was out of the ordinary, and of days on which it almost was, by the real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from omnirelay.core.answers import GrantedLease
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, NewItem, Payload
from omnirelay.engine.shard import Shard
from omnirelay.log import MemoryLog
from omnirelay.log.frame import chain_of, decode_frame, encode_frame
from omnirelay.log.memory import MemoryStorage
from omnirelay.testing.clock import FakeClock
from tests.spark.workload import MIDNIGHT_MS, START_MS, Recorded

_LEASE_MS: Final = 20_000
_OPTIONS: Final = QueueOptions(lease_duration_ms=_LEASE_MS, heartbeat_interval_ms=2_000, max_delivery_attempts=100)
HOUR_MS: Final = 3_600_000


class Day:
    """A shard on which work is done as a test says."""

    def __init__(self, shard: Shard, storage: MemoryStorage, clock: FakeClock) -> None:
        self.shard = shard
        self.storage = storage
        self.clock = clock

    async def _granted(self, owner: str, resource: str) -> GrantedLease:
        await self.waits(resource)
        return await self._leased(owner)

    async def _leased(self, owner: str) -> GrantedLease:
        [lease] = await self.shard.lease(Caller(peer_id=owner))
        return lease

    async def waits(self, *resources: str) -> None:
        """Items come in, one by one."""
        for resource in resources:
            await self.shard.enqueue(NewItem(payload=Payload(resource_type="table", resource_id=resource)))

    async def works_off(self, owner: str, items: int) -> None:
        """Of what waits, what is first."""
        for _ in range(items):
            await self.shard.complete((await self._leased(owner)).token, caller=Caller(peer_id=owner))

    async def completes(self, owner: str, *resources: str) -> None:
        for resource in resources:
            await self.shard.complete((await self._granted(owner, resource)).token, caller=Caller(peer_id=owner))

    async def fails(self, owner: str, *resources: str) -> None:
        for resource in resources:
            token = (await self._granted(owner, resource)).token
            await self.shard.fail(token, caller=Caller(peer_id=owner), reason="no", mode="dead")

    async def lets_run_out(self, owner: str, *resources: str) -> None:
        """Leased once, and never heard of again; the item is completed by somebody who never does anything wrong."""
        for resource in resources:
            await self._granted(owner, resource)
            await self.clock.advance(_LEASE_MS + 5_000)
            await self.shard.complete((await self._leased("zoe")).token, caller=Caller(peer_id="zoe"))


Story = Callable[[Day], Awaitable[None]]


def log_of(shard: str, story: Story, *, start_ms: int = START_MS) -> Recorded:
    return asyncio.run(_recorded(shard, story, start_ms))


async def _recorded(name: str, story: Story, start_ms: int) -> Recorded:
    log, clock = MemoryLog(name), FakeClock(start_ms)
    day = Day(await Shard.open(log, clock=clock, options=_OPTIONS), log.storage, clock)
    await story(day)
    await day.shard.close()
    return Recorded(name, log.storage.frames, log.log_id)


def set_back(log: Recorded, frames: int, ms: int) -> Recorded:
    """The log of a writer whose clock was set back before its last frames. The engine's own time never
    goes back: only somebody else writes such a log.
    """
    kept, chain = log.frames[:-frames], log.frames[-frames - 1].chain
    for late in log.frames[-frames:]:
        events = [
            msgspec.structs.replace(each, timestamp=each.timestamp - ms)
            for each in decode_frame(late, shard=log.shard, log_id=log.log_id)
        ]
        frame = encode_frame(log.shard, log.log_id, late.generation, late.epoch, late.time_ms - ms, events)
        chain = chain_of(chain, frame.data)
        kept.append(msgspec.structs.replace(frame, chain=chain))
    return Recorded(log.shard, kept, log.log_id)


# -- what happened -------------------------------------------------------------------------------


def _names(number: int) -> Sequence[str]:
    return [f"r{each}" for each in range(number)]


async def owner_fails(day: Day) -> None:
    """Half of what bob does fails, of what others do a sixth: three times as much is what is needed."""
    await day.fails("bob", *_names(3))
    await day.fails("ada", *_names(1))
    await day.completes("ada", *_names(5))
    await day.completes("bob", *_names(3))


async def owners_fail_alike(day: Day) -> None:
    """Bob fails in half of what he does, the others together in three of ten; cid always, but has done too little."""
    await day.fails("bob", *_names(3))
    await day.fails("ada", *_names(2))
    await day.completes("bob", *_names(3))
    await day.completes("ada", *_names(14))
    await day.fails("cid", *_names(4))


async def owner_fails_now_and_then(day: Day) -> None:
    """Nobody else fails at all; but most of what bob does goes well."""
    await day.fails("bob", *_names(2))
    await day.completes("bob", *_names(3))
    await day.completes("ada", *_names(6))


async def resource_expires(day: Day) -> None:
    await day.lets_run_out("ada", "worn", "well", "worn")
    await day.completes("ada", "worn")
    await day.lets_run_out("bob", "worn")


async def resource_expires_now_and_then(day: Day) -> None:
    """Twice before midnight and twice behind it: on no day often enough."""
    await day.lets_run_out("ada", "worn", "worn")
    await day.clock.advance(120_000)
    await day.lets_run_out("bob", "worn", "worn")


async def retry_storm(day: Day) -> None:
    """Of forty leases in five minutes twenty end badly. All owners fail alike: it is the time that is bad."""
    for owner in ("ada", "bob"):
        await day.fails(owner, *_names(10))
        await day.completes(owner, *(f"{owner}{each}" for each in range(10)))


async def no_retry_storm(day: Day) -> None:
    """First many that fail, and more that do not; then, in other five minutes, nothing but failures, and too few."""
    for owner in ("ada", "bob"):
        await day.fails(owner, *_names(10))
        await day.completes(owner, *(f"{owner}{each}" for each in range(11)))
    await day.clock.advance(300_000)
    for owner in ("ada", "bob"):
        await day.fails(owner, *_names(9))


async def some_work(day: Day) -> None:
    await day.completes("ada", *_names(3))


async def wall_clock_jumps(day: Day) -> None:
    """What is done to the clock of a node does not reach its log, and neither does a start behind it."""
    await day.completes("ada", *_names(2))
    day.clock.jump_wall(-HOUR_MS)
    await day.completes("ada", *_names(2))
    await day.shard.close()
    day.shard = await Shard.open(MemoryLog(day.storage.shard, storage=day.storage), clock=day.clock)
    await day.completes("ada", *_names(2))


BEHIND = 4
"""Frames that a second run may take in: what a day has before them has to be added to, and what was found to stay."""


def logs_with_something() -> list[tuple[str, Recorded]]:
    """Each with the kind of what is to be found in it, and nothing else."""
    return [
        ("owner_fails", log_of("owner fails", owner_fails)),
        ("resource_expires", log_of("resource expires", resource_expires)),
        ("retry_storm", log_of("retry storm", retry_storm)),
        ("clock_skew", set_back(log_of("clock skew before", some_work), BEHIND + 2, 1_500)),
        ("clock_skew", set_back(log_of("clock skew between", some_work), BEHIND, 1_500)),
    ]


def logs_with_nothing() -> list[Recorded]:
    before_midnight = MIDNIGHT_MS - 2 * _LEASE_MS - 20_000
    return [
        log_of("owners fail alike", owners_fail_alike),
        log_of("owner fails now and then", owner_fails_now_and_then),
        log_of("resource expires now and then", resource_expires_now_and_then, start_ms=before_midnight),
        log_of("no retry storm", no_retry_storm),
        log_of("wall clock jumps", wall_clock_jumps),
    ]
