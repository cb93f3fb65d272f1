"""Noticing that the whole process did not run for a while: it was stopped, or something blocked its event loop.

Nobody could heartbeat then, however well the owners of leases are. A timer that should come every second tells: when
it is late by more than another one, the process stood still.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from omnirelay.engine.clock import Clock, Timer

LOOK_MS: Final = 1_000
STOOD_STILL_MS: Final = 2_000


class StandstillWatch:
    """Looks at the clock while leases live; nobody else loses anything by a standstill."""

    def __init__(self, clock: Clock, leases_live: Callable[[], bool], noticed: Callable[[], None]) -> None:
        self._clock = clock
        self._leases_live = leases_live
        self._noticed = noticed
        self._timer: Timer | None = None
        self._seen_at = 0
        """When the process ran for certain."""
        self._stood_still = False

    @property
    def running(self) -> bool:
        return self._timer is not None

    def start(self) -> None:
        self._seen_at = self._clock.monotonic_ms()
        self._timer = self._clock.call_later(LOOK_MS, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stood_still(self) -> bool:
        """Whether the process stood still since `forget`. Who asks may well come before the timer that is late."""
        if self._timer is not None and self._clock.monotonic_ms() - self._seen_at > STOOD_STILL_MS:
            self._stood_still = True
        return self._stood_still

    def forget(self) -> None:
        """What a standstill took is given back, or nobody had anything to lose."""
        self._stood_still = False
        self._seen_at = self._clock.monotonic_ms()

    def _look(self) -> None:
        late = self.stood_still()
        self._timer = None
        if self._leases_live():
            self.start()
        if late:
            self._noticed()
