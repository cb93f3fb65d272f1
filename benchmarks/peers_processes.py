"""Processes of the systems that are compared: starting, killing, and the CPU time they have used."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

HERTZ = os.sysconf("SC_CLK_TCK")
START_SECONDS = 120.0


class Server:
    """One server process with its output in a file beside its data."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(
        self,
        command: Sequence[str | Path],
        *,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        says_port: bool = False,
    ) -> int:
        """Start it; with `says_port` its first line of output is the port it listens on."""
        with open(self._log, "a") as log:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if says_port else log,
                stderr=log,
                text=True,
                user=user,
                group=user,
                extra_groups=[] if user else None,
                env=None if environment is None else dict(environment),
                cwd=cwd,
            )
        if not says_port:
            return 0
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        if not said.strip():
            raise RuntimeError(f"{command[0]} did not start:\n{self._log.read_text()[-2_000:]}")
        return int(said)

    @property
    def cpu(self) -> float:
        return 0.0 if self._process is None else cpu_seconds(self._process.pid)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, of those below it, and of those below it that have ended."""
    stats = {int(name): stat for name in os.listdir("/proc") if name.isdigit() and (stat := _stat(int(name)))}
    below: dict[int, list[int]] = {}
    for child, stat in stats.items():
        below.setdefault(int(stat[1]), []).append(child)
    ticks = 0
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        waiting += below.get(each, [])
        if each in stats:
            ticks += sum(int(field) for field in stats[each][11:15])
    return ticks / HERTZ


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


async def until_up(connect: Callable[[], Awaitable[T]], errors: tuple[type[Exception], ...]) -> T:
    """What `connect` gives as soon as the server takes connections."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                return await connect()
            except errors:
                await asyncio.sleep(0.02)
