"""Processes that are stopped, killed and waited for until that is true.

A signal is sent in a moment and takes effect in another one: a process whose threads still run answers, and one that is
not gone yet holds on to its port and its files.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.patience import PATIENCE_S

_STOPPED, _GONE = "T", "ZX"
"""As /proc says them. One that is dead and not yet reaped has given back everything but its number."""


def freeze(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Stop it with all its threads. When this returns, none of them runs, and none will before `thaw`."""
    process.send_signal(signal.SIGSTOP)
    _wait(lambda: set(_states(process.pid)) == {_STOPPED}, f"process {process.pid} to stop")


def thaw(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGCONT)


def wait_gone(pids: Iterable[int]) -> None:
    """Until these processes, which need not be ours, run no more."""
    waited_for = list(pids)
    _wait(lambda: all(state in _GONE for pid in waited_for for state in _states(pid)), f"{waited_for} to end")


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], check=False, capture_output=True, text=True)
    assert found.returncode in (0, 1), found.stderr
    return [int(line) for line in found.stdout.split()]


def _states(pid: int) -> list[str]:
    """What each of its threads does; nothing when there is no such process."""
    states = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                # The name before it may hold anything, a parenthesis too.
                states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
            except (FileNotFoundError, ProcessLookupError):
                continue  # This thread has just ended.
    except (FileNotFoundError, ProcessLookupError):
        return []
    return states


def _wait(reached: Callable[[], bool], what: str) -> None:
    pause = threading.Event()
    until = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < until, f"waited in vain for {what}"
        pause.wait(0.001)  # Nobody tells.
