"""Named points where a test may make the commit path fail.

`hit(name)` does nothing unless a test armed that name; then it runs the action, which may raise, exit the process or
set an event. Disarmed it costs one truth test of an empty dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

FAILPOINTS: Final[tuple[str, ...]] = (
    "engine.decided",
    "log.append.begin",
    "log.append.before_commit",
    "log.append.committed",
    "engine.durable",
    "engine.answered",
    "log.redo.settling",
    "log.redo.settled",
    "log.witness.before_write",
    "log.witness.written",
    "engine.snapshot.written",
    "log.trim.slice",
    "log.backup.copied",
    "log.recovery.copied",
    "log.recovery.marked",
    "log.recovery.moved_aside",
    "log.recovery.renamed",
)
"""Every name, in the order the code passes them."""

_armed: dict[str, Callable[[], None]] = {}


def hit(name: str) -> None:
    """Run what a test armed here; nothing in production."""
    if _armed:
        action = _armed.get(name)
        if action is not None:
            action()


def is_armed(name: str) -> bool:
    """Whether a test waits at this point; for places where passing it has a cost of its own."""
    return name in _armed


def arm(name: str, action: Callable[[], None]) -> None:
    """Run `action` on every `hit(name)` until `disarm`. It runs on the thread that passes the point."""
    if name not in FAILPOINTS:
        raise ValueError(f"no failpoint {name!r}; there are {', '.join(FAILPOINTS)}")
    _armed[name] = action


def disarm(name: str | None = None) -> None:
    """Disarm one name, or all of them."""
    if name is None:
        _armed.clear()
    else:
        _armed.pop(name, None)


@contextmanager
def armed(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Arm for the length of a `with` block."""
    arm(name, action)
    try:
        yield
    finally:
        disarm(name)
