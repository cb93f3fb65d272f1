"""`Pace`: what a follower waits for, and who wakes it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from omnirelay.replication.settings import FollowSettings

SHORTEST: Final = 0.6
"""Of a pause. More than half, so that each is longer than the one before it."""


class Pace:
    """Of one follower, in one event loop. Those who wait for the follower itself are told here, too."""

    def __init__(self, settings: FollowSettings, chance: Callable[[float, float], float] = random.uniform) -> None:
        """`chance` gives a number between two."""
        self._settings = settings
        self._chance = chance
        self.stopping = False
        self._more = asyncio.Event()
        self._changed = asyncio.Event()
        self._moved = asyncio.Condition()

    # -- for whoever has news ------------------------------------------------------------------

    def more(self) -> None:
        """The log has grown."""
        self._more.set()

    def wake(self) -> None:
        """An operator wants something, or the node stops."""
        self._changed.set()
        self._more.set()

    def stop(self) -> None:
        self.stopping = True
        self.wake()

    # -- for the follower ----------------------------------------------------------------------

    def look(self) -> None:
        """From here on what comes counts as news: to be called before looking for what is there."""
        self._more.clear()

    async def wait_more(self) -> None:
        if not self.stopping:
            await self._more.wait()

    async def wait_changed(self) -> None:
        self._changed.clear()
        if not self.stopping:
            await self._changed.wait()

    async def linger(self, seconds: float) -> None:
        """Wait, but not when the node stops or an operator wants something."""
        try:
            async with asyncio.timeout(seconds):
                await self.wait_changed()
        except TimeoutError:
            return

    async def back_off(self, tried: int) -> None:
        """Longer with every try up to `retry_max`, and hardly ever as long as somebody else who failed in the same
        moment.
        """
        await self.linger(self.pause_s(tried))

    def pause_s(self, tried: int) -> float:
        grown = min(self._settings.retry_max_ms, self._settings.retry_first_ms << min(tried - 1, 30))
        # Shorter only: nobody waits for longer than they said.
        return grown * self._chance(SHORTEST, 1.0) / 1000

    # -- for whoever waits for the follower ------------------------------------------------------

    async def tell_moved(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def wait_moved(self, reached: Callable[[], bool]) -> None:
        async with self._moved:
            await self._moved.wait_for(reached)
