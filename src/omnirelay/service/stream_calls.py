"""Calls of one stream that have not been answered yet: served side by side, within bounds, each by its deadline.

Those of the lease cycle come in steps (see `omnirelay.rpc.procedures`): begun as soon as they are read, and finished by
the callback of the future they wait for. Everything else, and everything behind a layer of middleware, gets a task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from omnirelay.errors import OmniRelayError, ResourceExhausted, Unavailable
from omnirelay.rpc.calls import ANSWER_SECONDS, AnswerForm, Call, Reply, RequestMeta, deadline_passed
from omnirelay.rpc.dispatcher import Dispatcher, internal
from omnirelay.rpc.procedures import Procedure, Steps, reply_of
from omnirelay.rpc.statuses import status_name
from omnirelay.wire.packed import json_of
from omnirelay.wire.streams import CallId, Received, StreamCall

CALLS_MAX = 10_000
"""Most calls of one stream that wait for an answer. One more is refused: acknowledgements never wait behind calls."""
CALL_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of requests of one stream that wait for an answer."""
TTL_MAX_MS = 1e10
ABANDONED = "error.resourcelease.abandoned"

Outcome: TypeAlias = Reply | OmniRelayError
Answer: TypeAlias = Callable[[CallId | None, Outcome], None]
Finish: TypeAlias = Callable[[asyncio.Future[Any]], None]
Asked: TypeAlias = tuple[asyncio.Future[Any], Finish]
"""What a call waits for, and what is called with that when it is done."""

_encode = msgspec.json.Encoder().encode


class RunningCall:
    """A call that has not been answered yet."""

    __slots__ = ("forsaken", "id", "meta", "size", "work")

    def __init__(self, call_id: CallId | None, meta: RequestMeta, size: int) -> None:
        self.id = call_id
        self.meta = meta
        self.size = size
        self.work: asyncio.Future[Any] | None = None
        """The task that serves it, or what it waits for."""
        self.forsaken = False
        """It was answered without it; what comes of it all the same is given back."""


class SteppedCall(RunningCall):
    """One that is served in steps. Whoever runs it keeps its deadline and tells the observers."""

    __slots__ = ("_calls", "procedure", "request", "started", "steps")

    def __init__(
        self,
        calls: StreamCalls,
        call_id: CallId | None,
        meta: RequestMeta,
        size: int,
        procedure: Procedure,
        steps: Steps,
        request: Any,
    ) -> None:
        super().__init__(call_id, meta, size)
        self._calls = calls
        self.procedure = procedure
        self.steps = steps
        self.request = request
        self.started = time.perf_counter()

    def finish(self, work: asyncio.Future[Any]) -> None:
        """The callback of what it waits for."""
        self._calls.finish(self, work)


