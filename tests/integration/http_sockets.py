"""HTTP by hand: for what a well-behaved client library never does."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from omnirelay.node.node import Node
from tests.patience import PATIENCE_S


def request_bytes(
    path: str,
    body: Any = None,
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    raw: bytes | None = None,
) -> bytes:
    content = raw if raw is not None else b"" if method in ("GET", "HEAD") else json.dumps(body or {}).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content


def call_bytes(verb: str, body: Any = None, *, namespace: str = "resourcelease", **headers: str) -> bytes:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return request_bytes(f"/v1/{namespace}/{verb}", body, headers=named)


class Response:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, node: Node) -> Wire:
        address = urlsplit(node.url)
        return cls(*await asyncio.open_connection(address.hostname, address.port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Response:
        """Status and headers; the body is still to come."""
        async with asyncio.timeout(PATIENCE_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return Response(int(lines[0].split(" ")[1]), headers, b"")

    async def response(self, *, head_only: bool = False) -> Response:
        response = await self.head()
        async with asyncio.timeout(PATIENCE_S):
            if not head_only and "content-length" in response.headers:
                response.body = await self.reader.readexactly(int(response.headers["content-length"]))
        return response

    async def call(self, verb: str, body: Any = None, *, namespace: str = "resourcelease") -> Response:
        await self.send(call_bytes(verb, body, namespace=namespace))
        return await self.response()

    async def until_closed(self) -> bytes:
        """What still comes before the other side closes."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Hang up without a word, as a process that dies with unread data does."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def until(condition: Callable[[], bool]) -> None:
    """Let the node work until something shows that it offers no way to wait for."""
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(1_000_000):
            if condition():
                return
            await asyncio.sleep(0.001)
