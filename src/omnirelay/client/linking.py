"""Keeping a connection: made when it is first needed, made again when it broke, by HTTP where a stream cannot go."""

from __future__ import annotations

import asyncio
from typing import Literal

from omnirelay.client.connections import Connection, HttpConnection, checked_url
from omnirelay.client.stream_connection import StreamConnection
from omnirelay.errors import FailedPrecondition, OmniRelayError

Mode = Literal["auto", "stream", "http"]

NO_STREAM = (400, 403, 404, 405, 426, 501, 502)
"""Answers of proxies and of servers without WebSocket to an upgrade."""


class ClientClosed(FailedPrecondition):
    """The client was closed. Trying again is of no use."""

    default_code = "error.client.closed"


class Linking:
    """Hands out the connection of a client. Concurrent callers share one attempt to make it, and what came of it."""

    def __init__(self, url: str, namespace: str, headers: dict[str, str], mode: Mode) -> None:
        self._url = checked_url(url)
        self._namespace = namespace
        self._headers = headers
        self._mode = mode
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._closed = False

    @property
    def live(self) -> Connection | None:
        """The connection there is, when it can be used as it is."""
        connection = self._connection
        return connection if connection is not None and connection.alive else None

    async def connected(self, left_ms: float) -> Connection:
        """A live connection. Raises NotConnected (try again later) or what the node refused with."""
        if self._closed:
            raise ClientClosed("the client is closed")
        if self.live is not None:
            return self.live
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._connected)
        connecting = self._connecting
        async with asyncio.timeout(left_ms / 1000):
            try:
                return await asyncio.shield(connecting)
            except asyncio.CancelledError:
                if connecting.cancelled():
                    raise ClientClosed("the client is closed") from None
                raise

    def _connected(self, done: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not done.cancelled() and done.exception() is None:
            self._connection = done.result()

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
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait((self._connecting,))
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()
