"""What a figure was measured on, and whether the machine was quiet enough to believe it."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from pathlib import Path

import apsw
import msgspec

from omnirelay.core import schedule

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


SPIN_LOOPS = 100_000


def spin() -> float:
    """Seconds that a fixed piece of pure Python takes right now. Neighbours on the same host slow it down without
    showing in any counter of ours, so a pass is worth as much as the spin before and after it was fast."""
    started = time.perf_counter()
    value = 0
    for number in range(SPIN_LOOPS):
        value += number & 7
    return time.perf_counter() - started


class Passes:
    """Figures of several passes, each with how slow the machine was around it."""

    def __init__(self) -> None:
        self._passes: list[tuple[float, tuple[float, ...]]] = []

    def add(self, spun: float, *figures: float) -> None:
        self._passes.append((spun, figures))

    def median(self, figure: int) -> float:
        return statistics.median(figures[figure] for _, figures in self._passes)

    def quiet(self, figure: int) -> float:
        """The median over the least disturbed third of the passes."""
        ordered = sorted(self._passes, key=lambda entry: entry[0])
        return statistics.median(figures[figure] for _, figures in ordered[: max(1, len(ordered) // 3)])

    @property
    def spins(self) -> str:
        """How long two spins took, at best and in the median pass: the speed of the machine while this was measured."""
        spins = [spun * 1000 for spun, _ in self._passes]
        return f"{min(spins):.1f}-{statistics.median(spins):.1f} ms"


def is_compiled() -> bool:
    """Whether this process has core as mypyc compiled it."""
    return not str(schedule.__file__).endswith(".py")


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
