"""The pages about the lakehouse: links lead somewhere, commands exist, and the tutorial works as it is written."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import typer.main

from omnirelay.cli.app import app
from tests.cli.processes import environment, omnirelay, spawned
from tests.patience import PATIENCE_S
from tests.property.strategies import LONG

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "lakehouse").glob("*.md"))
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks(page: Path, kind: str) -> list[str]:
    """The fenced blocks of a kind, also those within a list."""
    found = re.findall(rf"^( *)```{kind}\n(.*?)^\1```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [dedent(text) for _, text in found]


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@each_page
def test_links_of_the_page_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        there = page if not target else page.parent / target
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


@each_page
def test_python_of_the_page_can_be_read(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)


@each_page
def test_commands_of_the_page_are_there_with_their_options(page: Path) -> None:
    """What stands on a line of its own is parsed as it would be typed, and not run."""
    tree = typer.main.get_command(app)
    for line in re.findall(r"^ *(?:\S*/)?omnirelay (.*)$", page.read_text(), re.MULTILINE):
        command, words = tree, shlex.split(line)
        while (below := getattr(command, "commands", {}).get(words[0] if words else "")) is not None:
            command, words = below, words[1:]
        assert not hasattr(command, "commands"), f"there is no command `omnirelay {line}`"
        command.make_context(line, words)


@pytest.mark.timeout(600)
@pytest.mark.skipif(not LONG, reason="a node and Spark from start to end: make spark-test")
def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    page = ROOT / "docs" / "lakehouse" / "tutorial.md"
    [settings] = blocks(page, "toml")
    (tmp_path / "node.toml").write_text(settings)
    serve, *commands = blocks(page, "sh")
    assert serve == "omnirelay serve --config node.toml\n"
    [question] = blocks(page, "python")
    scripts = Path(sys.executable).parent
    # Only the port is another one: the usual one may be taken.
    with spawned("serve", "--config", "node.toml", "--port", 0, cwd=tmp_path) as node:
        assert node.stdout is not None
        [url] = re.findall(r"http://\S+\d", node.stdout.readline())
        there = environment(OMNIRELAY_URL=url, PATH=f"{scripts}:{os.environ['PATH']}")
        printed = ""
        try:
            for command in commands:
                if "lakehouse run" in command:
                    wait_for_segments(url)
                done = subprocess.run(
                    ["bash", "-e"],
                    input=command,
                    cwd=tmp_path,
                    env=there,
                    capture_output=True,
                    text=True,
                    timeout=300,
                    check=False,
                )
                assert done.returncode == 0, done.stdout + done.stderr
                printed += done.stdout
            assert re.search(r"\d+ new events from \d+ segments, 10 tables changed", printed), "the closing summary"
        finally:
            node.send_signal(signal.SIGTERM)
            node.communicate(timeout=PATIENCE_S)
    asked = subprocess.run(
        [sys.executable, "-c", question], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert asked.returncode == 0, asked.stderr
    assert "outcome" in asked.stdout


def wait_for_segments(url: str) -> None:
    """As long as it takes a person to type the next command."""
    while True:
        done = omnirelay("replication", "status", "--url", url, "-o", "json")
        assert done.returncode == 0, done.stderr
        if all(each["lagEvents"] == 0 and each["checkpoint"] for each in json.loads(done.stdout)["sinks"]):
            return
