"""Pieces of work that a few threads do at the same time, each when those that it needs are done.

A table of a small run is mostly planned, by one thread, while the processors wait; so several are planned at once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Hashable, Mapping
from concurrent.futures import Future
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)
T = TypeVar("T")


def begin(work: Callable[[], T], name: str) -> Future[T]:
    """Do it beside the caller. A process that ends does not wait for it, as it would for a pool of threads."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=f"omnirelay-{name}", daemon=True).start()
    return future


def do_side_by_side(
    work: Mapping[Name, Callable[[], None]], threads: int, *, behind: Mapping[Name, Collection[Name]]
) -> None:
    """Do all of it, in the order in which it is given as far as there are threads for it.

    `behind` names for some what has to be done before. With one thread it is done by the caller's, strictly in order.
    After an error nothing more is begun, what has begun is awaited, and the first error is raised. What is no error but
    an end, such as a signal to the caller's thread, is raised at once: then nobody waits for the others.
    """
    if threads == 1:
        for each in work.values():
            each()
        return
    _Board(work, behind).finish(threads)


class _Board(Generic[Name]):
    """What is to be done and what was. Everything but the work itself happens in the caller's thread."""

    def __init__(self, work: Mapping[Name, Callable[[], None]], behind: Mapping[Name, Collection[Name]]) -> None:
        self._work = work
        self._waiting = list(work)
        # What is not among the work is done already.
        self._behind = {name: set(behind.get(name, ())) & set(work) for name in work}
        self._done: set[Name] = set()
        self._ended: queue.SimpleQueue[tuple[Name, BaseException | None]] = queue.SimpleQueue()

    def finish(self, threads: int) -> None:
        running = 0
        error: BaseException | None = None
        while True:
            while error is None and running < threads and (name := self._next()) is not None:
                self._begin(name)
                running += 1
            if not running:
                break
            name, failed = self._ended.get()
            running -= 1
            self._done.add(name)
            error = error or failed
        if error is not None:
            raise error
        assert not self._waiting, "nothing waits for what waits for it"

    def _next(self) -> Name | None:
        for name in self._waiting:
            if self._behind[name] <= self._done:
                self._waiting.remove(name)
                return name
        return None

    def _begin(self, name: Name) -> None:
        def run() -> None:
            failed: BaseException | None = None
            try:
                self._work[name]()
            except BaseException as error:
                failed = error
            self._ended.put((name, failed))

        # A process that ends does not wait for these: a commit happens whole or not at all.
        threading.Thread(target=run, name=f"omnirelay-{name}", daemon=True).start()
