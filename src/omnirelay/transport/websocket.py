"""WebSocket connections, both ends, on the protocol engine of the `websockets` library; see `websocket_frames` for what
goes past it.

A link is an asyncio protocol without tasks of its own: what comes in is handed on at once, what goes out is written at
once. A peer that is silent for too long or does not read is dropped, so that nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from omnirelay.errors import InvalidArgument, OmniRelayError, Unavailable, Unimplemented
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.rpc.sessions import NORMAL, RESTARTING, Session
from omnirelay.rpc.statuses import http_status
from omnirelay.transport.http_headers import error_body, error_headers, request_meta
from omnirelay.transport.origins import SAME_ORIGIN, Origins
from omnirelay.transport.websocket_frames import FrameReader, MaskedFrames, plain_frame

_log = logging.getLogger("omnirelay.transport")

MESSAGE_MAX = 16 * 1024 * 1024
UNREAD_MAX = 64 * 1024 * 1024
"""Most bytes that wait for a peer to read them."""
CONGESTED_ABOVE = 1024 * 1024
PING_SECONDS = 20.0
UNREAD_SECONDS_MAX = 30.0
"""How long a peer may leave everything unread, or say nothing at all although it was asked."""
SLOWEST_BYTES_A_SECOND = 128 * 1024
CLOSE_SECONDS_MAX = 2.0
HEAD_END = b"\r\n\r\n"


class WebSocketLink(asyncio.Protocol):
    """What both ends have in common: messages in, messages out, pings, and the end."""

    ping_seconds = PING_SECONDS
    silence_seconds_max = PING_SECONDS + UNREAD_SECONDS_MAX
    """A peer that has said nothing for so long, although it was asked, is not there any more."""

    def __init__(self, engine: ServerProtocol | ClientProtocol, *, size_max: int | None) -> None:
        self._engine = engine
        self._frames = FrameReader(masked=isinstance(engine, ServerProtocol), size_max=size_max)
        self._frame_of = plain_frame if isinstance(engine, ServerProtocol) else MaskedFrames().frame
        self._shaking_hands = True
        self._head_tail = b""
        """The last bytes of a head that has not ended yet."""
        self._over = False
        """The peer has closed, or has broken the protocol: what follows is the engine's to judge."""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._congested_since: float | None = None
        self._written = self._taken = 0
        """How many bytes were to be sent, and how many of them were taken when it was last looked."""
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._gone = False
        self._is_open = False
        """Messages can be sent. Noted whenever the engine may have changed its mind: it is asked several times a
        call, and the engine answers slowly.
        """

    # -- what a subclass does ------------------------------------------------------------------

    def on_handshake(self, event: Request | Response) -> None:
        raise NotImplementedError

    def on_message(self, data: bytes) -> None:
        raise NotImplementedError

    def on_read(self) -> None:
        """Every message that has come so far was handed on."""

    def on_pong(self, data: bytes) -> None:
        """The peer has taken in everything that was sent before this ping."""

    def on_resumed(self) -> None:
        """The peer has caught up."""

    def on_gone(self) -> None:
        """The connection is over, whoever ended it."""

    def unanswered_bytes(self) -> int:
        """What the peer has to take before it can say something; a slow link may need long for that."""
        return 0

    # -- the outlet ----------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        return self._congested_since is not None

    def send(self, data: bytes, *, binary: bool = False) -> None:
        if not self._is_open:
            return
        assert self._transport is not None
        if self._transport.get_write_buffer_size() > UNREAD_MAX:
            # Looked at before and not after: one answer may be as large as the peer asked for.
            self._drop("it leaves too much unread")
            return
        frame = self._frame_of(data, binary)
        self._written += len(frame)
        self._transport.write(frame)

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        if self._is_open:
            self._engine.send_close(code, reason[:100])
            self._write()
            # Whoever does not answer the close is not waited for.
            self._loop.call_later(CLOSE_SECONDS_MAX, self._abort)

    def ping(self, data: bytes) -> None:
        """Ask for a sign of life; `on_pong` gets the data back."""
        if self._is_open:
            self._engine.send_ping(data)
            self._write()

    # -- asyncio -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=CONGESTED_ABOVE)
        self._timer = self._loop.call_later(self.ping_seconds, self._look_after)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        if self._shaking_hands:
            data = self._take_head(data)
            if not data:
                return
        try:
            for part, is_message in self._frames.take(data):
                if self._over or not is_message:
                    self._take_unusual(part)
                else:
                    self.on_message(part)
        finally:
            self.on_read()

    def _take_head(self, data: bytes) -> bytes:
        """Give the engine the head of the handshake; returns what came behind it."""
        seen = self._head_tail + data
        end = seen.find(HEAD_END)
        if end < 0:
            self._head_tail = seen[-len(HEAD_END) + 1 :]
            self._take_unusual(data)
            return b""
        cut = end + len(HEAD_END) - len(self._head_tail)
        self._take_unusual(data[:cut])
        if self._engine.state is State.OPEN:
            self._shaking_hands = False
            return data[cut:]
        if cut < len(data):
            self._take_unusual(data[cut:])  # The body of a refusal.
        return b""

    def _take_unusual(self, data: bytes) -> None:
        engine = self._engine
        engine.receive_data(data)
        self._note_state()
        for event in engine.events_received():
            if type(event) is Frame:
                self._on_frame(event)
            else:
                self.on_handshake(cast(Request | Response, event))
        self._over = engine.close_rcvd is not None or engine.parser_exc is not None
        self._write()

    def eof_received(self) -> None:
        self._engine.receive_eof()
        self._write()

    def pause_writing(self) -> None:
        self._congested_since = self._loop.time()

    def resume_writing(self) -> None:
        self._congested_since = None
        self.on_resumed()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_open = False
        if not self._gone:
            self._gone = True
            self.on_gone()

    # -- inside --------------------------------------------------------------------------------

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            self._parts.append(bytes(frame.data))
            if frame.fin:
                message, self._parts = b"".join(self._parts), []
                self.on_message(message)
        elif frame.opcode is Opcode.PONG:
            self.on_pong(bytes(frame.data))

    def _write(self) -> None:
        """Send what the engine has to say. Called behind everything that it is told."""
        transport = self._transport
        assert transport is not None
        self._note_state()
        if transport.is_closing():
            return
        for data in self._engine.data_to_send():
            if transport.get_write_buffer_size() > UNREAD_MAX:
                # Whoever only asks for signs of life may leave no more unread than others.
                self._drop("it leaves too much unread")
                return
            if data:
                transport.write(data)
            else:
                transport.close()
                return
        if self._engine.close_expected():
            self._loop.call_later(CLOSE_SECONDS_MAX, self._abort)

    def _note_state(self) -> None:
        self._is_open = self._engine.state is State.OPEN and not self._gone

    def _look_after(self) -> None:
        """Ask for a sign of life, and give up on a peer that has shown none for long."""
        now = self._loop.time()
        self._count_taken(now)
        if self._congested_since is not None and now - self._congested_since > UNREAD_SECONDS_MAX:
            self._drop("it does not read")
            return
        if now - self._heard_at > self.silence_seconds_max + self.unanswered_bytes() / SLOWEST_BYTES_A_SECOND:
            self._drop("it is silent")
            return
        if now - self._heard_at > self.ping_seconds / 2:
            self.ping(b"")
        self._timer = self._loop.call_later(self.ping_seconds, self._look_after)

    def _count_taken(self, now: float) -> None:
        """A peer that takes what is sent is there, however slowly, although a ping waits its turn behind the rest."""
        assert self._transport is not None
        unread = self._transport.get_write_buffer_size()
        taken = self._written - unread
        # With nothing left to take it may be this machine alone that has taken it.
        if unread and taken > self._taken:
            self._heard_at = now
            self._congested_since = None if self._congested_since is None else now
        self._taken = taken

    def _drop(self, why: str) -> None:
        _log.warning("peer_dropped", extra={"reason": why})
        self._abort()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class WebSocketInbound(WebSocketLink):
    """The server's end: one duplex call of a dispatcher. uvicorn makes one when a connection is upgraded."""

    def __init__(self, dispatcher: Dispatcher, server_state: Any, origins: Origins | None) -> None:
        engine = ServerProtocol(max_size=MESSAGE_MAX, select_subprotocol=lambda *_: self._subprotocol())
        super().__init__(engine, size_max=MESSAGE_MAX)
        self._dispatcher = dispatcher
        self._origins = origins
        self._server_state = server_state
        self._session: Session | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server_state.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._server_state.connections.discard(self)
        super().connection_lost(error)

    def shutdown(self) -> None:
        """What uvicorn calls when the server stops."""
        if self._engine.state is State.OPEN:
            self.close(RESTARTING, "the node is stopping")
        elif self._engine.state is State.CONNECTING:
            self._abort()

    def on_handshake(self, event: Request | Response) -> None:
        assert isinstance(event, Request)
        engine = cast(ServerProtocol, self._engine)
        try:
            self._session = self._open(event)
        except OmniRelayError as error:
            engine.send_response(_refusal(engine, error, http_status(error)))
            return
        response = engine.accept(event)
        if response.status_code != 101:
            self._session.closed()
            self._session = None
            refused = InvalidArgument(f"this is no handshake of a WebSocket: {engine.handshake_exc}", field="headers")
            response = _refusal(engine, refused, response.status_code)
        engine.send_response(response)

    def _subprotocol(self) -> Subprotocol | None:
        chosen = None if self._session is None else self._session.subprotocol
        return None if chosen is None else Subprotocol(chosen)

    def _open(self, request: Request) -> Session:
        if self._dispatcher.draining:
            raise Unavailable("the node is stopping", code="error.resourcelease.draining", retry_after_ms=1_000)
        headers = {name.lower(): value for name, value in reversed(list(request.headers.raw_items()))}
        if self._origins is not None:
            self._origins.check(headers)
        path = request.path.partition("?")[0]
        parts = path.split("/")
        named = f"{parts[2]}::{parts[3]}" if len(parts) == 4 and parts[1] == "v1" else ""
        procedure = headers.get("rpc-procedure") or named
        if not procedure:
            raise Unimplemented(f"nothing is served over a WebSocket at {path[:256]}; see /docs", path=path[:256])
        meta = request_meta(headers, procedure, self._dispatcher.service, self._loop.time())
        meta.transport = "websocket"
        return self._dispatcher.open_session(meta, self)

    def on_message(self, data: bytes) -> None:
        if self._session is not None:
            self._session.receive(data)

    def on_read(self) -> None:
        if self._session is not None:
            self._session.received()

    def on_resumed(self) -> None:
        if self._session is not None:
            self._session.resumed()

    def on_gone(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.closed()


def _refusal(engine: ServerProtocol, error: OmniRelayError, status: int) -> Response:
    """A response that looks like every other refusal."""
    response = engine.reject(status, error_body(error).decode())
    del response.headers["content-type"]
    for name, value in {"content-type": "application/json", **error_headers(error)}.items():
        response.headers[name] = value
    return response


def websocket_inbound(
    dispatcher: Dispatcher, *, origins: Origins | None = SAME_ORIGIN
) -> Callable[..., asyncio.Protocol]:
    """What uvicorn takes as its `ws`: makes the protocol of an upgraded connection.

    `origins` refuses what a browser sends on behalf of another site, as it does over HTTP. Browsers let any
    page open a WebSocket to any host, so this is the only thing between a page and a node without authentication.
    """

    def make(*, server_state: Any, **_: Any) -> asyncio.Protocol:
        return WebSocketInbound(dispatcher, server_state, origins)

    return make
