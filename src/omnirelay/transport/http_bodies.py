"""Reading request bodies within bounds: of one body, of all bodies together, and of the time a sender takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from omnirelay.errors import TOO_LARGE, DeadlineExceeded, InvalidArgument, OmniRelayError, ResourceExhausted

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class SenderGone(Exception):
    """The connection ended in the middle of a body. Nobody is there to be told."""


class SenderTooSlow(DeadlineExceeded):
    """The body did not arrive in time."""


class BodyUnfinished(Exception):
    """The server does not wait for the rest of the body; `refusal` says why."""

    def __init__(self, refusal: OmniRelayError) -> None:
        super().__init__(refusal)
        self.refusal = refusal


class Bodies:
    """Takes in the bodies of one server."""

    def __init__(self, *, body_max: int, total_max: int, seconds_max: float) -> None:
        self._body_max = body_max
        self._total_max = total_max
        self._seconds_max = seconds_max
        self._total = 0
        """Bytes held by bodies that are not complete yet."""
        self._limits: set[asyncio.Timeout] = set()
        """Of the bodies that are being read."""
        self._refusal: OmniRelayError | None = None

    def refuse(self, error: OmniRelayError) -> None:
        """Wait for no body any longer: those under way are answered with the error."""
        self._refusal = error
        for limit in self._limits:
            limit.reschedule(0.0)

    async def read(self, receive: Receive, headers: Mapping[str, str]) -> bytes:
        """The body of a request, or an error that says which bound it broke; SenderGone when nobody is there."""
        declared = headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._body_max:
            raise self._too_large()
        try:
            # From the first byte on: a sender of nothing but headers holds a connection just as well.
            async with asyncio.timeout(self._seconds_max if self._refusal is None else 0.0) as limit:
                self._limits.add(limit)
                try:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise SenderGone
                    body: bytes = message.get("body", b"")
                    if message.get("more_body", False):
                        return await self._read_on(receive, body)
                finally:
                    self._limits.discard(limit)
        except TimeoutError:
            if self._refusal is not None:
                raise BodyUnfinished(self._refusal) from None
            raise SenderTooSlow(f"the body did not arrive within {self._seconds_max:g} s") from None
        if len(body) > self._body_max:
            raise self._too_large()
        return body

    async def _read_on(self, receive: Receive, first: bytes) -> bytes:
        chunks = [first]
        size = len(first)
        self._total += size
        try:
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise SenderGone
                chunk = message.get("body", b"")
                more = message.get("more_body", False)
                chunks.append(chunk)
                size += len(chunk)
                self._total += len(chunk)
                if size > self._body_max:
                    raise self._too_large()
                if self._total > self._total_max:
                    raise ResourceExhausted(
                        "the server holds as many unfinished requests as it can",
                        code="resource-exhausted",
                        retry_after_ms=1_000,
                    )
            return b"".join(chunks)
        finally:
            self._total -= size

    def _too_large(self) -> InvalidArgument:
        return InvalidArgument(
            f"the request has more than {self._body_max} bytes; send it in several calls",
            code=TOO_LARGE,
            field="body",
            limit=self._body_max,
        )
