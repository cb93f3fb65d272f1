"""What is served under a name: a procedure, how its requests are read, and how its calls run.

Most handlers are coroutines. One that waits once, for a future, may come as `Steps` instead: what is done before the
wait and what after it. A call of such a procedure needs no coroutine and no task, which is most of what a short one
costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from omnirelay.rpc.calls import Call, Messages, Reply, RequestMeta, deadline_passed
from omnirelay.rpc.sessions import OpenSession
from omnirelay.wire.forms import packed
from omnirelay.wire.packed import PackedReader
from omnirelay.wire.reading import Reader

Shape = Literal["unary", "oneway", "server-stream", "duplex"]
Proceed: TypeAlias = Callable[[Call], Awaitable[Reply]]

_encode = msgspec.json.Encoder().encode


class RequestReader:
    """Reads the requests of one procedure, in whatever form a call brings them."""

    def __init__(self, request: Any) -> None:
        reader = Reader(request)
        self._read = reader.read
        self.read_packed = PackedReader(request, reader).read

    def read(self, call: Call) -> Any:
        return self.read_packed(call.body) if call.packed else self._read(call.body)


def reply_of(meta: RequestMeta, outcome: Any) -> Reply:
    """What a handler returned, encoded as its caller wants it."""
    if type(outcome) is Reply:
        return outcome
    if meta.answer_form == "json":
        return Reply(_encode(outcome))
    return Reply(packed(outcome), encoding="msgpack")


@dataclass(frozen=True, slots=True)
class Steps:
    """A handler with one wait in it. Each step may raise OmniRelayError."""

    begin: Callable[[RequestMeta, Any], asyncio.Future[Any]]
    """From the request to the future that is waited for. Cancelling that must be enough to call everything off."""
    finish: Callable[[RequestMeta, Any, asyncio.Future[Any]], Any]
    """From the request and that future, which is done, to the answer."""
    lost: Callable[[Any], None] | None = None
    """Called with a result that nobody is there any more to take."""

    async def serve(self, meta: RequestMeta, request: Any) -> Any:
        """Both steps as one coroutine."""
        future = self.begin(meta, request)
        try:
            await future
        except Exception:
            pass  # The future's own: raised again where its result is asked for.
        except BaseException:
            self.give_back(future)  # It may have been there before the caller was interrupted.
            raise
        return self.finish(meta, request, future)

    def give_back(self, future: asyncio.Future[Any]) -> None:
        """Nobody takes what has come of it, if anything has."""
        if future.done() and not future.cancelled() and future.exception() is None and self.lost is not None:
            self.lost(future.result())


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    name: str
    shape: Shape
    request: Any
    """The type of the request; its JSON schema is part of the API document."""
    reader: RequestReader | None = None
    answers: tuple[Any, ...] = ()
    """The types an answer may have."""
    serve: Proceed | None = None
    steps: Steps | None = None
    """The same, for who can do without a coroutine."""
    stream: Callable[[Call], Messages] | None = None
    open_session: OpenSession | None = None
    may_wait: bool = False
    """The handler may wait for something to happen; transports watch whether its caller is still there."""
    late: Callable[[RequestMeta, Any], Reply] | None = None
    """What is answered when the deadline comes before the answer; None: an error."""
    summary: str = ""
    encoding: str = "json"

    def too_late(self, meta: RequestMeta, request: Any) -> Reply:
        """What a call is answered with whose deadline came first. Raises DeadlineExceeded where that is an error."""
        if self.late is None:
            raise deadline_passed()
        return self.late(meta, request)
