"""Running a coroutine without a task.

A task starts in the next turn of the loop and goes on in a later one; for a call that takes microseconds that is most
of its time. A `Driven` coroutine runs at once up to where it has to wait, and on from there as soon as that is over.

What it runs may wait for futures and for nothing else: there is no current task, so `asyncio.timeout` and task groups
do not work in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

Work = Coroutine[Any, Any, None]


class Driven:
    """`work` handles its own errors: one that gets out goes to the event loop's handler."""

    __slots__ = ("_loop", "_waiting", "_work", "done")

    def __init__(self, work: Work, loop: asyncio.AbstractEventLoop) -> None:
        self._work = work
        self._loop = loop
        self._waiting: asyncio.Future[Any] | None = None
        self.done = False
        self._advance(None)

    def interrupt(self, error: BaseException) -> None:
        """Have the error raised where the work waits. Nothing happens when it is done."""
        if self.done:
            return
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.remove_done_callback(self._resume)
            waiting.cancel()
        self._advance(error)

    def _resume(self, waiting: asyncio.Future[Any]) -> None:
        self._waiting = None
        self._advance(None)

    def _go_on(self) -> None:
        # An interruption may have come first; then it has gone on already.
        if not self.done and self._waiting is None:
            self._advance(None)

    def _advance(self, error: BaseException | None) -> None:
        try:
            waiting = self._work.send(None) if error is None else self._work.throw(error)
        except (StopIteration, asyncio.CancelledError):
            self.done = True
        except Exception as unexpected:
            self.done = True
            self._loop.call_exception_handler({"message": "a driven call failed", "exception": unexpected})
        else:
            if waiting is None:  # It only wants others to have their turn.
                self._loop.call_soon(self._go_on)
                return
            waiting._asyncio_future_blocking = False  # As a task does: says that its `await` was understood.
            waiting.add_done_callback(self._resume)
            self._waiting = waiting
