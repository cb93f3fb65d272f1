"""What a log proves, and a log that can be held up: the two things the shard's state machine leans on."""

from __future__ import annotations

import asyncio
from typing import Any

from omnirelay.core import events as ev
from omnirelay.log.base import EventLog, Frame, Position
from omnirelay.log.frame import decode_frame


class HeldLog:
    """Any log, whose appends can be made to wait before they are written, or before they are known to be.

    `durable` is every event that the log below has said is durable: what answers may rest on.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.before = asyncio.Event()
        self.before.set()
        self.after = asyncio.Event()
        self.after.set()
        self.facts = Facts()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def append(self, frame: Frame, expected: Position) -> Position:
        await self.before.wait()
        position: Position = await self.inner.append(frame, expected)
        self._note(frame, position)
        await self.after.wait()
        return position

    def append_now(self, frame: Frame, expected: Position) -> Position | None:
        if not (self.before.is_set() and self.after.is_set()):
            return None
        position: Position | None = self.inner.append_now(frame, expected)
        if position is not None:
            self._note(frame, position)
        return position

    def _note(self, frame: Frame, position: Position) -> None:
        if position.sequence > self.facts.last:
            for event in decode_frame(frame, shard=self.inner.shard, log_id=self.inner.log_id):
                self.facts.take(event)


async def events_of(log: EventLog) -> list[ev.Event]:
    return [event async for frame in log.read() for event in decode_frame(frame, shard=log.shard, log_id=log.log_id)]


class Facts:
    """What durable events prove, taken in one by one. What must never happen fails at once."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.last = 0
        self.fence = 0
        self.here: set[int] = set()
        """Items that came in and neither ended nor left."""
        self.enqueued: set[int] = set()
        self.ended: dict[int, str] = {}
        """How an item ended or left."""
        self.history: dict[int, set[str]] = {}
        self.granted: dict[str, tuple[int, int, int]] = {}
        """Item, attempt and fence by lease id."""
        self.live: dict[int, str] = {}
        """The one live lease of an item."""
        self.deadlines: dict[str, int] = {}
        self.verbs: dict[str, str] = {}
        """How a lease ended."""
        self.cancel_requested: set[int] = set()
        self.redriven: set[int] = set()

    def take(self, event: ev.Event) -> None:
        jump = isinstance(event, ev.GenerationStarted)
        assert event.sequence_number == self.last + 1 or (jump and event.sequence_number > self.last)
        self.last = event.sequence_number
        self.events.append(event)
        take = getattr(self, f"_{type(event).__name__.lower()}", None)
        if take is not None:
            take(event)

    def _enqueue(self, event: ev.Enqueue) -> None:
        assert event.sequence_id not in self.enqueued, "an id was given twice"
        self._comes(event.sequence_id)

    def _restoresnapshot(self, event: ev.RestoreSnapshot) -> None:
        for item in event.items:
            self._comes(item.sequence_id)

    def _comes(self, sequence_id: int) -> None:
        assert sequence_id not in self.here
        self.enqueued.add(sequence_id)
        self.here.add(sequence_id)
        self.ended.pop(sequence_id, None)

    def _leasegranted(self, event: ev.LeaseGranted) -> None:
        token = event.ownership
        assert token.sequence_id in self.here, "an item that ended was granted"
        assert token.sequence_id not in self.live, "an item has two live leases"
        assert token.lease_id not in self.granted
        assert token.fence == event.sequence_number > self.fence
        self.fence = event.sequence_number
        self.granted[token.lease_id] = (token.sequence_id, token.attempt, token.fence)
        self.live[token.sequence_id] = token.lease_id
        self.deadlines[token.lease_id] = event.expires_at

    def _heartbeat(self, event: ev.Heartbeat) -> None:
        assert self.live[event.ownership.sequence_id] == event.ownership.lease_id
        assert event.expires_at >= self.deadlines[event.ownership.lease_id]
        self.deadlines[event.ownership.lease_id] = event.expires_at

    def _leaderelected(self, event: ev.LeaderElected) -> None:
        for lease_id in self.live.values():
            self.deadlines[lease_id] += event.timestamp - event.down_from

    def _ends_lease(self, sequence_id: int, verb: str) -> None:
        self.verbs[self.live.pop(sequence_id)] = verb

    def _completed(self, event: ev.Completed) -> None:
        self._ends_lease(event.ownership.sequence_id, "complete")
        self._goes(event.ownership.sequence_id, "completed")

    def _failed(self, event: ev.Failed) -> None:
        self._ends_lease(event.ownership.sequence_id, "fail")

    def _released(self, event: ev.Released) -> None:
        self._ends_lease(event.ownership.sequence_id, "release")

    def _expired(self, event: ev.Expired) -> None:
        lease_id = self.live[event.ownership.sequence_id]
        assert event.timestamp >= self.deadlines[lease_id], "a lease ran out before its time"
        self._ends_lease(event.ownership.sequence_id, "expiry")

    def _cancelled(self, event: ev.Cancelled) -> None:
        if event.sequence_id in self.live:
            self._ends_lease(event.sequence_id, "cancel")
        self._goes(event.sequence_id, "cancelled")

    def _cancelrequested(self, event: ev.CancelRequested) -> None:
        assert event.sequence_id in self.live
        self.cancel_requested.add(event.sequence_id)

    def _deadlettered(self, event: ev.DeadLettered) -> None:
        self._goes(event.sequence_id, "dead")

    def _redriven(self, event: ev.Redriven) -> None:
        for sequence_id in event.sequence_ids:
            assert self.ended.pop(sequence_id) == "dead"
            self.here.add(sequence_id)
            self.redriven.add(sequence_id)

    def _drainsnapshot(self, event: ev.DrainSnapshot) -> None:
        for sequence_id in event.sequence_ids:
            assert sequence_id not in self.live, "a leased item was drained"
            self._goes(sequence_id, "drained")

    def _goes(self, sequence_id: int, how: str) -> None:
        self.here.remove(sequence_id)
        self.ended[sequence_id] = how
        self.history.setdefault(sequence_id, set()).add(how)

    # -- questions -------------------------------------------------------------------------------

    def drains(self) -> list[ev.DrainSnapshot]:
        return [event for event in self.events if isinstance(event, ev.DrainSnapshot)]

    def redrives(self) -> list[int]:
        return [each for event in self.events if isinstance(event, ev.Redriven) for each in event.sequence_ids]

    def ends(self, sequence_id: int) -> set[str]:
        """Every way this item ever ended or left."""
        return self.history.get(sequence_id, set())
