"""Signals that ask a command which goes on and on to end when it can."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def set_when_interrupted(asked: threading.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets the event; the second one ends the process as it always does."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def put_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        put_back()
        asked.set()

    for number in _SIGNALS:
        signal.signal(number, ask)
    try:
        yield
    finally:
        put_back()