class StreamCalls:
    """`answer` is called with what comes of each, once, unless `close` came first."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        namespace: str,
        meta: RequestMeta,
        answer: Answer,
        asked: Callable[[asyncio.Future[Any], Finish], None],
    ) -> None:
        """`meta` is that of the stream. `asked` is told what calls in steps wait for, and sees to their end."""
        self._dispatcher = dispatcher
        self._namespace = namespace
        self._meta = meta
        self._answer = answer
        self._asked = asked
        self._loop = asyncio.get_running_loop()
        self._running: set[RunningCall] = set()
        self._by_id: dict[CallId, RunningCall] = {}
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False
        self.packed = False
        """Answers are MessagePack."""

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, received: Received, call: StreamCall, message_bytes: int, peer_id: str | None) -> None:
        """`message_bytes` is the size of the message, for a call whose request was read with it.

        Raises ResourceExhausted when too many wait already.
        """
        request = received.request
        body = bytes(call.request) if request is None else b""
        size = len(body) if request is None else message_bytes
        self._check_room(size)
        name = f"{self._namespace}::{call.verb}"
        procedure = self._dispatcher.procedures.get(name)
        # That string rather than an equal one: whoever counts calls by it need not find out again that it is the same.
        meta = self._meta_of(call, name if procedure is None else procedure.name, peer_id)
        call_id = received.message.id
        steps = None if procedure is None else self._dispatcher.steps_of(procedure)
        if procedure is not None and steps is not None:
            stepped = SteppedCall(self, call_id, meta, size, procedure, steps, request)
            self._begin_steps(stepped, body, received.packed)
            return
        # Somebody between here and the handler may want to see the request, and expects JSON.
        if request is not None:
            body = _encode(request)
        elif received.packed:
            body = json_of(None if procedure is None else procedure.request, body)
        running = RunningCall(call_id, meta, size)
        self._add(running)
        running.work = self._loop.create_task(self._serve(running, Call(meta, body)))

    def _meta_of(self, call: StreamCall, procedure: str, peer_id: str | None) -> RequestMeta:
        answer_form: AnswerForm = "json"
        if self.packed:
            answer_form = "compact" if call.compact else "packed"
        stream = self._meta
        return RequestMeta(
            procedure=procedure,
            service=stream.service,
            caller=peer_id or stream.caller,
            transport=stream.transport,
            deadline=None if call.ttl_ms is None else self._loop.time() + min(call.ttl_ms, TTL_MAX_MS) / 1000,
            headers=stream.headers,
            principal=stream.principal,
            answer_form=answer_form,
        )

    def _check_room(self, size: int) -> None:
        if len(self._running) >= CALLS_MAX:
            raise ResourceExhausted(
                f"{CALLS_MAX} calls of this stream wait already", code="resource-exhausted", retry_after_ms=1_000
            )
        if self._bytes + size > CALL_BYTES_MAX:
            raise ResourceExhausted(
                f"calls of {self._bytes} bytes of this stream wait already",
                code="resource-exhausted",
                retry_after_ms=1_000,
            )

    def close(self) -> None:
        """Nobody will hear an answer any more: cancel all, and give back what comes nevertheless."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for running in list(self._running):
            if isinstance(running, SteppedCall):
                self._forsake(running, "Cancelled")
            elif running.work is not None:
                running.work.cancel()

    def _add(self, running: RunningCall) -> None:
        self._running.add(running)
        if running.id is not None:
            self._by_id[running.id] = running
        self._bytes += running.size

    def _over(self, running: RunningCall) -> None:
        if running in self._running:
            self._running.remove(running)
            self._bytes -= running.size
            if running.id is not None and self._by_id.get(running.id) is running:
                del self._by_id[running.id]

    def abandon(self, call_ids: Sequence[CallId]) -> None:
        """The peer no longer waits for these. Each still gets its answer, which says so; one that is answered already
        gets no other.
        """
        for call_id in call_ids:
            running = self._by_id.get(call_id)
            if running is not None:
                self._forsake(running, "Cancelled")
                self._answer(call_id, Unavailable("the caller abandoned the call", code=ABANDONED))

    def _forsake(self, running: RunningCall, status: str) -> None:
        """Call it off. What comes of it all the same is given back."""
        self._over(running)
        running.forsaken = True
        work = running.work
        if isinstance(running, SteppedCall):
            self._served(running, status)
        if work is not None:
            work.cancel()  # One that is done already still has its callback, or its task, to come.

    # -- with a task --------------------------------------------------------------------------------

    async def _serve(self, running: RunningCall, call: Call) -> None:
        try:
            outcome: Outcome = await self._dispatcher.call(call)
        except OmniRelayError as error:
            outcome = error
        finally:
            self._over(running)
        if not self._closed and not running.forsaken:
            self._answer(running.id, outcome)
        elif isinstance(outcome, Reply) and outcome.undelivered is not None:
            outcome.undelivered()

    # -- in steps -----------------------------------------------------------------------------------

    def _begin_steps(self, running: SteppedCall, body: bytes, packed: bool) -> None:
        meta, procedure = running.meta, running.procedure
        self._dispatcher.active += 1
        try:
            if meta.deadline is not None and meta.deadline <= self._loop.time():
                raise deadline_passed()
            if running.request is None:
                assert procedure.reader is not None, "what has steps has requests"
                running.request = procedure.reader.read(Call(meta, body, packed))
            work = running.work = running.steps.begin(meta, running.request)
        except Exception as error:
            self._refuse(running, error)
            return
        self._add(running)
        self._asked(work, running.finish)
        if meta.deadline is not None:
            self._watch_deadline(meta.deadline)

    def finish(self, running: SteppedCall, work: asyncio.Future[Any]) -> None:
        """What a call has waited for is there."""
        if running.forsaken:
            running.steps.give_back(work)
            return
        self._over(running)
        try:
            if work.cancelled():
                raise Unavailable("the call was called off", code=ABANDONED)
            outcome = reply_of(running.meta, running.steps.finish(running.meta, running.request, work))
        except Exception as error:
            self._refuse(running, error)
            return
        self._served(running, "Ok")
        self._answer(running.id, outcome)

    def _refuse(self, running: SteppedCall, error: Exception) -> None:
        known = error if isinstance(error, OmniRelayError) else internal(running.meta.procedure)
        self._served(running, status_name(known.status))
        self._answer(running.id, known)

    def _served(self, running: SteppedCall, status: str) -> None:
        self._dispatcher.active -= 1
        self._dispatcher.served(running.meta, status, running.started)

    def _watch_deadline(self, deadline: float) -> None:
        """One timer for all calls: most have been answered long before it comes."""
        due = deadline - ANSWER_SECONDS
        if self._timer is None or due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_at(due, self._time_came)

    def _time_came(self) -> None:
        self._timer = None
        now = self._loop.time()
        for running in list(self._running):
            deadline = running.meta.deadline
            if not isinstance(running, SteppedCall) or deadline is None:
                continue
            if deadline - ANSWER_SECONDS > now:
                self._watch_deadline(deadline)
                continue
            try:
                outcome: Outcome = running.procedure.too_late(running.meta, running.request)
                status = "Ok"
            except OmniRelayError as error:
                outcome, status = error, status_name(error.status)
            self._forsake(running, status)
            self._answer(running.id, outcome)
