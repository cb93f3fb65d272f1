"""Blocking work of a sink, one call after the other in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class OneThread:
    """Runs calls strictly one after the other.

    A call whose caller has gone (it took too long, say) cannot be stopped. The next one waits for it first, so that
    nothing runs beside its own repetition, and repetitions do not pile up behind a disk that hangs.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: asyncio.Future[Any] | None = None

    async def run(self, work: Callable[[], T]) -> T:
        while self._under_way is not None and not self._under_way.done():
            await asyncio.wait((self._under_way,))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        call = asyncio.get_running_loop().run_in_executor(self._pool, work)
        self._under_way = call
        # Nobody may be left to take the outcome; then it is nobody's.
        call.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(call)

    def close(self) -> None:
        """Let go of the thread; a later call gets a new one. Does not wait for what is under way."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None
