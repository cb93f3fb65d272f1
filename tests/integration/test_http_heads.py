"""Heads of requests that are too large, or never end: refused before they pile up, while everybody else is served."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from omnirelay.transport.http_heads import HEAD_MAX, LINGER_BYTES_MAX, BoundedHttpProtocol
from tests.integration.http_sockets import Wire, call_bytes, request_bytes, until
from tests.integration.nodes import Http, running_node

START = b"POST /v1/resourcelease/stats HTTP/1.1\r\nHost: localhost\r\n"
UPGRADE = b"GET /v1/resourcelease/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
PIECE = 16 * 1024
READ_AT_ONCE_MAX = 256 * 1024
"""Most that asyncio hands on in one piece."""

ENDLESS = {
    "one value": (START + b"X-Big: ", b"a" * PIECE),
    "one name": (START, b"a" * PIECE),
    "many lines": (START, b"x: y\r\n" * (PIECE // 6)),
    "the address": (b"GET /", b"a" * PIECE),
    "an upgrade": (UPGRADE, b"X-Big: " + b"a" * PIECE + b"\r\n"),
}


async def flooded(wire: Wire, piece: bytes, pieces: int = 1_000) -> int:
    """Send until the other side has enough; returns how many bytes it let come."""
    sent = 0
    with suppress(ConnectionError):
        while sent < pieces * len(piece) and not wire.reader.at_eof():
            await wire.send(piece)
            await asyncio.sleep(0)
            sent += len(piece)
    return sent


@pytest.mark.parametrize(("start", "piece"), ENDLESS.values(), ids=ENDLESS)
async def test_a_head_without_an_end_is_refused_before_it_piles_up(start: bytes, piece: bytes) -> None:
    async with running_node() as node, Http(node) as http:
        wire = await Wire.connect(node)
        await wire.send(start)
        for _ in range((READ_AT_ONCE_MAX + 2 * HEAD_MAX) // len(piece)):
            await wire.send(piece)
        response = await wire.response()
        assert response.status == 431
        assert response.json() == {
            "message": f"the head of the request has more than {HEAD_MAX} bytes",
            "status": "INVALID_ARGUMENT",
            "code": "invalid-argument",
            "metadata": {"field": "headers", "limit": str(HEAD_MAX)},
        }
        assert (response.headers["connection"], response.headers["rpc-status"]) == ("close", "InvalidArgument")
        assert await wire.until_closed() == b""
        wire.close()
        assert (await http.call("stats"))["stats"]["pendingCount"] == 0


NOT_HTTP = {
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00", "this is not HTTP/1.1"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "this is not HTTP/1.1"),
    "a length": (START + b"Content-Length: -1\r\n\r\n", "this is not HTTP/1.1"),
    "a chunk": (START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "the body of the request is not HTTP/1.1"),
}


@pytest.mark.parametrize(("sent", "message"), NOT_HTTP.values(), ids=NOT_HTTP)
async def test_what_is_no_http_is_refused_as_everything_else_is(sent: bytes, message: str) -> None:
    async with running_node() as node:
        wire = await Wire.connect(node)
        await wire.send(sent)
        response = await wire.response()
        assert response.status == 400
        assert response.json() == {"message": message, "status": "INVALID_ARGUMENT", "code": "invalid-argument"}
        assert (response.headers["connection"], response.headers["rpc-status"]) == ("close", "InvalidArgument")
        assert await wire.until_closed() == b""
        wire.close()


async def test_what_is_no_http_is_not_refused_in_the_place_of_the_request_before_it() -> None:
    async with running_node() as node:
        wire = await Wire.connect(node)
        await wire.send(call_bytes("lease", {"waitMs": 20_000}))
        await until(lambda: node.dispatcher.active == 1)
        await wire.send(b"\x16\x03\x01\x02\x00\x01\x00")
        assert await wire.until_closed() == b""
        await until(lambda: node.dispatcher.active == 0)
        wire.close()


async def test_a_sender_that_goes_on_after_its_refusal_is_cut_off() -> None:
    async with running_node() as node:
        wire = await Wire.connect(node)
        await wire.send(START + b"X-Big: ")
        # What both ends of a connection keep for each other comes on top.
        sent = await flooded(wire, b"a" * PIECE, pieces=64 * LINGER_BYTES_MAX // PIECE)
        assert sent < 64 * LINGER_BYTES_MAX
        wire.close()


async def test_lines_behind_a_body_are_bounded_too() -> None:
    async with running_node() as node, Http(node) as http:
        for path in ("/healthz", "/v1/resourcelease/stats"):
            method = b"GET" if path == "/healthz" else b"POST"
            wire = await Wire.connect(node)
            await wire.send(method + f" {path} HTTP/1.1\r\nHost: localhost\r\n".encode())
            await wire.send(b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Big: ")
            assert await flooded(wire, b"a" * PIECE) < 1_000 * PIECE
            wire.close()
        assert (await http.call("stats"))["stats"]["pendingCount"] == 0


async def test_a_whole_head_is_measured_exactly_however_it_comes() -> None:
    async with running_node() as node:
        path = "/v1/resourcelease/stats"
        without = len(path) + sum(len(f"{each}\r\n") for each in ("Host: localhost", "Content-Length: 2", "X-Big: "))
        for size, status in ((HEAD_MAX, 200), (HEAD_MAX + 1, 431)):
            request = request_bytes(path, headers={"X-Big": "a" * (size - without)})
            wire = await Wire.connect(node)
            await wire.send(request)
            assert (await wire.response()).status == status
            wire.close()


async def test_large_bodies_and_requests_behind_them_pass() -> None:
    async with running_node() as node:
        body = b"{}" + b" " * (1024 * 1024)
        chunks = b"".join(b"1000\r\n" + body[at : at + 4096] + b"\r\n" for at in range(0, 1024 * 1024, 4096))
        whole = request_bytes("/v1/resourcelease/stats", raw=body)
        chunked = START + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        wire = await Wire.connect(node)
        for request in (whole, chunked, whole + call_bytes("stats"), chunked + whole):
            await wire.send(request)
        for _ in range(6):
            assert (await wire.response()).status == 200
        wire.close()


async def test_a_head_that_does_not_arrive_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "head_seconds_max", 0.05)
    async with running_node() as node:
        for start in (b"P", START, START + b"X: y", UPGRADE):
            wire = await Wire.connect(node)
            await wire.send(start)
            response = await wire.response()
            assert (response.status, response.json()["code"]) == (504, "deadline-exceeded"), start
            assert await wire.until_closed() == b""
            wire.close()


async def test_who_waits_for_an_answer_is_not_cut_off_for_the_request_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "head_seconds_max", 0.01)
    async with running_node() as node:
        wire = await Wire.connect(node)
        await wire.send(call_bytes("lease", {"waitMs": 100}) + START)
        answer = await wire.response()
        assert (answer.status, answer.json()) == (200, {})
        assert (await wire.response()).status == 504
        wire.close()


async def test_a_connection_on_which_nothing_is_ever_said_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnirelay.node.node.KEEP_ALIVE_SECONDS", 0.05)
    async with running_node() as node:
        wire = await Wire.connect(node)
        assert await wire.until_closed() == b""
        wire.close()
