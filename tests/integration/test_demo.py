"""`make demo` shows what it says it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_demo_survives_crashes_a_zombie_and_a_kill_and_tells_it_from_the_log(tmp_path: Path) -> None:
    done = run("examples.demo", "--items", "200", "--data", str(tmp_path), "--no-lakehouse")
    assert done.returncode == 0, done.stdout + done.stderr
    # 200 asked for, two follow-ups for each of 40 sagas, 4 views and 3 that only a cancellation ends.
    assert "287 items came in: 282 completed, 2 dead, 3 cancelled" in done.stdout
    assert "dead for: demo.poison (2)" in done.stdout
    assert "2 times a node took the lead" in done.stdout
    assert "1 owner at most had any item at any time" in done.stdout
    [refused] = re.findall(r"(\d+) late writes of a zombie were refused", done.stdout)
    assert int(refused) >= 1
    verified = run("omnirelay.cli", "log", "verify", "--data", str(tmp_path), "--namespace", "fabric")
    assert verified.returncode == 0, verified.stderr


def test_demo_does_not_touch_a_log_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "fabric").mkdir()
    done = run("examples.demo", "--data", str(tmp_path))
    assert done.returncode == 2
    assert "has a demo log already" in done.stderr
