"""Following the log of a node over server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import httpx
import msgspec

from omnirelay.client.connections import broken, http_client, procedures_at, refused
from omnirelay.client.failures import NotConnected, error_of
from omnirelay.client.retrying import pause_ms
from omnirelay.errors import LogRegressed, Unavailable
from omnirelay.wire.answers import ErrorBody, StatsAnswer

EVENT_STREAM = "text/event-stream"

Attempt = Callable[[float], Awaitable[httpx.Response]]
"""Connects within so many milliseconds."""


async def watch_events(
    url: str,
    namespace: str,
    from_sequence: int | None,
    types: Sequence[str] | None,
    until_caught_up: bool,
    *,
    reach: Callable[[Attempt], Awaitable[httpx.Response]],
    check_open: Callable[[], None] = lambda: None,
) -> AsyncGenerator[dict[str, Any], None]:
    """Events in order. After a broken connection it goes on behind the last one that came whole. Raises LogRegressed
    when the node has come back with a log that ends before that one: it is not the log that was followed.

    `reach` makes the first connection, and gives up when it likes: there may be no node at that address. One that was
    there is waited for, however long it is away.
    `check_open` raises when nobody is to be asked any more, and is called before every connection.
    With `until_caught_up` it ends when the node says so, not when a connection does: that may just have been closed.
    """
    async with http_client(url, timeout=httpx.Timeout(10, read=60)) as client:
        log = _Log(client, procedures_at(url, namespace), from_sequence, types, until_caught_up)

        async def attempt(left_ms: float) -> httpx.Response:
            check_open()
            async with asyncio.timeout(left_ms / 1000):
                return await log.open()

        response = await reach(attempt)
        while not log.caught_up:
            try:
                async with aclosing(response), aclosing(log.events(response)) as events:
                    async for event in events:
                        yield event
            except (httpx.HTTPError, Unavailable):
                pass  # A node that stops or starts says so in an answer; it will be there again.
            if not log.caught_up:
                response = await _reopened(log, check_open)


async def _reopened(log: _Log, check_open: Callable[[], None]) -> httpx.Response:
    failures = 0
    asked_ms: int | None = None
    while True:
        failures += 1
        await asyncio.sleep(pause_ms(min(failures, 6), asked_ms) / 1000)
        check_open()
        try:
            return await log.open()
        except Unavailable as error:
            asked_ms = error.retry_after_ms


class _Log:
    """The log of a node: how much of it was seen, and the way to what comes behind that."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        procedures: str,
        from_sequence: int | None,
        types: Sequence[str] | None,
        until_caught_up: bool,
    ) -> None:
        self._client = client
        self._procedures = procedures
        self._until_caught_up = until_caught_up
        self._query: dict[str, str] = {}
        if from_sequence is not None:
            self._query["from"] = str(from_sequence)
        if types is not None:
            self._query["types"] = ",".join(types)
        if until_caught_up:
            self._query["untilCaughtUp"] = "true"
        self._last: str | None = None
        """The event that was seen last, as the node called it."""
        self._known = 0
        """The log has, or had, events up to here."""
        self.caught_up = False
        """All was seen that was asked for."""

    async def open(self) -> httpx.Response:
        """Connect, and have events come. Raises Unavailable when that may work later, or what the node refused with."""
        try:
            await self._look()
            return await self._stream()
        except httpx.HTTPError as error:
            raise broken(error, self._procedures) from None

    async def _look(self) -> None:
        """Find out where the log ends, where that matters."""
        if self._until_caught_up:
            return
        if self._known:
            self._check_not_regressed(await self._last_sequence())
        elif "from" not in self._query:
            # Else what happens between a connection that broke before its first event and the next is missed.
            self._known = await self._last_sequence()
            self._query["from"] = str(self._known + 1)

    async def _last_sequence(self) -> int:
        response = await self._client.post(f"{self._procedures}/stats", json={})
        if response.status_code != 200:
            raise refused(response.status_code, response.content)
        try:
            return msgspec.json.decode(response.content, type=StatsAnswer).stats.last_sequence
        except msgspec.DecodeError as error:
            raise NotConnected(f"the answer is not that of a node: {error}") from None

    async def _stream(self) -> httpx.Response:
        headers = {"accept": EVENT_STREAM} | ({} if self._last is None else {"last-event-id": self._last})
        request = self._client.build_request("GET", f"{self._procedures}/watch", params=self._query, headers=headers)
        response = await self._client.send(request, stream=True)
        kind = response.headers.get("content-type", "")
        if response.status_code == 200 and kind.startswith(EVENT_STREAM):
            return response
        async with aclosing(response):
            if response.status_code != 200:
                raise refused(response.status_code, await response.aread())
        raise NotConnected(f"the answer is not that of a node: its type is {kind or 'not said'}")

    async def events(self, response: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
        """What comes, until the connection ends or all was seen. Raises the error that the node ended it with."""
        async for block in _blocks(response):
            kind = block.get(b"event")
            if kind == b"error":
                raise error_of(msgspec.json.decode(block[b"data"], type=ErrorBody))
            if kind == b"end":
                self._check_not_regressed(int(block.get(b"id", self._known)))
                self.caught_up = True
                return
            event = msgspec.json.decode(block[b"data"])
            if b"id" in block:
                self._last = block[b"id"].decode()
                self._known = int(self._last)
            yield event

    def _check_not_regressed(self, last: int) -> None:
        if last < self._known:
            raise LogRegressed(
                f"the log of the node ends with event {last} now, and was followed up to {self._known}: it is another"
                f" one, or has lost its end",
                known=self._known,
                last=last,
            )


async def _blocks(response: httpx.Response) -> AsyncGenerator[dict[bytes, bytes], None]:
    """The fields of each event that has come to its end: only then may a reader say that it has seen it."""
    block: dict[bytes, bytes] = {}
    async for line in _lines(response):
        if line:
            name, _, value = line.partition(b":")
            block[name] = value.removeprefix(b" ")
        else:
            if b"data" in block or block.get(b"event") == b"end":
                yield block
            block = {}


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Lines as server-sent events have them. As text they would end at every character that Unicode calls a line's end,
    which JSON may hold as it is.
    """
    rest = b""
    async for data in response.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
