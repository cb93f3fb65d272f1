"""The clock that tests drive, and the time a shard makes of any clock."""

from __future__ import annotations

from typing import Any

import pytest

from omnirelay.core.intake import DELAY_MAX_MS
from omnirelay.engine.clock import CLOCK_MAX_MS, ShardTime
from omnirelay.errors import InvalidArgument
from omnirelay.testing.clock import FakeClock
from omnirelay.wire.instants import instant

NO_TIME: list[Any] = [-5, float("nan"), float("inf"), 5.0, "5", None, True, 10**15]


@pytest.mark.parametrize("ms", NO_TIME)
async def test_a_clock_is_not_advanced_by_what_is_no_time(ms: Any) -> None:
    clock = FakeClock()
    before = clock.wall_ms(), clock.monotonic_ms()
    with pytest.raises(InvalidArgument, match="ms must be whole milliseconds"):
        await clock.advance(ms)
    with pytest.raises(InvalidArgument, match="ms must be whole milliseconds"):
        clock.move(ms)
    assert (clock.wall_ms(), clock.monotonic_ms()) == before


@pytest.mark.parametrize("ms", NO_TIME)
def test_a_clock_does_not_start_at_what_is_no_time(ms: Any) -> None:
    with pytest.raises(InvalidArgument, match="start_ms must be whole milliseconds"):
        FakeClock(ms)


def test_a_wall_clock_is_set_back_but_not_before_1970() -> None:
    clock = FakeClock(1_000)
    clock.jump_wall(-1_000)
    assert clock.wall_ms() == 0
    for ms in (-1, 0.5, CLOCK_MAX_MS + 1):
        with pytest.raises(InvalidArgument, match="ms must be whole milliseconds"):
            clock.jump_wall(ms)  # type: ignore[arg-type]


async def test_time_that_a_timer_moves_itself_is_not_counted_twice() -> None:
    clock = FakeClock()
    before = clock.monotonic_ms()
    clock.call_later(10, lambda: clock.move(100))
    await clock.advance(20)
    assert clock.monotonic_ms() - before == 110


def test_whatever_a_shard_puts_off_has_an_instant() -> None:
    time = ShardTime(FakeClock(CLOCK_MAX_MS), 0)
    assert instant(time.now_ms() + DELAY_MAX_MS).startswith("9999-12-31T23:59:59")


class Microseconds(FakeClock):
    """What a clock says that somebody got wrong."""

    def wall_ms(self) -> int:
        return super().wall_ms() * 1_000


def test_a_clock_that_counts_something_else_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="too late for milliseconds since 1970") as refused:
        ShardTime(Microseconds(), 0)
    assert refused.value.details["field"] == "clock"
