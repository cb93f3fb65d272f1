"""An event loop of its own for the client library of a sink, in a thread beside the node's.

A library that takes some milliseconds over a batch would make every caller of the node wait for as long. Unlike work in
a plain thread, what runs here can be interrupted: a call whose caller has gone is cancelled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from omnirelay.errors import Unavailable

T = TypeVar("T")


class OneLoop:
    """Runs coroutines strictly one after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: Future[Any] | None = None

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `work` returns. When the caller is cancelled, so is `work`; the next call waits until it has ended."""
        await self._wait_ended()
        loop = self._started()
        tasks: list[asyncio.Task[T]] = []
        ended: Future[None] = Future()
        self._under_way = ended

        def begin() -> None:
            task = loop.create_task(work())
            task.add_done_callback(lambda _: ended.set_result(None))
            tasks.append(task)

        loop.call_soon_threadsafe(begin)
        try:
            await asyncio.shield(asyncio.wrap_future(ended))
        except asyncio.CancelledError:
            with suppress(RuntimeError):  # The loop may have been closed meanwhile, which cancels as well.
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            raise
        [task] = tasks
        if task.cancelled():
            raise Unavailable("it was closed meanwhile")
        return task.result()

    async def _wait_ended(self) -> None:
        # A cancelled call may take a moment to let go of what it holds.
        while self._under_way is not None and not self._under_way.done():
            await asyncio.wait((asyncio.wrap_future(self._under_way),))

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.SelectorEventLoop()
            # A daemon: nothing durable hangs on it, and a target that hangs must not keep the process from ending.
            threading.Thread(target=_serve, args=(self._loop,), name=self._name, daemon=True).start()
        return self._loop

    def close(self) -> None:
        """Let go of the thread; a later call gets a new one. What is under way is cancelled."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
