"""Signals that ask a command to end: when it can, and with nothing left half done."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


ECHO_SECONDS = 0.5

Clock = Callable[[], float]


class Echoes:
    """Tells a signal that somebody sent again from one that came twice: `timeout` sends it to a process and to its
    group, and so does whoever passes on the ctrl-C of a terminal. Nobody's hand is as quick.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[int, float] | None = None

    def has(self, number: int) -> bool:
        """Whether this signal is but an echo of the last one."""
        now = self._clock()
        if self._last is not None and self._last[0] == number and now - self._last[1] < ECHO_SECONDS:
            return True
        self._last = number, now
        return False


class Interrupted(KeyboardInterrupt):
    """The first signal, at a moment at which nothing is half done."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.exit_code = 128 + number


class Signals:
    """What the first signal does: it raises Interrupted, at once or at the end of what must not be cut off."""

    def __init__(self) -> None:
        self._came: int | None = None
        self._waiting_for: list[str] = []

    @property
    def came(self) -> bool:
        """One has come and waits for what is held; what can end early should."""
        return self._came is not None

    @contextmanager
    def held(self, what: str) -> Iterator[None]:
        """Let the block come to its end; `what` says on a terminal what an interruption waits for."""
        self._waiting_for.append(what)
        try:
            yield
        finally:
            self._waiting_for.pop()
        if self._came is not None and not self._waiting_for:
            raise Interrupted(self._came)

    def take(self, number: int) -> None:
        self._came = number
        if not self._waiting_for:
            raise Interrupted(number)
        if sys.stderr.isatty():
            # Not by way of sys.stderr: it may be in the middle of writing something else.
            with suppress(OSError):
                os.write(2, f"\ninterrupted, waiting for {self._waiting_for[0]}; again to give up\n".encode())


@contextmanager
def heeding_signals(clock: Clock = time.monotonic) -> Iterator[Signals]:
    """The first SIGINT or SIGTERM waits for what is held; the second one ends the process as it always does."""
    signals = Signals()
    with _first_signal(signals.take, clock):
        yield signals


@contextmanager
def set_when_interrupted(asked: threading.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets the event; the second one ends the process as it always does."""
    with _first_signal(lambda _: asked.set()):
        yield


@contextmanager
def _first_signal(take: Callable[[int], None], clock: Clock = time.monotonic) -> Iterator[None]:
    echoes = Echoes(clock)
    taken = False
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal taken
        if echoes.has(number):
            return
        if taken:
            put_back()
            signal.raise_signal(number)
        else:
            taken = True
            take(number)

    for number in _SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        put_back()
