"""Heads of HTTP requests within bounds: their size, and the time a sender takes.

uvicorn and its parser keep what comes of a head until it ends, and copy it with every piece. A head without an end
would take more and more memory, and more and more of the time of everybody else.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from omnirelay.errors import DeadlineExceeded, InvalidArgument, OmniRelayError
from omnirelay.rpc.statuses import http_status
from omnirelay.transport.http_headers import error_body, error_headers
from omnirelay.transport.http_readers import ReaderBoundHttpProtocol

HEAD_MAX = 64 * 1024
HEAD_SECONDS_MAX = 30.0
LINGER_SECONDS = 2.0
LINGER_BYTES_MAX = 1024 * 1024
"""What a refused sender may still send. A connection closed on top of unread data is reset, and the answer lost."""


class _HeadTooLarge(Exception):
    """Ends the parsing of a piece that holds too large a head as a whole."""


class BoundedHttpProtocol(ReaderBoundHttpProtocol):
    """What uvicorn takes as its `http`. WebSockets begin here too, so their heads have the same bounds.

    A piece that brings neither the end of a head nor some of a body adds to what piles up: lines of a head, or lines
    behind the last chunk of a body. A head counts from the piece behind the one in which it began, so that what came
    before it in that piece is not held against it; one that is whole is measured exactly.
    """

    head_max = HEAD_MAX
    head_seconds_max = HEAD_SECONDS_MAX

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._moved = False
        """The piece at hand brought something that does not pile up."""
        self._piled = 0
        self._may_be_too_large = False
        self._refused = False
        self._declined = False
        """The request asks for an upgrade that it does not get, and is about to be read again without that wish."""
        self._stopped_at: int | None = None
        """Where in the piece at hand the parser stopped because of that."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Who never says anything is let go as one who has nothing more to say.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._pass_over(len(data))
            return
        self._moved = False
        self._may_be_too_large = self._piled + len(data) > self.head_max
        self._parse(data)
        if self._moved:
            self._piled = 0
        else:
            self._piled += len(data)
            if self._piled > self.head_max and not self.transport.is_closing():
                self._refuse_too_large()
                return
        if self._in_head and self._timer is None:
            self._timer = self.loop.call_later(self.head_seconds_max, self._took_too_long)

    # -- what the parser calls -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._in_head = self._moved = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._moved = True
        self._stop_timer()
        if self._may_be_too_large and self._head_size() > self.head_max:
            raise _HeadTooLarge
        method = self.parser.get_method()
        self.scope["method"] = method.decode("ascii")
        self._declined = method != b"CONNECT" and self._get_upgrade() is not None and not self._should_upgrade()
        if not self._declined:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._declined:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls when the parser has stopped, for whatever reason."""
        if self._may_be_too_large and self.scope is not None and self._head_size() > self.head_max:
            self._refuse_too_large()
        else:
            of_body = self._busy and self.cycle.more_body
            what = "the body of the request is" if of_body else "this is"
            self._refuse(InvalidArgument(f"{what} not HTTP/1.1"), 400, of_body=of_body)

    def _should_upgrade(self) -> bool:
        # Anything else that asks for one is answered as what it is; a WebSocket begins with a GET.
        return self.scope["method"] == "GET" and super()._should_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """What uvicorn calls when a request asks for an upgrade that it does not get.

        The parser has passed over its body, which an HTTP/2 client that begins like this means to be read.
        """
        stopped = sys.exc_info()[1]
        if self._declined and stopped is not None:
            self._stopped_at = stopped.args[0]
        else:
            super()._unsupported_upgrade_warning()

    # -- inside --------------------------------------------------------------------------------

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)

    def _parse(self, data: bytes) -> None:
        super().data_received(data)
        rest = memoryview(data)
        while self._stopped_at is not None:
            rest = rest[self._stopped_at :]
            self._stopped_at, self._declined = None, False
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn does.
            super().data_received(head)
            if rest and not self._refused and not self.transport.is_closing():
                super().data_received(rest)  # type: ignore[arg-type]

    def _head_without_upgrade(self) -> bytes:
        lines = [self.parser.get_method(), b" ", self.url, f" HTTP/{self.parser.get_http_version()}\r\n".encode()]
        for name, value in self.headers:
            if name != b"upgrade":
                lines += [name, b": ", value, b"\r\n"]
        return b"".join(lines) + b"\r\n"

    @property
    def _busy(self) -> bool:
        """An earlier request on this connection waits for its answer, or for the rest of it."""
        return self.cycle is not None and not self.cycle.response_complete

    def _took_too_long(self) -> None:
        self._timer = None
        if self._busy:
            # While it is answered, what comes next may not have been read at all.
            self._timer = self.loop.call_later(self.head_seconds_max, self._took_too_long)
        elif not self.transport.is_closing():
            error = DeadlineExceeded(f"the head of the request did not arrive within {self.head_seconds_max:g} s")
            self._refuse(error, http_status(error))

    def _refuse_too_large(self) -> None:
        message = f"the head of the request has more than {self.head_max} bytes"
        self._refuse(InvalidArgument(message, field="headers", limit=self.head_max), 431)

    def _refuse(self, error: OmniRelayError, status: int, *, of_body: bool = False) -> None:
        """`of_body`: it is the request at hand that is refused, and nobody else will answer it."""
        self._refused = True
        self._piled = 0
        self._stop_timer()
        if self._busy and not of_body:
            # Its answer is still to come, and another one in its place would be taken for it.
            self.transport.abort()
            return
        body = error_body(error)
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **error_headers(error)}.items())
        self.transport.write(STATUS_LINE[status] + lines.encode("latin-1") + b"\r\n" + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _pass_over(self, size: int) -> None:
        self._piled += size
        if self._piled > LINGER_BYTES_MAX:
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
