"""Signals to a worker: the first stops it in order, the second at once, and those to its children are theirs alone."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType

from omnirelay.cli.stopping import Echoes


class WorkerSignals:
    """Calls `stop` at the first SIGINT, SIGTERM or SIGHUP, in a thread of its own: a handler may block the event loop,
    also in native code, in which Python does not look at signals at all. They come by the descriptor that Python writes
    to as soon as there is one.

    A second SIGINT or SIGTERM ends the process where it stands; one that merely came twice does not. A terminal that
    goes away may send SIGHUP twice, so that changes nothing; under nohup it is not heeded at all.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        """To be called in the main thread."""
        self._stop = stop
        self._frozen = False
        self._own_is_to_come = False
        self._inbox, self._outbox = socket.socketpair()
        self._outbox.setblocking(False)
        self._numbers = [signal.SIGINT, signal.SIGTERM]
        if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._numbers.append(signal.SIGHUP)
        for number in self._numbers:
            signal.signal(number, self._take)
        signal.set_wakeup_fd(self._outbox.fileno(), warn_on_full_buffer=False)
        _give_children_their_own(self._numbers)
        threading.Thread(target=self._listen, name="omnirelay-signals", daemon=True).start()

    def freeze(self) -> None:
        """From now on the main thread runs no Python code any more: the process can be taken down under it."""
        self._frozen = self._own_is_to_come = True
        signal.raise_signal(signal.SIGTERM)  # Python code is stopped by nothing else in whatever step it is.

    def _take(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, whenever it gets there. The other thread has heard of it long before."""
        if self._frozen:
            threading.Event().wait()
        ours = self._outbox.fileno()
        others = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
        if others != ours:
            # Somebody has put another descriptor in its place, as asyncio does for handlers of signals.
            self._outbox.send(bytes([number]))
            if others != -1:
                signal.set_wakeup_fd(others)

    def _listen(self) -> None:
        echoes = Echoes()
        asked = False
        while said := self._inbox.recv(1):
            number = said[0]
            if self._own_is_to_come and number == signal.SIGTERM:
                self._own_is_to_come = False
                continue
            if number not in self._numbers or echoes.has(number):
                continue
            if asked and number in (signal.SIGINT, signal.SIGTERM):
                os._exit(128 + number)
            if not asked:
                asked = True
                self._stop()


def _give_children_their_own(numbers: list[signal.Signals]) -> None:
    """A child that is forked shares the descriptor: a signal to it would stop this worker, and leave it alive. One that
    comes before the child has forgotten that waits until then.
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
