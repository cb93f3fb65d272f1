"""The lease stream: one connection that carries many calls and has leases pushed to it.

    peer                                   node
      ── {open: {peerId, credit: 10}} ──▶
      ◀── {leases: [..]} ──                  pushed, until the credit is used up
      ── {begin: [token]} ──▶                from now on a drop does not release it
      ── {id: 1, acks: [{verb, ..}]} ──▶
      ◀── {id: 1, results: [..]} ──
      ── {credit: 1} ──▶                     room for one more
      ◀── {cancel: [token]}, {lost: [token]} ──

Calls are served side by side: one that waits holds up nothing behind it. When the connection ends, what was pushed and
not begun is released in the next frame, and calls that nobody will hear the answer of are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from omnirelay.core import events as ev
from omnirelay.core.answers import GrantedLease
from omnirelay.core.intake import BATCH_ITEMS_MAX, refuse
from omnirelay.core.payload import OwnershipToken
from omnirelay.engine.shard import Shard
from omnirelay.errors import InvalidArgument, OmniRelayError, ResourceExhausted, Unavailable
from omnirelay.rpc.calls import Call, RequestMeta
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.rpc.sessions import POLICY, RESTARTING, Outlet
from omnirelay.service.procedures import ACKNOWLEDGE, caller_of
from omnirelay.wire.answers import Lease, error_body_of, lease_of, outcome_of
from omnirelay.wire.reading import Reader
from omnirelay.wire.streams import CREDIT_MAX, StreamAck, StreamAnswer, StreamCall, StreamMessage, StreamOpen

LEASE_WAIT_MS = 60_000
LEASES_PER_CALL_MAX = 1_000
CALLS_MAX = 10_000
"""Most calls of one stream that wait for an answer. One more is refused: acknowledgements never wait behind calls."""
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Answers that are ready together go out together, up to about this much."""

_read_many = Reader(StreamMessage).read_many
_encode = msgspec.json.Encoder().encode


