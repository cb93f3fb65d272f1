"""Making one frame out of what waits in the inbox.

In this order: time first (delays end), then acknowledgements, so that one that arrived in time counts,
then everything else as it came, then lease calls in line, and expiries last.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from omnirelay.core.commands import AdvanceTime, Command, CompleteItem, EnforceCaps, ExpireLeases
from omnirelay.core.decide import Ids, apply
from omnirelay.core.rules.grant import check_grant, repeated_grants
from omnirelay.core.state import State
from omnirelay.engine.requests import (
    AcknowledgeRequest,
    Batch,
    CommandRequest,
    LeaseRequest,
    ReadRequest,
    Request,
)
from omnirelay.engine.waiting import ItemWaiters, LeaseLine
from omnirelay.errors import OmniRelayError, ResourceExhausted

_log = logging.getLogger("omnirelay.engine")

FRAME_BODY_BYTES_MAX = 3 * 1024 * 1024
"""A frame takes no further command beyond this many bytes of new bodies; what is decided is split if need be."""


class Decider:
    """Turns requests into a Batch: decided, evolved, not yet durable."""

    def __init__(self, state: State, ids: Ids, line: LeaseLine, items: ItemWaiters) -> None:
        self.state = state
        self._ids = ids
        self._line = line
        self._items = items
        self._events_max = 0

    def build(self, batch: Batch, inbox: deque[Request], now_ms: int, *, events_max: int, alive: bool) -> None:
        """Empty the inbox into the batch, as long as it has fewer than `events_max` events. `alive`: write down that
        time went by anyway.
        """
        state = self.state
        self._events_max = events_max
        bytes_max = state.live_bytes + FRAME_BODY_BYTES_MAX
        if alive or state.time_has_work(now_ms):
            self._own(batch, AdvanceTime(), now_ms)
        late = self._acknowledgements(batch, inbox, now_ms)
        while inbox and not late and len(batch.events) < self._events_max and state.live_bytes <= bytes_max:
            self._one(batch, inbox.popleft(), now_ms)
        self._serve_line(batch, now_ms)
        self._serve_last(batch, now_ms)
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
        state, ids, events, ends = self.state, self._ids, batch.events, batch.commands
        outcomes = request.outcomes
        commands = request.commands
        batch.deciding = [request.future]
        if request.future.done() and not outcomes:
            return True
        arrived_ms = request.arrived_ms
        bytes_left = FRAME_BODY_BYTES_MAX
        while len(outcomes) < len(commands):
            if len(events) >= self._events_max or bytes_left < 0:
                return False
            command = commands[len(outcomes)]
            try:
                outcome = apply(state, command, now_ms, arrived_ms, ids, events)
                ends.append(len(events))
            except OmniRelayError as error:
                outcome = error
            outcomes.append(outcome)
            if type(command) is CompleteItem and command.result is not None:
                bytes_left -= len(command.result)
        batch.requests += 1
        batch.answer(request.future, outcomes[0] if request.single else outcomes)
        return True

    def _one(self, batch: Batch, request: Request, now_ms: int) -> None:
        batch.requests += 1
        batch.deciding = [request.future]
        if request.future.done():
            return  # The caller left before its command was looked at: as if it had never come.
        try:
            if type(request) is CommandRequest:
                answer: Any = apply(self.state, request.command, now_ms, request.arrived_ms, self._ids, batch.events)
                batch.commands.append(len(batch.events))
            elif type(request) is LeaseRequest:
                self._lease(batch, request, now_ms)
                return
            elif type(request) is ReadRequest:
                answer = request.read(self.state, now_ms)
            else:
                raise AssertionError(f"no way to decide a {type(request).__name__}")
        except OmniRelayError as error:
            answer = error
        batch.answer(request.future, answer)

    def _own(self, batch: Batch, command: Command, now_ms: int) -> Any:
        answer = apply(self.state, command, now_ms, now_ms, self._ids, batch.events)
        batch.commands.append(len(batch.events))
        return answer

    # -- lease calls ---------------------------------------------------------------------------

    def _lease(self, batch: Batch, request: LeaseRequest, now_ms: int) -> None:
        check_grant(self.state, request.command)
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
        if not self.state.ready.live:
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
        line = self._line
        while line and self.state.ready.live and len(batch.events) < self._events_max:
            request = line.first()
            if not request.future.done() and not self._grant(batch, request, now_ms):
                return
            line.leave(request)

    def _serve_last(self, batch: Batch, now_ms: int) -> None:
        """Calls that do not wait get what is left when the line has been served, or nothing."""
        for request in batch.last:
            if self._line or not self._grant(batch, request, now_ms):
                batch.answer(request.future, [])
        batch.last.clear()

    def has_more(self, now_ms: int) -> bool:
        """Whether the state itself asks for another frame right away."""
        state = self.state
        deadline = state.leased.first_key()
        return (
            bool(self._line and state.ready.live)
            or (deadline is not None and deadline <= now_ms)
            or state.time_has_work(now_ms)
            or state.caps_exceeded()
        )
