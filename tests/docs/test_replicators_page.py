"""The page about replicators: its example runs and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from omnirelay.replication import replicators

PAGE = (Path(__file__).parents[2] / "docs/replication/replicators.md").read_text()


async def test_the_example_prints_what_the_page_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    [printed] = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "replicators.md", "exec"), names)
    await names["main"](tmp_path)
    assert capsys.readouterr().out == printed


def test_every_replicator_has_a_row() -> None:
    for name in replicators.__all__:
        if name.endswith("Replicator") and name != "Replicator":
            assert f"| `{name}(" in PAGE
