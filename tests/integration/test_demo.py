"""`make demo` shows what it says it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.demo", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_demo_loses_nothing_over_a_kill_and_tells_it_from_the_log(tmp_path: Path) -> None:
    done = run_demo("--items", "600", "--data", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "600 items came in: 597 completed, 3 dead letters" in done.stdout
    assert "2 times a process took the lead" in done.stdout
    assert "1 owner at most had any item at any time" in done.stdout
    assert (tmp_path / "demo" / "leases.db").exists()


def test_demo_does_not_touch_a_log_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    done = run_demo("--data", str(tmp_path))
    assert done.returncode == 2
    assert "has a demo log already" in done.stderr
