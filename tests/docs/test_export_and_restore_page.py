"""The page about exports and restores: its configuration is served, and its commands are run."""

from __future__ import annotations

import json
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Relay
from tests.cli.processes import spawned
from tests.patience import PATIENCE_S
from tests.segment_logs import S3Server

PAGE = (Path(__file__).parents[2] / "docs/replication/export-and-restore.md").read_text()
NAMESPACE = "resourcelease"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The bucket of the page, and what the environment has to say about it."""
    server = S3Server()
    server.start()
    env = {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    yield env
    server.stop()


def test_the_commands_of_the_page_work_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    [toml] = blocks("toml")
    (tmp_path / "omnirelay.toml").write_text(toml + 'linger = "0s"\n[shards.resourcelease]\n')
    arguments = ["--config", "omnirelay.toml", "--port", 0, "--data", "omnirelay-data"]
    node = spawned("serve", *arguments, cwd=tmp_path, **bucket)
    assert node.stdout is not None
    try:
        relay = Relay(node.stdout.readline().split(" at ")[1].split(",")[0], NAMESPACE)
        for name in "abcd":
            relay.enqueue(name)
        # Each look is a round trip to the node, so this ends as soon as the sink is there.
        while (status := relay.ok("replication", "status", "-o", "jsonl").lines[0])["checkpoint"] < 5:
            assert node.poll() is None
            assert status["state"] != "failed", status
        restored = []
        for line in [line for block in blocks("sh") for line in block.splitlines()]:
            program, *words = shlex.split(line)
            assert program == "omnirelay"
            said = relay.ok(*words)
            if "restore" in words:
                report = dict(line.split(maxsplit=1) for line in said.out.splitlines())
                restored.append(words[-1])
                original = relay.ok("log", "at", report["lastSequence"], "--data", "omnirelay-data", "-o", "json").json
                assert report["digest"] == original["digest"]
    finally:
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=PATIENCE_S)
    assert [json.loads(line)["eventType"] for line in (tmp_path / "events.jsonl").read_text().splitlines()][1:5] == [
        "Enqueue"
    ] * 4
    assert len(restored) == 4
    assert all((tmp_path / each / NAMESPACE / "leases.db").exists() for each in restored)


def test_links_of_the_page_lead_somewhere() -> None:
    directory = Path(__file__).parents[2] / "docs/replication"
    for target in re.findall(r"\]\(([^)#:]+)", PAGE):
        assert (directory / target).exists(), target
