"""`Delivery`: one batch after the other into a sink, and what becomes of an event that it refuses."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from omnirelay.errors import OmniRelayError, Unavailable
from omnirelay.replication.checkpoints import Checkpoints
from omnirelay.replication.commits import Commits
from omnirelay.replication.courtesy import Courtesy
from omnirelay.replication.cursor import LogCursor
from omnirelay.replication.done import Done
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.health import reason_of
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import ReplicationSink, SinkRefused
from omnirelay.replication.sources import LogSource

_log = logging.getLogger("omnirelay.replication")

T = TypeVar("T")

LARGE_BYTES: Final = 256 * 1024
"""So much of the log is prepared before it is delivered, even if nothing is under way meanwhile: whoever makes it knows
where that is best done.
"""

SMALLER: Final = 4
"""Of the events that a sink takes at once beside callers it gets this part when it has time to rest."""


def is_being_cancelled() -> bool:
    """Whether a CancelledError is meant for the task that runs this, and not for one that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Ahead(msgspec.Struct, frozen=True, gc=False):
    """What to deliver later, read and being prepared while the delivery before it is under way."""

    commits: Commits
    prepared: asyncio.Task[None]


class Delivery:
    """Calls must not overlap. Close it."""

    def __init__(
        self,
        name: str,
        sink: ReplicationSink,
        shard: LogSource,
        cursor: LogCursor,
        checkpoints: Checkpoints,
        settings: FollowSettings,
        courtesy: Courtesy,
    ) -> None:
        self._name = name
        self._sink = sink
        self._shard = shard
        self._cursor = cursor
        self._checkpoints = checkpoints
        self._settings = settings
        self._courtesy = courtesy
        self._has_time = False
        """It rests between deliveries: there may as well be more of them."""
        self._refusals: Counter[int] = Counter()
        self._ahead: deque[_Ahead] = deque()
        self.parked = self._parked_newest = 0
        self.parkings = 0
        """How often an event was parked since the start."""

    async def load(self) -> None:
        self.parked, self._parked_newest = await self._checkpoints.parked_count(self._name, self._shard.log.shard)

    @property
    def _takes_commits(self) -> bool:
        # Sinks that others write need not know of it.
        return getattr(self._sink, "takes_commits", False)

    async def next_batch(self, after: int, linger: Callable[[float], Awaitable[None]]) -> Sequence[ReplicatedEvent]:
        """What to deliver next; `linger` waits so many seconds for company."""
        if self._takes_commits and not self._refusals:
            return await self._next_commits(after, linger)
        most, size = self._settings.batch_events, self._settings.batch_bytes
        batch = await self._cursor.read(after, most, size)
        if batch and len(batch) < most and self._settings.linger_ms:
            room = size - sum([len(event.data) for event in batch])
            if room > 0:
                await linger(self._settings.linger_ms / 1000)
                if self._shard.last_sequence > batch[-1].sequence:
                    batch += await self._cursor.read(batch[-1].sequence, most - len(batch), room)
        return self._up_to_refused(batch)

    async def _next_commits(self, after: int, linger: Callable[[float], Awaitable[None]]) -> Commits:
        most, size = self._commits_most(), self._settings.batch_bytes
        if self._ahead and self._ahead[0].commits.after == after:
            await asyncio.wait((self._ahead[0].prepared,))
            return self._ahead.popleft().commits  # Not before: who is stopped while it waits has to let go of it.
        self._forget_ahead()
        batch = await self._cursor.read_commits(after, most, size)
        if batch and not self._is_full(batch) and self._settings.linger_ms:
            await linger(self._settings.linger_ms / 1000)
            if self._shard.last_sequence > batch.last:
                more = await self._cursor.read_commits(batch.last, most - len(batch), size - batch.size)
                batch = batch.followed_by(more)
        if batch and batch.size >= LARGE_BYTES:
            await self._prepare(batch)
        return batch

    def _commits_most(self) -> int:
        """Events of one delivery."""
        most = self._settings.batch_events
        if not self._courtesy.is_called:
            return most
        flushed = getattr(self._sink, "events_beside_callers", most)
        return min(most, max(1, flushed // SMALLER) if self._has_time and flushed < most else flushed)

    def rest_s(self, done: Done, took_s: float, *, presses: bool) -> float:
        """How long callers are to have the node for themselves after this delivery. Who keeps up does not rest, nor
        who is about to close intake.
        """
        behind = self._shard.last_sequence - done.last
        may_rest = not presses and behind > max(self._settings.batch_events, self._courtesy.events_per_second)
        rest_s = self._courtesy.rest_s(done.count, took_s) if may_rest else 0.0
        self._has_time = rest_s > 0
        return rest_s

    def _forget_ahead(self) -> None:
        while self._ahead:
            self._ahead.pop().prepared.cancel()

    async def close(self) -> None:
        """Let go of what was to be delivered later. Safe to call twice."""
        left = [ahead.prepared for ahead in self._ahead]
        self._forget_ahead()
        await asyncio.gather(*left, return_exceptions=True)

    def _is_full(self, batch: Commits) -> bool:
        if len(batch) >= self._settings.batch_events or batch.size >= self._settings.batch_bytes:
            return True
        return self._shard.last_sequence > batch.last  # As full as it gets: the next commit did not fit.

    async def deliver(self, batch: Sequence[ReplicatedEvent]) -> Done:
        """What is done with afterwards: the batch, or what is before an event that was parked, and that one.

        Raises what the sink raises, SinkRefused too while the event has to wait.
        """
        ahead = asyncio.create_task(self._read_ahead(batch))
        try:
            await self._apply(batch)
        except asyncio.CancelledError:
            ahead.cancel()
            raise
        except SinkRefused as error:
            batch = await self._refused(batch, error)
        finally:
            await asyncio.wait((ahead,))  # Nothing else may read meanwhile.
        # In a thread when commits have to be looked into: many events take a while.
        return await asyncio.to_thread(Done.of, batch) if isinstance(batch, Commits) else Done.of(batch)

    def _tell_what_follows(self, batch: Sequence[ReplicatedEvent]) -> None:
        expect: Callable[[int], None] | None = getattr(self._sink, "expect", None)
        if expect is not None:
            last = batch.last if isinstance(batch, Commits) else batch[-1].sequence
            expect(0 if self._courtesy.is_called else self._shard.last_sequence - last)

    async def _apply(self, batch: Sequence[ReplicatedEvent]) -> None:
        self._tell_what_follows(batch)
        await self.within_time(self._sink.apply(batch))
        if self.parked:
            first, last = (batch.first, batch.last) if isinstance(batch, Commits) else _ends(batch)
            if first <= self._parked_newest:  # Delivered again: the target has taken now what it refused then.
                await self._checkpoints.unpark(self._name, self._shard.log.shard, first, last)
                await self.load()

    async def _read_ahead(self, batch: Sequence[ReplicatedEvent]) -> None:
        if isinstance(batch, Commits):
            await self._read_commits_ahead(batch)
        else:
            await self._cursor.read_ahead(self._settings.batch_events, self._settings.batch_bytes)

    async def _read_commits_ahead(self, batch: Commits) -> None:
        """Read the next commits and have the sink prepare them, unless company would still be waited for, or callers
        are about. Raises nothing: whatever is wrong is there for the delivery, too.
        """
        most, size = self._commits_most(), self._settings.batch_bytes
        while len(self._ahead) < getattr(self._sink, "prepares_ahead", 1) and not self._courtesy.one_at_a_time:
            after = self._ahead[-1].commits.last if self._ahead else batch.last
            try:
                commits = await self._cursor.read_commits(after, most, size)
            except OmniRelayError:
                return
            if not commits or not self._is_full(commits):
                self._cursor.put_back(commits)
                return
            self._ahead.append(_Ahead(commits, asyncio.create_task(self._prepare(commits))))

    async def _prepare(self, commits: Commits) -> None:
        prepare: Callable[[Commits], Awaitable[None]] | None = getattr(self._sink, "prepare", None)
        try:
            if prepare is not None:
                await self.within_time(prepare(commits))
            await asyncio.to_thread(Done.of, commits)
        except Exception as error:
            place = {"sink": self._name, "shard": self._shard.log.shard}
            _log.debug("commits_not_prepared", extra={**place, "reason": reason_of(error)})

    def confirm(self, last: int) -> None:
        """Everything up to `last` is done with."""
        for refused in [sequence for sequence in self._refusals if sequence <= last]:
            del self._refusals[refused]

    async def within_time(self, work: Awaitable[T]) -> T:
        limit = asyncio.timeout(self._settings.timeout_ms / 1000)
        try:
            async with limit:
                return await work
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            # Something inside the sink was: that is its failure, not our end.
            raise Unavailable("the sink gave up: something that it waited for was cancelled") from error
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"no answer within {self._settings.timeout_ms / 1000:g} s") from None

    async def _refused(self, batch: Sequence[ReplicatedEvent], error: SinkRefused) -> list[ReplicatedEvent]:
        """Park the bad one when it was refused often enough; what is done with then. Raises when it has to wait."""
        self._refusals[error.sequence] += 1
        index = next((at for at, event in enumerate(batch) if event.sequence == error.sequence), None)
        blocks = self._sink.rebuilds_state or self._settings.on_refusal == "block"
        if index is None or blocks or self._refusals[error.sequence] < self._settings.refusals_max:
            raise error
        before, bad = list(batch[:index]), batch[index]
        if before:
            await self._apply(before)
        await self._checkpoints.park(self._name, bad, error.message)
        self.parkings += 1
        await self.load()
        place = {"sink": self._name, "shard": bad.shard, "sequence": bad.sequence}
        _log.error("event_parked", extra={**place, "reason": error.message})
        return [*before, bad]

    def _up_to_refused(self, batch: list[ReplicatedEvent]) -> list[ReplicatedEvent]:
        """With a refused event on its way, deliver up to it first: a retry must not repeat what is behind it."""
        if not self._refusals:
            return batch
        for index, event in enumerate(batch):
            if event.sequence in self._refusals:
                return batch[:index] if index else batch[:1]
        return batch


def _ends(batch: Sequence[ReplicatedEvent]) -> tuple[int, int]:
    return batch[0].sequence, batch[-1].sequence
