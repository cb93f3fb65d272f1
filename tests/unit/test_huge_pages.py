"""Large pages: full memory is collapsed, what is in it stays, and what was only reserved stays reserved."""

from __future__ import annotations

import ctypes
import errno
import mmap
import sys
import threading

import pytest

from omnirelay.engine.huge_pages import HUGE, PAGE, HugePages
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="large pages are asked for on Linux only")


def resident(start: int, length: int) -> int:
    present = ctypes.create_string_buffer(length // PAGE)
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(length), present) == 0
    return sum(byte & 1 for byte in present.raw)


def huge_bytes() -> int:
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("AnonHugePages"))


def test_full_memory_is_collapsed_with_what_is_in_it_and_reserved_memory_is_left_alone() -> None:
    with mmap.mmap(-1, 16 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        aligned = -(-start // HUGE) * HUGE - start
        full = 4 * HUGE
        written = bytes(range(256)) * (full // 256)
        memory[aligned : aligned + full] = written
        # A piece of which the half is in use, and one of which nothing is.
        memory[aligned + full : aligned + full + HUGE // 2] = written[: HUGE // 2]
        before = huge_bytes()
        pages = HugePages()
        collapsed = 0
        for _ in range(1_000):  # The kernel may have to make room for a large page first.
            collapsed += pages.collapse_full(lambda piece: start <= piece < start + len(memory))
            if not pages.refused:
                break
        assert collapsed == 4
        assert huge_bytes() - before == full
        assert memory[aligned : aligned + full] == written
        assert resident(start + aligned + full, HUGE) == HUGE // 2 // PAGE
        assert resident(start + aligned + full + HUGE, HUGE) == 0
        assert pages.collapse_full(lambda piece: start <= piece < start + len(memory)) == 0


def test_the_thread_stops_when_told_to_and_need_not_have_started() -> None:
    HugePages().stop()
    pages = HugePages(interval_s=0.001)
    pages.start()
    pages.stop()


def test_the_thread_outlives_a_process_that_has_no_file_left(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Semaphore(0)

    def no_file_left(*_: object) -> None:
        looked.release()
        raise OSError(errno.EMFILE, "Too many open files")

    pages = HugePages(interval_s=0.001)
    monkeypatch.setattr(pages, "collapse_full", no_file_left)
    pages.start()
    assert looked.acquire(timeout=PATIENCE_S)
    assert looked.acquire(timeout=PATIENCE_S)
    pages.stop()
