"""The Python in the documents runs as it stands."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from types import CodeType
from typing import Any, get_args, get_type_hints

import pytest

from omnirelay.core.answers import Gate
from omnirelay.core.options import QueueOptions

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


GATE_OPTIONS = [
    "ordering",
    "key",
    "fifo_head",
    "tenant_attribute",
    "tenant_weights",
    "limits",
    "starvation_every",
    "starvation_after_ms",
    "high_watermark",
    "low_watermark",
    "backpressure_cooldown_ms",
]
GATE_PAGES = sorted(path.name for path in (ROOT / "docs/gates").glob("*.md"))


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


def test_readme_example_runs(omnirelay_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    [block] = python_blocks("README.md")
    block = block.replace("http://127.0.0.1:7070", omnirelay_url)
    exec(compile(block, "README.md", "exec"), {"__name__": "__main__", "asyncio": asyncio})
    fence, completed = capsys.readouterr().out.split()
    assert int(fence) > 0
    assert completed == "1"


@pytest.mark.parametrize("page", GATE_PAGES)
def test_each_page_about_gates_has_an_example_that_runs(page: str) -> None:
    [block] = python_blocks(f"docs/gates/{page}")
    exec(compile(block, f"docs/gates/{page}", "exec"), {"__name__": "__main__"})


def test_the_guide_to_why_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    [block] = python_blocks("docs/gates/why.md")
    exec(compile(block, "docs/gates/why.md", "exec"), {"__name__": "__main__"})
    [printed] = re.findall(r"^It prints\n\n```\n(.*?)^```", (ROOT / "docs/gates/why.md").read_text(), re.M | re.S)
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("page", GATE_PAGES)
def test_links_between_pages_about_gates_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / "docs/gates" / page).read_text()):
        assert (ROOT / "docs/gates" / target).exists(), target


def test_every_option_of_gates_is_described_with_its_default() -> None:
    rows: dict[str, Any] = {}
    for page in GATE_PAGES:
        for name, default in re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", (ROOT / "docs/gates" / page).read_text(), re.M):
            rows[name] = ast.literal_eval(default)
    defaults = QueueOptions()
    names = [field for field in defaults.__struct_fields__ if field in rows]
    assert {name: rows[name] for name in names} == {name: getattr(defaults, name) for name in names}
    assert set(GATE_OPTIONS) <= set(names)


def test_every_gate_has_a_row_in_the_guide_to_why() -> None:
    text = (ROOT / "docs/gates/why.md").read_text()
    for gate in get_args(get_type_hints(Gate)["gate"]):
        assert re.search(rf"^\| \[?`{gate}`", text, re.M), gate
