"""Following the log of a node over server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import httpx
import msgspec

from omnirelay.client.connections import http_client
from omnirelay.client.failures import error_of
from omnirelay.client.retrying import pause_ms
from omnirelay.errors import LogRegressed, OmniRelayError, Unavailable
from omnirelay.wire.answers import ErrorBody, StatsAnswer


async def watch_events(
    url: str,
    namespace: str,
    from_sequence: int | None,
    types: Sequence[str] | None,
    until_caught_up: bool,
    *,
    check_open: Callable[[], None] = lambda: None,
) -> AsyncGenerator[dict[str, Any], None]:
    """Events in order. After a broken connection it goes on behind the last one that came whole. Raises LogRegressed
    when the node has come back with a log that ends before that one: it is not the log that was followed.

    `check_open` raises when nobody is to be asked any more, and is called before every connection.
    With `until_caught_up` it ends when the node says so, not when a connection does: that may just have been closed.
    """
    query: dict[str, str] = {}
    if from_sequence is not None:
        query["from"] = str(from_sequence)
    if types is not None:
        query["types"] = ",".join(types)
    if until_caught_up:
        query["untilCaughtUp"] = "true"
    procedures = f"{url.rstrip('/')}/v1/{namespace}"
    last: str | None = None
    known = 0
    """The log has, or had, events up to here."""
    failures = 0
    async with http_client(url, timeout=httpx.Timeout(10, read=60)) as client:
        while True:
            check_open()
            headers = {"accept": "text/event-stream"} | ({} if last is None else {"last-event-id": last})
            try:
                if known and not until_caught_up:
                    _check_not_regressed(known, await _last_sequence(client, procedures))
                elif "from" not in query and not until_caught_up:
                    # Else what happens between a connection that broke before its first event and the next is missed.
                    known = await _last_sequence(client, procedures)
                    query["from"] = str(known + 1)
                async with client.stream("GET", f"{procedures}/watch", params=query, headers=headers) as response:
                    if response.status_code != 200:
                        raise _refusal(response.status_code, await response.aread())
                    failures = 0
                    async for block in _blocks(response):
                        kind = block.get(b"event")
                        if kind == b"error":
                            raise error_of(msgspec.json.decode(block[b"data"], type=ErrorBody))
                        if kind == b"end":
                            _check_not_regressed(known, int(block.get(b"id", known)))
                            return
                        event = msgspec.json.decode(block[b"data"])
                        if b"id" in block:
                            last = block[b"id"].decode()
                            known = int(last)
                        yield event
                failures += 1
            except (httpx.HTTPError, Unavailable):
                # A node that stops or starts says so in an answer; it will be there again.
                failures += 1
            await asyncio.sleep(pause_ms(min(failures, 6), None) / 1000)


def _check_not_regressed(known: int, last: int) -> None:
    if last < known:
        raise LogRegressed(
            f"the log of the node ends with event {last} now, and was followed up to {known}: it is another one, or has"
            f" lost its end",
            known=known,
            last=last,
        )


async def _last_sequence(client: httpx.AsyncClient, procedures: str) -> int:
    response = await client.post(f"{procedures}/stats", json={})
    if response.status_code != 200:
        raise _refusal(response.status_code, response.content)
    try:
        return msgspec.json.decode(response.content, type=StatsAnswer).stats.last_sequence
    except msgspec.DecodeError as error:
        raise Unavailable(f"the answer is not that of a node: {error}", code="error.client.not_connected") from None


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


def _refusal(status: int, body: bytes) -> OmniRelayError:
    try:
        return error_of(msgspec.json.decode(body, type=ErrorBody))
    except msgspec.DecodeError:
        return Unavailable(f"the node answered with HTTP {status}", code="error.client.not_connected", status=status)
