"""Group commit: the one place that decides, evolves and appends, in a task of its own or, for a call that comes alone,
in the step in which it comes.

    inbox ──▶ decide · evolve · encode ──▶ append (durable, fenced) ──▶ answers

While a frame is being made durable the inbox collects, and everything in it becomes the next frame. At
most one frame is in flight; when much is waiting, one more is decided behind it, so that the
processor does not idle while the disk works. Every answer, refusals and reads too, is held until all
frames evolved before it was decided are durable: nothing is ever shown that a crash could take back.

When the store refuses a frame for now (disk full), the same bytes are tried again and intake is
closed meanwhile. Nobody can heartbeat then, so the frame after it first gives that time back to live
leases, as a new leader does. The first frame after the whole process stood still does the same. When the outcome is
unknown, or another writer took over, the shard is given up: only a new start can learn what the log holds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from omnirelay.core.answers import GrantedLease, ItemView
from omnirelay.core.commands import AdvanceTime, Command, ElectLeader
from omnirelay.core.decide import Ids
from omnirelay.core.events import Event
from omnirelay.core.rules.handling import find_item
from omnirelay.core.state import State
from omnirelay.core.views import view
from omnirelay.engine.clock import Clock, ShardTime, Timer
from omnirelay.engine.deciding import Decider
from omnirelay.engine.framing import Framing
from omnirelay.engine.requests import (
    AcknowledgeRequest,
    Batch,
    CommandRequest,
    EnqueueRequest,
    LeaseRequest,
    ReadRequest,
    Request,
    ReturnRequest,
    refuse,
)
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.standstill import StandstillWatch
from omnirelay.engine.waiting import EnqueueLine, ItemWaiters, LeaseLine
from omnirelay.engine.waking import Wake
from omnirelay.errors import LogOutcomeUnknown, LogUnavailable, OmniRelayError, Unavailable
from omnirelay.log.base import EventLog, Frame, Position
from omnirelay.log.failpoints import hit

_log = logging.getLogger("omnirelay.engine")

INLINE_BYTES_MAX = 32 * 1024
"""Larger frames go to the writer thread: hashing them would hold up the loop, and the next one can be decided while
they are written."""

CROWD = 3
"""When a frame has answered so many callers, more of them are on their way. One alone, and one that hands an item to a
peer that waits, do not wait for company."""

ALONE_EVENTS_MAX: Final = 16
ALONE_NS_MIN: Final = 30_000
"""A request is alone when it is small, the last frame answered less than a crowd, and so much time has gone since then:
whoever else there is would have come meanwhile, out of what waited in the sockets."""

RETURN_MAX = 1_000
"""Most grants that one command returns."""


class Writer:
    """Owns the state of one shard. Everything here happens on one event loop."""

    def __init__(
        self,
        log: EventLog,
        state: State,
        position: Position,
        *,
        epoch: int,
        owner: str,
        shard_time: ShardTime,
        clock: Clock,
        ids: Ids,
        settings: EngineSettings,
        on_durable: Callable[[list[Event]], None],
    ) -> None:
        self.state = state
        self.position = position
        """The last durable event and its chain."""
        self.failure: OmniRelayError | None = None
        """Why the shard was given up, or None."""
        self.stalled: LogUnavailable | None = None
        """Why intake is closed for now, or None."""
        self.line = LeaseLine(clock, settings.waiting_leases_max, self._lease_timed_out)
        self.enqueues = EnqueueLine(
            clock, settings.waiting_enqueues_max, settings.waiting_enqueue_bytes_max, self._enqueue_timed_out
        )
        self.items = ItemWaiters()
        self._log = log
        self._epoch = epoch
        self._owner = owner
        self.now_ms = shard_time.now_ms
        self._clock = clock
        self._settings = settings
        self._on_durable = on_durable
        self._decider = Decider(state, ids, self.line, self.enqueues, self.items)
        self._framing = Framing(log, epoch, state)
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Request] = deque()
        self._waiting_events = 0
        self._wake = Wake(self._loop)
        self._open: Batch | None = None
        """Being decided, or being appended on this very thread."""
        self._flying: tuple[Batch, asyncio.Task[None]] | None = None
        self._staged: Batch | None = None
        self._pausing: asyncio.Event | None = None
        """Set to end the pause between two tries of a frame."""
        self._stall_ended = False
        """Writes were refused and are taken again; leases have not got that time back yet."""
        self._standstill = StandstillWatch(clock, lambda: state.leased.live > 0, self._wake.set)
        self._timer: Timer | None = None
        self._timer_at = 0
        self._task: asyncio.Task[None] | None = None
        self._answered = 0
        """How many callers the last frame answered."""
        self._settled_at = 0
        """When the last callers were answered, in monotonic nanoseconds."""
        self._untold: Batch | None = None
        """It was served at once, and only its caller knows yet."""
        self._broken: BaseException | None = None
        """What went wrong while something was served at once. The task gives the shard up."""
        self._closing = False

    # -- coming in -----------------------------------------------------------------------------

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="omnirelay-writer")
        self._set_timer()

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is undurable: a read may be answered at once."""
        return not self._inbox and self._open is None and self._flying is None and self._staged is None

    @property
    def closing(self) -> bool:
        return self._closing

    def submit(self, request: Request, events_expected: int = 1) -> None:
        """Take a request into the inbox. Raises when intake is closed; then nothing will come of it."""
        self.check_open()
        self._inbox.append(request)
        self._waiting_events += events_expected
        if self._flying is None or self._waiting_events >= self._settings.stage_events_min:
            self._wake.set()

    def check_open(self) -> None:
        if self.failure is not None:
            # Everybody gets the same error; what one caller's frames hold must not pile up in it.
            raise self.failure.with_traceback(None)
        if self.stalled is not None:
            error = LogUnavailable(f"the log cannot be written now: {self.stalled.message}", retry_after_ms=1_000)
            error.details.update(self.stalled.details)
            raise error
        if self._closing:
            raise Unavailable("the shard is closing", code="error.resourcelease.draining", retry_after_ms=1_000)

    def command(self, command: Command, events_expected: int = 1) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self.submit(CommandRequest(command, future, self.now_ms()), events_expected)
        return future

    def read(self, read: Callable[[State, int], Any]) -> asyncio.Future[Any]:
        """A read of the state, in its turn: it sees what came before it, once that is durable."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.submit(ReadRequest(read, future, self.now_ms()), 0)
        return future

    def return_undelivered(self, grants: list[GrantedLease]) -> None:
        """Release grants whose answer reached nobody, in the next frame."""
        if self.failure is not None:
            return
        for start in range(0, len(grants), RETURN_MAX):
            future: asyncio.Future[Any] = self._loop.create_future()
            future.add_done_callback(_look_at)
            self._inbox.append(ReturnRequest(grants[start : start + RETURN_MAX], future, self.now_ms()))
            self._wake.set()

    def _lease_timed_out(self, request: LeaseRequest) -> None:
        # An empty answer is an answer like any other: held until what it was decided on is durable.
        self._inbox.append(ReadRequest(lambda state, now_ms: [], request.future, request.arrived_ms))
        self._wake.set()

    def _enqueue_timed_out(self, request: EnqueueRequest) -> None:
        assert request.refusal is not None
        self._inbox.append(ReadRequest(partial(_refuse_with, request.refusal), request.future, request.arrived_ms))
        self._wake.set()

    def serve_now(self) -> bool:
        """Decide and append what has just come, if it came alone; true when exactly one caller has an answer now.

        Left to the task it would be its turn when the loop has looked for others once more, and the answer would leave
        another turn later: nothing is gained by that where nobody else is about.
        """
        if len(self._inbox) != 1 or not self._is_alone():
            return False
        try:
            batch = self._build()
            begun = self._begin_append(batch) if batch.frames else None
        except BaseException as error:
            self._broken = error
            if not isinstance(error, Exception):
                raise
            return False
        self._answered = len(batch.answers)
        if begun is not None:
            self._send_off(batch, begun)
            return False
        self._settle(batch)
        self._untold = batch  # The task has been woken by what came.
        return self._answered == 1

    def _is_alone(self) -> bool:
        return (
            self._answered < CROWD
            and self._waiting_events <= ALONE_EVENTS_MAX
            and self._wake.awaited
            and self._untold is None
            and self._open is None
            and self._flying is None
            and self._staged is None
            and not self._closing
            and time.monotonic_ns() - self._settled_at > ALONE_NS_MIN
        )

    # -- the loop ------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                if self._untold is not None:
                    told, self._untold = self._untold, None
                    self._tell(told)
                    self._look_ahead()
                if self._broken is not None:
                    raise _as_failure(self._broken)
                landed = self._flying
                if landed is not None and landed[1].done():
                    await self._land(*landed)
                elif landed is None and self._staged is not None:
                    batch, self._staged = self._staged, None
                    await self._launch(batch)
                if self._flying is None:
                    await self._take_off()
                staging = self._flying is not None and self._staged is None
                if staging and self._waiting_events >= self._settings.stage_events_min:
                    self._log.make_way()
                    self._staged = self._build()
                if self._timer is None and self._flying is None:
                    # With a frame in flight nothing can be decided anyway; it is set again when that lands.
                    self._set_timer()
                if self._closing and self.idle:
                    return
        except OmniRelayError as error:
            self._give_up(error)
        except Exception as error:
            _log.exception("shard_failed", extra={"shard": self._log.shard})
            self._give_up(LogOutcomeUnknown(f"the shard stopped on an internal error: {error!r}"))

    async def _take_off(self) -> None:
        """Decide what waits and append it; goes on while the state asks for more or the inbox has some."""
        while self._flying is None and (self._inbox or self._due()):
            if self._answered >= CROWD:
                await self._let_come()
            batch = self._build()
            self._answered = len(batch.answers)
            await self._launch(batch)

    async def _let_come(self) -> None:
        """Give the loop another turn for as long as each brings somebody. Callers who were answered together come back
        one after the other, and the flush of a frame costs as much as a dozen of them. Readers, of whom no events are
        expected, are no reason to wait for ever.
        """
        seen, enough = -1, self._settings.stage_events_min
        while seen < len(self._inbox) < enough and self._waiting_events < enough:
            seen = len(self._inbox)
            await asyncio.sleep(0)

    def _due(self) -> bool:
        return self._time_owed() or self._decider.has_more(self.now_ms()) or self._proof_due()

    def _time_owed(self) -> bool:
        """Live leases wait for the time back in which nobody could heartbeat."""
        return bool(self.state.leased.live) and (self._stall_ended or self._standstill.stood_still())

    def _proof_due(self) -> bool:
        """While leases live, the log says at least every heartbeat interval that the shard does too."""
        state = self.state
        return bool(state.leased.live) and self.now_ms() >= state.time + self._proof_interval()

    def _proof_interval(self) -> int:
        return max(self.state.options.heartbeat_interval_ms, 1_000)

    def _build(self) -> Batch:
        """Decide what waits. Whatever goes wrong in here, `_give_up` finds the batch in `_open`."""
        now_ms = max(self.now_ms(), self.state.time)
        first: Command | None = None
        if self._time_owed():
            # Counted from the last event: that is about when the stall began, and the last proof of life before a
            # standstill. Before anything else: what would have run out meanwhile must not do so now.
            first = ElectLeader(self._epoch, self._owner, self.state.time)
            back_ms = now_ms - self.state.time
            _log.warning("leases_prolonged", extra={"shard": self._log.shard, "ms": back_ms})
        elif self._proof_due() and not self._inbox:
            first = AdvanceTime()
        self._stall_ended = False
        self._standstill.forget()
        generation = self.state.generation
        batch = self._open = Batch()
        self._decider.build(batch, self._inbox, now_ms, events_max=self._events_max(), first=first)
        self._waiting_events = max(self._waiting_events - len(batch.events), 0) if self._inbox else 0
        if batch.events:
            batch.frames = self._framing.frames_of(batch, generation, now_ms)
            hit("engine.decided")
        self._open = None
        return batch

    def _events_max(self) -> int:
        """How much the next frame takes: when the disk idles and much waits, half of it, so that the rest is decided
        while that half is written. Callers who were answered together otherwise come back together for ever, and
        disk and processor take turns.
        """
        limit = self._settings.frame_events_max
        if self._flying is None and self._waiting_events >= self._settings.split_events_min:
            return min(limit, self._waiting_events // 2)
        return limit

    async def _launch(self, batch: Batch) -> None:
        if not batch.frames:
            self._answer(batch)
            self._look_ahead()
            return
        begun = self._begin_append(batch)
        if begun is None:
            self._answer(batch)
            # Callers go on in the loop's next turn and what they send leaves at the end of it. What is to be done
            # here meanwhile would only hold that up.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self._set_timer()
            return
        self._send_off(batch, begun)

    def _begin_append(self, batch: Batch) -> asyncio.Future[Position] | None:
        """Append a small batch on this very thread, if the log is quick: None, it is durable. Else have its first frame
        appended in another. That begins here and not in the task that waits for it, whose turn comes after those who
        were just answered.

        A hop to another thread and back takes about as long as a quick disk. A slow one must not stop the event
        loop, not for a lone caller either: other shards, probes and heartbeats live on it.
        """
        self._open = batch
        frame = batch.frames[0]
        begun: asyncio.Future[Position] | None
        try:
            position = self._log.append_now(frame, self.position) if _is_small(batch) else None
            begun = None if position is not None else asyncio.ensure_future(self._log.append(frame, self.position))
        except LogUnavailable as error:
            # Where the task finds it, which can wait for better times.
            position, begun = None, self._loop.create_future()
            begun.set_exception(error)
            _look_at(begun)
        if position is not None:
            self._appended(batch, frame, position)
            hit("engine.durable")
        self._open = None
        return begun

    def _send_off(self, batch: Batch, begun: asyncio.Future[Position]) -> None:
        task = self._loop.create_task(self._append(batch, begun))
        task.add_done_callback(lambda _: self._wake.set())
        self._flying = (batch, task)

    def _appended(self, batch: Batch, frame: Frame, position: Position) -> None:
        self.position = position
        batch.durable += frame.count

    async def _append(self, batch: Batch, begun: asyncio.Future[Position]) -> None:
        """`begun` is the append of the first frame."""
        first: asyncio.Future[Position] | None = begun
        for frame in batch.frames:
            self._appended(batch, frame, await self._append_frame(frame, self.position, first))
            first = None
        hit("engine.durable")

    async def _append_frame(self, frame: Frame, expected: Position, begun: asyncio.Future[Position] | None) -> Position:
        while True:
            trying, begun = begun, None
            try:
                position = await (trying or self._log.append(frame, expected))
            except LogUnavailable as error:
                if self.stalled is None:
                    _log.error("log_unavailable", extra={"shard": self._log.shard, "reason": error.message})
                self.stalled = error
                if not self._closing:
                    await self._pause(self._settings.retry_ms)
                if self._closing:
                    raise  # Refused for certain, and nobody is going to try again.
                continue
            if self.stalled is not None:
                _log.warning("log_available_again", extra={"shard": self._log.shard})
                self.stalled = None
                self._stall_ended = True
            return position

    async def _pause(self, delay_ms: int) -> None:
        """Wait before the next try; `close` cuts it short."""
        over = self._pausing = asyncio.Event()
        timer = self._clock.call_later(delay_ms, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()
            self._pausing = None

    async def _land(self, batch: Batch, task: asyncio.Task[None]) -> None:
        """Answer the callers, and get the frame that is staged to the disk before anybody else hears of this one."""
        task.result()
        self._flying = None
        self._settle(batch)
        staged, self._staged = self._staged, None
        if staged is None or _is_small(staged):
            self._tell(batch)
            if staged is not None:
                await self._launch(staged)
        else:
            try:
                begun = self._begin_append(staged)
            finally:
                self._tell(batch)
            assert begun is not None, "what is not small is appended elsewhere"
            self._send_off(staged, begun)
        self._look_ahead()

    def _answer(self, batch: Batch) -> None:
        self._settle(batch)
        self._tell(batch)

    def _settle(self, batch: Batch) -> None:
        """Whoever waits for the batch has an answer now."""
        self._settled_at = time.monotonic_ns()
        lost = batch.undelivered()
        if lost:
            self.return_undelivered(lost)

    def _tell(self, batch: Batch) -> None:
        if batch.events:
            self._on_durable(batch.events)
            hit("engine.answered")

    def _look_ahead(self) -> None:
        self._set_timer()
        if self._inbox or self._decider.has_more(self.now_ms()):
            self._wake.set()

    # -- time ----------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        """Wake up when time itself will change something next."""
        state = self.state
        due = state.next_due()
        if state.leased.live:
            proof = state.time + self._proof_interval()
            due = proof if due is None or proof < due else due
            if not self._standstill.running:
                self._standstill.start()
        if due is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        if self._timer is not None:
            if self._timer_at <= due:
                return  # It wakes too early, finds nothing to do and is set anew: cheaper than moving it each frame.
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._clock.call_later(max(0, due - self.now_ms()), self._time_came)

    def _time_came(self) -> None:
        self._timer = None
        self._wake.set()

    # -- the end -------------------------------------------------------------------------------

    async def close(self) -> None:
        """Answer who waits, finish what is in flight, stop. Safe to call twice.

        While the store refuses writes nothing is tried again, but a try that is under way is waited for: it may
        succeed, and then its callers hear that it did.
        """
        self._closing = self.line.closed = self.enqueues.closed = True
        closing = Unavailable("the shard is closing", code="error.resourcelease.draining", retry_after_ms=1_000)
        for enqueue in self.enqueues.clear():
            self._inbox.append(ReadRequest(partial(_refuse_with, closing), enqueue.future, enqueue.arrived_ms))
        for request in self.line.clear():
            self._inbox.append(ReadRequest(lambda state, now_ms: [], request.future, request.arrived_ms))
        for sequence_id, future in self.items.clear():
            self._inbox.append(ReadRequest(partial(_view_or_refuse, sequence_id), future, self.now_ms()))
        self._wake.set()
        if self._pausing is not None:
            self._pausing.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._stop_timer()

    def kill(self) -> None:
        """Stop as a crash would: nothing is finished, nobody is answered."""
        if self._task is not None:
            self._task.cancel()
        if self._flying is not None:
            self._flying[1].cancel()
        self._stop_timer()
        self.failure = self.failure or Unavailable("the shard was killed")

    def _give_up(self, error: OmniRelayError) -> None:
        self.failure = error
        self._stop_timer()
        durable: list[Event] = []
        for batch in (self._open, self._flying and self._flying[0], self._staged):
            if batch is not None:
                batch.refuse(error)
                durable += batch.events[: batch.durable]
        for request in self._inbox:
            refuse(request.future, error, partly_decided=type(request) is AcknowledgeRequest and bool(request.outcomes))
        waiting: list[asyncio.Future[Any]] = [each.future for each in self.line.clear()]
        waiting += [each.future for each in self.enqueues.clear()]
        waiting += [future for _, future in self.items.clear()]
        self._inbox.clear()
        for future in waiting:
            refuse(future, error)
        self._on_durable(durable)
        _log.error("shard_given_up", extra={"shard": self._log.shard, "reason": error.message})

    def _stop_timer(self) -> None:
        self._standstill.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _as_failure(broken: BaseException) -> Exception:
    """What interrupts the whole process has gone to where it belongs; here it is a reason like any other."""
    if isinstance(broken, Exception):
        return broken
    return LogOutcomeUnknown(f"the shard was interrupted while it decided: {broken!r}")


def _is_small(batch: Batch) -> bool:
    """Nothing in it is worth another thread."""
    return not batch.frames or (len(batch.frames) == 1 and len(batch.frames[0].data) <= INLINE_BYTES_MAX)


def _view_or_refuse(sequence_id: int, state: State, now_ms: int) -> ItemView:
    return view(find_item(state, sequence_id))


def _refuse_with(error: OmniRelayError, state: State, now_ms: int) -> None:
    raise error


def _look_at(future: asyncio.Future[Any]) -> None:
    """Nobody waits for this one; an error in it is not news, because everybody else gets it too."""
    if not future.cancelled():
        future.exception()
