"""What a figure was measured on, and whether the machine was quiet enough to believe it."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

import apsw
import msgspec

BUSY_STEAL = 0.02
BUSY_OTHERS = 0.15


class Load(msgspec.Struct):
    """CPU time of the whole machine and of this process over a span, from the kernel's counters."""

    total: float
    idle: float
    steal: float
    own: float
    wall: float

    @classmethod
    def now(cls) -> Load:
        fields = [float(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        hertz = os.sysconf("SC_CLK_TCK")
        return cls(
            total=sum(fields[:8]) / hertz,
            idle=(fields[3] + fields[4]) / hertz,
            steal=fields[7] / hertz,
            own=own,
            wall=time.perf_counter(),
        )

    def since(self) -> str:
        """A few words on what else ran meanwhile; starts with BUSY when the figure is not to be trusted."""
        now = Load.now()
        total = max(now.total - self.total, 1e-9)
        steal = (now.steal - self.steal) / total
        others = max(0.0, (total - (now.idle - self.idle) - (now.own - self.own) - steal * total) / total)
        words = f"others {others:.0%}, steal {steal:.0%}"
        return f"BUSY ({words})" if steal > BUSY_STEAL or others > BUSY_OTHERS else words


def environment() -> str:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return (
        f"{os.cpu_count()} x {model}, Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}, "
        f"msgspec {msgspec.__version__}, {platform.system()} {platform.release()}, {sys.platform}"
    )
