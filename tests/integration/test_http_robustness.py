"""Senders that are slow, many, or never done: everybody else is served meanwhile."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn

from omnirelay.node.node import Node
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.service.component import ResourceLeaseComponent
from omnirelay.transport.http import HttpInbound
from tests.integration.http_sockets import Wire, call_bytes, until
from tests.integration.nodes import Http, running_node
from tests.patience import PATIENCE_S

ITEM = {"payload": {"resourceType": "table", "resourceId": "orders"}}
CONNECTIONS = 2_000
IDLE_BYTES_MAX = 64 * 1024
"""Most memory an idle connection may take, on both of its ends: the test holds the other one."""


class Served:
    """What stands for a node where only its address matters."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"


@asynccontextmanager
async def served(**limits: Any) -> AsyncIterator[Any]:
    """A component behind an HTTP application with limits of its own, on a real port."""
    dispatcher = Dispatcher()
    async with ResourceLeaseComponent(dispatcher):
        config = uvicorn.Config(
            HttpInbound(dispatcher, **limits), http="httptools", ws="none", lifespan="off", log_config=None
        )
        server = uvicorn.Server(config)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(100)
            listener.setblocking(False)
            serving = asyncio.create_task(server._serve([listener]))
            try:
                yield Served(listener.getsockname()[1])
            finally:
                server.should_exit = True
                await serving


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def test_a_sender_that_takes_its_time_within_the_limit_is_served_byte_by_byte() -> None:
    async with running_node() as node, Http(node) as http:
        wire = await Wire.connect(node)
        for byte in call_bytes("enqueue", ITEM):
            await wire.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await wire.response()).status == 200
        wire.close()
        assert (await http.call("stats"))["stats"]["pendingCount"] == 1


async def test_a_sender_slower_than_the_limit_is_refused_and_let_go() -> None:
    async with served(body_seconds_max=0.2) as node:
        request = call_bytes("enqueue", ITEM)
        body = request.index(b"\r\n\r\n") + 4
        for sent in (body, body + 1, len(request) - 1):
            wire = await Wire.connect(node)
            await wire.send(request[:sent])
            response = await wire.response()
            assert (response.status, response.json()["code"]) == (504, "deadline-exceeded"), sent
            assert response.headers["connection"] == "close"
            assert await wire.until_closed() == b""
            wire.close()
        async with Http(node) as http:
            assert (await http.call("stats"))["stats"]["pendingCount"] == 0


async def test_a_body_over_the_limit_is_refused_however_it_comes() -> None:
    async with served(body_max=1_000) as node, Http(node) as http:
        url = "/v1/resourcelease/stats"
        assert (await http.client.post(url, content=b"{}" + b" " * 998)).status_code == 200
        declared = await http.client.post(url, content=b"{}" + b" " * 999)
        assert (declared.status_code, declared.json()["code"]) == (413, "resourcelease.payload.too_large")

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b" " * 100

        chunked = await http.client.post(url, content=chunks())
        assert (chunked.status_code, chunked.json()["metadata"]["limit"]) == (413, "1000")
        assert (await http.call("stats"))["stats"]["pendingCount"] == 0


async def test_unfinished_bodies_together_are_bounded_and_the_room_comes_back() -> None:
    async with served(body_max=100_000, bodies_max=150_000) as node, Http(node) as http:
        head = b"POST /v1/resourcelease/stats HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99000\r\n\r\n"
        wires = [await Wire.connect(node) for _ in range(4)]
        for wire in wires:
            await wire.send(head + b" ")
        for wire in wires:
            for _ in range(6):
                await wire.send(b" " * 10_000)
                await http.call("stats")
        answers = [await wire.response() for wire in wires[2:]]
        assert {answer.status for answer in answers} == {429}
        assert {answer.json()["code"] for answer in answers} == {"resource-exhausted"}
        assert all("retry-after" in answer.headers for answer in answers)
        for wire in wires:
            wire.reset()
        await asyncio.sleep(0)
        whole = await Wire.connect(node)
        await whole.send(head + b"{}" + b" " * 98_998)
        assert (await whole.response()).status == 200
        whole.close()


async def test_thousands_of_idle_connections_cost_little_and_hold_up_nobody() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS + 500
    assert hard >= wanted, "this test needs more open files than the machine allows"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        async with running_node() as node, Http(node) as http:
            await http.call("enqueue", ITEM)
            gc.collect()
            before = resident_bytes()
            idle = await connected(node, CONNECTIONS)
            grown = resident_bytes() - before
            for number in range(50):
                answer = await asyncio.wait_for(http.call("enqueue", ITEM), PATIENCE_S)
                assert answer["stats"]["pendingCount"] == number + 2
            assert (await asyncio.wait_for(http.client.get("/readyz"), PATIENCE_S)).status_code == 200
            assert grown < CONNECTIONS * IDLE_BYTES_MAX, f"{grown // CONNECTIONS} bytes for each idle connection"
            # They are idle, not dead: each is served when it speaks.
            for wire in idle[::100]:
                assert (await wire.call("stats")).status == 200
            for wire in idle:
                wire.reset()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def connected(node: Node, count: int) -> list[Wire]:
    wires: list[Wire] = []
    while len(wires) < count:
        wires += await asyncio.gather(*(Wire.connect(node) for _ in range(min(100, count - len(wires)))))
    return wires


async def test_hundreds_of_long_polls_hold_up_nobody_and_each_gets_its_item() -> None:
    async with running_node() as node, Http(node) as http:
        wires = await connected(node, 300)
        for wire in wires:
            await wire.send(call_bytes("lease", {"waitMs": 60_000}))
        await until(lambda: node.dispatcher.active == 300)
        assert (await asyncio.wait_for(http.call("stats"), PATIENCE_S))["stats"]["pendingCount"] == 0
        answer = await http.call("enqueue", {"items": [ITEM] * 300})
        leases = [(await wire.response()).json() for wire in wires]
        expected = [each["sequenceId"] for each in answer["results"]]
        assert sorted(lease["sequenceId"] for lease in leases) == expected
        assert [lease["sequenceId"] for lease in leases] == expected, "who came first is served first"
        for wire in wires:
            wire.close()
