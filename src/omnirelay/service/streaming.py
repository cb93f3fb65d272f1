"""The lease stream: one connection that carries many calls and has leases pushed to it.

    peer                                   node
      ── {open: {peerId, credit: 10}} ──▶
      ◀── {leases: [..]} ──                  pushed, until the credit is used up
      ── {begin: [token]} ──▶                from now on a drop does not release it
      ── {id: 1, acks: [{verb, ..}]} ──▶
      ◀── {id: 1, results: [..]} ──
      ── {credit: 1} ──▶                     room for one more
      ◀── {cancel: [token]}, {lost: [token]} ──
      ── {withdraw: true} ──▶                no more, whatever credit is left

Calls are served side by side: one that waits holds up nothing behind it. When the connection ends, what was pushed and
not begun is released in the next frame, and calls that nobody will hear the answer of are cancelled. A peer that reads
slowly is sent no more than it takes: leases that were granted to it wait here, and are released with the rest.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from omnirelay.core.answers import GrantedLease
from omnirelay.core.intake import BATCH_ITEMS_MAX, refuse
from omnirelay.core.items import Lease as HeldLease
from omnirelay.core.payload import OwnershipToken
from omnirelay.engine.shard import Shard
from omnirelay.errors import (
    TOO_LARGE,
    Internal,
    InvalidArgument,
    OmniRelayError,
    PermissionDenied,
    Unavailable,
)
from omnirelay.rpc.calls import Reply, RequestMeta
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.rpc.sessions import POLICY, RESTARTING, Outlet
from omnirelay.service.acknowledging import ACKNOWLEDGE
from omnirelay.service.callers import caller_of, holder_of
from omnirelay.service.held_leases import HeldLeases
from omnirelay.service.stream_calls import Asked, Finish, StreamCalls
from omnirelay.wire.answers import error_body_of, lease_of, outcome_of
from omnirelay.wire.forms import JSON, PACKED, SUBPROTOCOL, Form, is_packed
from omnirelay.wire.packed_streams import read_packed_messages
from omnirelay.wire.streams import (
    CREDIT_MAX,
    Received,
    StreamAck,
    StreamAnswer,
    StreamOpen,
    read_messages,
)

_log = logging.getLogger("omnirelay.service")

LEASE_WAIT_MS = 60_000
LEASES_PER_CALL_MAX = 1_000
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Answers that are ready together go out together, up to about this much."""
PUSH_BYTES_MAX = 1024 * 1024
"""Leases go out in messages of about this size; between two of them it is seen whether the peer still reads."""


