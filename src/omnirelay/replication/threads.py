"""Blocking work of a sink, one call after the other in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

_Call: TypeAlias = tuple[Callable[[], Any], Future[Any]]


class OneThread:
    """Runs calls strictly one after the other.

    A call whose caller has gone (it took too long, say) cannot be stopped. The next one waits for it first, so that
    nothing runs beside its own repetition, and repetitions do not pile up behind a disk that hangs.

    It does not keep the process from ending either, which Python's pools of threads would: what a call is in the middle
    of then is as after a crash.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[_Call | None] | None = None
        self._under_way: asyncio.Future[Any] | None = None

    async def run(self, work: Callable[[], T]) -> T:
        while self._under_way is not None and not self._under_way.done():
            await asyncio.wait((self._under_way,))
        if self._calls is None:
            calls: SimpleQueue[_Call | None] = SimpleQueue()
            threading.Thread(target=_serve, args=(calls,), name=self._name, daemon=True).start()
            self._calls = calls  # Only now: where no thread could be started, the next call has to try again.
        outcome: Future[T] = Future()
        self._calls.put((work, outcome))
        self._under_way = call = asyncio.wrap_future(outcome)
        # Nobody may be left to take the outcome; then it is nobody's.
        call.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(call)

    def close(self) -> None:
        """Let go of the thread; a later call gets a new one. Does not wait for what is under way."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


def _serve(calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        work, outcome = call
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)
        del call, work, outcome  # What a call holds must not be held until the next one.
