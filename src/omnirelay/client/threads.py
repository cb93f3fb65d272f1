"""An event loop in a thread of its own, for code that has none or blocks the one it has."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class LoopStopped(RuntimeError):
    """Work was given to a loop that does none any more."""


class LoopForked(RuntimeError):
    """Work was given to a loop that a fork left behind in another process."""


class LoopThread:
    """Runs until `stop`. A daemon: it never keeps a process alive that is done."""

    def __init__(self, name: str) -> None:
        self._ready = threading.Event()
        self._submitting = threading.Lock()
        self._stopped = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self.loop: asyncio.AbstractEventLoop
        self._last: asyncio.Task[None] | None = None

    @property
    def forked(self) -> bool:
        """Whether this is another process than the one the thread is in. A fork copies no threads."""
        return os.getpid() != self._process

    def start(self) -> None:
        self._process = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread.start()
        self._ready.wait()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._ready.set)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        # They get to clean up: a connection that is merely dropped would be found by the garbage collector.
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Do the work there. Raises LoopStopped or LoopForked when nobody would. What is under way at the stop is
        cancelled.
        """
        if self.forked:
            work.close()
            raise LoopForked(f"the thread is in process {self._process}, this is {os.getpid()}")
        with self._submitting:  # Whatever comes before the stop is found by it.
            if not self._stopped:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        raise LoopStopped("the thread was stopped")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work there and wait for it here. Must not be called in that thread itself."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def end_with(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have this done last there, and the thread end then. Waits for neither, so it may be called in any thread."""

        def end() -> None:
            self._stopped = True
            self._last = self.loop.create_task(last())
            self._last.add_done_callback(lambda _: self.loop.stop())

        with suppress(RuntimeError):  # It has ended.
            self.loop.call_soon_threadsafe(end)

    def stop(self) -> None:
        if self.forked:
            return
        with self._submitting:
            self._stopped = True
        if self._thread.is_alive():
            with suppress(RuntimeError):  # Somebody else stops it, too, and it has just ended.
                self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
