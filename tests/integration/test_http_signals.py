"""A node as a process: what it does when it is told to stop."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from omnirelay.core.options import QueueOptions
from omnirelay.log.sqlite import SqliteLog
from tests.integration.nodes import Http, running_node
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
ITEM = {"payload": {"resourceType": "table", "resourceId": "orders"}}


class Process:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), PATIENCE_S)


@asynccontextmanager
async def node_process(data: Path) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.crash.http_node", str(data), "0"), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        port = int(await asyncio.wait_for(process.stdout.readline(), PATIENCE_S))
        yield Process(process, port)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def waiting_calls(client: httpx.AsyncClient, count: int) -> None:
    """Until so many calls are being served."""
    async with asyncio.timeout(PATIENCE_S):
        while (await client.get("/healthz")).json()["activeRequests"] < count:
            pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_ends_the_node_in_order(tmp_path: Path, number: signal.Signals) -> None:
    async with node_process(tmp_path) as node, httpx.AsyncClient(base_url=node.url, timeout=PATIENCE_S) as client:
        about = json.loads((tmp_path / "node.json").read_text())
        assert (about["url"], about["pid"]) == (node.url, node.process.pid)
        await client.post("/v1/resourcelease/enqueue", json=ITEM)
        held = (await client.post("/v1/resourcelease/lease", json={"peerId": "w"})).json()
        calls = [
            client.post("/v1/resourcelease/lease", json={}),
            client.post("/v1/resourcelease/lease", json={"maxItems": 5, "waitMs": 60_000}),
            client.post("/v1/resourcelease/get", json={"sequenceId": held["sequenceId"], "waitMs": 60_000}),
            client.get("/v1/resourcelease/watch"),
        ]
        waiting = [asyncio.ensure_future(call) for call in calls]
        await waiting_calls(client, 4)
        node.signal(number)
        lease, leases, item, watched = await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
        assert (lease.status_code, lease.json()) == (200, {})
        assert (leases.status_code, leases.json()) == (200, {"leases": []})
        assert (item.status_code, item.json()["item"]["state"]) == (200, "leased")
        assert watched.status_code == 200
        assert await node.ended() == 0
    assert not (tmp_path / "node.json").exists()
    # Closed: somebody else may open it, and everything is there.
    log = SqliteLog.open(tmp_path, "resourcelease")
    report = await log.verify()
    assert report.events >= 4
    await log.close()


async def test_an_enqueue_that_waits_for_room_is_told_to_come_back() -> None:
    async with running_node(options=QueueOptions(capacity=1, high_watermark=10)) as node, Http(node) as http:
        await http.call("enqueue", ITEM)
        waiting = asyncio.ensure_future(http.post("enqueue", {**ITEM, "waitMs": 60_000}))
        await waiting_calls(http.client, 1)
        await node.stop()
        refused = await asyncio.wait_for(waiting, PATIENCE_S)
        assert (refused.status_code, refused.json()["code"]) == (503, "error.resourcelease.draining")
        assert refused.headers["retry-after"] == "1"


async def test_a_second_signal_ends_the_node_at_once(tmp_path: Path) -> None:
    async with node_process(tmp_path) as node:
        # Held until both are there: a node with nothing to wait for would have stopped before the second.
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            node.signal(number)
        assert await node.ended() == 1


async def test_a_node_that_was_stopped_starts_again_on_the_same_directory(tmp_path: Path) -> None:
    for number in range(2):
        async with node_process(tmp_path) as node, httpx.AsyncClient(base_url=node.url, timeout=PATIENCE_S) as client:
            stats = (await client.post("/v1/resourcelease/stats", json={})).json()["stats"]
            assert stats["pendingCount"] == number
            await client.post("/v1/resourcelease/enqueue", json=ITEM)
            node.signal(signal.SIGTERM)
            assert await node.ended() == 0


async def test_two_nodes_cannot_share_a_directory(tmp_path: Path) -> None:
    async with node_process(tmp_path):
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.crash.http_node", str(tmp_path), "0"),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(second.communicate(), PATIENCE_S)
        assert second.returncode != 0
        assert b"error.log.locked" in errors or b"LogLocked" in errors
