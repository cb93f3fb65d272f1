"""Settings of the whole process that suit one whose main job is to run shards."""

from __future__ import annotations

import gc
import sys

SWITCH_INTERVAL_S = 0.0005
"""How long the thread that writes frames waits for the interpreter while the next frame is decided. Python's default is
ten times that, which is longer than writing a large frame takes."""

GC_YOUNG_MAX = 50_000
"""A frame makes thousands of short-lived objects and no cycles; looking for some every 700 objects finds nothing."""


def tune_process() -> None:
    """Have threads take turns quickly and the garbage collector rarely. Process-wide, so the program decides."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(GC_YOUNG_MAX, 20, 100)
