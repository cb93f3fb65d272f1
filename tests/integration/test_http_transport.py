"""The ways to make a call over HTTP: paths, headers, methods, connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from omnirelay.node.node import Node
from omnirelay.rpc.calls import Reply, RequestMeta
from tests.integration.http_sockets import Wire, call_bytes, request_bytes
from tests.integration.nodes import Http, running_node

pytestmark = pytest.mark.asyncio(loop_scope="module")

ITEM = {"payload": {"resourceType": "table", "resourceId": "orders"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node() -> AsyncIterator[Node]:
    async with running_node() as node:

        async def echo(meta: RequestMeta, request: dict[str, Any]) -> Reply:
            body = {
                "service": meta.service,
                "caller": meta.caller,
                "procedure": meta.procedure,
                "shardKey": meta.shard_key,
                "routingKey": meta.routing_key,
                "routingDelegate": meta.routing_delegate,
                "encoding": meta.encoding,
                "transport": meta.transport,
                "tenant": meta.headers.get("tenant"),
            }
            return Reply(repr(body).encode(), headers={"X-Answer": "yes"}, encoding="raw")

        async def note(meta: RequestMeta, request: dict[str, Any]) -> None:
            return None

        node.dispatcher.unary("test::echo", echo, request=dict[str, Any])
        node.dispatcher.unary("test::note", note, request=dict[str, Any], shape="oneway")
        yield node


@pytest_asyncio.fixture(loop_scope="module")
async def http(node: Node) -> AsyncIterator[Http]:
    async with Http(node) as http:
        yield http


@pytest_asyncio.fixture(loop_scope="module")
async def wire(node: Node) -> AsyncIterator[Wire]:
    wire = await Wire.connect(node)
    yield wire
    wire.close()


# -- naming the procedure ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/yarpc/v1", "/any/path?with=query", "/v1/other/verb", "/healthz", "/%F0%9F%98%80"]
)
async def test_any_path_will_do_with_the_procedure_in_a_header(http: Http, path: str) -> None:
    response = await http.client.post(path, json={}, headers={"Rpc-Procedure": "resourcelease::stats"})
    assert response.status_code == 200
    assert "stats" in response.json()


async def test_a_success_bears_the_headers_of_the_reference(http: Http) -> None:
    response = await http.client.post(
        "/",
        json={},
        headers={"Rpc-Procedure": "resourcelease::stats", "Rpc-Service": "catalog", "Rpc-Encoding": "json"},
    )
    headers = response.headers
    assert headers["content-type"] == "application/json"
    assert headers["rpc-encoding"] == "json"
    assert headers["rpc-transport"] == "http"
    assert headers["rpc-protocol"] == "HTTP/1.1"
    assert headers["rpc-service"] == "catalog"
    assert "rpc-status" not in headers
    assert "rpc-error-code" not in headers


async def test_the_service_is_echoed_with_a_refusal_too_and_only_when_it_was_named(http: Http) -> None:
    named = await http.client.post("/v1/no/such", json={}, headers={"Rpc-Service": "catalog"})
    assert (named.status_code, named.headers["rpc-service"]) == (501, "catalog")
    assert "rpc-service" not in (await http.post("stats")).headers


async def test_what_a_caller_says_about_its_call_reaches_the_handler(http: Http) -> None:
    response = await http.client.post(
        "/v1/test/echo",
        content=b"{}",
        headers={
            "Rpc-Caller": "me",
            "Rpc-Service": "svc",
            "Rpc-Shard-Key": "s",
            "Rpc-Routing-Key": "r",
            "Rpc-Routing-Delegate": "d",
            "Content-Type": "text/json",
            "Rpc-Header-Tenant": "a",
        },
    )
    assert eval(response.text) == {
        "service": "svc",
        "caller": "me",
        "procedure": "test::echo",
        "shardKey": "s",
        "routingKey": "r",
        "routingDelegate": "d",
        "encoding": "text/json",
        "transport": "http",
        "tenant": "a",
    }
    assert response.headers["x-answer"] == "yes"
    assert response.headers["rpc-encoding"] == "raw"
    assert response.headers["content-type"] == "application/octet-stream"


async def test_a_header_of_its_own_wins_over_the_prefixed_one(http: Http) -> None:
    headers = {"Rpc-Header-Tenant": "b", "Tenant": "a"}
    response = await http.client.post("/v1/test/echo", content=b"{}", headers=headers)
    assert eval(response.text)["tenant"] == "a"


async def test_a_peer_may_be_named_by_a_yarpc_header(http: Http) -> None:
    await http.call("enqueue", ITEM)
    lease = await http.call("lease", {"waitMs": 0}, Rpc_Header_X_Peer_Id="w1")
    assert lease["ownerPeerId"] == "w1"
    await http.call("complete", {"ownershipToken": lease["ownershipToken"]})


async def test_a_oneway_procedure_is_accepted_without_an_answer(http: Http) -> None:
    response = await http.client.post("/v1/test/note", content=b"{}")
    assert (response.status_code, response.content) == (202, b"")


# -- methods and paths ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_other_methods_are_not_allowed(http: Http, method: str) -> None:
    for path in ("/v1/resourcelease/stats", "/healthz", "/nothing"):
        response = await http.client.request(method, path)
        assert response.status_code == 405
        assert response.headers["allow"] == "GET, HEAD, POST"
        assert response.json()["status"] == "INVALID_ARGUMENT"


async def test_a_get_of_a_verb_says_to_post(http: Http) -> None:
    response = await http.client.get("/v1/resourcelease/stats")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/nothing", "/v1", "/v1/", "/v1/resourcelease", "/v1/resourcelease/", "/v1//stats"])
async def test_a_get_of_nothing_is_not_found(http: Http, path: str) -> None:
    response = await http.client.get(path)
    assert (response.status_code, response.json()["code"]) == (404, "not-found")


async def test_a_get_of_an_unknown_procedure_is_unimplemented(http: Http) -> None:
    assert (await http.client.get("/v1/resourcelease/nothing")).status_code == 501


async def test_a_plain_get_of_a_duplex_procedure_says_what_it_is_served_over(http: Http) -> None:
    response = await http.client.get("/v1/resourcelease/stream")
    assert (response.status_code, response.headers["upgrade"]) == (426, "websocket")


async def test_head_has_the_headers_of_a_page_and_no_body(http: Http, wire: Wire) -> None:
    page = await http.client.get("/openapi.json")
    await wire.send(request_bytes("/openapi.json", method="HEAD"))
    head = await wire.response(head_only=True)
    assert head.status == 200
    assert head.headers["content-length"] == str(len(page.content))
    assert (await wire.call("stats")).status == 200


async def test_head_of_a_stream_does_not_follow_it(wire: Wire) -> None:
    await wire.send(request_bytes("/v1/resourcelease/watch", method="HEAD"))
    head = await wire.response(head_only=True)
    assert (head.status, head.headers["allow"]) == (405, "GET")
    assert (await wire.call("stats")).status == 200


async def test_a_connection_that_wants_to_be_something_else_is_answered_all_the_same(wire: Wire) -> None:
    await wire.send(request_bytes("/healthz", method="GET", headers={"Connection": "Upgrade", "Upgrade": "h2c"}))
    assert (await wire.response()).status == 200


# -- connections ---------------------------------------------------------------------------------


async def test_a_connection_serves_many_calls_and_refusals(wire: Wire) -> None:
    for number in range(50):
        response = await wire.call("stats" if number % 2 else "nothing")
        assert response.status == (200 if number % 2 else 501)


async def test_calls_sent_ahead_are_answered_in_order(wire: Wire) -> None:
    requests = [call_bytes("enqueue", ITEM) if number % 2 else call_bytes("nothing") for number in range(40)]
    await wire.send(b"".join(requests))
    statuses = [(await wire.response()).status for _ in requests]
    assert statuses == [200 if number % 2 else 501 for number in range(40)]
    ids = [item["sequenceId"] for item in (await wire.call("peek", {"maxItems": 1000})).json()["items"]]
    assert len(ids) == 20
    assert ids == sorted(ids)
    await wire.call("drain")


async def test_a_call_behind_a_long_poll_on_the_same_connection_waits_for_it(http: Http, wire: Wire) -> None:
    await wire.send(call_bytes("lease", {"waitMs": 20_000}) + call_bytes("stats"))
    await http.call("enqueue", ITEM)
    lease = (await wire.response()).json()
    assert lease["attempt"] == 1
    assert (await wire.response()).json()["stats"]["activeLeaseCount"] == 1
    await http.call("complete", {"ownershipToken": lease["ownershipToken"]})


async def test_a_client_of_http_1_0_is_answered_and_let_go(wire: Wire) -> None:
    await wire.send(b"POST /v1/resourcelease/stats HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
    response = await wire.response()
    assert response.status == 200
    assert response.headers["connection"] == "close"
    assert response.headers["rpc-protocol"] == "HTTP/1.0"
    assert await wire.until_closed() == b""


async def test_connection_close_is_kept(wire: Wire) -> None:
    await wire.send(call_bytes("stats", Connection="close"))
    assert (await wire.response()).status == 200
    assert await wire.until_closed() == b""


async def test_a_body_in_chunks_is_read(wire: Wire) -> None:
    head = b"POST /v1/resourcelease/peek HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    await wire.send(head)
    for part in (b'{"sta', b'te": "re', b'ady"}'):
        await wire.send(b"%x\r\n" % len(part) + part + b"\r\n")
    await wire.send(b"0\r\n\r\n")
    assert (await wire.response()).json() == {"items": []}


async def test_a_sender_that_waits_for_a_go_ahead_gets_it(wire: Wire) -> None:
    head = (
        b"POST /v1/resourcelease/stats HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    )
    await wire.send(head)
    assert (await wire.head()).status == 100
    await wire.send(b"{}")
    assert (await wire.response()).status == 200


async def test_a_sender_that_asks_first_is_told_before_it_sends_too_much(wire: Wire) -> None:
    head = (
        b"POST /v1/resourcelease/stats HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"
    )
    await wire.send(head)
    assert (await wire.head()).status == 413


async def test_many_calls_at_once_are_all_answered(http: Http) -> None:
    answers = await asyncio.gather(*(http.call("enqueue", ITEM) for _ in range(60)))
    assert len({answer["sequenceId"] for answer in answers}) == 60
    drained = await http.call("drain")
    assert len(drained["items"]) == 60
