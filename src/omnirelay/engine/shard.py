"""`Shard`: one lease queue in this process, with every verb as an async method.

    async with await Shard.open(log, owner="node-1") as shard:
        answer = await shard.enqueue(NewItem(payload=Payload(resource_type="table", resource_id="orders")))
        [lease] = await shard.lease(Caller(peer_id="worker-1"), wait_ms=30_000)
        await shard.complete(lease.token)

A method returns when what it answers is durable, and raises an error of `omnirelay.errors` otherwise.
Cancelling a call before its command was decided leaves no trace; after that the command stands, and a
lease that was granted to a caller who is gone is released in the next frame.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from omnirelay.core import commands as cmd
from omnirelay.core import views
from omnirelay.core.answers import (
    BackpressureSignal,
    CompleteAnswer,
    EnqueueAnswer,
    FailAnswer,
    GrantedLease,
    HeartbeatAnswer,
)
from omnirelay.core.decide import Ids
from omnirelay.core.events import BackpressureChanged, Event, FailMode
from omnirelay.core.intake import BATCH_ITEMS_MAX, check_number, check_required_number, refuse
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import ANONYMOUS, Caller, NewItem, OwnershipToken
from omnirelay.core.state import State
from omnirelay.engine.clock import CLOCK_OFF_MS, Clock, ShardTime, SystemClock
from omnirelay.engine.ids import lease_ids
from omnirelay.engine.leading import collector_away, take_lead
from omnirelay.engine.operating import WAIT_MAX_MS, Operating, listed
from omnirelay.engine.recovery import Progress, rebuild, snapshot_directory
from omnirelay.engine.requests import AcknowledgeRequest, EnqueueRequest, LeaseRequest
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.snapshotter import make_snapshot_in_helper
from omnirelay.engine.writer import Writer
from omnirelay.errors import LogDamaged, LogUnavailable, OmniRelayError
from omnirelay.log.base import Anchor, EventLog, SnapshotRecord
from omnirelay.log.frame import decode_frame
from omnirelay.log.retention import surplus_snapshots
from omnirelay.log.snapshots import prune_snapshots

_log = logging.getLogger("omnirelay.engine")

A = TypeVar("A")


_ACKNOWLEDGEMENTS = frozenset((cmd.ExtendLease, cmd.CompleteItem, cmd.FailItem, cmd.ReleaseItem))
_LEASES = frozenset((GrantedLease,))


SNAPSHOTS_PER_RETENTION: Final = 8
"""About so many snapshots are kept of the time that the log keeps: a busy shard makes one every few seconds."""
SNAPSHOT_NICENESS: Final = 19
"""Making one takes about as much processor time as serving its events did. Callers come first, unless …"""
SNAPSHOT_HURRIED_AFTER: Final = 4
"""… it has become so many times what one is made after: a start has to replay them."""

SEQUENCE_MAX: Final = (1 << 63) - 1
"""The highest number an event can have."""


class BackpressureListener(Protocol):
    """What wants to hear when intake closes and opens. Called on the event loop: it must not block."""

    def __call__(self, signal: BackpressureSignal, /) -> None: ...


class TrimGuard(Protocol):
    """What needs a part of the log. Called on the event loop before every trim."""

    def __call__(self) -> int:
        """The lowest sequence that has to stay."""
        ...


class EventListener(Protocol):
    """What wants to see every batch of durable events. Called on the event loop: it must not block."""

    def __call__(self, events: Sequence[Event], /) -> None: ...


class Shard(Operating):
    """Use `open`. One object is for one event loop; any number of tasks may call it."""

    def __init__(
        self,
        log: EventLog,
        writer: Writer,
        epoch: int,
        settings: EngineSettings,
        clock: Clock,
        time: ShardTime,
    ) -> None:
        self.log = log
        self.epoch = epoch
        self._writer = writer
        self._settings = settings
        self._clock = clock
        self._time = time
        self._wall_ahead_ms = 0
        """What was last said about the wall clock."""
        self._loop = asyncio.get_running_loop()
        self._tails: list[asyncio.Future[None]] = []
        self._backpressure_listeners: list[BackpressureListener] = []
        self._event_listeners: list[EventListener] = []
        self._trim_guards: list[TrimGuard] = []
        self._snapshot_lock = asyncio.Lock()
        self._snapshot_task: asyncio.Task[None] | None = None
        self._events_since_snapshot = 0
        self._closed = False

    # -- life ----------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        log: EventLog,
        *,
        options: QueueOptions | None = None,
        owner: str = "omnirelay",
        clock: Clock | None = None,
        settings: EngineSettings | None = None,
        ids: Ids | None = None,
        progress: Progress | None = None,
    ) -> Shard:
        """Take the log over, recover its state, and serve.

        `options` are compared with those in the log and changed by an event when they differ; None keeps
        them. Raises what the log raises: LogLocked, LogDamaged, LogRegressed, UnknownEvent …
        """
        clock = clock or SystemClock()
        settings = settings or EngineSettings()
        acquired = await log.acquire(owner)
        with collector_away(settings.freeze_after_recovery):
            recovered = await rebuild(log, progress=progress)
        if recovered.position != acquired.position:
            raise LogDamaged(
                f"replay ended at {recovered.position.sequence}, the head of the log is at "
                f"{acquired.position.sequence}",
                sequence=recovered.position.sequence,
            )
        for reason in recovered.passed_over:
            _log.warning("snapshot_passed_over", extra={"shard": log.shard, "reason": reason})
        state = recovered.state
        time = ShardTime(clock, state.time)
        shard: Shard | None = None

        def on_durable(events: list[Event]) -> None:
            assert shard is not None
            shard._durable(events)

        writer = Writer(
            log,
            state,
            recovered.position,
            epoch=acquired.epoch,
            owner=owner,
            shard_time=time,
            clock=clock,
            ids=ids or lease_ids(),
            settings=settings,
            on_durable=on_durable,
        )
        writer.position = await take_lead(log, state, acquired, owner, options, time.now_ms())
        shard = cls(log, writer, acquired.epoch, settings, clock, time)
        shard._compare_clocks()
        shard._events_since_snapshot = recovered.replayed_events
        writer.start()
        _log.info(
            "shard_opened",
            extra={
                "shard": log.shard,
                "epoch": acquired.epoch,
                "sequence": state.sequence,
                "replayed": recovered.replayed_events,
                "snapshot": recovered.snapshot_sequence,
            },
        )
        return shard

    async def __aenter__(self) -> Shard:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Answer who waits, make durable what was decided, close the log. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._snapshot_task is not None:
            self._snapshot_task.cancel()
            await asyncio.gather(self._snapshot_task, return_exceptions=True)
        await self._writer.close()
        self._wake_tails()
        await self.log.close()

    def kill(self) -> None:
        """Drop everything as a crash would: nothing is flushed, nobody is answered. For tests."""
        self._closed = True
        if self._snapshot_task is not None:
            self._snapshot_task.cancel()
        self._writer.kill()
        self._wake_tails()

    @property
    def state(self) -> State:
        """The live state, undurable changes included: for tests and for the engine's own tools."""
        return self._writer.state

    @property
    def failure(self) -> OmniRelayError | None:
        """Why the shard was given up or cannot be written now; None while all is well."""
        return self._writer.failure or self._writer.stalled

    @property
    def given_up(self) -> OmniRelayError | None:
        """Why this object will never serve again, and the log has to be opened anew; None while it may."""
        return self._writer.failure

    @property
    def last_sequence(self) -> int:
        """The last durable event."""
        return self._writer.position.sequence

    @property
    def backpressure(self) -> BackpressureSignal:
        """Whether intake is closed, and everything that keeps it so."""
        return views.backpressure(self._writer.state, self.log.shard)

    def add_backpressure_listener(self, listener: BackpressureListener) -> None:
        """Have a function called with every change of backpressure, of any of its causes, in order, when it is durable.

        When intake is closed already, the listener hears of it at once. What it raises is logged and goes no further.
        """
        self._backpressure_listeners.append(listener)
        if self.backpressure.active:
            self._tell(listener, self.backpressure)

    def add_event_listener(self, listener: EventListener) -> None:
        """Have a function called with the events of every frame, in order, when they are durable and answered.

        What it raises is logged and goes no further.
        """
        self._event_listeners.append(listener)

    def add_trim_guard(self, guard: TrimGuard) -> None:
        """Have a function asked before every trim how much of the log has to stay."""
        self._trim_guards.append(guard)

    def now_ms(self) -> int:
        """The shard's own time."""
        return self._writer.now_ms()

    # -- the lease cycle -----------------------------------------------------------------------

    async def enqueue(
        self, items: NewItem | Sequence[NewItem], *, caller: Caller = ANONYMOUS, wait_ms: int = 0
    ) -> EnqueueAnswer:
        """Take items in, all or nothing. A repeated request id is answered with the first item's id.

        When there is no room the call waits up to `wait_ms`, behind those that came before it; then it is refused
        with `error.resourcelease.backpressure`.
        """
        batch = [items] if isinstance(items, NewItem) else listed("items", items)
        return await self.submit_enqueue(batch, caller, wait_ms)

    def submit_enqueue(self, items: list[NewItem], caller: Caller, wait_ms: int = 0) -> asyncio.Future[EnqueueAnswer]:
        """`enqueue` for callers that go on meanwhile. Raises at once when the shard takes nothing."""
        check_number("waitMs", wait_ms, 0, WAIT_MAX_MS)
        future: asyncio.Future[EnqueueAnswer] = self._loop.create_future()
        writer = self._writer
        command = cmd.EnqueueItems(items, caller)
        writer.submit(EnqueueRequest(command, wait_ms, future, writer.now_ms()), len(items))
        return future

    async def lease(
        self,
        caller: Caller = ANONYMOUS,
        *,
        max_items: int = 1,
        wait_ms: int = 0,
        lease_duration_ms: int | None = None,
        request_id: str | None = None,
        resource_types: Sequence[str] | None = None,
        tenants: Sequence[str] | None = None,
    ) -> list[GrantedLease]:
        """Up to `max_items` leases, the last of them the one that takes their bodies beyond 6 MiB; an empty list when
        none came within `wait_ms`.

        Calls that wait are served in the order they came. With a `request_id` a repeat of the call gets
        the same leases as long as they live. `resource_types` are globs; a call that names types or tenants looks
        only there.
        """
        future = self.submit_lease(
            cmd.GrantLeases(
                caller,
                max_items,
                lease_duration_ms,
                request_id,
                tuple(resource_types) if isinstance(resource_types, list) else resource_types,  # type: ignore[arg-type]
                tuple(tenants) if isinstance(tenants, list) else tenants,  # type: ignore[arg-type]
            ),
            wait_ms,
        )
        try:
            return await future
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                # Answered, but the caller was interrupted before it could take the answer.
                self.undelivered(future.result())
            raise

    def submit_lease(self, command: cmd.GrantLeases, wait_ms: int = 0) -> asyncio.Future[list[GrantedLease]]:
        """`lease` for callers that go on meanwhile. Raises at once when the shard takes nothing. A result that nobody
        takes has to be given back: `undelivered`.
        """
        check_number("waitMs", wait_ms, 0, WAIT_MAX_MS)
        future: asyncio.Future[list[GrantedLease]] = self._loop.create_future()
        writer, items_max = self._writer, command.items_max
        request = LeaseRequest(command, wait_ms, future, writer.now_ms())
        writer.submit(request, items_max if type(items_max) is int else 1)
        return future

    def serve_now(self) -> bool:
        """For whoever has just submitted something and knows of nothing else: serve it in this very step, if nobody
        else is about. True when exactly one caller was answered. Listeners hear of it a turn of the loop later.
        """
        return self._writer.serve_now()

    def undelivered(self, leases: Sequence[GrantedLease]) -> None:
        """Give back leases whose answer could not be written: released in the next frame, no attempt burned."""
        self._writer.return_undelivered(list(_listed("leases", leases, _LEASES)))

    async def heartbeat(
        self, token: OwnershipToken, *, caller: Caller = ANONYMOUS, progress: cmd.Progress | None = None
    ) -> HeartbeatAnswer:
        """Extend the lease, when it is time; the answer says whether it did and when to come again."""
        return await self._acknowledge_one(cmd.ExtendLease(token, caller, progress), HeartbeatAnswer)

    async def complete(
        self,
        token: OwnershipToken,
        *,
        caller: Caller = ANONYMOUS,
        result: bytes | None = None,
        result_encoding: str | None = None,
        follow_ups: Sequence[NewItem] | None = None,
    ) -> CompleteAnswer:
        """End the item well. Follow-ups come in with it, in one frame."""
        follow_ups = None if follow_ups is None else listed("followUps", follow_ups)
        return await self._acknowledge_one(
            cmd.CompleteItem(token, caller, result, result_encoding, follow_ups), CompleteAnswer
        )

    async def fail(
        self,
        token: OwnershipToken,
        *,
        caller: Caller = ANONYMOUS,
        mode: FailMode = "retry",
        reason: str | None = None,
        error_code: str | None = None,
        delay_ms: int | None = None,
        metadata: dict[str, str] | None = None,
    ) -> FailAnswer:
        """Give the item up: to be tried again, released without burning the attempt, or dead."""
        return await self._acknowledge_one(
            cmd.FailItem(token, caller, mode, reason, error_code, delay_ms, metadata), FailAnswer
        )

    async def release(
        self, token: OwnershipToken, *, caller: Caller = ANONYMOUS, delay_ms: int | None = None
    ) -> FailAnswer:
        """Hand the item back; the attempt is not burned."""
        return await self._acknowledge_one(cmd.ReleaseItem(token, caller, delay_ms), FailAnswer)

    async def acknowledge(
        self,
        acknowledgements: Sequence[cmd.ExtendLease | cmd.CompleteItem | cmd.FailItem | cmd.ReleaseItem],
    ) -> list[Any]:
        """Heartbeats, completions, failures and releases in one call, each with an outcome of its own.

        The outcomes stand in order: what the single call would return, or the error it would raise.
        """
        commands = _listed("acks", acknowledgements, _ACKNOWLEDGEMENTS)
        if len(commands) > BATCH_ITEMS_MAX:
            refuse("acks", f"must be at most {BATCH_ITEMS_MAX} in one call, got {len(commands)}")
        if not commands:
            return []
        outcomes: list[Any] = await self._submit_acknowledgements(commands, single=False)
        return outcomes

    def submit_acknowledgements(
        self,
        acknowledgements: Sequence[cmd.ExtendLease | cmd.CompleteItem | cmd.FailItem | cmd.ReleaseItem],
    ) -> asyncio.Future[list[Any]]:
        """`acknowledge` for callers that go on meanwhile. Raises at once when the shard takes nothing."""
        commands = _listed("acks", acknowledgements, _ACKNOWLEDGEMENTS)
        return self._submit_acknowledgements(commands, single=False)

    async def _acknowledge_one(self, command: Any, kind: type[A]) -> A:
        outcome = await self._submit_acknowledgements((command,), single=True)
        assert isinstance(outcome, kind)
        return outcome

    def _submit_acknowledgements(self, commands: Sequence[Any], *, single: bool) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        request = AcknowledgeRequest(commands, future, self.now_ms(), single=single)
        self._writer.submit(request, len(commands))
        return future

    # -- looking -------------------------------------------------------------------------------

    async def tail(self, from_sequence: int | None = None) -> AsyncIterator[Event]:
        """Every durable event from there on (None: from now), in order, until the shard closes."""
        check_number("from", from_sequence, 0, SEQUENCE_MAX)
        following = self.last_sequence + 1 if from_sequence is None else from_sequence
        while True:
            if self.last_sequence >= following:
                try:
                    async for frame in self.log.read(following, self.last_sequence):
                        for event in decode_frame(frame, shard=self.log.shard, log_id=self.log.log_id):
                            if event.sequence_number >= following:
                                yield event
                                following = event.sequence_number + 1
                except LogUnavailable:
                    if not self._closed:
                        raise
            if self._closed or self._writer.failure is not None:
                return
            if self.last_sequence < following:
                waiter: asyncio.Future[None] = self._loop.create_future()
                self._tails.append(waiter)
                await waiter

    async def state_at(self, sequence: int) -> State:
        """The state right after an event of the past, from the nearest snapshot and the log."""
        check_required_number("sequence", sequence, 0, SEQUENCE_MAX)
        return (await rebuild(self.log, sequence)).state

    # -- running it ----------------------------------------------------------------------------

    async def snapshot(self) -> SnapshotRecord:
        """Make a snapshot in a helper process and record it; the next start needs only what follows it."""
        return await self._snapshot(niceness=0)

    async def _snapshot(self, *, niceness: int) -> SnapshotRecord:
        async with self._snapshot_lock:
            covered = self._events_since_snapshot
            record = await make_snapshot_in_helper(self.log, self.now_ms(), niceness=niceness)
            await self.log.add_snapshot(record, self.epoch)
            self._events_since_snapshot -= covered  # What came meanwhile may or may not be in it.
            return record

    async def trim(self, *, retention_ms: int | None = None) -> Anchor:
        """Drop history older than the retention, but never what the two newest snapshots or a guard need; and of the
        snapshots that are left those that lie closer together than an eighth of it.
        """
        retention_ms = self._settings.retention_ms if retention_ms is None else retention_ms
        async with self._snapshot_lock:  # What is not recorded yet would be taken for what is not needed any more.
            # Newest first. Under load many are younger than the retention; what goes is what an older one has.
            records = await self.log.snapshots()
            old = [record.sequence for record in records[1:] if record.created_ms + retention_ms <= self.now_ms()]
            if old:
                await self.log.trim(min([old[0], *(guard() for guard in self._trim_guards)]), self.epoch)
            surplus = surplus_snapshots(await self.log.snapshots(), retention_ms // SNAPSHOTS_PER_RETENTION)
            if surplus:
                await self.log.drop_snapshots([record.sequence for record in surplus], self.epoch)
            directory = snapshot_directory(self.log)
            if directory is not None and (old or surplus):
                keep = {record.path for record in await self.log.snapshots()}
                await asyncio.to_thread(prune_snapshots, directory, keep)
            return await self.log.anchor()

    def _compare_clocks(self) -> None:
        """Say once that instants (notBefore, until, timestamps) are no longer those of the wall clock, or are again."""
        ahead_ms = self._time.wall_ahead_ms()
        if abs(ahead_ms - self._wall_ahead_ms) >= CLOCK_OFF_MS:
            self._wall_ahead_ms = ahead_ms
            _log.warning("clock_differs", extra={"shard": self.log.shard, "wall_ahead_ms": ahead_ms})

    def _durable(self, events: list[Event]) -> None:
        self._compare_clocks()
        self._wake_tails()
        if self._backpressure_listeners:
            self._tell_listeners(events)
        if events:
            for listener in self._event_listeners:
                try:
                    listener(events)
                except Exception:
                    _log.exception("event_listener_failed", extra={"shard": self.log.shard})
        self._events_since_snapshot += len(events)
        every = self._settings.snapshot_every_events
        if every and self._events_since_snapshot >= every and self._snapshot_task is None and not self._closed:
            if snapshot_directory(self.log) is not None:
                self._snapshot_task = self._loop.create_task(self._snapshot_and_trim())

    def _tell_listeners(self, events: list[Event]) -> None:
        for event in events:
            if type(event) is BackpressureChanged:
                signal = views.changed_backpressure(self._writer.state, event, self.log.shard)
                for listener in self._backpressure_listeners:
                    self._tell(listener, signal)

    def _tell(self, listener: BackpressureListener, signal: BackpressureSignal) -> None:
        try:
            listener(signal)
        except Exception:
            _log.exception("backpressure_listener_failed", extra={"shard": self.log.shard})

    async def _snapshot_and_trim(self) -> None:
        hurried = self._events_since_snapshot >= SNAPSHOT_HURRIED_AFTER * self._settings.snapshot_every_events
        try:
            await self._snapshot(niceness=0 if hurried else SNAPSHOT_NICENESS)
            await self.trim()
        except Exception as error:
            # The log is whole without it; the next start only takes longer. Whatever it was, it is not tried again with
            # every frame.
            self._events_since_snapshot = 0
            reason = error.message if isinstance(error, OmniRelayError) else repr(error)
            _log.warning("snapshot_failed", extra={"shard": self.log.shard, "reason": reason})
        finally:
            self._snapshot_task = None

    def _wake_tails(self) -> None:
        waiting, self._tails = self._tails, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


def _listed(field: str, given: Any, kinds: frozenset[type]) -> Sequence[Any]:
    """Several values of a caller in this process, checked before they reach what everybody's calls go through."""
    if type(given) is not list and type(given) is not tuple:
        given = listed(field, given)
    if not kinds.issuperset(map(type, given)):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        refuse(field, f"must be a list of {names}")
    return given  # type: ignore[no-any-return]
