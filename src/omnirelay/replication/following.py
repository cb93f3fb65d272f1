"""`Follower`: one sink behind one shard. It reads the log at its own pace and never holds anybody up.

    starting ─▶ running ──error──▶ retrying ──too long──▶ stalled ──success──▶ running
                   │                                          unusable ─▶ failed (until somebody resumes it)
                   └─ paused by an operator

What waits is in the log, not in memory: a follower that is down for a week costs nothing but the log's retention.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import Literal, TypeVar, cast

import msgspec

from omnirelay.core.events import Event
from omnirelay.engine.shard import Shard
from omnirelay.errors import InvalidArgument, LogTrimmed, OmniRelayError
from omnirelay.log.base import Frame
from omnirelay.replication.checkpoints import Checkpoints
from omnirelay.replication.events import ReplicatedEvent, events_of_frame
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import ReplicationSink, SinkRefused, SinkUnusable
from omnirelay.telemetry.catalogue import REPLICATION_LAG
from omnirelay.telemetry.meters import Histogram

_log = logging.getLogger("omnirelay.replication")

T = TypeVar("T")

SinkState = Literal["starting", "running", "retrying", "stalled", "failed", "paused"]

GRACE_MS = 2_000
"""How long a follower that stops waits for the delivery under way, and then for its sink to close."""
_RATE_WINDOW_S = 60.0


class FollowStatus(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """How a sink is doing."""

    sink: str
    shard: str
    state: SinkState
    checkpoint: int
    lag_events: int
    lag_ms: int
    """Age of the oldest event that is not delivered yet."""
    events: int
    failures: int
    parked: int
    required: bool
    rate_per_second: float
    """Events delivered per second over the last minute."""
    last_error: str | None = None


class _Rate:
    """Deliveries of the last minute."""

    def __init__(self, now: float) -> None:
        self._started = now
        self._taken: deque[tuple[float, int]] = deque()

    def take(self, now: float, count: int) -> None:
        self._taken.append((now, count))
        self._forget(now)

    def per_second(self, now: float) -> float:
        self._forget(now)
        seconds = min(_RATE_WINDOW_S, now - self._started)
        return round(sum(count for _, count in self._taken) / max(seconds, 1.0), 1)

    def _forget(self, now: float) -> None:
        while self._taken and self._taken[0][0] < now - _RATE_WINDOW_S:
            self._taken.popleft()


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
        self.shard_name = shard.log.shard
        self.checkpoint = 0
        self.state: SinkState = "starting"
        self.last_error: str | None = None
        self.failures = 0
        self.parked = 0
        self.events: Counter[str] = Counter()
        """Events delivered, by type."""
        self.lag = Histogram(REPLICATION_LAG.buckets)
        """Seconds from when the first event of a delivery happened until it was confirmed."""
        self._sink = sink
        self._shard = shard
        self._checkpoints = checkpoints
        self._region = region
        self._task: asyncio.Task[None] | None = None
        self._more = asyncio.Event()
        self._changed = asyncio.Event()
        self._moved = asyncio.Condition()
        self._paused = False
        self._opened = False
        self._stopping = False
        self._resets = 0
        """Counts resets: a delivery that was under way when one came must not move the checkpoint."""
        self._resets_seen = 0
        self._failing_since: float | None = None
        self._oldest_ms: int | None = None
        """When the first event that is not delivered yet happened."""
        self._refusals: Counter[int] = Counter()
        self._rate = _Rate(asyncio.get_running_loop().time())
        shard.add_event_listener(self._on_events)

    def _on_events(self, events: Sequence[Event]) -> None:
        if self._oldest_ms is None:
            self._oldest_ms = events[0].timestamp
        self._more.set()

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End after the delivery under way, or without it when it takes too long."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping = True
        self._wake()
        _, hanging = await asyncio.wait((task,), timeout=GRACE_MS / 1000)
        for each in hanging:
            each.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self._close_sink()

    async def _close_sink(self) -> None:
        self._opened = False
        try:
            async with asyncio.timeout(GRACE_MS / 1000):
                await self._sink.close()
        except Exception as error:
            _log.warning("sink_not_closed", extra={**self._labels(), "reason": reason_of(error)})

    # -- operators -----------------------------------------------------------------------------

    async def pause(self) -> None:
        """Deliver nothing until `resume`, also after a restart."""
        self._paused = True
        await self._checkpoints.pause(self.name, self.shard_name, True)
        self._wake()

    async def resume(self) -> None:
        """Go on after a pause, or after a failure that somebody has dealt with."""
        self._paused = False
        await self._checkpoints.pause(self.name, self.shard_name, False)
        if self.state == "failed":
            self.state = "starting"
        self._wake()

    async def reset(self, sequence: int) -> None:
        """Deliver again everything behind `sequence`; the sink recognises what it has.

        Further ahead than the sink has come, what is between is left out for good. Raises InvalidArgument for that
        with a sink that rebuilds a state, and beyond the end of the log.
        """
        skipping = self.check_reset(sequence)
        self._resets += 1
        self.checkpoint = sequence
        now_ms = self._shard.now_ms()
        await self._checkpoints.reset(self.name, self.shard_name, sequence, now_ms, skipping=skipping)
        if self.state == "failed":
            self.state = "starting"
        self._wake()

    def check_reset(self, sequence: int) -> bool:
        """Whether a reset would leave events out. Raises InvalidArgument when there cannot be one."""
        last = self._shard.last_sequence
        if not 0 <= sequence <= last:
            raise InvalidArgument(f"sequence must be between 0 and {last}, got {sequence}", field="sequence")
        skipping = sequence > self.checkpoint
        if skipping and self._sink.rebuilds_state:
            raise InvalidArgument(
                f"{self.name} rebuilds a state and cannot leave out what is behind {self.checkpoint}", field="sequence"
            )
        return skipping

    def _wake(self) -> None:
        self._changed.set()
        self._more.set()

    @property
    def confirmed(self) -> int:
        """What the log need not keep for this sink."""
        return self.checkpoint

    async def wait_confirmed(self, sequence: int) -> None:
        """Return when everything up to `sequence` is delivered."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.checkpoint >= sequence)

    async def wait_state(self, *states: SinkState) -> None:
        """Return when the sink is in one of these states."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.status().state in states)

    def status(self) -> FollowStatus:
        lag_events = max(0, self._shard.last_sequence - self.checkpoint)
        behind = lag_events > 0 and self._oldest_ms is not None
        return FollowStatus(
            sink=self.name,
            shard=self.shard_name,
            state="paused" if self._paused else self.state,
            checkpoint=self.checkpoint,
            lag_events=lag_events,
            lag_ms=max(0, self._shard.now_ms() - (self._oldest_ms or 0)) if behind else 0,
            events=self.events.total(),
            failures=self.failures,
            parked=self.parked,
            required=self.settings.required,
            rate_per_second=self._rate.per_second(asyncio.get_running_loop().time()),
            last_error=self.last_error,
        )

    # -- following -----------------------------------------------------------------------------

    async def _run(self) -> None:
        tried = 0
        loaded = False
        while not self._stopping:
            await self._tell_moved()
            try:
                if not loaded:
                    await self._load()
                    loaded = True
                if self._paused or self.state == "failed":
                    await self._tell_moved()
                    await self._wait_changed()
                    continue
                if not self._opened or self._resets != self._resets_seen:
                    await self._open()
                await self._deliver_next()
            except (SinkUnusable, LogTrimmed) as error:
                self._failed(error)
                self.state = "failed"
                await self._close_sink()
            except Exception as error:
                self._failed(error)
                tried += 1
                await self._tell_moved()
                await self._back_off(tried)
            else:
                tried = 0
                self._succeeded()

    async def _load(self) -> None:
        kept = await self._checkpoints.load(self.name, self.shard_name)
        if not self._resets:  # One that came before this answer goes before it.
            self.checkpoint = kept.sequence
        self._paused = self._paused or kept.paused
        self.parked = await self._checkpoints.parked_count(self.name, self.shard_name)
        if self.checkpoint < self._shard.last_sequence:
            # How far behind it is must be known even while its target cannot be opened.
            for event in await self._read(self.checkpoint, 1, 1):
                self._oldest_ms = event.timestamp

    async def _open(self) -> None:
        # Whoever resets a sink has changed something about its target, perhaps emptied it.
        reset, self._resets_seen = self._resets_seen != self._resets, self._resets
        if self._opened:
            await self._close_sink()
        known = await self._within_time(self._sink.open(self.shard_name))
        self._opened = True
        if known is not None and self._resets_seen == self._resets:
            kept = await self._checkpoints.load(self.name, self.shard_name)
            self.checkpoint = max(min(known, self.checkpoint) if reset else known, kept.skipped_to)
        if self.checkpoint > self._shard.last_sequence:
            # Waiting until the log gets there would silently leave out everything up to it.
            raise SinkUnusable(
                f"{self.name} holds events up to {self.checkpoint}, the log of {self.shard_name} ends at"
                f" {self._shard.last_sequence}: one of them belongs to something else, or the log lost its end;"
                " empty the target or give it another place, then resume"
            )

    async def _tell_moved(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def _wait_changed(self) -> None:
        self._changed.clear()
        if not self._stopping:
            await self._changed.wait()

    async def _back_off(self, tried: int) -> None:
        grown = min(self.settings.retry_max_ms, self.settings.retry_first_ms * 2 ** min(tried - 1, 20))
        try:
            async with asyncio.timeout(grown * random.uniform(0.7, 1.3) / 1000):
                await self._wait_changed()
        except TimeoutError:
            return

    async def _within_time(self, work: Awaitable[T]) -> T:
        limit = asyncio.timeout(self.settings.timeout_ms / 1000)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"no answer within {self.settings.timeout_ms / 1000:g} s") from None

    async def _deliver_next(self) -> None:
        """Deliver one batch, or wait until there is something to deliver."""
        self._more.clear()
        if self._shard.last_sequence <= self.checkpoint:
            self._oldest_ms = None
            self._succeeded()
            await self._tell_moved()
            if not self._stopping:
                await self._more.wait()
            return
        resets = self._resets
        batch = self._up_to_refused(await self._next_batch())
        if not batch:
            return
        self._oldest_ms = batch[0].timestamp
        try:
            await self._within_time(self._sink.apply(batch))
        except SinkRefused as error:
            batch = await self._refused(batch, error)
        if resets == self._resets:
            await self._confirm(batch, resets)

    async def _next_batch(self) -> list[ReplicatedEvent]:
        most, size = self.settings.batch_events, self.settings.batch_bytes
        batch = await self._read(self.checkpoint, most, size)
        room = size - sum(len(event.data) for event in batch)
        if batch and len(batch) < most and room > 0 and self.settings.linger_ms:
            await asyncio.sleep(self.settings.linger_ms / 1000)
            if self._shard.last_sequence > batch[-1].sequence:
                batch += await self._read(batch[-1].sequence, most - len(batch), room)
        return batch

    async def _read(self, after: int, events_max: int, bytes_max: int) -> list[ReplicatedEvent]:
        """At least one event behind `after`, and more while they fit."""
        events: list[ReplicatedEvent] = []
        # Closed here and now: left to the collector it would keep the log's reader for a while.
        reading = cast(AsyncGenerator[Frame, None], self._shard.log.read(after + 1, self._shard.last_sequence))
        async with aclosing(reading) as frames:
            async for frame in frames:
                for event in events_of_frame(frame, self._region, events[-1].sequence if events else after):
                    bytes_max -= len(event.data)
                    if events and (bytes_max < 0 or len(events) == events_max):
                        return events
                    events.append(event)
                if len(events) >= events_max or bytes_max <= 0:
                    break
        return events

    async def _confirm(self, batch: list[ReplicatedEvent], resets: int) -> None:
        now_ms = self._shard.now_ms()
        last = batch[-1].sequence
        await self._checkpoints.save(self.name, self.shard_name, last, now_ms)
        if resets == self._resets:  # One that came meanwhile is saved behind this one.
            self.checkpoint = last
        for refused in [sequence for sequence in self._refusals if sequence <= last]:
            del self._refusals[refused]
        self.events.update(event.event_type for event in batch)
        self._rate.take(asyncio.get_running_loop().time(), len(batch))
        self.lag.observe(max(0, now_ms - batch[0].timestamp) / 1000)

    # -- what a sink refuses -------------------------------------------------------------------

    async def _refused(self, batch: list[ReplicatedEvent], error: SinkRefused) -> list[ReplicatedEvent]:
        """Park the bad one when it was refused often enough; what is done with then. Raises when it has to wait."""
        self._refusals[error.sequence] += 1
        index = next((at for at, event in enumerate(batch) if event.sequence == error.sequence), None)
        blocks = self._sink.rebuilds_state or self.settings.on_refusal == "block"
        if index is None or blocks or self._refusals[error.sequence] < self.settings.refusals_max:
            raise error
        before, bad = batch[:index], batch[index]
        if before:
            await self._within_time(self._sink.apply(before))
        await self._checkpoints.park(self.name, bad, error.message)
        self.parked = await self._checkpoints.parked_count(self.name, self.shard_name)
        self.failures += 1
        _log.error("event_parked", extra={**self._labels(), "sequence": bad.sequence, "reason": error.message})
        return [*before, bad]

    def _up_to_refused(self, batch: list[ReplicatedEvent]) -> list[ReplicatedEvent]:
        """With a refused event on its way, deliver up to it first: a retry must not repeat what is behind it."""
        for index, event in enumerate(batch):
            if event.sequence in self._refusals:
                return batch[:index] if index else batch[:1]
        return batch

    # -- states --------------------------------------------------------------------------------

    def _succeeded(self) -> None:
        if self.state != "failed":
            self.state = "running"
        self.last_error = None
        self._failing_since = None

    def _failed(self, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        self.failures += 1
        if self._failing_since is None:
            self._failing_since = now
        stalled = (now - self._failing_since) * 1000 >= self.settings.stalled_after_ms
        self.state = "stalled" if stalled else "retrying"
        text = reason_of(error)
        if text != self.last_error:
            _log.warning("sink_failed", extra={**self._labels(), "reason": text})
        self.last_error = text

    def _labels(self) -> dict[str, str]:
        return {"sink": self.name, "shard": self.shard_name}


def reason_of(error: BaseException) -> str:
    """What went wrong, for people."""
    if isinstance(error, OmniRelayError):
        return error.message
    return str(error) if isinstance(error, TimeoutError) and str(error) else f"{type(error).__name__}: {error}"
