"""What the shard's state machine found, as the shortest story that shows it."""

from __future__ import annotations

import asyncio
from typing import cast

from omnirelay.core.payload import Caller
from omnirelay.engine.shard import Shard
from omnirelay.log.base import EventLog
from omnirelay.log.memory import MemoryLog
from omnirelay.testing.clock import FakeClock, settle
from tests.builders import new_item
from tests.patience import PATIENCE_S
from tests.property.shard_facts import HeldLog

WORKER = Caller(peer_id="w")


async def opened() -> tuple[Shard, HeldLog, FakeClock]:
    clock, log = FakeClock(), HeldLog(MemoryLog("jobs"))
    return await Shard.open(cast(EventLog, log), clock=clock), log, clock


async def test_a_shard_waits_quietly_for_a_slow_disk_when_something_is_due() -> None:
    """It must not wake up again and again for what it cannot do before the frame is written."""
    shard, log, clock = await opened()
    await shard.enqueue([new_item("a", delay_ms=1_000)])
    log.before.clear()
    calls = [asyncio.ensure_future(shard.enqueue([new_item(name)])) for name in ("b", "c")]
    await settle()
    async with asyncio.timeout(PATIENCE_S):
        await clock.advance(60_000)
    log.before.set()
    await asyncio.gather(*calls)
    assert len(await shard.lease(WORKER, max_items=3)) == 3
    await shard.close()


async def test_a_lease_call_that_came_just_before_the_close_is_answered() -> None:
    shard, log, clock = await opened()
    log.before.clear()
    calls = [asyncio.ensure_future(shard.enqueue([new_item(name)])) for name in ("a", "b")]
    await settle()
    waiting = asyncio.ensure_future(shard.lease(WORKER, max_items=2, wait_ms=5_000))
    behind = asyncio.ensure_future(shard.lease(WORKER, wait_ms=5_000))
    await settle()
    closing = asyncio.ensure_future(shard.close())
    await settle()
    log.before.set()
    async with asyncio.timeout(PATIENCE_S):
        await closing
        await asyncio.wait([waiting, behind, *calls])
    assert all(call.done() for call in (waiting, behind, *calls))
    assert [call.exception() for call in calls] == [None, None]
    await clock.advance(10_000)


async def test_a_read_does_not_overtake_the_only_frame_under_way() -> None:
    shard, log, _ = await opened()
    log.before.clear()
    enqueue = asyncio.ensure_future(shard.enqueue([new_item()]))
    await settle()
    read = asyncio.ensure_future(shard.stats())
    await settle()
    assert not read.done()
    log.before.set()
    assert (await read).pending_count == 1
    await enqueue
    await shard.close()


async def test_a_lease_whose_first_caller_and_repeat_are_both_gone_is_released() -> None:
    shard, _, _ = await opened()
    calls = [asyncio.ensure_future(shard.lease(WORKER, request_id="call", wait_ms=5_000)) for _ in range(2)]
    await settle()
    await shard.enqueue([new_item("a")])
    leases = [await call for call in calls]
    assert leases[0] == leases[1]
    for lease in leases:
        assert (await shard.stats()).active_lease_count == 1
        shard.undelivered(lease)
        await settle()
    assert (await shard.stats()).active_lease_count == 0
    await shard.close()


async def test_a_repeat_keeps_the_lease_that_its_first_caller_left_at_the_same_time() -> None:
    """The repeat is decided before the release of what the first call left behind, and must not lose it to that."""
    shard, log, _ = await opened()
    await shard.enqueue([new_item("a")])
    log.after.clear()
    first = asyncio.ensure_future(shard.lease(WORKER, request_id="call"))
    await settle()
    repeat = asyncio.ensure_future(shard.lease(WORKER, request_id="call"))
    await settle()
    first.cancel()
    log.after.set()
    [lease] = await repeat
    await shard.complete(lease.token)
    await shard.close()
