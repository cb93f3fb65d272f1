"""Clients that do not read what they asked for, or do not send what they announced: nobody waits for them for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import uvloop

from omnirelay.node.node import Node
from omnirelay.transport.http_heads import BoundedHttpProtocol
from tests.integration.http_sockets import Wire, call_bytes, request_bytes, until
from tests.integration.nodes import Http, running_node, settings_for
from tests.patience import PATIENCE_S

Run = Callable[[Coroutine[Any, Any, None]], None]

# A node runs on uvloop; tests and embedding applications mostly run on the loop of Python.
on_every_loop = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])

ITEMS = 24
ATTRIBUTES = {str(number): "\N{GRINNING FACE}" * 4_096 for number in range(64)}
"""A page of items with these is more bytes than the sockets on the way take from a node that nobody reads from: what it
may have is counted in characters, and each of these takes four.
"""

WATCH = request_bytes("/v1/resourcelease/watch?from=1", method="GET")
PEEK = call_bytes("peek", {"limit": ITEMS})
LAST = call_bytes("peek", {"limit": ITEMS}, Connection="close")
HALF = call_bytes("enqueue", {"payload": {"resourceType": "t", "resourceId": "a"}})[:-5]


async def fill(node: Node) -> None:
    async with Http(node) as http:
        item = {"payload": {"resourceType": "t", "resourceId": "a", "attributes": ATTRIBUTES}}
        for _ in range(ITEMS // 4):
            await http.call("enqueue", {"items": [item] * 4})
    await connected(node, 0)


def connections(node: Node) -> list[BoundedHttpProtocol]:
    assert node._server is not None
    return [each for each in node._server.server_state.connections if isinstance(each, BoundedHttpProtocol)]


async def connected(node: Node, count: int) -> None:
    await until(lambda: len(connections(node)) == count)


async def asked_in_vain(node: Node, *requests: bytes) -> list[Wire]:
    """Connections whose answers have begun, and are not read."""
    wires = []
    for request in requests:
        wires.append(await Wire.connect(node))
        await wires[-1].send(request)
    await until(lambda: sum(each.flow.write_paused for each in connections(node)) == len(requests))
    return wires


@asynccontextmanager
async def node_that_drains_for(seconds: float) -> AsyncIterator[Node]:
    settings = settings_for(None)
    section = msgspec.structs.replace(settings.node, drain_timeout_ms=int(seconds * 1_000))
    node = Node(msgspec.structs.replace(settings, node=section))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def assert_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


@on_every_loop
def test_a_client_that_does_not_read_its_answer_is_dropped(run: Run) -> None:
    async def main() -> None:
        async with running_node() as node:
            await fill(node)
            wires = await asked_in_vain(node, WATCH, PEEK, LAST)
            for connection in connections(node):
                connection.unread_seconds_max = 0.05
                connection._stop_looking()
                connection._begin_looking()
            await connected(node, 0)
            await until(lambda: node.dispatcher.active == 0)
            for wire in wires:
                wire.close()

    run(main())


async def test_a_client_that_reads_gets_all_of_a_large_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_node() as node:
        await fill(node)
        monkeypatch.setattr(BoundedHttpProtocol, "unread_seconds_max", PATIENCE_S)
        (wire,) = await asked_in_vain(node, PEEK)
        assert len((await wire.response()).json()["items"]) == ITEMS
        assert (await wire.call("stats")).status == 200
        wire.close()


async def test_a_connection_closed_for_silence_does_not_wait_for_its_last_answer_to_be_read() -> None:
    async with running_node() as node:
        await fill(node)
        (wire,) = await asked_in_vain(node, PEEK)
        (connection,) = connections(node)
        connection._stop_looking()
        connection.unread_seconds_max = 0.05
        connection.timeout_keep_alive_handler()
        await connected(node, 0)
        wire.close()


@on_every_loop
def test_a_stop_does_not_wait_for_clients_that_do_not_read_or_send(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, run: Run
) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "unread_seconds_at_stop", 0.05)

    async def main() -> None:
        async with node_that_drains_for(100 * PATIENCE_S) as node:
            await fill(node)
            wires = await asked_in_vain(node, WATCH, PEEK, LAST)
            halves = [await Wire.connect(node), await Wire.connect(node)]
            await halves[0].send(HALF)
            await halves[1].send(HALF[: HALF.index(b"\r\n\r\n") + 4])
            await until(lambda: len(node.application._bodies._limits) == len(halves))
            await asyncio.wait_for(node.stop(), PATIENCE_S)
            for half in halves:
                answer = await half.response()
                assert (answer.status, answer.json()["code"]) == (503, "error.resourcelease.draining")
                assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
                assert await half.until_closed() == b""
            for wire in [*wires, *halves]:
                wire.close()

    run(main())
    assert_no_traceback(caplog)


@on_every_loop
def test_a_stop_ends_what_is_read_too_slowly_without_a_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "unread_seconds_at_stop", 100 * PATIENCE_S)

    async def main() -> None:
        async with node_that_drains_for(0.05) as node:
            await fill(node)
            wires = await asked_in_vain(node, WATCH, PEEK)
            await asyncio.wait_for(node.stop(), PATIENCE_S)
            for wire in wires:
                wire.close()

    run(main())
    assert_no_traceback(caplog)