class HeldLeases:
    """Which stream of a shard holds which leases, so that a cancellation or a loss reaches the right one."""

    def __init__(self) -> None:
        self._streams: dict[int, tuple[OwnershipToken, LeaseStream]] = {}

    def add(self, token: OwnershipToken, stream: LeaseStream) -> None:
        self._streams[token.sequence_id] = (token, stream)

    def remove(self, token: OwnershipToken, stream: LeaseStream) -> None:
        held = self._streams.get(token.sequence_id)
        if held is not None and held[1] is stream and held[0].lease_id == token.lease_id:
            del self._streams[token.sequence_id]

    def take(self, events: Sequence[ev.Event]) -> None:
        """Look at durable events: tell streams what they could not know."""
        if not self._streams:
            return
        for event in events:
            kind = type(event)
            if kind is ev.Completed or kind is ev.Failed or kind is ev.Released or kind is ev.Expired:
                token = event.ownership  # type: ignore[union-attr]
                held = self._streams.get(token.sequence_id)
                if held is not None and held[0].lease_id == token.lease_id:
                    del self._streams[token.sequence_id]
                    if kind is ev.Expired:
                        held[1].lost(held[0])
            elif kind is ev.CancelRequested or kind is ev.Cancelled:
                held = self._streams.get(event.sequence_id)  # type: ignore[union-attr]
                if held is not None:
                    if kind is ev.CancelRequested:
                        held[1].cancel_requested(held[0])
                    else:
                        del self._streams[event.sequence_id]  # type: ignore[union-attr]
                        held[1].lost(held[0])


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
        self._dispatcher = dispatcher
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
        self._tasks: set[asyncio.Task[None]] = set()
        self._pushing: asyncio.Task[None] | None = None
        self._waiting: list[bytes] = []
        """Messages that go out at the end of this turn of the loop."""
        self._closed = False
        self._clock: float | None = None
        """The latest time of the peer that has come."""
        shard()  # Raises when the shard does not serve.

    # -- the session ---------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        try:
            messages = _read_many(data)
        except OmniRelayError as error:
            self._end(error, POLICY)
            return
        for message in messages:
            try:
                self._take(message)
            except OmniRelayError as error:
                if message.id is None:
                    self._end(error, POLICY)
                    return
                self._send(StreamAnswer(id=message.id, error=error_body_of(error)))

    def resumed(self) -> None:
        self._push()

    def closed(self) -> None:
        self._closed = True
        for task in (*self._tasks, *(() if self._pushing is None else (self._pushing,))):
            task.cancel()
        for token in self._held.values():
            self._held_leases.remove(token, self)
        self._held.clear()
        unbegun, self._unbegun = list(self._unbegun.values()), {}
        if unbegun:
            self._return(unbegun)

    def _return(self, leases: list[GrantedLease]) -> None:
        with suppress(OmniRelayError):  # Without a shard nobody can take them back; they run out as undelivered.
            self._shard().undelivered(leases)

    # -- what peers say ------------------------------------------------------------------------

    def _take(self, message: StreamMessage) -> None:
        if message.clock is not None:
            self._clock = message.clock
        if message.open is not None:
            self._open(message.open)
        if message.credit is not None:
            self._credit = min(self._credit + message.credit, CREDIT_MAX)
            self._push()
        if message.begin is not None:
            self._begin(message.begin)
        if message.acks is not None:
            self._acknowledge(message.id, message.acks)
        if message.call is not None:
            self._call(message.id, message.call)

    def _open(self, opened: StreamOpen) -> None:
        if self._opened is not None:
            refuse("open", "was sent already; a stream is opened once")
        self._opened = opened
        self._credit = opened.credit
        self._push()

    def _begin(self, tokens: list[OwnershipToken]) -> None:
        """The peer works on these. After a reconnect it names those it still holds, and hears of any it lost."""
        items = self._shard().state.items
        for token in tokens:
            lease_id = token.lease_id.lower()
            if self._unbegun.pop(lease_id, None) is not None or lease_id in self._held:
                continue
            item = items.get(token.sequence_id)
            if item is not None and item.lease is not None and item.lease.token.lease_id == lease_id:
                self._hold(item.lease.token)
                if item.trail is not None and item.trail.cancel_requested:
                    self.cancel_requested(item.lease.token)
            else:
                self._send(StreamAnswer(lost=[token]))

    def _acknowledge(self, call_id: int | str | None, acks: list[StreamAck]) -> None:
        if len(acks) > BATCH_ITEMS_MAX:
            refuse("acks", f"must be at most {BATCH_ITEMS_MAX} in one message")
        peer_id = None if self._opened is None else self._opened.peer_id
        commands = []
        for index, ack in enumerate(acks):
            command = ACKNOWLEDGE.get(ack.verb.lower())
            try:
                if command is None:
                    refuse("verb", "must be heartbeat, complete, fail or release")
                commands.append(command(ack, caller_of(self._meta, ack.peer_id or peer_id)))
            except InvalidArgument as error:
                error.details["index"] = index
                raise
        for ack in acks:
            if ack.verb != "heartbeat" and ack.ownership_token is not None:
                # A heartbeat keeps a lease that waits its turn; it does not say that work has begun.
                self._unbegun.pop(ack.ownership_token.lease_id.lower(), None)
        answer = self._shard().submit_acknowledgements(commands)
        answer.add_done_callback(lambda done: self._acknowledged(call_id, acks, done))

    def _acknowledged(self, call_id: int | str | None, acks: list[StreamAck], done: asyncio.Future[list[Any]]) -> None:
        if done.cancelled() or self._closed:
            return
        error = done.exception()
        if isinstance(error, OmniRelayError):
            self._send(StreamAnswer(id=call_id, error=error_body_of(error)))
            return
        for ack in acks:
            if ack.verb != "heartbeat" and ack.ownership_token is not None:
                token = self._held.pop(ack.ownership_token.lease_id.lower(), None)
                if token is not None:
                    self._held_leases.remove(token, self)
        self._send(StreamAnswer(id=call_id, results=[outcome_of(each) for each in done.result()]))

    def _call(self, call_id: int | str | None, call: StreamCall) -> None:
        if len(self._tasks) >= CALLS_MAX:
            raise ResourceExhausted(
                f"{CALLS_MAX} calls of this stream wait already", code="resource-exhausted", retry_after_ms=1_000
            )
        task = self._loop.create_task(self._serve(call_id, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, call_id: int | str | None, call: StreamCall) -> None:
        peer_id = None if self._opened is None else self._opened.peer_id
        meta = RequestMeta(
            procedure=f"{self._namespace}::{call.verb}",
            service=self._meta.service,
            caller=peer_id or self._meta.caller,
            transport=self._meta.transport,
            deadline=None if call.ttl_ms is None else self._loop.time() + call.ttl_ms / 1000,
            headers=self._meta.headers,
            principal=self._meta.principal,
        )
        try:
            reply = await self._dispatcher.call(Call(meta, bytes(call.request)))
        except OmniRelayError as error:
            self._send(StreamAnswer(id=call_id, error=error_body_of(error)))
            return
        if self._closed:
            if reply.undelivered is not None:
                reply.undelivered()
            return
        self._send(StreamAnswer(id=call_id, answer=msgspec.Raw(reply.body)))

    # -- what the node says --------------------------------------------------------------------

    def cancel_requested(self, token: OwnershipToken) -> None:
        self._send(StreamAnswer(cancel=[token]))

    def lost(self, token: OwnershipToken) -> None:
        self._held.pop(token.lease_id, None)
        self._unbegun.pop(token.lease_id, None)
        self._send(StreamAnswer(lost=[token]))

    def _push(self) -> None:
        """Have leases pushed as long as there is credit."""
        if self._opened is not None and self._credit > 0 and self._pushing is None and not self._closed:
            self._pushing = self._loop.create_task(self._push_leases(self._opened))

    async def _push_leases(self, opened: StreamOpen) -> None:
        filters = opened.filters
        try:
            while self._credit > 0 and not self._outlet.congested:
                shard = self._shard()
                granted = await shard.lease(
                    caller_of(self._meta, opened.peer_id),
                    max_items=min(self._credit, LEASES_PER_CALL_MAX),
                    wait_ms=LEASE_WAIT_MS,
                    lease_duration_ms=opened.lease_duration_ms,
                    resource_types=None if filters is None else filters.resource_types,
                    tenants=None if filters is None else filters.tenants,
                )
                if granted:
                    self._credit -= len(granted)
                    self._send(StreamAnswer(leases=self._pushed(granted, shard.now_ms()), clock=self._clock))
        except Unavailable as error:
            self._end(error, RESTARTING)
        except OmniRelayError as error:
            self._end(error, POLICY)
        finally:
            self._pushing = None

    def _pushed(self, granted: list[GrantedLease], now_ms: int) -> list[Lease]:
        """Leases as they go out. What remains of them counts from now, as does the clock that goes with them: the peer
        adds the two and is never later than the node.
        """
        leases = []
        for each in granted:
            self._unbegun[each.token.lease_id] = each
            self._hold(each.token)
            lease = lease_of(each)
            lease.remaining_ms = max(0, each.expires_at - now_ms)
            leases.append(lease)
        return leases

    def _hold(self, token: OwnershipToken) -> None:
        self._held[token.lease_id] = token
        self._held_leases.add(token, self)

    def _send(self, answer: StreamAnswer) -> None:
        if self._closed:
            return
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(_encode(answer))

    def _flush(self) -> None:
        """Everything that was said in this turn of the loop, in as few messages as it takes."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) == 1:
            self._outlet.send(waiting[0])
            return
        start = size = 0
        for index, message in enumerate(waiting):
            if size + len(message) > MESSAGE_BYTES_MAX and index > start:
                self._outlet.send(b"[" + b",".join(waiting[start:index]) + b"]")
                start, size = index, 0
            size += len(message)
        if start < len(waiting):
            self._outlet.send(b"[" + b",".join(waiting[start:]) + b"]")

    def _end(self, error: OmniRelayError, code: int) -> None:
        """Say why, and end the stream."""
        self._send(StreamAnswer(error=error_body_of(error)))
        self._flush()
        self._outlet.close(code, error.code)
