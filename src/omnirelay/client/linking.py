"""Keeping a connection: made when it is first needed, made again when it broke, by HTTP where a stream cannot go."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, get_args

from omnirelay.client.arguments import as_choice
from omnirelay.client.asking import Asking
from omnirelay.client.connections import CONNECT_SECONDS, Connection, HttpConnection, checked_namespace, checked_url
from omnirelay.client.failures import ConnectionLost, NotConnected
from omnirelay.client.stream_connection import Pushed, StreamConnection
from omnirelay.errors import FailedPrecondition, OmniRelayError
from omnirelay.wire.answers import StatsAnswer

Mode = Literal["auto", "stream", "http"]

NO_STREAM = (400, 403, 404, 405, 426, 501)
"""Answers of proxies and of servers without WebSocket to an upgrade."""
BAD_GATEWAY = 502
STREAM_AGAIN_SECONDS = 30.0
"""How long plain HTTP is used before a stream is tried again: what was in its way may have been a restart."""


async def open_stream(
    url: str,
    namespace: str,
    headers: dict[str, str],
    *,
    pushed: Pushed | None = None,
    on_gone: Callable[[], None] = lambda: None,
) -> StreamConnection | None:
    """A stream, or None where only calls get through. Raises NotConnected, or the error the node refused with."""
    answered = False
    while True:
        try:
            return await StreamConnection.open(url, namespace, headers, pushed=pushed, on_gone=on_gone)
        except OmniRelayError as error:
            status = error.details.get("status")
            if status in NO_STREAM or (status == BAD_GATEWAY and answered):
                return None
            # Said by a proxy that cannot upgrade, and by one whose node is away for the moment: only a call tells.
            answered = status == BAD_GATEWAY and await _is_answered(url, namespace, headers)
            if not answered:
                raise


async def _is_answered(url: str, namespace: str, headers: dict[str, str]) -> bool:
    """Whether the node answers a call."""
    http = HttpConnection(url, namespace, headers)
    try:
        await http.call("stats", Asking({}), CONNECT_SECONDS * 1000, StatsAnswer)
    except (ConnectionLost, NotConnected, TimeoutError):
        return False
    except OmniRelayError:
        return True
    finally:
        await http.aclose()
    return True


class ClientClosed(FailedPrecondition):
    """The client was closed. Trying again is of no use."""

    default_code = "error.client.closed"


class ClientMisplaced(FailedPrecondition):
    """The client belongs to another process, or to another event loop. Make one for each."""

    default_code = "error.client.misplaced"


class Linking:
    """Hands out the connection of a client. Concurrent callers share one attempt to make it, and what came of it."""

    def __init__(self, url: str, namespace: str, headers: dict[str, str], mode: Mode) -> None:
        self._url = checked_url(url)
        as_choice("mode", mode, get_args(Mode))
        self._namespace = checked_namespace(namespace)
        self._headers = headers
        self._mode = mode
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._refusal: OmniRelayError | None = None
        """Why the last attempt to connect failed: the same error for all who waited for it."""
        self._http: HttpConnection | None = None
        """Kept when a stream has taken its place: calls may be under way on it, and it may be needed again."""
        self._stream_at = math.inf
        """When to try a stream again, while it is HTTP that is used."""
        self._upgrading: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def live(self) -> Connection | None:
        """The connection there is, when it can be used as it is."""
        connection = self._connection
        if connection is None or not connection.alive:
            return None
        if connection is self._http and asyncio.get_running_loop().time() >= self._stream_at:
            self._stream_at = math.inf
            self._upgrading = asyncio.get_running_loop().create_task(self._upgrade())
        return connection

    @property
    def packs(self) -> bool:
        """Whether the connection carries MessagePack, as far as that is known."""
        return self._mode != "http" if self._connection is None else self._connection.packs

    def check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client is closed")

    async def connected(self, left_ms: float) -> Connection:
        """A live connection. Raises NotConnected (try again later) or what the node refused with."""
        self.check_open()
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

    def asked_once_for_all(self, error: OmniRelayError) -> bool:
        """Whether nothing was sent for the caller who got this error, but what was sent for all."""
        return isinstance(error, NotConnected) or error is self._refusal

    async def _connect(self) -> Connection:
        try:
            return await self._made()
        except OmniRelayError as error:
            self._refusal = error
            raise

    async def _made(self) -> Connection:
        if self._mode == "stream":
            return await StreamConnection.open(self._url, self._namespace, self._headers)
        if self._mode == "auto":
            stream = await open_stream(self._url, self._namespace, self._headers)
            if stream is not None:
                return stream
            self._try_stream_later()
        if self._http is None:
            self._http = HttpConnection(self._url, self._namespace, self._headers)
        return self._http

    def _try_stream_later(self) -> None:
        self._stream_at = asyncio.get_running_loop().time() + STREAM_AGAIN_SECONDS

    async def _upgrade(self) -> None:
        """Put a stream in the place of HTTP, if one gets through by now."""
        with suppress(OmniRelayError):
            self._connection = await StreamConnection.open(self._url, self._namespace, self._headers)
            return
        self._try_stream_later()

    async def close(self) -> None:
        self._closed = True
        for task in (self._connecting, self._upgrading):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
                await asyncio.sleep(0)  # One that was done before has its callback to come.
        connection, self._connection = self._connection, None
        for each in (connection, self._http):
            if each is not None:
                await each.aclose()
