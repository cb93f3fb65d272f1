"""Signals to a worker: the first stops it in order, the second at once, and those to its children are theirs alone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from omnirelay.cli.stopping import Echoes


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` in the running event loop at the first SIGINT, SIGTERM or SIGHUP.

    A second SIGINT or SIGTERM ends the process where it stands, also while a handler blocks the event loop; one that
    merely came twice does not. A terminal that goes away may send SIGHUP twice, so that changes nothing; under nohup it
    is not heeded at all.
    """
    asked = False
    echoes = Echoes()

    def take(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if echoes.has(number):
            return
        if asked and number in (signal.SIGINT, signal.SIGTERM):
            os._exit(128 + number)
        asked = True

    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, stop)
        # In place of the one that asyncio sets, which does nothing: its loop is woken all the same.
        signal.signal(number, take)

    _give_children_their_own(numbers)


def _give_children_their_own(numbers: list[signal.Signals]) -> None:
    """A child that is forked shares what wakes the loop: a signal to it would stop this worker, and leave it alive. One
    that comes before the child has forgotten that waits until then.
    """
    forking = threading.local()

    def before() -> None:
        forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)

    def in_child() -> None:
        signal.set_wakeup_fd(-1)
        for number in numbers:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.mask)

    if sys.platform != "win32":
        os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
