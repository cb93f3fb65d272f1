"""The commands in the guides that talk to a node run as they stand, on items that the test has."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import DevNode, environment
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
ITS_ADDRESS = "http://127.0.0.1:7070"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DevNode]:
    with DevNode(cwd=tmp_path) as node:
        yield node


def block(page: str, command: str) -> str:
    """The one block of the page that has this command."""
    [found] = [each for each in BLOCK.findall((ROOT / "docs" / page).read_text()) if command in each]
    return str(found)


def run(node: DevNode, script: str) -> str:
    """What it prints. Fails the test when any of its commands fails."""
    ours = f'omnirelay() {{ "{sys.executable}" -m omnirelay.cli "$@"; }}\n'
    said = subprocess.run(
        ["bash", "-e"],
        input=ours + script.replace(ITS_ADDRESS, node.url),
        capture_output=True,
        text=True,
        check=False,
        env=environment(OMNIRELAY_URL=node.url),
        timeout=PATIENCE_S,
    )
    assert said.returncode == 0, said.stderr
    return said.stdout


def test_the_commands_of_the_tutorial_bring_an_item_in_and_to_its_end(node: DevNode) -> None:
    leased = run(node, block("tutorial.md", "omnirelay lease"))
    [token] = re.findall(r"omnirelay complete (\S+)$", leased, re.MULTILINE)
    done, replaced = re.subn(r"1:1:\S+…:3", token, block("tutorial.md", "omnirelay complete"))
    assert replaced == 1
    assert "item 1: completed" in run(node, done)
    run(node, "omnirelay enqueue table sales.items")
    assert run(node, block("tutorial.md", "omnirelay why 7").replace("why 7", "why 2")).startswith("item 2 is ready")


def test_the_commands_of_the_guide_to_cancellation_cancel_an_item(node: DevNode) -> None:
    run(node, "omnirelay enqueue table sales.items")
    cancelling = block("how-to/cancellation.md", "omnirelay cancel 42")
    assert run(node, cancelling.replace(" 42 ", " 1 ")).splitlines() == ["item 1: cancelled"] * 2
