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
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from omnirelay.errors import InvalidArgument, LogTrimmed
from omnirelay.replication.checkpoints import Checkpoints
from omnirelay.replication.cursor import LogCursor
from omnirelay.replication.delivery import Delivery
from omnirelay.replication.distance import Distance
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.health import SinkHealth, reason_of
from omnirelay.replication.requirements import Behind, Requirement
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import ReplicationSink, SinkUnusable
from omnirelay.replication.sources import Happened, LogSource
from omnirelay.replication.status import DeliveryRate, FollowStatus, SinkState
from omnirelay.telemetry.catalogue import REPLICATION_LAG
from omnirelay.telemetry.meters import Histogram

_log = logging.getLogger("omnirelay.replication")

GRACE_MS: Final = 2_000
"""How long a follower that stops waits for the delivery under way, and then for its sink to close."""
_TYPE = attrgetter("event_type")


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
        self.events: Counter[str] = Counter()
        """Events delivered, by type."""
        self.lag = Histogram(REPLICATION_LAG.buckets)
        """Seconds from when the first event of a delivery happened until it was confirmed."""
        self._sink = sink
        self._shard = shard
        self._checkpoints = checkpoints
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
        self._health = SinkHealth(name, self.shard_name, settings.stalled_after_ms)
        cursor = LogCursor(shard, region)
        self._distance = Distance(shard, cursor)
        self._delivery = Delivery(name, sink, shard, cursor, checkpoints, settings)
        self.requirement = Requirement(name, shard, settings, self._behind) if settings.required else None
        self._rate = DeliveryRate(asyncio.get_running_loop().time())
        shard.add_event_listener(self._on_events)

    def _on_events(self, events: Sequence[Happened]) -> None:
        self._distance.grow(events, self.checkpoint)
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

    @property
    def state(self) -> SinkState:
        """How deliveries go, whether it is paused or not."""
        return self._health.state

    @property
    def last_error(self) -> str | None:
        return self._health.last_error

    @property
    def failures(self) -> int:
        """Deliveries that failed, and events that were parked."""
        return self._health.failures + self._delivery.parkings

    @property
    def parked(self) -> int:
        """Events that are kept beside because the target never takes them."""
        return self._delivery.parked

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
        self._health.resumed()
        self._wake()

    async def reset(self, sequence: int) -> None:
        """Deliver again everything behind `sequence`; the sink recognises what it has.

        Further ahead than the sink has come, what is between is left out for good. Raises InvalidArgument for that
        with a sink that rebuilds a state, and beyond the end of the log.
        """
        skipping = self.check_reset(sequence)
        self._resets += 1
        self.checkpoint = sequence
        self._distance.forget()
        now_ms = self._shard.now_ms()
        await self._checkpoints.reset(self.name, self.shard_name, sequence, now_ms, skipping=skipping)
        self._health.resumed()
        self._wake()

    def check_reset(self, sequence: int) -> bool:
        """Whether a reset would leave events out. Raises InvalidArgument when there cannot be one."""
        last = self._shard.last_sequence
        if not 0 <= sequence <= last:
            raise InvalidArgument(
                f"sequence must be between 0 and {last}, where the log of {self.shard_name} ends, got {sequence}",
                field="sequence",
            )
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
        lag_events = self._distance.events(self.checkpoint)
        requirement = self.requirement
        return FollowStatus(
            sink=self.name,
            shard=self.shard_name,
            state=self._shown_state(),
            checkpoint=self.checkpoint,
            lag_events=lag_events,
            lag_ms=self._distance.age_ms if lag_events else 0,
            lag_bytes=self._distance.bytes if lag_events else 0,
            events=self.events.total(),
            failures=self.failures,
            parked=self.parked,
            required=self.settings.required,
            requirement_dropped=requirement is not None and requirement.dropped,
            closes_intake=None if requirement is None else requirement.closes_intake,
            rate_per_second=self._rate.per_second(asyncio.get_running_loop().time()),
            last_error=self.last_error,
        )

    def _shown_state(self) -> SinkState:
        return "paused" if self._paused else self.state

    def _behind(self) -> Behind | None:
        """For the limits of a required sink."""
        distance = self._distance
        if not distance.is_measured:
            return None
        return Behind(distance.counted, distance.bytes, distance.late_ms)

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
                while not self._distance.is_measured:  # It was reset; that counts even if nothing is delivered now.
                    await self._measure()
                if self._paused or self.state == "failed":
                    await self._tell_moved()
                    await self._wait_changed()
                    continue
                if not self._opened or self._resets != self._resets_seen:
                    await self._open()
                await self._deliver_next()
            except LogTrimmed as error:
                if not await self._begins_later(error):
                    self._health.failed(self._left_behind(error), for_good=True)
                    await self._close_sink()
            except SinkUnusable as error:
                self._health.failed(error, for_good=True)
                await self._close_sink()
            except Exception as error:
                self._health.failed(error)
                tried += 1
                await self._tell_moved()
                await self._back_off(tried)
            else:
                tried = 0
                self._health.succeeded()

    async def _load(self) -> None:
        kept = await self._checkpoints.load(self.name, self.shard_name)
        if not self._resets:  # One that came before this answer goes before it.
            self.checkpoint = kept.sequence
        self._paused = self._paused or kept.paused
        await self._delivery.load()
        # How far behind it is must be known even while its target cannot be opened.
        await self._measure()

    async def _measure(self) -> None:
        """Count what is behind the checkpoint; from here on every frame and every delivery is counted along."""
        resets = self._resets  # One that comes meanwhile has it measured again.
        measured = await self._distance.measure(self.checkpoint, lambda: resets == self._resets)
        if measured and self.requirement is not None:
            self.requirement.look()

    async def _open(self) -> None:
        # Whoever resets a sink has changed something about its target, perhaps emptied it.
        reset, self._resets_seen = self._resets_seen != self._resets, self._resets
        before = self.checkpoint
        if self._opened:
            await self._close_sink()
        known = await self._delivery.within_time(self._sink.open(self.shard_name))
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
        await self._linger(grown * random.uniform(0.7, 1.3) / 1000)

    async def _linger(self, seconds: float) -> None:
        """Wait, but not when the node stops or an operator wants something."""
        try:
            async with asyncio.timeout(seconds):
                await self._wait_changed()
        except TimeoutError:
            return

    async def _deliver_next(self) -> None:
        """Deliver one batch, or wait until there is something to deliver."""
        self._more.clear()
        if self._shard.last_sequence <= self.checkpoint:
            self._distance.clear()
            self._health.succeeded()
            await self._tell_moved()
            if not self._stopping:
                await self._more.wait()
            return
        resets = self._resets
        batch = await self._delivery.next_batch(self.checkpoint, self._linger)
        if batch:
            done = await self._delivery.deliver(batch)
            if resets == self._resets:
                await self._confirm(done, resets)

    async def _confirm(self, batch: list[ReplicatedEvent], resets: int) -> None:
        now_ms = self._shard.now_ms()
        last = batch[-1].sequence
        await self._checkpoints.save(self.name, self.shard_name, last, now_ms)
        if resets == self._resets:  # One that came meanwhile is saved behind this one.
            self.checkpoint = last
            self._distance.take(len(batch), batch[-1].timestamp)
            if self.requirement is not None:
                self.requirement.look()
        self._delivery.confirm(last)
        self.events.update(map(_TYPE, batch))
        self._rate.take(asyncio.get_running_loop().time(), len(batch))
        self.lag.observe(max(0, now_ms - batch[0].timestamp) / 1000)

    # -- a log that was trimmed ------------------------------------------------------------------

    async def _begins_later(self, error: LogTrimmed) -> bool:
        """Begin a new sink with the first event that is still there; false when it is not new, or needs them all."""
        kept, resets = await self._checkpoints.load(self.name, self.shard_name), self._resets
        if self.checkpoint or not kept.untouched or self._sink.rebuilds_state:
            return False
        begins, now_ms = int(str(error.details["anchor"])), self._shard.now_ms()
        # What the target says of itself must not lead back to what is gone.
        await self._checkpoints.reset(self.name, self.shard_name, begins, now_ms, skipping=True)
        if resets == self._resets:
            self.checkpoint = begins
            await self._measure()
            _log.warning("sink_begins_later", extra={**self._labels(), "sequence": begins + 1})
        return True

    def _left_behind(self, error: LogTrimmed) -> SinkUnusable:
        """What to do about a log that no longer has what the sink has not got."""
        begins = error.details.get("anchor")
        lost = f"the log of {self.shard_name} begins after {begins}, {self.name} has come to {self.checkpoint}:"
        if self._sink.rebuilds_state:
            advice = (
                "it rebuilds a state and needs every event of it; restore its target from a backup that has come to"
                f" {begins} or further, then: omnirelay replication resume {self.name}"
            )
        else:
            advice = (
                "what is between is gone from here; restore the target from a backup, or leave it out:"
                # Without the shard it would skip events of every other one, too.
                f" omnirelay replication reset {self.name} --shard {self.shard_name} --to {begins}"
            )
        return SinkUnusable(f"{lost} {advice}")

    def _labels(self) -> dict[str, str]:
        return {"sink": self.name, "shard": self.shard_name}
