"""`make demo` to its end: its log becomes tables, is audited and drawn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.property.strategies import LONG

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not LONG, reason="the long form only: make spark-test")


def test_demo_ends_with_tables_an_audit_that_passes_and_a_report(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--items", "100", "--data", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules: all kept" in done.stdout
    page = tmp_path / "report.html"
    assert f"look at it: {page}" in done.stdout
    assert "lake.table_" in page.read_text(encoding="utf-8")
    items = DeltaTable(str(tmp_path / "lake" / "silver" / "items")).to_pyarrow_table()
    # 100 asked for, two follow-ups for each of 20 sagas, 4 views and 3 that only a cancellation ends.
    assert items.num_rows == 147
    assert set(items.column("state").to_pylist()) == {"completed", "dead", "cancelled"}
