"""Time as others count it: a lease goes on running out while the machine of its owner is suspended."""

from __future__ import annotations

import sys
import time


def elapsed_seconds() -> float:
    """Seconds since some point in the past; never goes back. On Linux with those for which the machine was suspended,
    which `time.monotonic`, and so the time of every event loop, leaves out.
    """
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
