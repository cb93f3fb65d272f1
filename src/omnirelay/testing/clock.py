"""A clock that moves only when a test says so."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from omnirelay.engine.clock import CLOCK_MAX_MS
from omnirelay.errors import InvalidArgument


class FakeTimer:
    """A call-back that waits for its time; `cancel` is final."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """Implements the engine's Clock. `advance` moves time, fires what is due in order, and lets tasks settle."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        _check("start_ms", start_ms, 0, CLOCK_MAX_MS)
        self._wall_ms = start_ms
        self._monotonic_ms = 1_000
        self._timers: list[tuple[int, int, FakeTimer]] = []
        self._count = 0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(callback)
        self._count += 1
        heapq.heappush(self._timers, (self._monotonic_ms + max(0, delay_ms), self._count, timer))
        return timer

    def jump_wall(self, ms: int) -> None:
        """Move the wall clock alone, as an operator or a time server would: ahead, or with less than 0 back."""
        _check("ms", ms, -self._wall_ms, CLOCK_MAX_MS - self._wall_ms)
        self._wall_ms += ms

    def move(self, ms: int) -> None:
        """Move time without firing anything: what a stopped process sees when it goes on."""
        self._check_ahead(ms)
        self._monotonic_ms += ms
        self._wall_ms += ms

    async def advance(self, ms: int) -> None:
        """Let `ms` go by: every timer due on the way fires at its own moment."""
        self._check_ahead(ms)
        target = self._monotonic_ms + ms
        while self._timers and self._timers[0][0] <= target:
            moment, _, timer = heapq.heappop(self._timers)
            self.move(max(0, moment - self._monotonic_ms))
            callback = timer.callback
            if callback is not None:
                callback()
                await settle()
        self.move(max(0, target - self._monotonic_ms))
        await settle()

    def _check_ahead(self, ms: int) -> None:
        """Time goes by and never back. What it goes by is counted in whole milliseconds."""
        _check("ms", ms, 0, CLOCK_MAX_MS - self._wall_ms)


def _check(field: str, ms: int, least: int, most: int) -> None:
    if type(ms) is not int or not least <= ms <= most:
        raise InvalidArgument(
            f"{field} must be whole milliseconds from {least} to {most} here, not {ms!r}", field=field
        )


async def settle(rounds: int = 20) -> None:
    """Let everything that can run without time or I/O run. For I/O, await what it answers instead."""
    for _ in range(rounds):
        await asyncio.sleep(0)
