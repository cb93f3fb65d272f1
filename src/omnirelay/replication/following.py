"""`Follower`: one sink behind one shard. It reads the log at its own pace and never holds anybody up.

    running ──error──▶ retrying ──too long──▶ stalled ──success──▶ running
       │                                          unusable ─▶ failed (until somebody resumes it)
       └─ paused by an operator

What waits is in the log, not in memory: a follower that is down for a week costs nothing but the log's retention.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Literal, TypeVar

import msgspec

from omnirelay.engine.shard import Shard
from omnirelay.errors import LogTrimmed, OmniRelayError
from omnirelay.replication.checkpoints import Checkpoints
from omnirelay.replication.events import ReplicatedEvent, events_of_frame
from omnirelay.replication.sinks import ReplicationSink, SinkRefused, SinkUnusable

_log = logging.getLogger("omnirelay.replication")

T = TypeVar("T")

SinkState = Literal["starting", "running", "retrying", "stalled", "failed", "paused"]


class FollowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a sink is fed. Times in milliseconds."""

    batch_events: int = 1_000
    """Most events of one delivery."""
    linger_ms: int = 50
    """How long a delivery that is not full waits for company."""
    timeout_ms: int = 30_000
    """A delivery that takes longer has failed."""
    retry_first_ms: int = 100
    retry_max_ms: int = 30_000
    stalled_after_ms: int = 60_000
    """Without success for this long it is called stalled, which is worth waking somebody up for."""
    refusals_max: int = 3
    """An event that was refused so often is parked, and the sink goes on behind it."""
    on_refusal: Literal["park", "block"] = "park"
    required: bool = False
    """The log keeps what this sink has not confirmed."""


class FollowStatus(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True):
    """How a sink is doing."""

    sink: str
    shard: str
    state: SinkState
    checkpoint: int
    lag_events: int
    lag_ms: int
    events: int
    failures: int
    parked: int
    required: bool
    rate_per_second: float
    last_error: str | None = None


