"""A sink that catches up rests between deliveries while there are callers, unless it must not."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from omnirelay.replication import courtesy as courtesy_module
from omnirelay.replication.courtesy import Courtesy
from omnirelay.replication.settings import FollowSettings
from tests.integration.shards import enqueued, items, soon
from tests.integration.test_replication_following import QUICK, Recorder, caught_up, following, log_of, memory_shard

SMALL = msgspec.structs.replace(QUICK, batch_events=5)
EVENTS = 25


class Called(Courtesy):
    """As if somebody called all the time; remembers the rests that it gave."""

    def __init__(self) -> None:
        super().__init__(lambda: 100.0)
        super().called(1)
        self.rests: list[float] = []

    def rest_s(self, events: int, took_s: float) -> float:
        self.rests.append(super().rest_s(events, took_s))
        return self.rests[-1]


async def test_a_sink_that_is_far_behind_rests_between_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courtesy_module, "EVENTS_PER_SECOND_LEAST", 100)
    now = asyncio.get_running_loop().time
    async with memory_shard() as shard:
        await enqueued(shard, *items(EVENTS))
        sink, courtesy = Recorder(), Called()
        began = now()
        async with following(shard, sink, settings=SMALL, courtesy=courtesy) as follower:
            await caught_up(follower, shard)
        took_s = now() - began
        assert len(courtesy.rests) >= 3
        assert set(courtesy.rests) == {SMALL.batch_events / 100}
        assert took_s > 0.9 * sum(courtesy.rests)
        assert sink.taken == await log_of(shard)


async def test_a_sink_that_keeps_up_never_rests() -> None:
    async with memory_shard() as shard:
        sink, courtesy = Recorder(), Called()
        async with following(shard, sink, settings=SMALL, courtesy=courtesy) as follower:
            for _ in range(10):
                await enqueued(shard, *items(1))
                await caught_up(follower, shard)
        assert courtesy.rests == []


@pytest.mark.parametrize(
    ("limits", "rests"),
    [
        (FollowSettings(required=True, lag_events_max=2 * EVENTS, lag_max_ms=1_000_000), True),
        (FollowSettings(required=True, lag_events_max=EVENTS), False),
        (FollowSettings(required=True, lag_events_max=0, max_retained_bytes=100), False),
        (FollowSettings(required=False, lag_events_max=EVENTS), True),
    ],
)
async def test_a_required_sink_near_its_limit_does_not_rest(limits: FollowSettings, rests: bool) -> None:
    settings = msgspec.structs.replace(limits, batch_events=5, linger_ms=0)
    async with memory_shard() as shard:
        await enqueued(shard, *items(EVENTS))
        sink, courtesy = Recorder(), Called()
        async with following(shard, sink, settings=settings, courtesy=courtesy) as follower:
            await soon(follower.wait_confirmed(5))
            first = list(courtesy.rests)
            await caught_up(follower, shard)
        assert bool(first) == rests
        assert sink.taken == await log_of(shard)


async def test_an_operator_need_not_wait_for_the_end_of_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest of an hour: only what cuts it short can let this come to its end."""
    monkeypatch.setattr(courtesy_module, "EVENTS_PER_SECOND_LEAST", 0.001)
    monkeypatch.setattr(courtesy_module, "TIMES_CALLERS", 0)
    monkeypatch.setattr(courtesy_module, "REST_S_MAX", 3_600.0)
    async with memory_shard() as shard:
        await enqueued(shard, *items(EVENTS))
        sink, courtesy = Recorder(), Called()
        async with following(shard, sink, settings=SMALL, courtesy=courtesy) as follower:
            await soon(follower.wait_confirmed(5))
            await soon(follower.pause())
            assert follower.status().state == "paused"
            await soon(follower.resume())
            await soon(follower.wait_confirmed(10))
