"""Who reads what a command prints."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading

from omnirelay.cli.exits import FAILED


def end_with_reader() -> None:
    """End this process as soon as the other end of the pipe it prints into is closed, as `| head` does.

    For commands that wait for what comes next: without this they would notice when they print again, maybe never.
    Nothing may be half done when it ends.
    """
    try:
        file = sys.stdout.fileno()
        reads = stat.S_ISFIFO(os.fstat(file).st_mode) or stat.S_ISSOCK(os.fstat(file).st_mode)
    except (OSError, ValueError):
        return
    if reads and hasattr(select, "poll"):
        threading.Thread(target=_end_when_closed, args=(file,), daemon=True).start()


def _end_when_closed(file: int) -> None:
    closed = select.poll()
    closed.register(file, 0)  # An error, and the end, are told without being asked for.
    closed.poll()
    os._exit(FAILED)
