"""Calls over HTTP: an ASGI application in front of a dispatcher.

    POST any path, `Rpc-Procedure: ns::verb`      a unary call
    POST /v1/{namespace}/{verb}                   the same, without the header
    GET  any path, `Accept: text/event-stream`    a server stream, as server-sent events
    GET  /v1/{namespace}/{verb}?name=value        the same; the query is the request
    GET  a page                                   whatever the host of the application put there

Errors bear the status, the code and the message in headers and in a JSON body, and never a stack trace.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from omnirelay.errors import (
    Internal,
    InvalidArgument,
    NotFound,
    OmniRelayError,
    Unavailable,
)
from omnirelay.rpc.calls import Call, Reply
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.rpc.statuses import http_status
from omnirelay.transport.http_bodies import Bodies, BodyUnfinished, Receive, SenderGone, SenderTooSlow
from omnirelay.transport.http_connections import connection_of
from omnirelay.transport.http_headers import error_body, error_headers, read_headers, request_meta
from omnirelay.transport.origins import Origins
from omnirelay.transport.sse import event_stream

_log = logging.getLogger("omnirelay.transport")

Scope: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_MAX = 16 * 1024 * 1024
BODIES_MAX = 256 * 1024 * 1024
BODY_SECONDS_MAX = 30.0
WATCH_AFTER_SECONDS = 0.02
"""A call that may wait has this long before its connection is watched."""

_ENCODINGS = ("json", "application/json", "text/json")
_JSON = (b"content-type", b"application/json")
_MEDIA_TYPES = {"json": b"application/json", "raw": b"application/octet-stream"}
_DIGITS_MAX = 19
"""Of a number that fits 64 bits."""


@dataclass(frozen=True, slots=True)
class Page:
    """What a GET of a fixed path gives: status, content type, body."""

    render: Callable[[], Awaitable[tuple[int, str, bytes]]]
    summary: str = ""


@dataclass(frozen=True, slots=True)
class QueriedPage:
    """The same of what the query asks for. What `render` raises is answered as it is for calls."""

    render: Callable[[Mapping[str, str]], Awaitable[tuple[int, str, bytes]]]
    names: frozenset[str]
    """Of what may be asked for; another name is refused, as is one that comes twice."""
    summary: str = ""


class HttpInbound:
    """An ASGI application. Mount it anywhere, or hand it to a server as it is.

    It bounds bodies. The heads of requests are the server's to bound: a node has `http_heads` for that.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        pages: Mapping[str, Page | QueriedPage] | None = None,
        origins: Origins | None = None,
        body_max: int = BODY_MAX,
        bodies_max: int = BODIES_MAX,
        body_seconds_max: float = BODY_SECONDS_MAX,
        on_startup: Callable[[], Awaitable[None]] | None = None,
        on_shutdown: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`origins` refuses what a browser sends on behalf of another site: a server without authentication must not be
        at the service of every page its user opens.
        """
        self._dispatcher = dispatcher
        self._pages = dict(pages or {})
        self._origins = origins
        self._bodies = Bodies(body_max=body_max, total_max=bodies_max, seconds_max=body_seconds_max)
        self._on_startup = on_startup
        self._on_shutdown = on_shutdown

    def drain(self) -> None:
        """Refuse what has not arrived as a whole. Calls that come later are refused by the dispatcher that drains."""
        self._bodies.refuse(_draining())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            if self._on_startup is not None:
                await self._on_startup()
        except Exception as error:
            _log.exception("startup_failed")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._on_shutdown is not None:
            await self._on_shutdown()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope, receive, send)
        try:
            if self._origins is not None:
                self._origins.check(exchange.headers)
            if scope["method"] == "POST":
                await self._post(exchange)
            elif scope["method"] in ("GET", "HEAD"):
                await self._get(exchange)
            else:
                await exchange.refuse(
                    InvalidArgument(f"use POST for calls and GET for pages, not {scope['method'][:16]}"),
                    status=405,
                    extra={"allow": "GET, HEAD, POST"},
                )
        except SenderTooSlow as error:
            # What may still come of its body must not keep the connection open.
            await exchange.refuse(error, extra={"connection": "close"})
        except BodyUnfinished as error:
            await exchange.refuse(error.refusal, extra={"connection": "close"})
        except OmniRelayError as error:
            await exchange.refuse(error)
        except SenderGone:
            pass
        except Exception:
            if exchange.begun:
                raise
            _log.exception("request_failed", extra={"path": exchange.path[:256]})
            await exchange.refuse(Internal("the server failed on this request; its log has the details"))

    # -- unary ---------------------------------------------------------------------------------

    async def _post(self, exchange: _Exchange) -> None:
        body = await self._bodies.read(exchange.receive, exchange.headers)
        call = self._call(exchange, body)
        coding = exchange.headers.get("content-encoding", "identity")
        if coding.lower() != "identity":
            raise InvalidArgument(
                f"Content-Encoding {coding[:64]!r} is not served here, send the body as it is", field="Content-Encoding"
            )
        encoding = exchange.headers.get("rpc-encoding")
        if encoding is not None and encoding.lower().partition(";")[0].strip() not in _ENCODINGS:
            raise InvalidArgument(f"Rpc-Encoding {encoding[:64]!r} is not served here, send json", field="Rpc-Encoding")
        procedure = self._dispatcher.find(call.meta.procedure)
        if procedure.may_wait:
            reply = await exchange.watching(self._dispatcher.call(call))
        else:
            reply = await self._dispatcher.call(call)
        if reply is not None and procedure.shape == "oneway":
            await exchange.reply(Reply(headers=reply.headers), status=202)
        elif reply is not None:
            await exchange.reply(reply, status=200)

    def _call(self, exchange: _Exchange, body: bytes) -> Call:
        if self._dispatcher.draining:
            raise _draining()
        procedure = exchange.headers.get("rpc-procedure") or exchange.named_by_path()
        if procedure is None:
            raise InvalidArgument(
                "no procedure is named: POST to /v1/{namespace}/{verb}, or send the header Rpc-Procedure",
                field="Rpc-Procedure",
            )
        now = asyncio.get_running_loop().time()
        return Call(request_meta(exchange.headers, procedure, self._dispatcher.service, now), body)

    # -- pages and streams ---------------------------------------------------------------------

    async def _get(self, exchange: _Exchange) -> None:
        page = self._pages.get(exchange.path)
        if page is not None:
            if isinstance(page, QueriedPage):
                status, content_type, body = await page.render(exchange.query_of(page.names))
            else:
                status, content_type, body = await page.render()
            await exchange.write(status, [(b"content-type", content_type.encode())], body)
            return
        named = exchange.headers.get("rpc-procedure") or exchange.named_by_path()
        if named is None:
            raise NotFound(
                f"there is no page {exchange.path[:256]}; see /docs", code="not-found", path=exchange.path[:256]
            )
        procedure = self._dispatcher.find(named)
        if procedure.shape == "duplex":
            await exchange.refuse(
                InvalidArgument(f"{procedure.name} is served over a WebSocket"),
                status=426,
                extra={"upgrade": "websocket"},
            )
            return
        streams = procedure.shape == "server-stream"
        if not streams or exchange.scope["method"] == "HEAD":
            await exchange.refuse(
                InvalidArgument(f"{procedure.name} is asked for with {'GET' if streams else 'POST'}"),
                status=405,
                extra={"allow": "GET" if streams else "POST"},
            )
            return
        accept = exchange.headers.get("accept", "*/*")
        if "text/event-stream" not in accept and "*/*" not in accept:
            await exchange.refuse(
                InvalidArgument(f"{procedure.name} answers as text/event-stream only", field="Accept"), status=406
            )
            return
        call = self._call(exchange, exchange.query_as_request())
        await event_stream(
            self._dispatcher, call, exchange.receive, exchange.send, exchange.refuse, exchange.common_headers()
        )


def _draining() -> Unavailable:
    return Unavailable("the node is stopping", code="error.resourcelease.draining", retry_after_ms=1_000)


class _Exchange:
    """One request and its response."""

    __slots__ = ("_protocol", "_send", "_watcher", "begun", "headers", "path", "receive", "scope")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self._watcher: asyncio.Task[None] | None = None
        self.receive = receive
        self._send = send
        self.headers = read_headers(scope["headers"])
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        self.path = path[len(root) :] if root and path.startswith(root) else path
        self._protocol = b"HTTP/" + str(scope.get("http_version", "1.1")).encode()
        self.begun = False
        """Something of the response is out already."""

    def named_by_path(self) -> str | None:
        """The procedure that /v1/{namespace}/{verb} stands for."""
        parts = self.path.split("/")
        if len(parts) == 4 and parts[1] == "v1" and parts[2] and parts[3]:
            return f"{parts[2]}::{parts[3]}"
        return None

    def query(self) -> list[tuple[str, str]]:
        return parse_qsl(self.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)

    def query_of(self, names: frozenset[str]) -> dict[str, str]:
        """What a page is asked for. Raises InvalidArgument."""
        found: dict[str, str] = {}
        for name, value in self.query():
            if name not in names:
                raise InvalidArgument(
                    f"{self.path} takes {' and '.join(sorted(names))}, not {name[:64]!r}", field=name[:64]
                )
            if name in found:
                raise InvalidArgument(f"{name} was given twice", field=name)
            found[name] = value
        return found

    def query_as_request(self) -> bytes:
        """The query as the JSON a stream is asked with; a reader that comes back says after which message."""
        query = dict(self.query())
        request: dict[str, Any] = {name: value for name, value in query.items() if value != ""}
        for name in [name for name in request if name.lower() == "types"]:
            request[name] = request[name].split(",")
        last = self.headers.get("last-event-id")
        if last is not None and last.isascii() and last.isdigit():
            request = {name: value for name, value in request.items() if name.lower() != "from"}
            # A longer one is no sequence of ours; it is refused where every other number is.
            request["from"] = int(last) + 1 if len(last) <= _DIGITS_MAX else last
        return msgspec.json.encode(request)

    async def watching(self, work: Awaitable[Reply]) -> Reply | None:
        """Do the work while the caller is there; None when it hung up. Then the work is cancelled.

        Most calls are answered at once. Only one that takes a while has its connection watched, which costs a task.
        """
        task = asyncio.current_task()
        assert task is not None
        gone = False

        def hung_up(watcher: asyncio.Task[None]) -> None:
            nonlocal gone
            if not watcher.cancelled():
                gone = True
                if not done:
                    task.cancel()

        def watch() -> None:
            self._watcher = asyncio.ensure_future(self._hung_up())
            self._watcher.add_done_callback(hung_up)

        done = False
        timer = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, watch)
        try:
            reply = await work
            done = True
            timer.cancel()
            if reply.undelivered is not None and await self._is_gone():
                reply.undelivered()
            return reply
        except asyncio.CancelledError:
            if not gone or task.uncancel() > 0:
                raise
            return None
        finally:
            done = True
            timer.cancel()
            if self._watcher is not None:
                self._watcher.cancel()

    async def _is_gone(self) -> bool:
        """Whether the caller has hung up by now: what is answered with leases must reach somebody."""
        connection = connection_of(self.scope)
        if connection is not None and connection.hung_up:
            return True
        if self._watcher is None:
            self._watcher = asyncio.ensure_future(self._hung_up())
        await asyncio.sleep(0)
        return self._watcher.done()

    async def _hung_up(self) -> None:
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return

    async def reply(self, reply: Reply, *, status: int) -> None:
        headers = [
            (b"content-type", _MEDIA_TYPES.get(reply.encoding) or reply.encoding.encode()),
            (b"rpc-encoding", reply.encoding.encode()),
        ]
        for name, value in reply.headers.items():
            headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))
        await self.write(status, headers, reply.body, undelivered=reply.undelivered)

    async def refuse(
        self, error: OmniRelayError, *, status: int | None = None, extra: Mapping[str, str] | None = None
    ) -> None:
        headers = [_JSON]
        for name, value in {**error_headers(error), **(extra or {})}.items():
            headers.append((name.encode("latin-1"), value.encode("latin-1")))
        # One error may refuse many calls, as that of a shard that was given up; each would leave its frames in there.
        error.__traceback__ = None
        await self.write(status or http_status(error), headers, error_body(error))

    async def write(
        self,
        status: int,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        *,
        undelivered: Callable[[], None] | None = None,
    ) -> None:
        """`undelivered` is called when the connection ended in the middle of a body too large to go out at once."""
        headers += self.common_headers()
        headers.append((b"content-length", str(len(body)).encode()))
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        if undelivered is not None and (connection := connection_of(self.scope)) is not None:
            await self.send({"type": "http.response.body", "body": body, "more_body": True})
            if not await connection.went_out():
                undelivered()
            body = b""
        await self.send({"type": "http.response.body", "body": b"" if self.scope["method"] == "HEAD" else body})

    def common_headers(self) -> list[tuple[bytes, bytes]]:
        """What every response has."""
        headers = [(b"rpc-transport", b"http"), (b"rpc-protocol", self._protocol)]
        service = self.headers.get("rpc-service")
        if service is not None:
            headers.append((b"rpc-service", service.encode("latin-1")))
        return headers

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.begun = True
        await self._send(message)
