"""The Python in the documents runs as it stands."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def python_blocks(document: str) -> list[str]:
    blocks = BLOCK.findall((ROOT / document).read_text())
    assert blocks, f"{document} has no Python in it"
    return blocks


async def run_with_await(code: CodeType, names: dict[str, Any]) -> None:
    """What the prompt of `python -m asyncio` does with a line."""
    result = eval(code, names)
    if inspect.isawaitable(result):
        await result


async def test_kernel_guide_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__guide__"}
    for number, block in enumerate(python_blocks("docs/kernel.md")):
        code = compile(block, f"docs/kernel.md block {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        await run_with_await(code, names)
    assert (tmp_path / "backup/resourcelease/leases.db").exists()


def test_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [block] = python_blocks("README.md")
    exec(compile(block, "README.md", "exec"), {"__name__": "__main__", "asyncio": asyncio})
    fence, completed = capsys.readouterr().out.split()
    assert int(fence) > 0
    assert completed == "1"
