"""Settings of the whole process that suit one whose main job is to run shards."""

from __future__ import annotations

import ctypes
import gc
import sys

SWITCH_INTERVAL_S = 0.0005
"""How long the thread that writes frames waits for the interpreter while the next frame is decided. Python's default is
ten times that, which is longer than writing a large frame takes."""

GC_YOUNG_MAX = 50_000
"""A frame makes thousands of short-lived objects and no cycles; looking for some every 700 objects finds nothing."""

KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Freed memory that the C library keeps. A frame is a piece of megabytes; given back to the kernel each time, it would
come back page by page and zeroed, which costs a twentieth of the frame. Larger pieces go back as ever."""

ARENAS_MAX = 2
"""So many places keep it. By default every other thread has one of its own, and a node has dozens of threads."""

# Names of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8


def tune_process() -> None:
    """Have threads take turns quickly, the garbage collector look rarely, and frames reuse memory. Process-wide, so the
    program decides.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(GC_YOUNG_MAX, 20, 100)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Only glibc can be told; elsewhere nothing happens."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES_MAX)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
        mallopt(_M_TOP_PAD, KEPT_BYTES_MAX // 4)
