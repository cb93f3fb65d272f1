"""Waiting for asynchronous work in code that is not, also where an event loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def waited(work: Coroutine[Any, Any, T]) -> T:
    """The outcome of the work, done in a loop and a thread of its own."""
    with ThreadPoolExecutor(1, thread_name_prefix="omnirelay-lakehouse") as pool:
        return pool.submit(asyncio.run, work).result()


async def side_by_side(works: Iterable[Coroutine[Any, Any, T]], at_once: int) -> list[T]:
    """The outcomes of all works in their order, so many of which are done at the same time.

    When one fails the others are given up before this raises: none goes on behind the back of who asked.
    """
    limit = asyncio.Semaphore(at_once)

    async def within(work: Coroutine[Any, Any, T]) -> T:
        async with limit:
            return await work

    tasks = [asyncio.ensure_future(within(work)) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
