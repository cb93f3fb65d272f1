"""What the writer sleeps on: an event with one waiter. `asyncio.Event` keeps a queue of them, at a price per frame."""

from __future__ import annotations

import asyncio


class Wake:
    """Set by anyone on the loop, waited for by one task."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def awaited(self) -> bool:
        """The task waits, or has not gone on yet."""
        return self._waiter is not None

    def set(self) -> None:
        self._is_set = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Return as soon as it is set, at once if it is, and clear it."""
        if not self._is_set:
            waiter = self._waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self._waiter = None
        self._is_set = False
