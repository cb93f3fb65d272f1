"""`SyncClient`: the same client for code without an event loop. Every method is that of `Client`, waited for.

with SyncClient("http://127.0.0.1:7070") as client:
    client.enqueue("table", "sales.orders")
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from omnirelay.client.client import Client
from omnirelay.client.linking import ClientClosed, ClientMisplaced
from omnirelay.client.threads import LoopForked, LoopStopped, LoopThread

P = ParamSpec("P")
R = TypeVar("R")


class SyncClient:
    """Any number of threads may use one object. The connection lives in a thread of its own, which no fork copies:
    make a client in each process.
    """

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
        client = self._client
        self.enqueue = self._waited(client.enqueue)
        self.enqueue_many = self._waited(client.enqueue_many)
        self.lease = self._waited(client.lease)
        self.heartbeat = self._waited(client.heartbeat)
        self.complete = self._waited(client.complete)
        self.fail = self._waited(client.fail)
        self.release = self._waited(client.release)
        self.get = self._waited(client.get)
        self.cancel = self._waited(client.cancel)
        self.drain = self._waited(client.drain)
        self.restore = self._waited(client.restore)
        self.pause = self._waited(client.pause)
        self.resume = self._waited(client.resume)
        self.dead_letters = self._waited(client.dead_letters)
        self.edit = self._waited(client.edit)
        self.redrive = self._waited(client.redrive)
        self.purge = self._waited(client.purge)
        self.stats = self._waited(client.stats)
        self.peek = self._waited(client.peek)
        self.why = self._waited(client.why)

    def _waited(self, method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            return self._run(method(*arguments, **options))

        call.__doc__ = method.__doc__
        return call

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

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