class LeaseStream:
    """One stream of one peer."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        namespace: str,
        shard: Callable[[], Shard],
        held: HeldLeases,
        meta: RequestMeta,
        outlet: Outlet,
    ) -> None:
        self._namespace = namespace
        self._shard = shard
        self._held_leases = held
        self._meta = meta
        self._outlet = outlet
        self._loop = asyncio.get_running_loop()
        self._opened: StreamOpen | None = None
        self._credit = 0
        self._unbegun: dict[str, GrantedLease] = {}
        """Pushed, and nothing has been heard of them yet."""
        self._held: dict[str, OwnershipToken] = {}
        self._granted: deque[GrantedLease] = deque()
        """Held for the peer, and not sent yet."""
        self._asked: list[Asked] = []
        """What has been asked of the shard since the last read, and what to do when it has answered."""
        self._calls = StreamCalls(dispatcher, namespace, meta, self._answer, self._note_asked)
        self._acks_running = 0
        self._pushing: asyncio.Task[None] | None = None
        self._waiting: list[bytes] = []
        """Messages that go out at the end of this turn of the loop."""
        self._waiting_bytes = 0
        self._flushing = False
        self._receiving = False
        self._closed = False
        self._ended = False
        """The peer has been told that this is the end."""
        self._clock: float | None = None
        """The latest time of the peer that has come."""
        offered = meta.headers.get("sec-websocket-protocol", "")
        self.subprotocol = SUBPROTOCOL if SUBPROTOCOL in re.split(r"[,\s]+", offered) else None
        self._form: Form | None = None
        """That of the peer's first message. Only then is it sure that it has heard of a subprotocol."""
        shard()  # Raises when the shard does not serve.

    # -- the session ---------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        if self._ended:
            return
        packed = self.subprotocol is not None and is_packed(data)
        if self._form is None:
            self._form = PACKED if packed else JSON
            self._calls.packed = packed
        try:
            messages = read_packed_messages(data) if packed else read_messages(data)
        except OmniRelayError as error:
            self._end(error)
            return
        self._receiving = True
        try:
            for received in messages:
                try:
                    if received.error is not None:
                        raise received.error
                    self._take(received, len(data))
                except OmniRelayError as error:
                    if received.message.id is None:
                        self._end(error)
                        return
                    self._send(StreamAnswer(id=received.message.id, error=error_body_of(error)))
        finally:
            self._receiving = False

    def received(self) -> None:
        asked, self._asked = self._asked, []
        if asked:
            self._finish_or_wait(asked)

    def _finish_or_wait(self, asked: list[Asked]) -> None:
        """What has just been asked of the shard is answered in this step if it can be, else when its future is done.

        Whoever is answered beside it hears first: that is a peer that waits for work, and the one who brought the work
        only wants to know that it is safe.
        """
        alone = len(asked) == 1 and self._serve_now()
        for work, finish in asked:
            if not alone or not work.done():
                work.add_done_callback(finish)
                continue
            try:
                finish(work)
            except Exception as error:
                # As if the loop had called it: this is no reason to end the connection, with all its calls.
                self._loop.call_exception_handler({"message": "an answer could not be written", "exception": error})

    def _serve_now(self) -> bool:
        try:
            return self._shard().serve_now()
        except OmniRelayError:
            return False  # Without a shard the future says so.

    def resumed(self) -> None:
        self._push()

    def closed(self) -> None:
        self._closed = True
        if self._pushing is not None:
            self._pushing.cancel()
        self._calls.close()
        for token in self._held.values():
            self._held_leases.remove(token, self)
        self._held.clear()
        self._granted.clear()
        unbegun, self._unbegun = list(self._unbegun.values()), {}
        if unbegun:
            self._return(unbegun)

    def stop(self) -> None:
        """Tell the peer that the node is going, and take back what it has not begun."""
        self._end(Unavailable("the node is stopping", code="error.resourcelease.draining", retry_after_ms=1_000))
        self.closed()

    def _return(self, leases: list[GrantedLease]) -> None:
        with suppress(OmniRelayError):  # Without a shard nobody can take them back; they run out as undelivered.
            self._shard().undelivered(leases)

    # -- what peers say ------------------------------------------------------------------------

    def _take(self, received: Received, size: int) -> None:
        message = received.message
        if message.clock is not None:
            self._clock = message.clock
        if message.open is not None:
            self._open(message.open)
        if message.withdraw:
            self._withdraw()
        if message.credit is not None:
            self._credit = min(self._credit + message.credit, CREDIT_MAX)
            self._push()
        if message.begin is not None:
            self._begin(message.begin)
        if received.acks is not None:
            self._acknowledge(message.id, received.acks)
        if message.call is not None:
            peer_id = None if self._opened is None else self._opened.peer_id
            self._calls.begin(received, message.call, size, peer_id)
        if message.abandon is not None:
            self._calls.abandon(message.abandon)

    def _open(self, opened: StreamOpen) -> None:
        if self._opened is not None:
            refuse("open", "was sent already; a stream is opened once")
        self._opened = opened
        self._credit = min(self._credit + opened.credit, CREDIT_MAX)
        self._push()

    def _withdraw(self) -> None:
        """The peer takes nothing more: what it gives back from here on goes to others, and so does what was granted
        and has not been sent.
        """
        self._credit = 0
        pushing, self._pushing = self._pushing, None
        if pushing is not None:
            pushing.cancel()  # At once, and not when the loop comes to it: nothing is granted to it any more.
        unsent = [each for each in self._granted if each.token.lease_id in self._held]
        self._granted.clear()
        for each in unsent:
            self._held_leases.remove(each.token, self)
            self.ended(each.token)
        if unsent:
            self._return(unsent)

    def _begin(self, tokens: list[OwnershipToken]) -> None:
        """The peer works on these. After a reconnect it names those it still holds, and hears of any it lost."""
        items = self._shard().state.items
        for token in tokens:
            lease_id = token.lease_id.lower()
            if self._unbegun.pop(lease_id, None) is not None or lease_id in self._held:
                continue
            item = items.get(token.sequence_id)
            lease = None if item is None else item.lease
            if item is not None and lease is not None and lease.token.lease_id == lease_id and self._may_hold(lease):
                self._hold(lease.token)
                if item.trail is not None and item.trail.cancel_requested:
                    self.cancel_requested(lease.token)
            else:
                self._send(StreamAnswer(lost=[token]))

    def _may_hold(self, lease: HeldLease) -> bool:
        """Whether an acknowledgement from here would count: who may not end a lease must not have it to itself."""
        caller = holder_of(self._meta, None if self._opened is None else self._opened.peer_id)
        if lease.principal is not None:
            return caller.principal == lease.principal
        return caller.peer_id is None or caller.peer_id == lease.owner

    def _acknowledge(self, call_id: int | str | None, acks: Sequence[StreamAck | InvalidArgument]) -> None:
        if len(acks) > BATCH_ITEMS_MAX:
            refuse("acks", f"must be at most {BATCH_ITEMS_MAX} in one message", code=TOO_LARGE, limit=BATCH_ITEMS_MAX)
        outcomes: list[Any] = []
        commands = []
        for ack in acks:
            try:
                commands.append(self._command(ack))
                outcomes.append(None)
            except InvalidArgument as error:
                outcomes.append(error)
        if not commands:
            self._send(StreamAnswer(id=call_id, results=[outcome_of(each) for each in outcomes]))
            return
        answer = self._shard().submit_acknowledgements(commands)
        self._acks_running += 1
        self._note_asked(answer, lambda done: self._acknowledged(call_id, outcomes, done))

    def _note_asked(self, work: asyncio.Future[Any], finish: Finish) -> None:
        self._asked.append((work, finish))

    def _command(self, ack: StreamAck | InvalidArgument) -> Any:
        if isinstance(ack, InvalidArgument):
            raise ack
        command = ACKNOWLEDGE.get(ack.verb.lower())
        if command is None:
            refuse("verb", "must be heartbeat, complete, fail or release")
        peer_id = None if self._opened is None else self._opened.peer_id
        return command(ack, holder_of(self._meta, ack.peer_id or peer_id))

    def _acknowledged(self, call_id: int | str | None, outcomes: list[Any], done: asyncio.Future[list[Any]]) -> None:
        """`outcomes` has the refusals of what was no command; the others come from the shard, in order."""
        self._acks_running -= 1
        if done.cancelled() or self._closed:
            return
        error = done.exception()
        if error is not None:
            known = error if isinstance(error, OmniRelayError) else Internal("the node failed on this")
            self._answer(call_id, known)
            return
        decided = iter(done.result())
        results = [outcome_of(next(decided) if each is None else each) for each in outcomes]
        self._say(self._encoded(StreamAnswer(id=call_id, results=results)))

    def _answer(self, call_id: int | str | None, outcome: Reply | OmniRelayError) -> None:
        if isinstance(outcome, OmniRelayError):
            self._say(self._encoded(StreamAnswer(id=call_id, error=error_body_of(outcome))))
        else:
            self._say((self._form or JSON).message(call_id, "answer", outcome.body))

    def _encoded(self, answer: StreamAnswer) -> bytes:
        return (self._form or JSON).encode(answer)

    # -- what the node says --------------------------------------------------------------------

    def cancel_requested(self, token: OwnershipToken) -> None:
        self._send(StreamAnswer(cancel=[token]))

    def lost(self, token: OwnershipToken) -> None:
        self.ended(token)
        self._send(StreamAnswer(lost=[token]))

    def ended(self, token: OwnershipToken) -> None:
        """The lease is over, or another stream has it."""
        self._held.pop(token.lease_id, None)
        self._unbegun.pop(token.lease_id, None)

    def _push(self) -> None:
        """Have leases pushed as long as there is credit."""
        wanted = self._credit > 0 or self._granted
        if self._opened is not None and wanted and self._pushing is None and not self._closed:
            self._pushing = self._loop.create_task(self._push_leases(self._opened))

    async def _push_leases(self, opened: StreamOpen) -> None:
        filters = opened.filters
        try:
            while not self._outlet.congested:
                if self._granted:
                    self._send_granted()
                    self._flush()
                    await asyncio.sleep(0)  # Now it is known whether the peer takes it.
                    continue
                if self._credit <= 0:
                    break
                granted = await self._shard().lease(
                    caller_of(self._meta, opened.peer_id),
                    max_items=min(self._credit, LEASES_PER_CALL_MAX),
                    wait_ms=LEASE_WAIT_MS,
                    lease_duration_ms=opened.lease_duration_ms,
                    resource_types=None if filters is None else filters.resource_types,
                    tenants=None if filters is None else filters.tenants,
                )
                self._credit -= len(granted)
                for each in granted:
                    self._unbegun[each.token.lease_id] = each
                    self._hold(each.token)
                self._granted.extend(granted)
        except OmniRelayError as error:
            self._end(error)
        except Exception:
            _log.exception("stream_failed", extra={"namespace": self._namespace})
            self._end(Internal("the node failed on this stream; its log has the details"))
        finally:
            if self._pushing is asyncio.current_task():  # Else its credit was withdrawn, and new credit has another.
                self._pushing = None

    def _send_granted(self) -> None:
        """As many leases as fit one message. What remains of them counts from now, as does the clock that goes with
        them: the peer adds the two and is never later than the node.
        """
        shard = self._shard()
        now_ms = shard.now_ms()
        compact = self._opened is not None and self._opened.compact and self._form is PACKED
        leases: list[Any] = []
        over: list[StreamAnswer] = []
        size = 0
        while self._granted and (not leases or size < PUSH_BYTES_MAX):
            granted = self._granted.popleft()
            if granted.token.lease_id not in self._held:
                self._credit += 1  # It ended while it waited here; the peer never saw it.
                continue
            remaining = replace(granted, remaining_ms=max(0, granted.expires_at - now_ms))
            leases.append(remaining if compact else lease_of(remaining))
            size += _size_of(granted)
            item = shard.state.items.get(granted.token.sequence_id)
            # What was decided together with the grant was told before this stream held the lease.
            if item is None or item.lease is None or item.lease.token.lease_id != granted.token.lease_id:
                self._held_leases.remove(granted.token, self)
                self.ended(granted.token)
                over.append(StreamAnswer(lost=[granted.token]))
            elif item.trail is not None and item.trail.cancel_requested:
                over.append(StreamAnswer(cancel=[granted.token]))
        if leases:
            self._send(StreamAnswer(leases=leases, clock=self._clock))
        for answer in over:
            self._send(answer)

    def _hold(self, token: OwnershipToken) -> None:
        self._held[token.lease_id] = token
        self._held_leases.add(token, self)

    def _send(self, answer: StreamAnswer) -> None:
        """Something goes out at the end of this turn of the loop, with everything else that is said in it."""
        self._put(self._encoded(answer), alone=False)

    def _say(self, message: bytes) -> None:
        """An answer goes out. When nobody else waits for one there is nothing it could go out together with."""
        self._put(message, alone=not (self._calls or self._acks_running or self._receiving))

    def _put(self, message: bytes, *, alone: bool) -> None:
        if self._closed:
            return
        self._waiting.append(message)
        self._waiting_bytes += len(message)
        if alone or self._waiting_bytes > MESSAGE_BYTES_MAX:
            self._flush()  # Who leaves too much unread is dropped before the next answer is made.
        elif not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_in_turn)

    def _flush_in_turn(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        """Everything that was said, in as few messages as it takes."""
        waiting, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        form = self._form or JSON
        if len(waiting) == 1:
            self._outlet.send(waiting[0], binary=form.binary)
            return
        start = size = 0
        for index, message in enumerate(waiting):
            if size + len(message) > MESSAGE_BYTES_MAX and index > start:
                self._outlet.send(form.array(waiting[start:index]), binary=form.binary)
                start, size = index, 0
            size += len(message)
        if start < len(waiting):
            self._outlet.send(form.array(waiting[start:]), binary=form.binary)

    def _end(self, error: OmniRelayError) -> None:
        """Say why, and end the stream. Who broke a rule hears so; anything else is worth another connection."""
        self._ended = True
        self._send(StreamAnswer(error=error_body_of(error)))
        self._flush()
        self._outlet.close(POLICY if isinstance(error, _RULES) else RESTARTING, error.code)
        self._calls.close()  # No answer leaves any more, so what one brings is given back.


_RULES = (InvalidArgument, PermissionDenied)


def _size_of(granted: GrantedLease) -> int:
    """About how much a lease takes on the wire."""
    payload = granted.payload
    attributes = sum(len(name) + len(value) for name, value in (payload.attributes or {}).items())
    progress = 0 if granted.progress is None else len(granted.progress)
    return len(payload.body) * 4 // 3 + attributes + progress + 1_024
