"""Encoding and checking take long and hold no lock for most of it: threads of their own, so that no pool runs dry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_pool = ThreadPoolExecutor(2, thread_name_prefix="omnirelay-segments")
"""Started with the first piece of work."""


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run something long outside the event loop. Cancelling does not stop it, it only has no outcome any more."""
    return await asyncio.get_running_loop().run_in_executor(_pool, partial(work, *args, **kwargs))
