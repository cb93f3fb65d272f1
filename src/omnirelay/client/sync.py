"""`SyncClient`: the same client for code without an event loop. Every method is that of `Client`, waited for.

with SyncClient("http://127.0.0.1:7070") as client:
    client.enqueue("table", "sales.orders")
"""

from __future__ import annotations

import atexit
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

from omnirelay.client.addresses import without_password
from omnirelay.client.client import Client
from omnirelay.client.linking import ClientClosed, ClientMisplaced
from omnirelay.client.threads import LoopForked, LoopStopped, LoopThread

P = ParamSpec("P")
R = TypeVar("R")

_open: WeakSet[SyncClient] = WeakSet()


def _waited(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncClient, P], R]:
    @wraps(method)
    def call(self: SyncClient, /, *arguments: P.args, **options: P.kwargs) -> R:
        return self._run(method(self._client, *arguments, **options))

    return call


class SyncClient:
    """Any number of threads may use one object. The connection lives in a thread of its own, which no fork copies:
    make a client in each process. One that nobody has closed ends its thread when nobody has it any more, or with the
    process, and warns of it as a file does (ResourceWarning).
    """

    _closed = True  # Until it is whole.

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Takes what `Client` takes."""
        self._thread = LoopThread("omnirelay-client")
        self._thread.start()
        try:
            self._client: Client = self._thread.run(_make(arguments, options))
        except BaseException:
            self._thread.stop()
            raise
        self._closed = False
        _open.add(self)

    enqueue = _waited(Client.enqueue)
    enqueue_many = _waited(Client.enqueue_many)
    lease = _waited(Client.lease)
    heartbeat = _waited(Client.heartbeat)
    complete = _waited(Client.complete)
    complete_many = _waited(Client.complete_many)
    fail = _waited(Client.fail)
    release = _waited(Client.release)
    get = _waited(Client.get)
    cancel = _waited(Client.cancel)
    drain = _waited(Client.drain)
    restore = _waited(Client.restore)
    pause = _waited(Client.pause)
    resume = _waited(Client.resume)
    dead_letters = _waited(Client.dead_letters)
    edit = _waited(Client.edit)
    redrive = _waited(Client.redrive)
    purge = _waited(Client.purge)
    stats = _waited(Client.stats)
    peek = _waited(Client.peek)
    why = _waited(Client.why)

    def watch(
        self, from_sequence: int | None = None, *, types: Sequence[str] | None = None, until_caught_up: bool = False
    ) -> Iterator[dict[str, Any]]:
        """What `Client.watch` gives, one after another."""
        if self._thread.forked:
            raise _forked()
        return self._each(self._client.watch(from_sequence, types=types, until_caught_up=until_caught_up))

    def _each(self, events: AsyncGenerator[dict[str, Any], None]) -> Iterator[dict[str, Any]]:
        try:
            while (event := self._run(_next(events))) is not None:
                yield event
        finally:
            with suppress(ClientClosed, ClientMisplaced):
                self._run(_end(events))

    def _run(self, work: Coroutine[Any, Any, R]) -> R:
        try:
            return self._thread.run(work)
        except LoopForked:
            raise _forked() from None
        except LoopStopped:
            raise ClientClosed("the client is closed") from None
        except CancelledError:
            if not self._closed:
                raise
            raise ClientClosed("the client was closed before the answer came") from None

    def close(self) -> None:
        """End the connection and its thread; calls under way raise ClientClosed. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._thread.forked:
            return  # Both are the other process's own.
        try:
            self._thread.run(self._client.close())
        finally:
            self._thread.stop()

    def __del__(self) -> None:
        # The garbage collector comes in any thread, also in that of the client itself, so nothing is waited for.
        if not self._closed and not self._thread.forked:
            self._thread.end_with(self._client.close)
            self._warn()

    def _warn(self) -> None:
        warnings.warn(
            f"unclosed client of {without_password(self._client.url)}", ResourceWarning, source=self, stacklevel=2
        )

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close_all() -> None:
    """At the end of the process, while threads still run."""
    for client in list(_open):
        if not client._closed and not client._thread.forked:
            client.close()
            client._warn()


atexit.register(_close_all)


async def _make(arguments: tuple[Any, ...], options: dict[str, Any]) -> Client:
    return Client(*arguments, **options)


async def _next(events: Any) -> Any:
    return await anext(events, None)


async def _end(events: Any) -> None:
    await events.aclose()


def _forked() -> ClientMisplaced:
    return ClientMisplaced(
        "this client was made before a fork and lives in the other process; make one in each process"
    )
