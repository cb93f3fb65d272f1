"""Waiting for asynchronous work in code that is not, also where an event loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def waited(work: Coroutine[Any, Any, T]) -> T:
    """The outcome of the work, done in a loop and a thread of its own."""
    with ThreadPoolExecutor(1, thread_name_prefix="omnirelay-lakehouse") as pool:
        return pool.submit(asyncio.run, work).result()
