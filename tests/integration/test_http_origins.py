"""What a browser sends on behalf of another site is refused: a node without authentication serves its user only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from omnirelay.node.node import Node
from tests.integration.http_sockets import Wire
from tests.integration.nodes import Http, running_node, settings_for

WATCH = "/v1/resourcelease/watch?from=1&untilCaughtUp=true"
PAGES = (WATCH, "/metrics", "/healthz", "/readyz", "/docs", "/openapi.json", "/omnirelay/introspect", "/nowhere")


@asynccontextmanager
async def node_at(host: str, *allowed_hosts: str) -> AsyncIterator[Node]:
    settings = settings_for(None)
    section = msgspec.structs.replace(settings.node, host=host, allowed_hosts=allowed_hosts)
    node = Node(msgspec.structs.replace(settings, node=section))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def upgraded(node: Node, host: str) -> int:
    """The status with which the node answers somebody who wants a stream."""
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    lines = ["GET /v1/resourcelease/stream HTTP/1.1", f"Host: {host}", "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="]
    lines += [f"{name}: {value}" for name, value in upgrade.items()]
    wire = await Wire.connect(node)
    await wire.send("\r\n".join(lines).encode() + b"\r\n\r\n")
    status = (await wire.head()).status
    wire.close()
    return status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec_Fetch_Site": "none"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example", "Host": "evil.example"}, 403),
        ({"Sec_Fetch_Site": "same-origin", "Host": "evil.example:7070"}, 403),
        ({"Host": "localhost:7070"}, 200),
    ],
)
async def test_pages_of_other_sites_and_of_made_up_names_are_refused(headers: dict[str, str], status: int) -> None:
    async with running_node() as node, Http(node) as http:
        response = await http.post("stats", **headers)
        assert response.status_code == status, response.text


async def test_the_page_of_the_node_itself_may_call_it() -> None:
    async with running_node() as node, Http(node) as http:
        assert (await http.post("stats", Origin=node.url, Sec_Fetch_Site="same-origin")).status_code == 200


# -- a name that was pointed at this machine -------------------------------------------------------


async def test_a_page_whose_name_was_pointed_at_the_node_gets_nothing() -> None:
    """A browser sends neither `Origin` nor `Sec-Fetch-Site` with a GET of what it takes for the page's own site."""
    async with running_node() as node, Http(node) as http:
        for host in ("evil.example", f"evil.example:{node.port}", "127.0.0.1.evil.example", "localhost.evil", "[x]"):
            for path in PAGES:
                response = await http.client.get(path, headers={"Host": host, "Referer": f"http://{host}/"})
                assert (response.status_code, response.json()["code"]) == (403, "permission-denied"), (host, path)
            assert (await http.post("stats", Host=host)).status_code == 403
            assert await upgraded(node, host) == 403
        refusal = await http.client.get(WATCH, headers={"Host": "relay.internal"})
        assert "'relay.internal'" in refusal.json()["message"]
        assert "allowed_hosts" in refusal.json()["message"]


async def test_who_asks_by_address_is_served() -> None:
    """Probes and scrapers send what they connect to."""
    async with running_node() as node, Http(node) as http:
        port = node.port
        for host in ("127.0.0.1", f"127.0.0.1:{port}", f"LocalHost:{port}", "localhost.", f"[::1]:{port}", "10.1.2.3"):
            for path in PAGES[:-1]:
                response = await http.client.get(path, headers={"Host": host})
                assert response.status_code == 200, (host, path, response.text)
        wire = await Wire.connect(node)
        await wire.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert (await wire.response()).status == 200
        wire.close()


async def test_more_names_than_are_remembered_are_still_told_apart() -> None:
    async with running_node() as node, Http(node) as http:
        for number in range(150):
            assert (await http.post("stats", Host=f"127.0.0.{number}:7070")).status_code == 200
            assert (await http.post("stats", Host=f"n{number}.example:7070")).status_code == 403


async def test_the_setting_adds_names() -> None:
    async with node_at("127.0.0.1", "Relay.Example", "other") as node, Http(node) as http:
        for host, status in (("relay.example:443", 200), ("OTHER", 200), ("localhost", 200), ("evil.example", 403)):
            assert (await http.client.get(WATCH, headers={"Host": host})).status_code == status, host
        page = {"Host": "relay.example", "Sec_Fetch_Site": "same-origin"}
        assert (await http.post("stats", Origin="http://relay.example", **page)).status_code == 200
        assert (await http.post("stats", Origin="http://other", **page)).status_code == 403
        assert await upgraded(node, "other") == 101


@pytest.mark.parametrize(("allowed", "status"), [((), 200), (("relay.example",), 403)])
async def test_a_node_for_other_machines_is_asked_by_any_name_unless_it_was_given_some(
    allowed: tuple[str, ...], status: int
) -> None:
    async with node_at("0.0.0.0", *allowed) as node, Http(node) as http:
        assert (await http.client.get(WATCH, headers={"Host": "node.internal:7070"})).status_code == status
        assert (await http.client.get(WATCH, headers={"Host": "relay.example:7070"})).status_code == 200
        assert (await http.client.get(WATCH)).status_code == 200
        page = {"Host": "node.internal:7070", "Sec_Fetch_Site": "same-origin"}
        assert (await http.post("stats", **page)).status_code == 403
