"""The stream to a node: one WebSocket that carries many calls at once, and has leases pushed over it."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import urlsplit

import msgspec
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from omnirelay.client.asking import Asking, encoded_ack
from omnirelay.client.connections import CONNECT_SECONDS, decoder_of, procedures_at, refused, unreachable
from omnirelay.client.elapsed_time import elapsed_seconds
from omnirelay.client.failures import ConnectionLost, NotConnected, error_of
from omnirelay.client.messages import Message, answer_in, messages_in
from omnirelay.client.room import Room
from omnirelay.core.payload import OwnershipToken
from omnirelay.errors import TOO_LARGE, Internal, InvalidArgument
from omnirelay.transport.websocket import MESSAGE_MAX, WebSocketLink
from omnirelay.wire.answers import Lease, LeaseAnswer, Outcome
from omnirelay.wire.compact import COMPACT_ANSWERS, leases_of
from omnirelay.wire.forms import JSON, PACKED, SUBPROTOCOL, Form, is_packed
from omnirelay.wire.requests import IncomingToken
from omnirelay.wire.streams import MESSAGES_MAX, StreamAck

FLUSH_BYTES_MAX = 4 * 1024 * 1024
UPGRADE_REQUIRED = 426
ACKS_MAX = 1_000
"""Most acknowledgements in one message."""
CALLS_MAX = 8_000
BYTES_MAX = 16 * 1024 * 1024
"""What may be under way at a time, of calls and of acknowledgements: less than a node bears, and little enough for what
goes out behind it to get there soon.
"""
WAITING_VERBS = ("lease", "get", "enqueue")
"""Calls that a node may take long to answer, because they wait for something."""

A = TypeVar("A")


class Pushed(Protocol):
    """What a worker wants to hear of a stream. Called on the event loop of the connection."""

    def leases(self, leases: list[Lease], not_before: float) -> None:
        """Leases were pushed; none was granted before `not_before`, in `elapsed_seconds`."""
        ...

    def cancel(self, tokens: list[OwnershipToken]) -> None: ...

    def lost(self, tokens: list[OwnershipToken]) -> None: ...

    def taken_in(self, mark: int) -> None:
        """The node has taken in everything that was said up to `StreamConnection.mark`."""
        ...


class StreamConnection(WebSocketLink):
    """One WebSocket to a node. What is said in one turn of the loop goes out together."""

    # Callers wait for this connection: that it is dead must be known well within the time of a call.
    ping_seconds = 4.0
    silence_seconds_max = 10.0

    def __init__(self, url: str, headers: dict[str, str], pushed: Pushed | None, on_gone: Callable[[], None]) -> None:
        # An answer is as large as what was asked for.
        engine = ClientProtocol(parse_uri(url), subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=None)
        super().__init__(engine, size_max=None)
        self._extra_headers = headers
        self._pushed = pushed
        self._tell_gone = on_gone
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self._form: Form = JSON
        self._answers: dict[int, tuple[asyncio.Future[Any], Any]] = {}
        """By the id of the call: who waits, and for what type of answer."""
        self._due: dict[asyncio.Future[Any], float] = {}
        """When callers stop waiting. One timer for all: most have been answered long before."""
        self._due_timer: asyncio.TimerHandle | None = None
        self._due_timer_at = 0.0
        self._next_id = 0
        self._waiting: list[bytes] = []
        self._acks: list[tuple[bytes, asyncio.Future[Outcome]]] = []
        self._flushing = False
        self._leasing: set[int] = set()
        """Calls for leases under way: what comes of one that nobody waits for any more is given back."""
        self._room = Room(calls_max=CALLS_MAX, bytes_max=BYTES_MAX)
        self._ack_room = Room(calls_max=sys.maxsize, bytes_max=BYTES_MAX)
        self._mark = 0
        self._marking = False
        """Something is going out of which it matters when the node has taken it in."""
        self.end_reason: str | None = None
        """What the node said before it ended the stream."""

    @classmethod
    async def open(
        cls,
        url: str,
        namespace: str,
        headers: dict[str, str],
        *,
        pushed: Pushed | None = None,
        on_gone: Callable[[], None] = lambda: None,
    ) -> StreamConnection:
        """Connect. Raises NotConnected, or the error the node refused with."""
        parts = urlsplit(url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        target = f"{procedures_at(f'{scheme}://{parts.netloc}{parts.path}', namespace)}/stream"
        port = parts.port or (443 if scheme == "wss" else 80)
        loop = asyncio.get_running_loop()
        link: StreamConnection | None = None
        opened = False
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, link = await loop.create_connection(
                    lambda: cls(target, headers, pushed, on_gone),
                    parts.hostname or "127.0.0.1",
                    port,
                    ssl=True if scheme == "wss" else None,
                )
                await link.opened
                opened = True
        except (OSError, TimeoutError, UnicodeError) as error:
            raise NotConnected(unreachable(url, error), retry_after_ms=100) from None
        finally:
            if link is not None and not opened:
                link._abort()  # It may be open: in the very turn in which the caller was told to go.
        return link

    @property
    def alive(self) -> bool:
        return self._is_open

    def unanswered_bytes(self) -> int:
        return self._room.taken_bytes + self._ack_room.taken_bytes

    @property
    def heard_at(self) -> float:
        """When the node was last heard, were it a pong."""
        return self._heard_at

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        engine = cast(ClientProtocol, self._engine)
        request = engine.connect()
        for name, value in self._extra_headers.items():
            request.headers[name] = value
        engine.send_request(request)
        self._write()

    def on_handshake(self, event: Request | Response) -> None:
        if self.opened.done():
            return  # Nobody waits for it any more.
        problem = cast(ClientProtocol, self._engine).handshake_exc
        if problem is None:
            if self._engine.subprotocol == SUBPROTOCOL:
                self._form = PACKED
            self.opened.set_result(None)
            return
        refusal: Exception = NotConnected(f"the node does not stream: {problem}", retry_after_ms=500)
        if isinstance(problem, InvalidStatus):
            status = problem.response.status_code
            refusal = refused(status, bytes(problem.response.body or b""))
            if status == UPGRADE_REQUIRED:
                # In words of the node, when a proxy before it has dropped the wish for an upgrade.
                refusal = NotConnected(f"no stream gets through to the node: {refusal}", status=status)
        self.opened.set_exception(refusal)

    def on_message(self, data: bytes) -> None:
        if not self._answer_at_once(data):
            self._take(data)

    def _answer_at_once(self, data: bytes) -> bool:
        """Settle the call that `data` answers, when it is what most messages are; reading it as any message would mean
        going through the answer twice.
        """
        found = answer_in(data)
        if found is None:
            return False
        call_id, start, end = found
        waiting = self._answers.get(call_id)
        if waiting is None or waiting[0].done():
            return False
        try:
            answer = decoder_of(waiting[1], packed=is_packed(data))(memoryview(data)[start:end])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        del self._answers[call_id]
        self._leasing.discard(call_id)
        waiting[0].set_result(answer)
        return True

    def _take(self, data: bytes) -> None:
        packed = is_packed(data)
        for message in messages_in(data):
            if message.id is not None:
                waiting = self._answers.pop(message.id, None)
                leasing = message.id in self._leasing
                self._leasing.discard(message.id)
                if waiting is not None and not waiting[0].done():
                    self._settle(*waiting, message, packed)
                elif leasing and message.error is None:
                    self._give_back(decoder_of(LeaseAnswer, packed=packed)(message.answer))
                continue
            if message.error is not None:
                self.end_reason = f"{message.error.message} ({message.error.code})"
            if self._pushed is not None:
                self._hand_on(self._pushed, message)

    def _settle(self, answer: asyncio.Future[Any], kind: Any, message: Message[Any], packed: bool) -> None:
        if message.error is not None:
            answer.set_exception(error_of(message.error))
        elif message.results is not None:
            answer.set_result(message.results)
        else:
            try:
                answer.set_result(decoder_of(kind, packed=packed)(message.answer))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                answer.set_exception(Internal(f"the answer of the node cannot be read; which version is it? {error}"))

    def _give_back(self, answer: LeaseAnswer) -> None:
        """Leases that came when the caller had gone: nobody will work on them."""
        for lease in answer.leases:
            token = lease.ownership_token
            named = IncomingToken(
                sequence_id=token.sequence_id, attempt=token.attempt, lease_id=token.lease_id, fence=token.fence
            )
            ack = StreamAck(verb="release", ownership_token=named, peer_id=lease.owner_peer_id or None)
            self._acks.append((self._form.encode(ack), self._loop.create_future()))
            self._flush_soon()

    def on_pong(self, data: bytes) -> None:
        if data and self._pushed is not None:
            self._pushed.taken_in(int(data))

    def _hand_on(self, pushed: Pushed, message: Message[Any]) -> None:
        if message.leases:
            leases = message.leases if type(message.leases[0]) is Lease else leases_of(message.leases)
            pushed.leases(leases, -math.inf if message.clock is None else message.clock)
        if message.cancel:
            pushed.cancel(message.cancel)
        if message.lost:
            pushed.lost(message.lost)

    def on_gone(self) -> None:
        lost = ConnectionLost("the connection to the node ended before the answer came", retry_after_ms=100)
        if not self.opened.done():
            self.opened.set_exception(NotConnected("the node ended the connection at once", retry_after_ms=500))
            self.opened.exception()  # Whoever waits gets it; nobody has to.
        waiting = [*(future for future, _ in self._answers.values()), *(future for _, future in self._acks)]
        self._answers.clear()
        self._acks.clear()
        self._leasing.clear()
        if self._due_timer is not None:
            self._due_timer.cancel()
        for room in (self._room, self._ack_room):
            room.end(NotConnected("the connection to the node is gone", retry_after_ms=100))
        for future in waiting:
            if not future.done():
                future.set_exception(lost)
                future.exception()  # Whoever waits gets it; nobody has to.
        self._tell_gone()

    # -- saying something ----------------------------------------------------------------------

    @property
    def packs(self) -> bool:
        return self._form.binary

    async def call(self, verb: str, request: Asking, ttl_ms: float, answer: type[A]) -> A:
        body = request.body(packed=self._form.binary)
        size = len(body)
        if not self._room.enter(size):
            ttl_ms = await self._wait_for(self._room, size, ttl_ms)
        call_id = 0
        waiting: asyncio.Future[A] | None = None
        try:
            message = self._form.call(verb, body, max(1, int(ttl_ms)), compact=answer in COMPACT_ANSWERS)
            waiting = self._ask("call", message, answer)
            call_id = self._next_id
            if verb == "lease":
                self._leasing.add(call_id)
            return await self._within(ttl_ms, waiting)
        except asyncio.CancelledError:
            if verb in WAITING_VERBS and call_id in self._answers:
                # Or it would wait on: take a place of this stream, come in later, or be granted what comes next.
                self.say(abandon=[call_id])
            # The answer may have come in the very turn of the loop in which the caller was told to go.
            if waiting is not None and waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                answered = waiting.result()
                if isinstance(answered, LeaseAnswer):
                    self._give_back(answered)
            raise
        finally:
            self._room.leave(size)

    async def _wait_for(self, room: Room, size: int, ttl_ms: float) -> float:
        """Returns how much of its time a call has left then."""
        began = self._loop.time()
        await room.wait(size, ttl_ms / 1000)
        return max(1.0, ttl_ms - (self._loop.time() - began) * 1000)

    async def _within(self, ttl_ms: float, waiting: asyncio.Future[A]) -> A:
        """Wait for an answer. Raises TimeoutError when it takes too long; then nobody waits for it any more."""
        due = self._loop.time() + ttl_ms / 1000
        self._due[waiting] = due
        if self._due_timer is None or due < self._due_timer_at:
            if self._due_timer is not None:
                self._due_timer.cancel()
            self._set_due_timer(due)
        try:
            return await waiting
        finally:
            del self._due[waiting]

    def _set_due_timer(self, due: float) -> None:
        self._due_timer_at = due
        self._due_timer = self._loop.call_at(due, self._time_came)

    def _time_came(self) -> None:
        self._due_timer = None
        now = self._loop.time()
        for waiting, due in self._due.items():
            if due <= now and not waiting.done():
                waiting.set_exception(TimeoutError())
        left = [due for due in self._due.values() if due > now]
        if left:
            self._set_due_timer(min(left))

    def _ask(self, name: str, message: bytes, kind: Any) -> asyncio.Future[Any]:
        if not self.alive:
            raise NotConnected("the connection to the node is gone", retry_after_ms=100)
        if len(message) > MESSAGE_MAX - 100:
            # The node would end the connection, and with it every other call.
            raise InvalidArgument(
                f"a request takes at most {MESSAGE_MAX} bytes, this one has {len(message)}",
                code=TOO_LARGE,
                limit=MESSAGE_MAX,
            )
        self._next_id += 1
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(self._form.message(self._next_id, name, message))
        self._flush_soon(now=not self._answers)
        self._answers[self._next_id] = (answer, kind)
        return answer

    async def acknowledge(self, ack: StreamAck, ttl_ms: float) -> Outcome:
        """Acknowledgements of one turn of the loop travel as one message, each with an outcome of its own."""
        message = encoded_ack(ack, self._form)
        if len(message) > MESSAGE_MAX - 100:
            raise InvalidArgument(
                f"an acknowledgement takes at most {MESSAGE_MAX} bytes, this one has {len(message)}",
                code=TOO_LARGE,
                limit=MESSAGE_MAX,
            )
        if not self._ack_room.enter(len(message)):
            ttl_ms = await self._wait_for(self._ack_room, len(message), ttl_ms)
        try:
            if not self.alive:
                raise NotConnected("the connection to the node is gone", retry_after_ms=100)
            outcome: asyncio.Future[Outcome] = self._loop.create_future()
            self._acks.append((message, outcome))
            self._flush_soon(now=not self._answers)
            return await self._within(ttl_ms, outcome)
        finally:
            self._ack_room.leave(len(message))

    def say(self, **message: Any) -> int:
        """Send what has no answer: `open`, `credit`, `withdraw`, `begin`. `clock` is this machine's time; the node
        gives it back.

        Returns a mark: `Pushed.taken_in` is called with it, or a later one, when the node has taken this in. Of credit
        alone nobody is told: the leases that come of it tell.
        """
        if self.alive:
            self._marking = self._marking or message.keys() != {"credit"}
            if self._form.binary and "open" in message:
                message["open"] = {**message["open"], "compact": True}
            self._waiting.append(self._form.encode({**message, "clock": elapsed_seconds()}))
            self._flush_soon()
        return self._mark + 1

    def _flush_soon(self, *, now: bool = False) -> None:
        """Together with what else is said in this turn of the loop. `now`: nothing is under way that it could go out
        with.
        """
        if not self._flushing:
            self._flushing = True
            if now:
                self._flush()
            else:
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        try:
            self._send_waiting()
        finally:
            self._flushing = False

    def _send_waiting(self) -> None:
        if not self.alive:
            return
        if self._acks:
            self._send_acks()
        waiting, self._waiting = self._waiting, []
        start = size = 0
        for index, message in enumerate(waiting if len(waiting) > 1 else ()):
            if index > start and (index - start >= MESSAGES_MAX or size + len(message) > FLUSH_BYTES_MAX):
                self._send_joined(waiting[start:index])
                start, size = index, 0
            size += len(message)
        self._send_joined(waiting[start:])
        if self._pushed is not None and self._marking:
            # Answered in its turn: then everything before it has been read. Calls and acknowledgements have answers of
            # their own, and a ping takes both ends as long as one of them.
            self._marking = False
            self._mark += 1
            self.ping(b"%d" % self._mark)

    def _send_joined(self, messages: list[bytes]) -> None:
        if messages:
            data = messages[0] if len(messages) == 1 else self._form.array(messages)
            self.send(data, binary=self._form.binary)

    def _send_acks(self) -> None:
        acks, self._acks = self._acks, []
        start = size = 0
        for index, (message, _) in enumerate(acks):
            if index > start and (index - start >= ACKS_MAX or size + len(message) > FLUSH_BYTES_MAX):
                self._send_part(acks[start:index])
                start, size = index, 0
            size += len(message)
        self._send_part(acks[start:])

    def _send_part(self, acks: list[tuple[bytes, asyncio.Future[Outcome]]]) -> None:
        answer = self._ask("acks", self._form.array([message for message, _ in acks]), None)
        answer.add_done_callback(partial(_share_out, [future for _, future in acks]))

    async def aclose(self) -> None:
        """Say goodbye; whoever still waits for an answer gets ConnectionLost."""
        self.close()
        try:
            for _ in range(100):
                if self._gone:
                    return
                await asyncio.sleep(0.01)
        finally:
            self._abort()  # The node does not say goodbye, and the loop may be over before it could.


def _share_out(outcomes: list[asyncio.Future[Outcome]], done: asyncio.Future[list[Outcome]]) -> None:
    error = asyncio.CancelledError() if done.cancelled() else done.exception()
    for index, outcome in enumerate(outcomes):
        if outcome.done():
            continue
        if error is None:
            outcome.set_result(done.result()[index])
        else:
            outcome.set_exception(error)
            outcome.exception()
