"""The entry point."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper

from omnirelay.cli.exits import INTERRUPTED


def run() -> None:
    """Run the command line, as the `omnirelay` script does."""
    try:
        _mend_streams()
        # Here: it takes a moment, in which somebody may think better of it.
        from omnirelay.cli.app import app
        from omnirelay.cli.commands import code_of

        code = code_of(lambda: app(prog_name="omnirelay"))  # What is printed before any command runs may fail, too.
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def _mend_streams() -> None:
    """Put nothing in the place of a standard stream that was closed for us. The next file that is opened would have its
    number, and get what is printed.
    """
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(file)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # As stderr: a letter that a terminal lacks ends nothing.
