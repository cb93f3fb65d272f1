"""How long a follower waits between tries."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from omnirelay.replication.pacing import SHORTEST, Pace
from omnirelay.replication.settings import FollowSettings

SETTINGS = FollowSettings(retry_first_ms=100, retry_max_ms=30_000)


class SkippingSelector(selectors.DefaultSelector):
    """Where a loop would wait, its clock goes on instead."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout:
            self.skipped += timeout
        return ready


class SkippingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return super().time() + self._skipping.skipped


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(main)


def pauses(chance: float, tries: int, settings: FollowSettings = SETTINGS) -> list[float]:
    pace = Pace(settings, lambda low, high: low + chance * (high - low))
    return [pace.pause_s(tried) for tried in range(1, tries + 1)]


def test_a_pause_is_twice_the_one_before_it_up_to_the_longest() -> None:
    assert pauses(1.0, 11) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def test_no_pause_is_longer_than_the_longest_however_often_it_was_tried() -> None:
    random = Random(7)
    pace = Pace(SETTINGS, random.uniform)
    found = [pace.pause_s(tried) for tried in (9, 10, 30, 100, 5_000, 1_000_000) for _ in range(100)]
    assert max(found) <= 30.0
    assert min(found[100:]) >= 30.0 * SHORTEST
    assert Pace(FollowSettings(retry_first_ms=1, retry_max_ms=86_400_000), max).pause_s(10_000) == 86_400.0


def test_the_longest_pause_holds_from_the_first_on() -> None:
    assert pauses(1.0, 3, FollowSettings(retry_first_ms=500, retry_max_ms=500)) == [0.5, 0.5, 0.5]


def test_every_pause_is_longer_than_the_one_before_it_whatever_chance_says() -> None:
    longest, shortest = pauses(1.0, 9), pauses(0.0, 9)
    assert all(later > before for before, later in zip(longest, shortest[1:], strict=False))


def test_those_who_failed_together_do_not_come_back_together() -> None:
    random = Random(7)
    followers = [Pace(SETTINGS, random.uniform) for _ in range(50)]
    for tried in (1, 5, 20):
        found = [follower.pause_s(tried) for follower in followers]
        assert len(set(found)) == len(found)
        # They spread over most of what they may.
        assert (max(found) - min(found)) / max(found) > 0.8 * (1 - SHORTEST)


@pytest.mark.parametrize(("tried", "seconds"), [(1, 0.1), (4, 0.8), (12, 30.0)])
def test_a_follower_waits_for_as_long_as_the_pause(tried: int, seconds: float) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await Pace(SETTINGS, max).back_off(tried)
        assert loop.time() - before >= seconds

    run(main())


@pytest.mark.parametrize("end", [Pace.wake, Pace.stop])
def test_a_pause_ends_when_an_operator_wants_something_or_the_node_stops(end: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        pace, before = Pace(SETTINGS, max), loop.time()
        loop.call_later(1.0, end, pace)
        await pace.back_off(12)
        assert loop.time() - before < 29.0

    run(main())
