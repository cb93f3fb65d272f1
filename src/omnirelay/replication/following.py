"""`Follower`: one sink behind one shard. It reads the log at its own pace and never holds anybody up.

    starting ─▶ running ──error──▶ retrying ──too long──▶ stalled ──success──▶ running
                   │                                          unusable ─▶ failed (until somebody resumes it)
                   └─ paused by an operator

What waits is in the log, not in memory: a follower that is down for a week costs nothing but the log's retention.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from omnirelay.errors import LogTrimmed
from omnirelay.replication.checkpoints import Checkpoints
from omnirelay.replication.courtesy import Courtesy
from omnirelay.replication.cursor import LogCursor
from omnirelay.replication.delivery import Delivery, is_being_cancelled
from omnirelay.replication.health import SinkHealth, reason_of
from omnirelay.replication.pacing import Pace
from omnirelay.replication.requirements import Behind, Requirement
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import ReplicationSink, SinkRefused, SinkUnusable, TargetChanged
from omnirelay.replication.sources import Happened, LogSource
from omnirelay.replication.standing import Standing
from omnirelay.replication.status import Delivered, FollowStatus, SinkState
from omnirelay.telemetry.meters import Histogram

_log = logging.getLogger("omnirelay.replication")

GRACE_MS: Final = 2_000
"""How long a follower that stops waits for the delivery under way, and then for its sink to close."""


MEASURING_MS: Final = 500
"""How long a reset waits until it is known how much is behind it."""

REOPEN_EVERY: Final = 3
"""After so many failures in a row the target is opened again: perhaps it is no longer what was opened."""


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
        courtesy: Courtesy | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.shard_name = shard.log.shard
        self._sink = sink
        self._shard = shard
        self._checkpoints = checkpoints
        self._task: asyncio.Task[None] | None = None
        self._paused = False
        self._loaded = False
        self._opened = False
        self._stale = False
        """Somebody may have changed the target: it is opened again before anything else is done to it."""
        self._at_work = asyncio.Lock()
        """Held while something is done to the target."""
        self._pace = Pace(settings)
        self._health = SinkHealth(name, self.shard_name, settings.stalled_after_ms)
        self._cursor = cursor = LogCursor(shard, region)
        self._standing = Standing(name, sink, shard, cursor, checkpoints)
        self._now = now = asyncio.get_running_loop().time
        self._courtesy = courtesy or Courtesy(now)
        self._rest_s = 0.0
        """To be spent before the next delivery."""
        self._delivery = Delivery(name, sink, shard, cursor, checkpoints, settings, self._courtesy)
        self._delivered = Delivered(now())
        self.requirement = Requirement(name, shard, settings, self._behind) if settings.required else None
        shard.add_event_listener(self._on_events)

    def _on_events(self, events: Sequence[Happened]) -> None:
        self._standing.distance.grow(events, self.checkpoint)
        self._courtesy.called(len(events))
        self._pace.more()
        self._look_at_limits()

    def _look_at_limits(self) -> None:
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
        self._pace.stop()
        _, hanging = await asyncio.wait((task,), timeout=GRACE_MS / 1000)
        for each in hanging:
            each.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self._delivery.close()
        await self._cursor.close()
        await self._close_sink()

    async def _close_sink(self) -> None:
        self._opened = False
        try:
            async with asyncio.timeout(GRACE_MS / 1000):
                await self._sink.close()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            place = {"sink": self.name, "shard": self.shard_name}
            _log.warning("sink_not_closed", extra={**place, "reason": reason_of(error)})

    # -- operators -----------------------------------------------------------------------------

    async def pause(self) -> None:
        """Deliver nothing until `resume`, also after a restart.

        When it returns, the delivery under way has ended (which has a time limit of its own), and the target is closed.
        """
        self._paused = True
        await self._checkpoints.pause(self.name, self.shard_name, True)
        self._pace.wake()
        if self._task is not None:
            await self._let_go(unless=lambda: not self._paused)

    async def resume(self) -> None:
        """Go on after a pause, or after a failure that somebody has dealt with. The target is opened anew."""
        self._paused = False
        self._stale = True
        await self._checkpoints.pause(self.name, self.shard_name, False)
        self._begin_again()

    async def reset(self, sequence: int) -> None:
        """Deliver again everything behind `sequence`; the sink recognises what it has.

        Further ahead than the sink has come, what is between is left out for good. Raises InvalidArgument for that
        with a sink that rebuilds a state or whose target takes nothing behind a gap, and beyond the end of the log.
        """
        await self.check_reset(sequence)
        await self._standing.reset(sequence)
        self._begin_again()
        if self._task is not None:
            # Whoever asks next is to hear how far behind it is now. A delivery that hangs holds nobody up for that.
            with suppress(TimeoutError):
                async with asyncio.timeout(MEASURING_MS / 1000):
                    await self._pace.wait_moved(lambda: self._standing.distance.is_measured)

    def _begin_again(self) -> None:
        self._health.resumed()
        if self._task is not None and self._task.done():  # It ended in a way that nobody expected.
            self._task = asyncio.create_task(self._run())
        self._pace.wake()

    async def check_reset(self, sequence: int) -> None:
        """Raises InvalidArgument when there cannot be a reset to `sequence`; the target may be asked about that."""
        if self._standing.check_reset(sequence):
            await self._delivery.within_time(self._standing.check_gap(sequence))

    def needs_from(self) -> int:
        """The first event that the log has to keep for this sink."""
        holds = self.requirement is not None and self.requirement.holds_log
        return (self.checkpoint if holds else self._shard.last_sequence) + 1

    # -- how it is doing -------------------------------------------------------------------------

    @property
    def checkpoint(self) -> int:
        """The last event that the target has."""
        return self._standing.checkpoint

    @property
    def state(self) -> SinkState:
        """How deliveries go, whether it is paused or not."""
        return self._health.state

    @property
    def last_error(self) -> str | None:
        return self._health.last_error

    @property
    def is_called(self) -> bool:
        """Somebody has just had something committed to the log that it follows."""
        return self._courtesy.is_called

    @property
    def events(self) -> Counter[str]:
        """Events delivered, by type."""
        return self._delivered.events

    @property
    def lag(self) -> Histogram:
        """Seconds from when the first event of a delivery happened until it was confirmed."""
        return self._delivered.lag

    @property
    def failures(self) -> int:
        """Deliveries that failed, and events that were parked."""
        return self._health.failures + self._delivery.parkings

    @property
    def parked(self) -> int:
        """Events that are kept beside because the target never takes them."""
        return self._delivery.parked

    async def wait_confirmed(self, sequence: int) -> None:
        """Return when everything up to `sequence` is delivered."""
        await self._pace.wait_moved(lambda: self.checkpoint >= sequence)

    async def wait_state(self, *states: SinkState) -> None:
        """Return when the sink is in one of these states."""
        await self._pace.wait_moved(lambda: self.status().state in states)

    def status(self) -> FollowStatus:
        distance, requirement = self._standing.distance, self.requirement
        return FollowStatus(
            sink=self.name,
            shard=self.shard_name,
            state="paused" if self._paused else self.state,
            checkpoint=self.checkpoint,
            lag_events=distance.events(self.checkpoint),
            lag_ms=distance.age_ms(self.checkpoint),
            lag_bytes=distance.bytes(self.checkpoint),
            events=self.events.total(),
            failures=self.failures,
            parked=self.parked,
            required=self.settings.required,
            requirement_dropped=requirement is not None and requirement.dropped,
            closes_intake=None if requirement is None else requirement.closes_intake,
            rate_per_second=self._delivered.per_second(self._now()),
            last_error=self.last_error,
        )

    def _behind(self) -> Behind | None:
        """For the limits of a required sink."""
        distance = self._standing.distance
        if not distance.is_measured:
            return None
        return Behind(distance.counted, distance.counted_bytes, distance.late_ms)

    # -- following -----------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            await self._follow()
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise  # The process ends, not this sink.
        except BaseException as error:
            if self._pace.stopping:
                raise
            # Nothing is delivered from here on: nobody may take it for a sink that runs.
            self._health.failed(error, for_good=True)
            await self._pace.tell_moved()
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _follow(self) -> None:
        pace = self._pace
        tried = 0
        while not pace.stopping:
            await pace.tell_moved()
            try:
                went_on = await self._go_on()
            except SinkUnusable as error:
                self._health.failed(error, for_good=True)
                self._opened = True  # Perhaps half: whatever it has must be let go of.
                await self._let_go()
            except Exception as error:
                self._health.failed(error)
                tried += 1
                often = tried % REOPEN_EVERY == 0 and not isinstance(error, SinkRefused)
                if isinstance(error, TargetChanged) or often:
                    await self._let_go()
                await pace.tell_moved()
                await pace.back_off(tried)
            else:
                if went_on:
                    tried = 0
                    self._health.succeeded()

    async def _go_on(self) -> bool:
        """Whatever is next: get ready, deliver a batch, or wait. Whether it went as it should.

        Raises SinkUnusable when only somebody else can help, and anything that is worth another try.
        """
        try:
            if not self._loaded:
                await self._load()
                self._loaded = True
            # Known even while its target cannot be opened, and after a reset even if nothing is delivered now.
            while not self._standing.distance.is_measured:
                await self._measure()
            if self._paused or self.state == "failed":
                await self._let_go()
                await self._pace.tell_moved()
                await self._pace.wait_changed()
                return False
            if not self._opened or self._stale or self._standing.was_reset:
                async with self._at_work:
                    if self._paused:
                        return False
                    await self._open()
            await self._deliver_next()
        except LogTrimmed as error:
            if not await self._standing.begin_later(error):
                raise self._standing.left_behind(error) from error
            return False
        return True

    async def _load(self) -> None:
        paused = await self._standing.load()
        self._paused = self._paused or paused
        await self._delivery.load()

    async def _measure(self) -> None:
        if await self._standing.measure():
            self._look_at_limits()
            await self._pace.tell_moved()

    async def _open(self) -> None:
        if await self._standing.agree(self._open_sink):
            await self._measure()

    async def _let_go(self, unless: Callable[[], bool] = lambda: False) -> None:
        """Close the target once nothing is done to it any more, unless it is closed."""
        async with self._at_work:
            if self._opened and not unless():
                await self._close_sink()

    async def _open_sink(self) -> int | None:
        if self._opened:
            await self._close_sink()
        self._stale = False
        known = await self._delivery.within_time(self._sink.open(self.shard_name))
        self._opened = True
        return known

    async def _deliver_next(self) -> None:
        """Deliver one batch, or wait until there is something to deliver, or for the sake of callers."""
        if self._rest_s:
            rest_s, self._rest_s = self._rest_s, 0.0
            await self._pace.linger(rest_s)
            return
        self._pace.look()
        if self._shard.last_sequence <= self.checkpoint:
            self._standing.distance.clear()
            self._health.succeeded()
            await self._pace.tell_moved()
            await self._pace.wait_more()
            return
        resets, began = self._standing.resets, self._courtesy.now()
        batch = await self._delivery.next_batch(self.checkpoint, self._pace.linger)
        if not batch:
            return
        async with self._at_work:
            # While this was read and waited for company, somebody may have wanted something else.
            if self._paused or self._stale or resets != self._standing.resets:
                return
            done = await self._delivery.deliver(batch)
            if resets == self._standing.resets:
                await self._standing.confirm(done, resets)
                self._look_at_limits()
                self._delivery.confirm(done.last)
                self._delivered.take(done, self._shard.now_ms(), self._now())
                presses = self.requirement is not None and self.requirement.presses
                self._rest_s = self._delivery.rest_s(done, self._courtesy.now() - began, presses=presses)
