"""Large memory in large pages.

The state of a deep queue is hundreds of megabytes of small objects in no order. In pages of 4 KiB the processor spends
a third of a cycle on finding out where they are; in pages of 2 MiB it does not. Python's allocator takes its memory a
megabyte at a time, which the kernel never puts into a large page by itself, so a thread asks for it from time to
time: what is full by now becomes one page, what is not is left alone. Linux only; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import errno
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache

PAGE = 4_096
HUGE = 2 * 1024 * 1024

FULL_MIN = 460
"""Of the 512 small pages of a large one, how many must be in use: at most a tenth is given away."""

INTERVAL_S = 2.0
INTERVAL_MAX_S = 120.0
"""How long it waits when the kernel finds no large page: looking for one takes its time too."""

_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25

_LOW_BIT = bytes(byte & 1 for byte in range(256))
"""Of what `mincore` says of a page, the rest is reserved."""


class HugePages:
    """A thread that turns full pieces of this process's memory into large pages, one after the other."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="omnirelay-huge-pages", daemon=True)
        self._done: set[int] = set()
        self.refused = 0
        """Full pieces that the kernel had no large page for when they were last looked at."""

    def start(self) -> None:
        if sys.platform == "linux" and _thp_allowed():
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause_s = self._interval_s
        while not self._stop.wait(pause_s):
            try:
                self.collapse_full()
            except OSError:
                self.refused += 1  # No file is free to look at the memory's map with, or none of this kind is there.
            pause_s = min(2 * pause_s, INTERVAL_MAX_S) if self.refused else self._interval_s

    def collapse_full(self, wanted: Callable[[int], bool] = lambda _: True) -> int:
        """Collapse every full piece that was not looked at yet; returns how many there were."""
        pieces = [piece for piece in _pieces() if wanted(piece)]
        self._done.intersection_update(pieces)
        collapsed = self.refused = 0
        for piece in pieces:
            if self._stop.is_set():
                break
            if piece in self._done or _resident(piece) < FULL_MIN:
                continue
            error = _collapse(piece)
            collapsed += error == 0
            if error in (0, errno.EINVAL):
                # The second is final: this memory, or an older kernel, cannot have it. Nobody asks twice.
                self._done.add(piece)
            else:
                self.refused += 1
        return collapsed


def _thp_allowed() -> bool:
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
            return "[never]" not in file.read()
    except OSError:
        return False


def _pieces() -> Iterator[int]:
    """The addresses of all aligned pieces of private memory that no file is behind."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file.read().splitlines():
            fields = line.split(maxsplit=5)
            if fields[1] != "rw-p" or fields[4] != "0" or fields[5:] not in ([], ["[heap]"]):
                continue
            start, end = (int(address, 16) for address in fields[0].split("-"))
            yield from range(-(-start // HUGE) * HUGE, end - HUGE + 1, HUGE)


def _resident(piece: int) -> int:
    """How many small pages of it are in memory; none when it was given back meanwhile."""
    present = ctypes.create_string_buffer(HUGE // PAGE)
    if _libc().mincore(ctypes.c_void_p(piece), ctypes.c_size_t(HUGE), present) != 0:
        return 0
    return present.raw.translate(_LOW_BIT).count(1)


def _collapse(piece: int) -> int:
    """0, or the number of the error: it was given back meanwhile, no large page is free, or it never can be one."""
    libc = _libc()
    for advice in (_MADV_HUGEPAGE, _MADV_COLLAPSE):
        if libc.madvise(ctypes.c_void_p(piece), ctypes.c_size_t(HUGE), ctypes.c_int(advice)) != 0:
            return ctypes.get_errno()
    return 0


@cache
def _libc() -> ctypes.CDLL:
    # Calls through it let other threads run meanwhile.
    return ctypes.CDLL(None, use_errno=True)
