"""Following the log of a node over server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx
import msgspec

from omnirelay.client.failures import error_of
from omnirelay.client.retrying import pause_ms
from omnirelay.errors import OmniRelayError, Unavailable
from omnirelay.wire.answers import ErrorBody


async def watch_events(
    url: str, namespace: str, from_sequence: int | None, types: Sequence[str] | None, until_caught_up: bool
) -> AsyncGenerator[dict[str, Any], None]:
    """Events in order. After a broken connection it goes on behind the last one that came."""
    query: dict[str, str] = {}
    if from_sequence is not None:
        query["from"] = str(from_sequence)
    if types is not None:
        query["types"] = ",".join(types)
    if until_caught_up:
        query["untilCaughtUp"] = "true"
    last: str | None = None
    failures = 0
    async with httpx.AsyncClient(timeout=httpx.Timeout(10, read=60)) as client:
        while True:
            headers = {"accept": "text/event-stream"} | ({} if last is None else {"last-event-id": last})
            try:
                target = f"{url.rstrip('/')}/v1/{namespace}/watch"
                async with client.stream("GET", target, params=query, headers=headers) as response:
                    if response.status_code != 200:
                        raise _refusal(response.status_code, await response.aread())
                    failures = 0
                    kind = ""
                    async for line in _lines(response):
                        if line.startswith(b"id: "):
                            last = line[4:].decode()
                        elif line.startswith(b"event: "):
                            kind = line[7:].decode()
                        elif line.startswith(b"data: "):
                            if kind == "error":
                                raise error_of(msgspec.json.decode(line[6:], type=ErrorBody))
                            yield msgspec.json.decode(line[6:])
                if until_caught_up:
                    return
            except (httpx.HTTPError, Unavailable):
                # A node that stops or starts says so in an answer; it will be there again.
                failures += 1
            await asyncio.sleep(pause_ms(min(failures, 6), None) / 1000)


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
