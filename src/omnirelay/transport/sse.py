"""Server streams as server-sent events: `id:` is what a reader that comes back sends as `Last-Event-ID`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from omnirelay.errors import OmniRelayError
from omnirelay.rpc.calls import Call, Message, deadline_passed
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.transport.http_bodies import Receive
from omnirelay.transport.http_headers import error_body

KEEP_ALIVE_SECONDS = 15.0
FIRST_SECONDS = 0.05
"""How long a stream waits for its first message, or for what is wrong with it, before it begins without one."""

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"rpc-encoding", b"json"),
]


async def event_stream(
    dispatcher: Dispatcher,
    call: Call,
    receive: Receive,
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    refuse: Callable[[OmniRelayError], Awaitable[None]],
    headers: list[tuple[bytes, bytes]],
) -> None:
    """Write a stream until it ends, fails, its deadline passes, or its reader hangs up.

    What fails before the first message is an ordinary refusal; later it is an event called `error`.
    """
    call.meta.remaining_ms()
    messages = dispatcher.stream(call)
    writer = asyncio.ensure_future(_write(messages, send, refuse, _HEADERS + headers, call.meta.deadline))
    watcher = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((writer, watcher), return_when=asyncio.FIRST_COMPLETED)
        if writer.done():
            writer.result()
    finally:
        watcher.cancel()
        writer.cancel()
        with suppress(asyncio.CancelledError, OmniRelayError):
            await writer
        await messages.aclose()  # type: ignore[attr-defined]


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _write(
    messages: AsyncIterator[Message],
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    refuse: Callable[[OmniRelayError], Awaitable[None]],
    headers: list[tuple[bytes, bytes]],
    deadline: float | None,
) -> None:
    started = False
    loop = asyncio.get_running_loop()

    async def start() -> None:
        nonlocal started
        if not started:
            started = True
            await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def wait(seconds: float) -> None:
        """Until the next message is there, but not for ever."""
        left = seconds if deadline is None else deadline - loop.time()
        if left <= 0:
            raise deadline_passed()
        await asyncio.wait((coming,), timeout=min(seconds, left))

    coming = asyncio.ensure_future(anext(messages, None))
    try:
        # What is wrong with the request shows at once; a stream with nothing to say yet begins all the same.
        await asyncio.wait((coming,), timeout=FIRST_SECONDS)
        while True:
            if not coming.done():
                await start()
                await send({"type": "http.response.body", "body": b": \n\n", "more_body": True})
                await wait(KEEP_ALIVE_SECONDS)
                continue
            message = coming.result()
            await start()
            if message is None:
                break
            await send({"type": "http.response.body", "body": _event(message), "more_body": True})
            coming = asyncio.ensure_future(anext(messages, None))
            if not coming.done():
                await wait(KEEP_ALIVE_SECONDS)
        await send({"type": "http.response.body", "body": b""})
    except OmniRelayError as error:
        if not started:
            await refuse(error)
            return
        lines = error_body(error).replace(b"\n", b"")
        await send({"type": "http.response.body", "body": b"event: error\ndata: " + lines + b"\n\n"})
    finally:
        coming.cancel()
        with suppress(asyncio.CancelledError, OmniRelayError):
            await coming


def _event(message: Message) -> bytes:
    lines = b"" if message.kind is None else b"event: " + message.kind.encode() + b"\n"
    if message.id is not None:
        lines += b"id: " + message.id.encode() + b"\n"
    return lines + b"data: " + message.body + b"\n\n"
