"""How much memory a process and all that it started take together, at most, over a span."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

_PAGE = os.sysconf("SC_PAGE_SIZE")


class PeakMemory:
    """Looks five times a second; `bytes` is the most that was seen."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory")

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            self.bytes = max(self.bytes, resident(os.getpid()))

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()


def resident(root: int) -> int:
    """Bytes in memory of a process and its descendants. What they share is counted for each of them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # It has ended meanwhile.
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    total, left = 0, [root]
    while left:
        pid = left.pop()
        left += children.get(pid, [])
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        except OSError:
            continue
    return total
