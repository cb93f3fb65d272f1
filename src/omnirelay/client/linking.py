"""Keeping a connection: made when it is first needed, made again when it broke, by HTTP where a stream cannot go."""

from __future__ import annotations

import asyncio
from typing import Literal

from omnirelay.client.connections import Connection, HttpConnection, StreamConnection
from omnirelay.client.failures import NotConnected
from omnirelay.errors import OmniRelayError

Mode = Literal["auto", "stream", "http"]

NO_STREAM = (400, 403, 404, 405, 426, 501, 502)
"""Answers of proxies and of servers without WebSocket to an upgrade."""


class Linking:
    """Hands out the connection of a client. Concurrent callers share one attempt to make it."""

    def __init__(self, url: str, namespace: str, headers: dict[str, str], mode: Mode) -> None:
        self._url = url
        self._namespace = namespace
        self._headers = headers
        self._mode = mode
        self._connection: Connection | None = None
        self._connecting: asyncio.Lock = asyncio.Lock()
        self._closed = False

    async def connected(self, left_ms: float) -> Connection:
        """A live connection. Raises NotConnected (try again later) or what the node refused with."""
        connection = self._connection
        if connection is not None and connection.alive:
            return connection
        if self._closed:
            raise NotConnected("the client is closed")
        async with asyncio.timeout(left_ms / 1000), self._connecting:
            if self._connection is None or not self._connection.alive:
                self._connection = await self._connect()
            return self._connection

    async def _connect(self) -> Connection:
        if self._mode == "http":
            return HttpConnection(self._url, self._namespace, self._headers)
        try:
            return await StreamConnection.open(self._url, self._namespace, self._headers)
        except OmniRelayError as error:
            if self._mode == "auto" and error.details.get("status") in NO_STREAM:
                return HttpConnection(self._url, self._namespace, self._headers)
            raise

    async def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()
