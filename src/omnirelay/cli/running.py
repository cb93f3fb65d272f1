"""Coroutines of commands. asyncio is loaded when the first of them runs, so that `--help` need not wait for it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end."""
    import asyncio

    return asyncio.run(work)


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run something that blocks beside the event loop."""
    import asyncio

    return await asyncio.to_thread(work, *args, **kwargs)
