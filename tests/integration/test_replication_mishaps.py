"""Followers whose sink ends in ways of its own, or whose target is worked on while they are paused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from omnirelay.replication.events import ReplicatedEvent
from tests.integration.shards import enqueued, soon
from tests.integration.test_replication_following import Recorder, caught_up, following, log_of, memory_shard


async def cancelled() -> None:
    """What a library does whose own task was cancelled, say because it lost its connection."""
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task


# -- sinks that end in ways of their own -----------------------------------------------------------


async def test_a_cancellation_inside_a_sink_is_a_failed_delivery_like_any_other() -> None:
    broken = True
    sink = Recorder(lambda events: cancelled() if broken else None)
    async with memory_shard() as shard, following(shard, sink) as follower:
        await soon(follower.wait_state("retrying"))
        assert "was cancelled" in (follower.last_error or "")
        broken = False
        await enqueued(shard)
        await caught_up(follower, shard)
        await soon(follower.wait_state("running"))
        assert [event.sequence for event in sink.taken] == [event.sequence for event in await log_of(shard)]


async def test_a_cancellation_while_a_sink_closes_does_not_end_its_follower() -> None:
    class Sink(Recorder):
        async def close(self) -> None:
            await super().close()
            await cancelled()

    async with memory_shard() as shard:
        sink = Sink()
        async with following(shard, sink) as follower:
            await caught_up(follower, shard)
            await follower.reset(0)  # Closes and opens it.
            await caught_up(follower, shard)
            assert sink.closed == 1


async def test_a_follower_that_ends_unexpectedly_has_failed_and_begins_again_when_resumed() -> None:
    class Ended(BaseException):
        """What nobody expects a sink to raise."""

    def answer(events: Sequence[ReplicatedEvent]) -> None:
        if broken:
            raise Ended("out of order")

    broken = True
    sink = Recorder(answer)
    async with memory_shard() as shard, following(shard, sink) as follower:
        await soon(follower.wait_state("failed"))
        assert follower.last_error == "Ended: out of order"
        broken = False
        await follower.resume()
        await caught_up(follower, shard)
        await soon(follower.wait_state("running"))
