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
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from omnirelay.errors import AlreadyExists, Internal, InvalidArgument, OmniRelayError, Unimplemented
from omnirelay.rpc.calls import Call, Message, Messages, Reply, RequestMeta, deadline_passed
from omnirelay.rpc.procedures import Procedure, RequestReader, Shape, Steps, reply_of
from omnirelay.rpc.procedures import Proceed as Proceed
from omnirelay.rpc.sessions import OpenSession, Outlet, Session
from omnirelay.rpc.statuses import status_name
from omnirelay.wire.reading import Reader

_log = logging.getLogger("omnirelay.rpc")

Middleware: TypeAlias = Callable[[Call, Proceed], Awaitable[Reply]]
Observer: TypeAlias = Callable[[str, str, str, float], None]
"""Told of every unary call that was served: procedure, transport, the name of its status, and the seconds it took."""
Req = TypeVar("Req")


class Dispatcher:
    """Procedures of one process. Register first, then serve; any number of transports may share one."""

    def __init__(self, service: str = "omnirelay") -> None:
        self.service = service
        self.procedures: dict[str, Procedure] = {}
        self.middleware: list[Middleware] = []
        self.observers: dict[str, Observer] = {}
        """By name."""
        self._chains: dict[str, Proceed] = {}
        self.draining = False
        self.active = 0
        """Calls being served."""

    # -- registering ---------------------------------------------------------------------------

    def unary(
        self,
        name: str,
        handler: Callable[[RequestMeta, Req], Awaitable[Any]] | Steps,
        *,
        request: type[Req],
        answers: tuple[Any, ...] = (),
        shape: Shape = "unary",
        may_wait: bool = False,
        late: Callable[[RequestMeta, Req], Reply] | None = None,
        summary: str = "",
    ) -> None:
        """Serve a procedure with a handler that gets the decoded request and returns what is to be encoded.

        A handler that returns a `Reply` is taken at its word. Requests are read leniently when their structs forbid
        unknown fields (see `omnirelay.wire.reading`), and as msgspec reads them otherwise.
        """
        reader = RequestReader(request)
        steps = handler if isinstance(handler, Steps) else None
        serve_one = steps.serve if steps is not None else handler

        async def serve(call: Call) -> Reply:
            return reply_of(call.meta, await serve_one(call.meta, reader.read(call)))  # type: ignore[operator]

        self.register(
            Procedure(
                name=name,
                shape=shape,
                request=request,
                reader=reader,
                answers=answers,
                serve=serve,
                steps=steps,
                may_wait=may_wait,
                late=late,
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

    def use(self, middleware: Middleware) -> None:
        """Put one more layer around every unary call, inside of those that are there. Calls whose deadline has passed
        on arrival do not get that far. With any layer calls need a task each, which costs them a little.
        """
        self.middleware.append(middleware)
        self._chains.clear()

    def observe(self, name: str, observer: Observer) -> None:
        """Have a function told of every unary call that was served, however it ended."""
        self.observers[name] = observer

    def served(self, meta: RequestMeta, status: str, started: float) -> None:
        """Tell the observers of a call that began then, in the time of `time.perf_counter`."""
        seconds = time.perf_counter() - started
        for observer in self.observers.values():
            observer(meta.procedure, meta.transport, status, seconds)

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

    def steps_of(self, procedure: Procedure) -> Steps | None:
        """How calls of the procedure can be served without a task, by who keeps their deadline; None: not at all."""
        return None if self.middleware else procedure.steps

    async def call(self, call: Call) -> Reply:
        """Serve a unary call. Raises OmniRelayError, and nothing else but cancellation."""
        procedure = self.find(call.meta.procedure)
        chain = self._chains.get(procedure.name) or self._chain(procedure)
        started = time.perf_counter()
        status = "Cancelled"
        self.active += 1
        try:
            reply = await self._within_deadline(chain, call, procedure)
            status = "Ok"
            return reply
        except OmniRelayError as error:
            status = status_name(error.status)
            raise
        except Exception:
            status = "Internal"
            raise internal(call.meta.procedure) from None
        finally:
            self.active -= 1
            self.served(call.meta, status, started)

    async def _within_deadline(self, chain: Proceed, call: Call, procedure: Procedure) -> Reply:
        meta = call.meta
        if meta.deadline is None:
            return await chain(call)
        if meta.deadline <= time.monotonic():
            raise deadline_passed()
        limit = asyncio.timeout_at(meta.deadline if procedure.late is None else meta.answer_by)
        try:
            async with limit:
                return await chain(call)
        except TimeoutError:
            if not limit.expired():
                raise
        assert procedure.reader is not None, "what is called has requests"
        return procedure.too_late(meta, procedure.reader.read(call))

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
            raise internal(call.meta.procedure) from None
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
        chain = procedure.serve
        for layer in reversed(self.middleware):
            chain = _around(layer, chain)
        self._chains[procedure.name] = chain
        return chain


def _around(layer: Middleware, inner: Proceed) -> Proceed:
    return lambda call: layer(call, inner)


def internal(procedure: str) -> Internal:
    """What a caller hears of an error nobody expected: that there was one. Called where it was caught."""
    _log.exception("procedure_failed", extra={"procedure": procedure})
    return Internal("the server failed on this call; its log has the details")
