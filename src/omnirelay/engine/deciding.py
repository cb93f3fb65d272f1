"""Making one frame out of what waits in the inbox.

In this order: time first (delays end), then acknowledgements, so that one that arrived in time counts,
then everything else as it came, then lease calls in line, and expiries last.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from omnirelay.core.commands import (
    AdvanceTime,
    Command,
    EnforceCaps,
    ExpireLeases,
    ReturnUndelivered,
    SignalBackpressure,
)
from omnirelay.core.decide import Ids, acknowledge_all, apply, check_enqueue
from omnirelay.core.intake import check_grant
from omnirelay.core.rules.enqueue import check_pauses, check_request_ids, check_size, is_repeat
from omnirelay.core.rules.grant import repeated_grants
from omnirelay.core.state import State
from omnirelay.engine.requests import (
    BEFORE,
    AcknowledgeRequest,
    Batch,
    CommandRequest,
    EnqueueRequest,
    LeaseRequest,
    ReadRequest,
    Request,
    ReturnRequest,
)
from omnirelay.engine.waiting import EnqueueLine, ItemWaiters, LeaseLine
from omnirelay.errors import Internal, OmniRelayError, ResourceExhausted

_log = logging.getLogger("omnirelay.engine")

NO_ROOM = "error.resourcelease.backpressure"
"""What an enqueue is refused with that may wait: room will come when items end."""

FRAME_BODY_BYTES_MAX = 3 * 1024 * 1024
"""A frame takes no further command beyond this many bytes of new bodies; what is decided is split if need be."""


class Decider:
    """Turns requests into a Batch: decided, evolved, not yet durable."""

    def __init__(self, state: State, ids: Ids, line: LeaseLine, enqueues: EnqueueLine, items: ItemWaiters) -> None:
        self.state = state
        self._ids = ids
        self._line = line
        self._line_served_at = -1
        """The event after which every lease call in line was asked in vain; only another event can change that."""
        self._enqueues = enqueues
        self._enqueues_served_at = -1
        """The same for enqueues that wait for room."""
        self._items = items
        self._events_max = 0
        self._begun_at = 0
        """The last event before the batch."""

    def build(
        self, batch: Batch, inbox: deque[Request], now_ms: int, *, events_max: int, first: Command | None
    ) -> None:
        """Empty the inbox into the batch, as long as it has fewer than `events_max` events, behind the engine's own
        `first`.
        """
        state = self.state
        self._events_max = events_max
        self._begun_at = state.sequence
        bytes_max = state.live_bytes + FRAME_BODY_BYTES_MAX
        if first is not None:
            self._own(batch, first, now_ms)
        if type(first) is not AdvanceTime and state.time_has_work(now_ms):
            self._own(batch, AdvanceTime(), now_ms)
        late = self._acknowledgements(batch, inbox, now_ms)
        self._signal_backpressure(batch, now_ms)
        if self._enqueues:
            self._serve_enqueues(batch, now_ms, bytes_max)
        while inbox and not late and len(batch.events) < self._events_max and state.live_bytes <= bytes_max:
            self._one(batch, inbox.popleft(), now_ms)
        self._serve_line(batch, now_ms)
        self._serve_last(batch, now_ms)
        self._signal_backpressure(batch, now_ms)
        deadline = state.leased.first_key()
        if deadline is not None and deadline <= now_ms and not late:
            # Not while acknowledgements wait for the next frame: they may have arrived in time.
            self._own(batch, ExpireLeases(), now_ms)
        inbox.extendleft(reversed(late))
        if state.caps_exceeded():
            purged = self._own(batch, EnforceCaps(), now_ms)
            if purged:
                _log.warning("dead_letters_purged", extra={"count": purged, "reason": "cap"})
        if self._items:
            self._items.answer(state, batch)
        batch.deciding = []

    def _acknowledgements(self, batch: Batch, inbox: deque[Request], now_ms: int) -> list[Request]:
        """Take the acknowledgements out of the inbox and decide them; returns those the frame had no room for."""
        late: list[Request] = []
        for _ in range(len(inbox)):
            request = inbox.popleft()
            if type(request) is not AcknowledgeRequest:
                inbox.append(request)
            elif late or not self._acknowledge(batch, request, now_ms):
                late.append(request)
        return late

    def _acknowledge(self, batch: Batch, request: AcknowledgeRequest, now_ms: int) -> bool:
        """Decide what fits of a batch of acknowledgements; true when all of it did."""
        outcomes, commands = request.outcomes, request.commands
        batch.deciding = [request.future]
        if request.future.done() and not outcomes:
            return True
        begun = BEFORE if outcomes else len(batch.events)
        while True:
            try:
                acknowledge_all(
                    self.state,
                    commands,
                    now_ms,
                    request.arrived_ms,
                    self._ids,
                    batch.events,
                    batch.commands,
                    outcomes,
                    self._events_max,
                    FRAME_BODY_BYTES_MAX,
                )
                break
            except Exception as error:
                outcomes.append(self._fault(batch, error))
        if len(outcomes) < len(commands):
            return False
        batch.answer(request.future, outcomes[0] if request.single else outcomes, begun)
        return True

    def _one(self, batch: Batch, request: Request, now_ms: int) -> None:
        batch.deciding = [request.future]
        if request.future.done():
            return  # The caller left before its command was looked at: as if it had never come.
        try:
            if type(request) is CommandRequest:
                answer: Any = apply(self.state, request.command, now_ms, request.arrived_ms, self._ids, batch.events)
                batch.commands.append(len(batch.events))
            elif type(request) is EnqueueRequest:
                self._enqueue(batch, request, now_ms)
                return
            elif type(request) is LeaseRequest:
                self._lease(batch, request, now_ms)
                return
            elif type(request) is ReturnRequest:
                # Looked at in its turn: a repeat that was decided before it may have the lease by now.
                answer = self._own(batch, ReturnUndelivered(self._line.forsaken(request.grants)), now_ms)
            elif type(request) is ReadRequest:
                answer = request.read(self.state, now_ms)
            else:
                raise AssertionError(f"no way to decide a {type(request).__name__}")
        except OmniRelayError as error:
            answer = error
        except Exception as error:
            answer = self._fault(batch, error)
        batch.answer(request.future, answer)

    def _fault(self, batch: Batch, error: Exception) -> Internal:
        """What to answer to a call that broke off unexpectedly. Raises the error when the call has changed something:
        then nobody knows what the state is worth, and the shard has to be given up.
        """
        decided = batch.commands[-1] if batch.commands else 0
        last = batch.events[-1].sequence_number if batch.events else self._begun_at
        if len(batch.events) != decided or self.state.sequence != last:
            raise error
        _log.error("call_failed", exc_info=error)
        return Internal("the shard failed on this call and did nothing; its log has the details")

    def _own(self, batch: Batch, command: Command, now_ms: int) -> Any:
        answer = apply(self.state, command, now_ms, now_ms, self._ids, batch.events)
        batch.commands.append(len(batch.events))
        return answer

    def _signal_backpressure(self, batch: Batch, now_ms: int) -> None:
        due = self.state.backpressure_due()
        if due is not None and due <= now_ms:
            self._own(batch, SignalBackpressure(), now_ms)

    # -- enqueues ------------------------------------------------------------------------------

    def _enqueue(self, batch: Batch, request: EnqueueRequest, now_ms: int) -> None:
        """Take the items in, or have the call wait behind those that wait already."""
        refusal: ResourceExhausted | None = None
        if self._enqueues:
            check_enqueue(self.state, request.command)
            check_size(self.state, request.command)
        if not self._enqueues or is_repeat(self.state, request.command):
            try:
                self._take_in(batch, request, now_ms)
                return
            except ResourceExhausted as error:
                refusal = error
        else:
            check_pauses(self.state, request.command)
            check_request_ids(self.state, request.command, now_ms)
            refusal = self._behind_others()
        assert refusal is not None
        if request.wait_ms <= 0 or refusal.code != NO_ROOM or not self._enqueues.join(request, refusal):
            raise refusal

    def _behind_others(self) -> ResourceExhausted:
        """Why a call waits that might fit by itself."""
        first = self._enqueues.first().refusal
        assert first is not None
        count = len(self._enqueues)
        error = ResourceExhausted(
            f"{count} enqueue{'s wait' if count > 1 else ' waits'} for room already, and nobody overtakes them; "
            f"try again later. The first of them waits because {first.message}",
            retry_after_ms=first.retry_after_ms,
        )
        error.details.update(first.details)
        return error

    def _take_in(self, batch: Batch, request: EnqueueRequest, now_ms: int) -> None:
        answer = apply(self.state, request.command, now_ms, request.arrived_ms, self._ids, batch.events)
        batch.commands.append(len(batch.events))
        batch.answer(request.future, answer)

    def _serve_enqueues(self, batch: Batch, now_ms: int, bytes_max: int) -> None:
        """Let in those that wait for room, in order, until one does not fit."""
        line = self._enqueues
        while line and len(batch.events) < self._events_max and self.state.live_bytes <= bytes_max:
            request = line.first()
            try:
                if not request.future.done():
                    self._take_in(batch, request, now_ms)
            except ResourceExhausted as error:
                if error.code == NO_ROOM:
                    request.refusal = error
                    self._enqueues_served_at = self.state.sequence
                    return
                batch.answer(request.future, error)
            except OmniRelayError as error:
                batch.answer(request.future, error)
            except Exception as error:
                batch.answer(request.future, self._fault(batch, error))
            line.leave(request)

    # -- lease calls ---------------------------------------------------------------------------

    def _lease(self, batch: Batch, request: LeaseRequest, now_ms: int) -> None:
        check_grant(request.command, self.state.options)
        if request.command.request_id is not None:
            # A repeat only gets back what the first call was granted, so it need not wait for anybody.
            repeated = repeated_grants(self.state, request.command, now_ms)
            if repeated:
                self._line.share(repeated)
                batch.answer(request.future, repeated)
                return
        # Whoever came first is served first: behind others even a call that could be served joins the line.
        if not self._line and self._grant(batch, request, now_ms):
            return
        if request.wait_ms <= 0 or self._line.closed:
            batch.last.append(request)
        elif self._line.full:
            batch.answer(
                request.future,
                ResourceExhausted(
                    f"{len(self._line)} lease calls wait already; try again later or raise waiting_leases_max",
                    retry_after_ms=1_000,
                    code="resource-exhausted",
                ),
            )
        else:
            self._line.join(request)

    def _grant(self, batch: Batch, request: LeaseRequest, now_ms: int) -> bool:
        if not self.state.schedule.offers or len(batch.events) >= self._events_max:
            return False
        granted = apply(self.state, request.command, now_ms, now_ms, self._ids, batch.events)
        batch.commands.append(len(batch.events))
        if not granted:
            return False
        batch.answer(request.future, granted)
        if request.command.request_id is not None:
            for repeat in self._line.repeats_of(request):
                self._line.share(granted)
                self._line.leave(repeat)
                batch.answer(repeat.future, granted)
        return True

    def _serve_line(self, batch: Batch, now_ms: int) -> None:
        if self._line and self.state.schedule.offers:
            answered = len(batch.answers)
            self._line.serve(lambda request: self._grant(batch, request, now_ms))
            # Peers that waited hear first: work begins with them, while who brought it only wants to know it is safe.
            batch.answers = batch.answers[answered:] + batch.answers[:answered]
            if len(batch.events) < self._events_max:
                self._line_served_at = self.state.sequence

    def _serve_last(self, batch: Batch, now_ms: int) -> None:
        """Calls that do not wait get what is left when the line has been served, or nothing."""
        served = not self._line or self._line_served_at == self.state.sequence
        for request in batch.last:
            if not served or not self._grant(batch, request, now_ms):
                batch.answer(request.future, [])
        batch.last.clear()

    def has_more(self, now_ms: int) -> bool:
        """Whether the state itself asks for another frame right away."""
        state = self.state
        deadline = state.leased.first_key()
        backpressure = state.backpressure_due()
        return (
            bool(self._line and state.schedule.offers and self._line_served_at != state.sequence)
            or bool(self._enqueues and self._enqueues_served_at != state.sequence)
            or (backpressure is not None and backpressure <= now_ms)
            or (deadline is not None and deadline <= now_ms)
            or state.time_has_work(now_ms)
            or state.caps_exceeded()
        )
