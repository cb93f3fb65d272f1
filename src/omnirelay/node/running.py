"""A node as a process: its event loop, its signals, its exit code."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from omnirelay.engine.huge_pages import HugePages
from omnirelay.engine.process import tune_process
from omnirelay.errors import OmniRelayError
from omnirelay.node.node import Node
from omnirelay.node.settings import NodeSettings


def run_node(settings: NodeSettings, on_ready: Callable[[Node], None]) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP; a second one ends the process at once, unless it is a SIGHUP.

    Raises OmniRelayError when the node cannot start. `on_ready` is called when it serves.
    """
    tune_process()
    _allow_many_connections()
    pages = HugePages()
    pages.start()
    try:
        _loop_run(_serve(settings, on_ready))
    finally:
        pages.stop()


async def _serve(settings: NodeSettings, on_ready: Callable[[Node], None]) -> None:
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # As under nohup.
        # A terminal that goes away may send it twice, from the kernel and from the shell.
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    node = Node(settings, owns_process=True)
    starting = asyncio.ensure_future(node.start())
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        return
    try:
        starting.result()
    except BaseExceptionGroup as group:
        raise _first_known(group) from None
    on_ready(node)
    await node.run(stop)


def _first_known(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Several logs may be unusable at once; the first that says why is reported, the others come up after it."""
    known = group.subgroup(OmniRelayError)
    error: BaseException = known if known is not None else group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _allow_many_connections() -> None:
    """Idle connections cost a file each; the usual soft limit of 1,024 is for programs that use select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 20), hard))


def _loop_run(main: Coroutine[Any, Any, None]) -> None:
    if sys.platform == "win32":  # uvloop has no build for it.
        asyncio.run(main)
    else:
        import uvloop

        uvloop.run(main)
