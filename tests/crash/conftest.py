"""Counts kills over all tests and says at the end how many there were."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.harness import Crashes

MakeCrashes = Callable[[int], Crashes]

_started = time.monotonic()


@pytest.fixture
def make_crashes(tmp_path: Path, record_property: Callable[[str, object], None]) -> MakeCrashes:
    """Crashes from a seed, each in a directory of its own; what they count goes into the summary."""
    made: list[Crashes] = []

    def make(seed: int) -> Crashes:
        crashes = Crashes(tmp_path / f"{len(made)}", seed, record_property)
        made.append(crashes)
        return crashes

    return make


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    totals = {"kills": 0, "acknowledgements": 0}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, count in getattr(report, "user_properties", ()) if getattr(report, "when", "") == "call" else ():
                if name in totals:
                    totals[name] += count
    if totals["kills"]:
        terminalreporter.write_line(
            f"crash: {totals['kills']} kills, {totals['acknowledgements']} acknowledgements checked, "
            f"{time.monotonic() - _started:.0f} s"
        )
