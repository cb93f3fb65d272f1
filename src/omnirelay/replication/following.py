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
from collections.abc import Awaitable, Sequence
from operator import attrgetter
from typing import Literal, TypeVar

import msgspec

from omnirelay.errors import InvalidArgument, LogTrimmed, OmniRelayError
from omnirelay.replication.backlog import Backlog
from omnirelay.replication.checkpoints import Checkpoints
from omnirelay.replication.cursor import LogCursor
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.requirements import Behind, Requirement
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import ReplicationSink, SinkRefused, SinkUnusable
from omnirelay.replication.sources import Happened, LogSource
from omnirelay.telemetry.catalogue import REPLICATION_LAG
from omnirelay.telemetry.meters import Histogram

_log = logging.getLogger("omnirelay.replication")

T = TypeVar("T")

SinkState = Literal["starting", "running", "retrying", "stalled", "failed", "paused"]

GRACE_MS = 2_000
"""How long a follower that stops waits for the delivery under way, and then for its sink to close."""
_RATE_WINDOW_S = 60.0
_TYPE = attrgetter("event_type")


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
    lag_bytes: int = 0
    """Bytes of the log that are not delivered yet."""
    requirement_dropped: bool = False
    """It is required and holds back more of the log than it may: for now it counts as optional."""
    closes_intake: str | None = None
    """Why it keeps the intake of its shard closed, when it does."""
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
        shard: LogSource,
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
        self.backlog = Backlog()
        """What is not delivered yet; means something once it was measured."""
        self._measured = False
        self._counted_to = shard.last_sequence
        """The last event that the backlog knows of."""
        self._log_bytes = shard.log.statistics().bytes
        self._since_ms = shard.now_ms()
        self._cursor = LogCursor(shard, region)
        self.requirement = Requirement(name, shard, settings, self._behind) if settings.required else None
        self._refusals: Counter[int] = Counter()
        self._rate = _Rate(asyncio.get_running_loop().time())
        shard.add_event_listener(self._on_events)

    def _on_events(self, events: Sequence[Happened]) -> None:
        # A frame can be read, and even delivered, before this hears of it.
        known = max(self._counted_to, self.checkpoint)
        if events[0].sequence_number <= known:
            events = [event for event in events if event.sequence_number > known]
        written, before = self._shard.log.statistics().bytes, self._log_bytes
        self._log_bytes = written
        if events:
            self.backlog.add(len(events), written - before, events[0].timestamp)
            self._counted_to = events[-1].sequence_number
        self._more.set()
        if self.requirement is not None:
            self.requirement.look()

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        if self.requirement is not None:
            self.requirement.start()

    async def stop(self) -> None:
        """End after the delivery under way, or without it when it takes too long."""
        task, self._task = self._task, None
        if task is None:
            return
        if self.requirement is not None:
            await self.requirement.stop()
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

    def needs_from(self) -> int:
        """The first event that the log has to keep for this sink."""
        holds = self.requirement is not None and self.requirement.holds_log
        return (self.checkpoint if holds else self._shard.last_sequence) + 1

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
        if lag_events and self._measured:
            lag_events = self.backlog.events  # Not the difference: numbers jump where a generation starts.
        oldest_ms = self.backlog.oldest_ms if lag_events else None
        requirement = self.requirement
        return FollowStatus(
            sink=self.name,
            shard=self.shard_name,
            state="paused" if self._paused else self.state,
            checkpoint=self.checkpoint,
            lag_events=lag_events,
            lag_ms=0 if oldest_ms is None else max(0, self._shard.now_ms() - oldest_ms),
            lag_bytes=self.backlog.bytes if lag_events else 0,
            events=self.events.total(),
            failures=self.failures,
            parked=self.parked,
            required=self.settings.required,
            requirement_dropped=requirement is not None and requirement.dropped,
            closes_intake=None if requirement is None else requirement.closes_intake,
            rate_per_second=self._rate.per_second(asyncio.get_running_loop().time()),
            last_error=self.last_error,
        )

    def _behind(self) -> Behind | None:
        """For the limits of a required sink. Nobody is late for what happened before this node began to deliver."""
        if not self._measured:
            return None
        oldest_ms = self.backlog.oldest_ms
        late_ms = 0 if oldest_ms is None else max(0, self._shard.now_ms() - max(oldest_ms, self._since_ms))
        state = "paused" if self._paused else self.state
        return Behind(state, self.backlog.events, self.backlog.bytes, late_ms)

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
                self._failed(self._left_behind(error) if isinstance(error, LogTrimmed) else error)
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
        # How far behind it is must be known even while its target cannot be opened.
        await self._measure()

    async def _measure(self) -> None:
        """Count what is behind the checkpoint; from here on every frame and every delivery is counted along."""
        last, self._counted_to = self._shard.last_sequence, self._shard.last_sequence
        self._log_bytes = self._shard.log.statistics().bytes
        self.backlog.clear()
        after, resets = self.checkpoint, self._resets
        size = await self._shard.log.size_after(after, last)
        try:
            first = await self._cursor.read(after, 1, 1) if size.events else []
            since_ms = first[0].timestamp if first else self._shard.now_ms()
        except LogTrimmed:
            since_ms = (await self._shard.log.anchor()).time_ms
        if resets == self._resets:  # One that came meanwhile has it measured again.
            self.backlog.add_older(size.events, size.bytes, since_ms)
            self._measured = True
            if self.requirement is not None:
                self.requirement.look()

    async def _open(self) -> None:
        # Whoever resets a sink has changed something about its target, perhaps emptied it.
        reset, self._resets_seen = self._resets_seen != self._resets, self._resets
        before = self.checkpoint
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
        if reset or self.checkpoint != before:
            await self._measure()

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
            self.backlog.clear()
            self._succeeded()
            await self._tell_moved()
            if not self._stopping:
                await self._more.wait()
            return
        resets = self._resets
        batch = self._up_to_refused(await self._next_batch())
        if not batch:
            return
        try:
            await self._within_time(self._sink.apply(batch))
        except SinkRefused as error:
            batch = await self._refused(batch, error)
        if resets == self._resets:
            await self._confirm(batch, resets)

    async def _next_batch(self) -> list[ReplicatedEvent]:
        most, size = self.settings.batch_events, self.settings.batch_bytes
        batch = await self._cursor.read(self.checkpoint, most, size)
        room = size - sum(len(event.data) for event in batch)
        if batch and len(batch) < most and room > 0 and self.settings.linger_ms:
            await self._linger()
            if self._shard.last_sequence > batch[-1].sequence:
                batch += await self._cursor.read(batch[-1].sequence, most - len(batch), room)
        return batch

    async def _linger(self) -> None:
        """Wait for company, but not when the node stops or an operator wants something."""
        try:
            async with asyncio.timeout(self.settings.linger_ms / 1000):
                await self._wait_changed()
        except TimeoutError:
            return

    async def _confirm(self, batch: list[ReplicatedEvent], resets: int) -> None:
        now_ms = self._shard.now_ms()
        last = batch[-1].sequence
        await self._checkpoints.save(self.name, self.shard_name, last, now_ms)
        if resets == self._resets:  # One that came meanwhile is saved behind this one.
            self.checkpoint = last
            self.backlog.take(len(batch), batch[-1].timestamp)
            if self.requirement is not None:
                self.requirement.look()
        for refused in [sequence for sequence in self._refusals if sequence <= last]:
            del self._refusals[refused]
        self.events.update(map(_TYPE, batch))
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
        if not self._refusals:
            return batch
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

    def _left_behind(self, error: LogTrimmed) -> SinkUnusable:
        """What to do about a log that no longer has what the sink has not got."""
        begins = error.details.get("anchor")
        lost = f"the log of {self.shard_name} begins after {begins}, {self.name} has come to {self.checkpoint}:"
        if self._sink.rebuilds_state:
            advice = "it rebuilds a state and cannot leave out what is between; restore its target from a backup"
        else:
            advice = (
                "what is between is gone from here; restore the target from a backup, or leave it out:"
                f" omnirelay replication reset {self.name} --to {begins}"
            )
        return SinkUnusable(f"{lost} {advice}")

    def _labels(self) -> dict[str, str]:
        return {"sink": self.name, "shard": self.shard_name}


def reason_of(error: BaseException) -> str:
    """What went wrong, for people."""
    if isinstance(error, OmniRelayError):
        return error.message
    return str(error) if isinstance(error, TimeoutError) and str(error) else f"{type(error).__name__}: {error}"
