"""Where an engine gets its time from, and the time a shard goes by.

Wall clocks jump; leases must not. A shard therefore reads the wall clock once, when it starts, and
counts monotonic time from there. It never starts earlier than the last event in its log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from omnirelay.core.intake import DELAY_MAX_MS, TIME_MAX_MS
from omnirelay.errors import InvalidArgument

CLOCK_MAX_MS: Final = TIME_MAX_MS - DELAY_MAX_MS
"""No clock may be later: what a shard puts off from then on would have no instant."""


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Everything an engine knows of time. `omnirelay.testing.FakeClock` is the one that tests drive."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, as good as the machine knows."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some point in the past; never goes back."""
        ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        """Call back on the running event loop after the delay."""
        ...


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback)


CLOCK_OFF_MS: Final = 60_000
"""The wall clock and a shard's time are said to differ from here on."""


class ShardTime:
    """Milliseconds since the epoch that only ever rise, across restarts of the shard too."""

    def __init__(self, clock: Clock, not_before_ms: int) -> None:
        wall_ms = clock.wall_ms()
        if wall_ms > CLOCK_MAX_MS:
            raise InvalidArgument(
                f"the clock says {wall_ms}: that is too late for milliseconds since 1970", field="clock"
            )
        self._clock = clock
        self._offset_ms = max(wall_ms, not_before_ms, 1) - clock.monotonic_ms()

    def now_ms(self) -> int:
        return self._offset_ms + self._clock.monotonic_ms()

    def wall_ahead_ms(self) -> int:
        """How far the wall clock is ahead. 0 as long as nobody sets it; less when the log is from its future."""
        return self._clock.wall_ms() - self.now_ms()
