"""Calls of one stream that have not been answered yet: served side by side, within bounds, each by its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from omnirelay.errors import OmniRelayError, ResourceExhausted, Unavailable
from omnirelay.rpc.calls import AnswerForm, Call, Reply, RequestMeta
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.rpc.driving import Driven
from omnirelay.wire.packed import json_of
from omnirelay.wire.streams import CallId, Received, StreamCall

CALLS_MAX = 10_000
"""Most calls of one stream that wait for an answer. One more is refused: acknowledgements never wait behind calls."""
CALL_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of requests of one stream that wait for an answer."""
TTL_MAX_MS = 1e10
ABANDONED = "error.resourcelease.abandoned"

Answer: TypeAlias = Callable[[CallId | None, Reply | OmniRelayError], None]

_encode = msgspec.json.Encoder().encode


class RunningCall:
    """A call that has not been answered yet."""

    __slots__ = ("call", "forsaken", "id", "size", "work")

    def __init__(self, call_id: CallId | None, call: Call, size: int) -> None:
        self.id = call_id
        self.call = call
        self.size = size
        self.work: Driven | asyncio.Task[None] | None = None
        self.forsaken = False
        """It was answered without it; what comes of it all the same is given back."""

    def cancel(self) -> None:
        if isinstance(self.work, Driven):
            self.work.interrupt(asyncio.CancelledError())
        elif self.work is not None:
            self.work.cancel()


class StreamCalls:
    """`answer` is called with what comes of each, once, unless `close` came first."""

    def __init__(self, dispatcher: Dispatcher, namespace: str, meta: RequestMeta, answer: Answer) -> None:
        """`meta` is that of the stream."""
        self._dispatcher = dispatcher
        self._namespace = namespace
        self._meta = meta
        self._answer = answer
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
        answer_form: AnswerForm = "json"
        if self.packed:
            answer_form = "compact" if call.compact else "packed"
        meta = RequestMeta(
            procedure=f"{self._namespace}::{call.verb}",
            service=self._meta.service,
            caller=peer_id or self._meta.caller,
            transport=self._meta.transport,
            deadline=None if call.ttl_ms is None else self._loop.time() + min(call.ttl_ms, TTL_MAX_MS) / 1000,
            headers=self._meta.headers,
            principal=self._meta.principal,
            answer_form=answer_form,
        )
        direct = self._dispatcher.is_direct(meta.procedure)
        # Without that, somebody between here and the handler may want to see the request, and expects JSON.
        if request is not None:
            asked = Call(meta, request=request) if direct else Call(meta, _encode(request))
        elif received.packed and not direct:
            asked = Call(meta, json_of(self._dispatcher.request_type(meta.procedure), body))
        else:
            asked = Call(meta, body, packed=received.packed)
        call_id = received.message.id
        running = RunningCall(call_id, asked, size)
        self._running.add(running)
        if call_id is not None:
            self._by_id[call_id] = running
        self._bytes += size
        if direct:
            running.work = Driven(self._serve(running, keeps_deadline=False), self._loop)
            self._watch_deadline(running)
        else:
            running.work = self._loop.create_task(self._serve(running, keeps_deadline=True))

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
            running.cancel()

    async def _serve(self, running: RunningCall, *, keeps_deadline: bool) -> None:
        try:
            outcome: Reply | OmniRelayError = await self._dispatcher.call(running.call, keeps_deadline=keeps_deadline)
        except OmniRelayError as error:
            outcome = error
        finally:
            self._over(running)
        if not self._closed and not running.forsaken:
            self._answer(running.id, outcome)
        elif isinstance(outcome, Reply) and outcome.undelivered is not None:
            outcome.undelivered()

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
                self._forsake(running)
                self._answer(call_id, Unavailable("the caller abandoned the call", code=ABANDONED))

    def _forsake(self, running: RunningCall) -> None:
        self._over(running)
        running.forsaken = True
        running.cancel()

    # -- deadlines of calls that are driven: a task has its own -----------------------------------

    def _watch_deadline(self, running: RunningCall) -> None:
        """One timer for all calls: most have been answered long before it comes."""
        due = running.call.meta.answer_by
        if due is None or running not in self._running:
            return
        if self._timer is None or due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_at(due, self._time_came)

    def _time_came(self) -> None:
        self._timer = None
        now = self._loop.time()
        for running in list(self._running):
            due = running.call.meta.answer_by
            if not isinstance(running.work, Driven) or due is None:
                continue
            if due > now:
                self._watch_deadline(running)
                continue
            running.call.overdue = True
            self._forsake(running)
            try:
                outcome: Reply | OmniRelayError = self._dispatcher.too_late(running.call)
            except OmniRelayError as error:
                outcome = error
            self._answer(running.id, outcome)