class Follower:
    """Start with `start`, end with `stop`; safe to stop twice."""

    def __init__(
        self,
        name: str,
        sink: ReplicationSink,
        shard: Shard,
        checkpoints: Checkpoints,
        settings: FollowSettings,
        *,
        region: str = "local",
    ) -> None:
        self.name = name
        self.settings = settings
        self.checkpoint = 0
        self.state: SinkState = "starting"
        self.last_error: str | None = None
        self.failures = 0
        self.parked = 0
        self.events: Counter[str] = Counter()
        """Events delivered, by type."""
        self.lags_ms: list[int] = []
        """Lags of the latest deliveries; whoever reads the metrics takes them away."""
        self._sink = sink
        self._shard = shard
        self._checkpoints = checkpoints
        self._region = region
        self._task: asyncio.Task[None] | None = None
        self._more = asyncio.Event()
        self._paused = False
        self._changed = asyncio.Event()
        self._succeeded_at = asyncio.get_running_loop().time()
        self._oldest_ms: int | None = None
        """When the first event that is not delivered yet happened."""
        self._refusals: Counter[int] = Counter()
        self._started_at = self._succeeded_at
        self._delivered = 0
        shard.add_event_listener(self._on_events)

    def _on_events(self, events: Sequence[object]) -> None:
        self._more.set()

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        self.checkpoint, self._paused = await self._checkpoints.load(self.name, self._shard.log.shard)
        self.parked = len(await self._checkpoints.parked(self.name, self._shard.log.shard))
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._sink.close()

    # -- operators -----------------------------------------------------------------------------

    async def pause(self) -> None:
        self._paused = True
        await self._checkpoints.pause(self.name, self._shard.log.shard, True)
        self._wake()

    async def resume(self) -> None:
        """Go on after a pause, or after a failure that somebody has dealt with."""
        self._paused = False
        await self._checkpoints.pause(self.name, self._shard.log.shard, False)
        if self.state == "failed":
            self.state = "starting"
        self._wake()

    async def reset(self, sequence: int) -> None:
        """Deliver again everything behind `sequence`; the sink recognises what it has."""
        self.checkpoint = sequence
        await self._checkpoints.save(self.name, self._shard.log.shard, sequence, self._shard.now_ms())
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._more.set()

    @property
    def confirmed(self) -> int:
        """What the log need not keep for this sink."""
        return self.checkpoint

    def status(self) -> FollowStatus:
        loop_time = asyncio.get_running_loop().time()
        lag_events = max(0, self._shard.last_sequence - self.checkpoint)
        behind = lag_events > 0 and self._oldest_ms is not None
        return FollowStatus(
            sink=self.name,
            shard=self._shard.log.shard,
            state="paused" if self._paused else self.state,
            checkpoint=self.checkpoint,
            lag_events=lag_events,
            lag_ms=max(0, self._shard.now_ms() - (self._oldest_ms or 0)) if behind else 0,
            events=self._delivered,
            failures=self.failures,
            parked=self.parked,
            required=self.settings.required,
            rate_per_second=round(self._delivered / max(loop_time - self._started_at, 0.001), 1),
            last_error=self.last_error,
        )

    # -- following -----------------------------------------------------------------------------

    async def _run(self) -> None:
        tried = 0
        opened = False
        while True:
            if self._paused or self.state == "failed":
                self._changed.clear()
                await self._changed.wait()
                continue
            try:
                if not opened:
                    known = await self._within_time(self._sink.open(self._shard.log.shard))
                    if known is not None:
                        self.checkpoint = known
                    opened = True
                await self._deliver_next()
            except asyncio.CancelledError:
                raise
            except (SinkUnusable, LogTrimmed) as error:
                self._failed(error)
                self.state = "failed"
            except Exception as error:
                self._failed(error)
                tried += 1
                silent_ms = (asyncio.get_running_loop().time() - self._succeeded_at) * 1000
                self.state = "stalled" if silent_ms > self.settings.stalled_after_ms else "retrying"
                await self._pause(tried)
            else:
                tried = 0
                self.state = "running"
                self.last_error = None
                self._succeeded_at = asyncio.get_running_loop().time()

    async def _pause(self, tried: int) -> None:
        grown = min(self.settings.retry_max_ms, self.settings.retry_first_ms * 2 ** min(tried - 1, 20))
        self._changed.clear()
        try:
            async with asyncio.timeout(grown * random.uniform(0.7, 1.3) / 1000):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _within_time(self, work: Awaitable[T]) -> T:
        async with asyncio.timeout(self.settings.timeout_ms / 1000):
            return await work

    async def _deliver_next(self) -> None:
        """Wait for something new, and deliver one batch of it."""
        self._more.clear()
        if self._shard.last_sequence <= self.checkpoint:
            self._oldest_ms = None
            await self._more.wait()
            return
        batch = await self._read()
        if len(batch) < self.settings.batch_events and self.settings.linger_ms:
            await asyncio.sleep(self.settings.linger_ms / 1000)
            batch = await self._read()
        if not batch:
            return
        self._oldest_ms = batch[0].timestamp
        batch = await self._without_refused(batch)
        try:
            if batch:
                await self._within_time(self._sink.apply(batch))
        except SinkRefused as error:
            await self._refused(batch, error)
            return
        await self._confirm(batch)

    async def _read(self) -> list[ReplicatedEvent]:
        events: list[ReplicatedEvent] = []
        async for frame in self._shard.log.read(self.checkpoint + 1, self._shard.last_sequence):
            events += events_of_frame(frame, self._region, self.checkpoint)
            if len(events) >= self.settings.batch_events:
                break
        return events[: self.settings.batch_events]

    async def _confirm(self, batch: list[ReplicatedEvent]) -> None:
        if not batch:
            return
        now_ms = self._shard.now_ms()
        await self._checkpoints.save(self.name, self._shard.log.shard, batch[-1].sequence, now_ms)
        self.checkpoint = batch[-1].sequence
        self.events.update(event.event_type for event in batch)
        self._delivered += len(batch)
        if len(self.lags_ms) < 10_000:
            self.lags_ms.append(max(0, now_ms - batch[0].timestamp))

    # -- what a sink refuses -------------------------------------------------------------------

    async def _refused(self, batch: list[ReplicatedEvent], error: SinkRefused) -> None:
        """Deliver what stands before the bad one, and park the bad one when it was refused often enough."""
        self._refusals[error.sequence] += 1
        if self._sink.rebuilds_state or self.settings.on_refusal == "block":
            raise error
        if self._refusals[error.sequence] < self.settings.refusals_max:
            raise error
        before = [event for event in batch if event.sequence < error.sequence]
        [bad] = [event for event in batch if event.sequence == error.sequence]
        if before:
            await self._within_time(self._sink.apply(before))
        await self._checkpoints.park(self.name, bad, error.message)
        self.parked += 1
        _log.error("event_parked", extra={"sink": self.name, "sequence": bad.sequence, "reason": error.message})
        await self._confirm([*before, bad])

    async def _without_refused(self, batch: list[ReplicatedEvent]) -> list[ReplicatedEvent]:
        """With a refused event on its way, deliver up to it first: a retry must not repeat what is behind it."""
        for index, event in enumerate(batch):
            if event.sequence in self._refusals:
                return batch[:index] if index else batch[:1]
        return batch

    def _failed(self, error: BaseException) -> None:
        self.failures += 1
        text = error.message if isinstance(error, OmniRelayError) else f"{type(error).__name__}: {error}"
        if text != self.last_error:
            _log.warning("sink_failed", extra={"sink": self.name, "shard": self._shard.log.shard, "reason": text})
        self.last_error = text
