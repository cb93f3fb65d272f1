"""`Dispatcher`: procedures by name, behind one stack of middleware for every transport.

    dispatcher = Dispatcher("catalog")
    dispatcher.unary("tables::describe", describe, request=DescribeRequest, answers=(Table,))

    async def describe(call: RequestMeta, request: DescribeRequest) -> Table: ...

A procedure is called `namespace::verb`. Middleware are plain functions around a call, the first one outermost:

    async def logged(call: Call, proceed: Proceed) -> Reply:
        print(call.meta.procedure)
        return await proceed(call)

    dispatcher.use(logged)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from omnirelay.errors import AlreadyExists, Internal, InvalidArgument, OmniRelayError, Unimplemented
from omnirelay.rpc.calls import Call, Message, Messages, Reply, RequestMeta, deadline_passed
from omnirelay.rpc.sessions import OpenSession, Outlet, Session
from omnirelay.wire.forms import packed
from omnirelay.wire.packed import PackedReader
from omnirelay.wire.reading import Reader

_log = logging.getLogger("omnirelay.rpc")

Shape = Literal["unary", "oneway", "server-stream", "duplex"]
Proceed: TypeAlias = Callable[[Call], Awaitable[Reply]]
Middleware: TypeAlias = Callable[[Call, Proceed], Awaitable[Reply]]
Req = TypeVar("Req")

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Procedure:
    name: str
    shape: Shape
    request: Any
    """The type of the request; its JSON schema is part of the API document."""
    answers: tuple[Any, ...] = ()
    """The types an answer may have."""
    serve: Proceed | None = None
    stream: Callable[[Call], Messages] | None = None
    open_session: OpenSession | None = None
    may_wait: bool = False
    """The handler may wait for something to happen; transports watch whether its caller is still there."""
    late: Callable[[Call], Reply] | None = None
    """What is answered when the deadline comes before the answer; None: an error."""
    direct: bool = False
    """The handler waits for futures and nothing else, so that it can be driven without a task."""
    summary: str = ""
    encoding: str = "json"


class Dispatcher:
    """Procedures of one process. Register first, then serve; any number of transports may share one."""

    def __init__(self, service: str = "omnirelay") -> None:
        self.service = service
        self.procedures: dict[str, Procedure] = {}
        self.middleware: list[Middleware] = []
        self._chains: dict[str, Proceed] = {}
        self._layers_direct = True
        self._direct_layers: list[Middleware] = []
        self.draining = False
        self.active = 0
        """Calls being served."""

    # -- registering ---------------------------------------------------------------------------

    def unary(
        self,
        name: str,
        handler: Callable[[RequestMeta, Req], Awaitable[Any]],
        *,
        request: type[Req],
        answers: tuple[Any, ...] = (),
        shape: Shape = "unary",
        may_wait: bool = False,
        late: Callable[[RequestMeta, Req], Reply] | None = None,
        direct: bool = False,
        summary: str = "",
    ) -> None:
        """Serve a procedure with a handler that gets the decoded request and returns what is to be encoded.

        A handler that returns a `Reply` is taken at its word. Requests are read leniently when their structs forbid
        unknown fields (see `omnirelay.wire.reading`), and as msgspec reads them otherwise.
        """
        reader = Reader(request)
        read, read_packed = reader.read, PackedReader(request, reader).read

        def asked(call: Call) -> Req:
            if call.request is not None:
                return call.request  # type: ignore[no-any-return]
            return read_packed(call.body) if call.packed else read(call.body)

        async def serve(call: Call) -> Reply:
            outcome = await handler(call.meta, asked(call))
            if type(outcome) is Reply:
                return outcome
            if call.meta.answer_form == "json":
                return Reply(_encode(outcome))
            return Reply(packed(outcome), encoding="msgpack")

        def late_reply(late: Callable[[RequestMeta, Req], Reply]) -> Callable[[Call], Reply]:
            return lambda call: late(call.meta, asked(call))

        self.register(
            Procedure(
                name=name,
                shape=shape,
                request=request,
                answers=answers,
                serve=serve,
                may_wait=may_wait,
                late=None if late is None else late_reply(late),
                direct=direct,
                summary=summary,
            )
        )

    def server_stream(
        self,
        name: str,
        handler: Callable[[RequestMeta, Req], Messages],
        *,
        request: type[Req],
        answers: tuple[Any, ...] = (),
        summary: str = "",
    ) -> None:
        """Serve a procedure that answers with many messages, each of a type in `answers`."""
        read = Reader(request).read

        def stream(call: Call) -> Messages:
            return handler(call.meta, read(call.body))

        self.register(
            Procedure(
                name=name, shape="server-stream", request=request, answers=answers, stream=stream, summary=summary
            )
        )

    def duplex(self, name: str, open_session: OpenSession, *, request: Any, summary: str = "") -> None:
        """Serve a procedure whose two sides talk for as long as the connection lasts; `request` is one message."""
        self.register(Procedure(name=name, shape="duplex", request=request, open_session=open_session, summary=summary))

    def register(self, procedure: Procedure) -> None:
        namespace, separator, verb = procedure.name.partition("::")
        if not separator or not namespace or not verb:
            raise InvalidArgument(f"a procedure is called namespace::verb, not {procedure.name!r}", field="procedure")
        if procedure.name in self.procedures:
            raise AlreadyExists(
                f"the procedure {procedure.name} is taken; give the component another namespace",
                code="already-exists",
                procedure=procedure.name,
            )
        self.procedures[procedure.name] = procedure

    def use(self, middleware: Middleware, *, direct: bool = False) -> None:
        """Put one more layer around every unary call, inside of those that are there.

        `direct` promises that it waits for nothing but the call itself. One that does not keeps calls from being
        driven without a task, which costs each of them a little, and does not see calls whose deadline has passed on
        arrival.
        """
        self.middleware.append(middleware)
        if direct:
            self._direct_layers.append(middleware)
        self._layers_direct = self._layers_direct and direct
        self._chains.clear()

    @property
    def namespaces(self) -> list[str]:
        return sorted({name.partition("::")[0] for name in self.procedures})

    # -- serving -------------------------------------------------------------------------------

    def find(self, name: str) -> Procedure:
        """The procedure of that name. Raises Unimplemented."""
        procedure = self.procedures.get(name)
        if procedure is None:
            raise Unimplemented(f"nobody serves the procedure {name!r} here", procedure=name[:256])
        return procedure

    def request_type(self, name: str) -> Any:
        """The type of the procedure's requests; None when nobody serves it."""
        procedure = self.procedures.get(name)
        return None if procedure is None else procedure.request

    def is_direct(self, name: str) -> bool:
        """Whether calls of the procedure may be served by a `Driven` coroutine, who then keeps their deadline."""
        procedure = self.procedures.get(name)
        return procedure is not None and procedure.direct and self._layers_direct

    async def call(self, call: Call, *, keeps_deadline: bool = True) -> Reply:
        """Serve a unary call. Raises OmniRelayError, and nothing else but cancellation."""
        procedure = self.find(call.meta.procedure)
        chain = self._chains.get(procedure.name) or self._chain(procedure)
        self.active += 1
        try:
            deadline = call.meta.deadline
            if deadline is None:
                return await chain(call)
            if deadline <= time.monotonic():
                return await self._layered(_passed, self._direct_layers)(call)
            call.has_late_answer = procedure.late is not None
            if not keeps_deadline:
                return await chain(call)
            return await _within_deadline(chain, call, procedure.late)
        except OmniRelayError:
            raise
        except Exception:
            raise _internal(call.meta.procedure) from None
        finally:
            self.active -= 1

    def too_late(self, call: Call) -> Reply:
        """What a call is answered with whose deadline came first. Raises DeadlineExceeded where that is an error."""
        late = self.find(call.meta.procedure).late
        if late is None:
            raise deadline_passed()
        return late(call)

    async def stream(self, call: Call) -> AsyncIterator[Message]:
        """Serve a call that is answered with many messages. Raises as `call` does."""
        procedure = self.find(call.meta.procedure)
        if procedure.stream is None:
            raise Unimplemented(f"{procedure.name} is not a stream", procedure=procedure.name)
        self.active += 1
        try:
            async for message in procedure.stream(call):
                yield message
        except OmniRelayError:
            raise
        except Exception:
            raise _internal(call.meta.procedure) from None
        finally:
            self.active -= 1

    def open_session(self, meta: RequestMeta, outlet: Outlet) -> Session:
        """Begin a duplex call. Raises OmniRelayError."""
        procedure = self.find(meta.procedure)
        if procedure.open_session is None:
            raise Unimplemented(f"{procedure.name} is not a duplex procedure", procedure=procedure.name)
        return procedure.open_session(meta, outlet)

    def _chain(self, procedure: Procedure) -> Proceed:
        if procedure.serve is None:
            how = "connect with a WebSocket" if procedure.shape == "duplex" else "GET it as text/event-stream"
            raise Unimplemented(f"{procedure.name} is a stream; {how}", procedure=procedure.name)
        chain = self._chains[procedure.name] = self._layered(procedure.serve, self.middleware)
        return chain

    def _layered(self, serve: Proceed, layers: Sequence[Middleware]) -> Proceed:
        for layer in reversed(layers):
            serve = _around(layer, serve)
        return serve


async def _passed(call: Call) -> Reply:
    """In the place of a handler, when the deadline has passed on arrival: layers see such a call, and count it."""
    raise deadline_passed()


async def _within_deadline(chain: Proceed, call: Call, late: Callable[[Call], Reply] | None) -> Reply:
    limit = call.limit = asyncio.timeout_at(call.meta.deadline if late is None else call.meta.answer_by)
    try:
        async with limit:
            return await chain(call)
    except TimeoutError:
        if not limit.expired():
            raise
    if late is None:
        raise deadline_passed()
    return late(call)


def _around(layer: Middleware, inner: Proceed) -> Proceed:
    return lambda call: layer(call, inner)


def _internal(procedure: str) -> Internal:
    """What a caller hears of an error nobody expected: that there was one."""
    _log.exception("procedure_failed", extra={"procedure": procedure})
    return Internal("the server failed on this call; its log has the details")
