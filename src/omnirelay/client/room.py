"""How much may be under way on a stream. A node has bounds and refuses what goes beyond them; whoever would go beyond
waits here instead, for as long as the call may take, so that any number of tasks may use one client.
"""

from __future__ import annotations

import asyncio
from collections import deque

from omnirelay.errors import OmniRelayError, ResourceExhausted


class Room:
    """Those that wait get in in the order they came. One counts as half of all the bytes at most: it need not be alone,
    however large it is.
    """

    def __init__(self, *, calls_max: int, bytes_max: int) -> None:
        self._calls_max = calls_max
        self._bytes_max = bytes_max
        self._one_max = bytes_max // 2
        self._calls = 0
        self.taken_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def enter(self, size: int) -> bool:
        """Whether there is room; if so, it is taken until `leave`."""
        taken = self.taken_bytes + (size if size < self._one_max else self._one_max)
        if self._waiting or self._calls >= self._calls_max or taken > self._bytes_max:
            return False
        self._calls += 1
        self.taken_bytes = taken
        return True

    async def wait(self, size: int, seconds: float) -> None:
        """Enter when there is room. Raises ResourceExhausted when there is none in time, and what `end` was told."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        entered = False
        try:
            async with asyncio.timeout(seconds):
                await turn
                entered = True
        except TimeoutError:
            raise ResourceExhausted(
                f"{self._calls} calls of this client with {self.taken_bytes} bytes are under way, and none ended",
                code="resource-exhausted",
            ) from None
        finally:
            if not entered:
                if turn.done() and not turn.cancelled() and turn.exception() is None:
                    self.leave(size)  # It got in in the very turn of the loop in which the caller was told to go.
                turn.cancel()
                self._let_in()

    def leave(self, size: int) -> None:
        self._calls -= 1
        self.taken_bytes -= size if size < self._one_max else self._one_max
        if self._waiting:
            self._let_in()

    def end(self, error: OmniRelayError) -> None:
        """Nobody gets in any more."""
        for _, turn in self._waiting:
            if not turn.done():
                turn.set_exception(error)
                turn.exception()  # Whoever waits gets it; nobody has to.
        self._waiting.clear()

    def _fits(self, size: int) -> bool:
        return self._calls < self._calls_max and self.taken_bytes + min(size, self._one_max) <= self._bytes_max

    def _let_in(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(size):
                    return
                self._calls += 1
                self.taken_bytes += min(size, self._one_max)
                turn.set_result(None)
            self._waiting.popleft()
