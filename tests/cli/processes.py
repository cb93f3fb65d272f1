"""The command line as a process of its own, and nodes that it runs."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.patience import PATIENCE_S

READY = "ctrl-C stops the node."


def environment(**more: str) -> dict[str, str]:
    """What a process inherits, without what would point it at another node."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OMNIRELAY_")}
    return {**kept, "NO_COLOR": "1", **more}


def command(*arguments: object) -> list[str]:
    script = "from omnirelay.cli.main import run; run()"
    return [sys.executable, "-c", script, *(str(argument) for argument in arguments)]


def omnirelay(
    *arguments: object, cwd: Path | None = None, text: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env=environment(**env),
        timeout=PATIENCE_S,
    )


def at_terminal(*arguments: object) -> tuple[int, str, str]:
    """Run a command whose stderr is a terminal: its exit code, its results, and all that the terminal was sent."""
    here, there = pty.openpty()
    process = subprocess.Popen(
        command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=there,
        env=environment(TERM="xterm", COLUMNS="120"),
        text=True,
    )
    os.close(there)
    sent = b""
    # A terminal that nobody has open any more fails, instead of ending.
    with suppress(OSError):
        while chunk := os.read(here, 65_536):
            sent += chunk
    os.close(here)
    out, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, sent.decode()


def spawned(*arguments: object, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**env),
    )


class DevNode:
    """`omnirelay dev` on a free port. `printed` is what it says when it is ready."""

    def __init__(self, *arguments: object, cwd: Path | None = None) -> None:
        self.process = spawned("dev", "--port", 0, *arguments, cwd=cwd)
        self.printed = self._read_until(READY)
        [self.url] = [line.split()[1] for line in self.printed if line.split()[:1] == ["url"]]

    def _read_until(self, last: str) -> list[str]:
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line.rstrip("\n"))
            if lines[-1] == last:
                return lines
        assert self.process.stderr is not None
        raise AssertionError(f"the node did not start: {lines} {self.process.stderr.read()}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode

    def __enter__(self) -> DevNode:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)
