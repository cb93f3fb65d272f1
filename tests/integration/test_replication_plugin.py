"""The sink of `examples/sink_plugin`: it holds to the promises, and a node finds it where it is installed."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.sink_plugin.omnirelay_csv_sink import CsvSink, make_csv_sink
from omnirelay.replication.checkpoints import Checkpoints
from omnirelay.replication.following import Follower
from omnirelay.replication.kinds import SinkPlace
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import ReplicationSink, SinkUnusable
from omnirelay.testing.node import TestNode
from omnirelay.testing.sinks import SHARD, SinkConformance, made_events
from tests.cli.processes import command, environment
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sink_plugin"
CONFIG = """
[node]
port = 0
data = "data"
"""


class TestCsvSink(SinkConformance):
    def make_sink(self, directory: Path) -> ReplicationSink:
        return CsvSink(directory)

    async def read_back(self, directory: Path) -> Sequence[int]:
        with (directory / f"{SHARD}.csv").open(newline="") as file:
            return [int(row["sequenceNumber"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("left", [b"", b"sequenceNum", b"sequenceNumber,eventType,timestamp\r\n"])
async def test_a_crash_while_the_first_row_was_written_does_no_harm(left: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{SHARD}.csv").write_bytes(left)
    sink = CsvSink(tmp_path)
    assert await sink.open(SHARD) == 0
    events = made_events(2)
    await sink.apply(events)
    assert await TestCsvSink().read_back(tmp_path) == [event.sequence for event in events]


@pytest.mark.parametrize(
    ("options", "words"), [({"pth": 1}, "no option pth"), ({"columns": ["eventType"]}, "must be sequenceNumber")]
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(SinkUnusable, match=words):
        make_csv_sink(options, SinkPlace("sheet", SHARD, tmp_path, lambda item, lease: None))


PAGES = [EXAMPLE / "README.md", ROOT / "docs/replication/sinks.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_node_runs_a_sink_that_another_package_brings(page: Path, tmp_path: Path) -> None:
    target = tmp_path / "packages"
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", *install, str(EXAMPLE)], check=True, timeout=PATIENCE_S)
    *_, snippet = re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert 'kind = "csv"' in snippet
    (tmp_path / "omnirelay.toml").write_text(CONFIG + snippet)
    path = os.pathsep.join([str(target), *(each for each in sys.path if each)])
    node = subprocess.Popen(
        command("serve", "--config", "omnirelay.toml"),
        cwd=tmp_path,
        env=environment(PYTHONPATH=path),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert node.stdout is not None
        while not (tmp_path / "data" / "node.json").exists():
            assert node.stdout.readline(), "the node did not start"
        url = json.loads((tmp_path / "data" / "node.json").read_text())["url"]
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            item = {"payload": {"resourceType": "table", "resourceId": "orders"}, "peerId": "anna"}
            client.post("/v1/resourcelease/enqueue", json=item).raise_for_status()
            while (status := client.post("/v1/replication/status", json={}).json()["sinks"][0])["lagEvents"]:
                assert status["state"] != "failed", status
    finally:
        node.terminate()
        node.communicate(timeout=PATIENCE_S)
    with (tmp_path / "data" / "sheets" / "resourcelease.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["eventType"] for row in rows][-1] == "Enqueue"
    assert [int(row["sequenceNumber"]) for row in rows] == list(range(1, len(rows) + 1))


async def test_the_sink_of_the_guide_works() -> None:
    text = (ROOT / "docs/replication/writing-a-sink.md").read_text()
    first = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(compile(first, "docs/replication/writing-a-sink.md", "exec"), names)
    sink = names["CountingSink"]()
    async with TestNode("jobs") as node, node.client(namespace="jobs") as client:
        shard = node._node.components[0].shard()
        checkpoints = Checkpoints(None)
        follower = Follower("counts", sink, shard, checkpoints, FollowSettings(linger_ms=0))
        follower.start()
        await client.enqueue("table", "orders")
        await asyncio.wait_for(follower.wait_confirmed(shard.last_sequence), PATIENCE_S)
        await follower.stop()
        await checkpoints.close()
    assert sink.counts["Enqueue"] == 1
