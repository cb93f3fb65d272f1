"""Answers over HTTP that nobody reads: held for a while, then let go with their connection.

uvicorn waits without a limit for a client to take what was written for it, be it a large answer, a watch, or the end
of a connection that is to be closed. Each of them holds memory, a place among the connections, and a stop of the node.
"""

from __future__ import annotations

import asyncio
import logging
import select
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omnirelay.transport.http_connections import CONNECTION
from omnirelay.transport.websocket import CLOSE_SECONDS_MAX, UNREAD_SECONDS_MAX

_log = logging.getLogger("omnirelay.transport")

_PEER_CLOSED = getattr(select, "POLLRDHUP", 0)
"""Where the kernel does not tell (it is Linux that does), only what the event loop has seen counts."""

LOOKS = 3
"""How often a client that does not read is looked at before it is let go."""


class ReaderBoundHttpProtocol(HttpToolsProtocol):
    """Drops a client that takes nothing for too long. A slow one is left alone as long as it goes on reading.

    It is the `http_connections.Connection` of its requests.
    """

    unread_seconds_max = UNREAD_SECONDS_MAX
    unread_seconds_at_stop = CLOSE_SECONDS_MAX
    """When the server stops, it does not wait for long: what is unread by then can be asked for again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread = 0
        """Bytes that waited when the client was last looked at."""
        self._read_at = 0.0
        """When it was last seen to have taken some."""
        self._look: asyncio.TimerHandle | None = None
        self._cut_off = False
        """The connection ended while much of what was written still waited to go out."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: {"of": self}}

    @property
    def hung_up(self) -> bool:
        """The kernel hears of it before the event loop does, which has to come round to it first, and reads nothing at
        all while a further request is waiting.
        """
        if self.transport.is_closing():
            return True
        if not _PEER_CLOSED:
            return False
        closed = select.poll()
        closed.register(self.transport.get_extra_info("socket").fileno(), _PEER_CLOSED)
        return bool(closed.poll(0))

    async def went_out(self) -> bool:
        while self.flow.write_paused:
            await self.flow.drain()
        return not self._cut_off

    def pause_writing(self) -> None:
        super().pause_writing()
        self._begin_looking()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._begin_looking()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._begin_looking()

    def shutdown(self) -> None:
        self.unread_seconds_max = min(self.unread_seconds_at_stop, self.unread_seconds_max)
        super().shutdown()
        self._stop_looking()
        if self._waits_for_reader:
            self._begin_looking()

    def handle_websocket_upgrade(self) -> None:
        self._stop_looking()
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_looking()
        self._cut_off = self.flow is not None and self.flow.write_paused
        super().connection_lost(exc)

    # -- inside --------------------------------------------------------------------------------

    @property
    def _waits_for_reader(self) -> bool:
        return self.flow.write_paused or self.transport.is_closing()

    def _begin_looking(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._read_at = self.loop.time()
        if self._look is None:
            # Left in place when the client reads on, for it may pause again at any moment.
            self._look = self.loop.call_later(self.unread_seconds_max / LOOKS, self._look_after)

    def _look_after(self) -> None:
        self._look = None
        if not self._waits_for_reader:
            return
        unread, now = self.transport.get_write_buffer_size(), self.loop.time()
        if unread < self._unread:
            self._unread, self._read_at = unread, now
        elif now - self._read_at >= self.unread_seconds_max:
            _log.warning("peer_dropped", extra={"reason": "it does not read"})
            self.transport.abort()
            return
        self._look = self.loop.call_later(self.unread_seconds_max / LOOKS, self._look_after)

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
