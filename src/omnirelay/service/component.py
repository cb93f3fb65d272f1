"""`ResourceLeaseComponent`: the lease procedures of one shard, on any dispatcher.

    dispatcher = Dispatcher("catalog")
    leases = ResourceLeaseComponent(dispatcher, ResourceLeaseOptions(namespace="tablelease"))
    async with leases:
        ...  # serve the dispatcher: tablelease::enqueue, tablelease::lease …

The namespace is the name of the shard; two components of one name on one dispatcher are an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from omnirelay.core.events import Event
from omnirelay.core.options import QueueOptions
from omnirelay.engine.clock import Clock
from omnirelay.engine.recovery import Progress
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.shard import Shard
from omnirelay.errors import OmniRelayError, Unavailable
from omnirelay.log.base import EventLog
from omnirelay.log.memory import MemoryLog
from omnirelay.log.sqlite import SqliteLog
from omnirelay.rpc.calls import RequestMeta
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.rpc.sessions import Outlet, Session
from omnirelay.service.held_leases import HeldLeases
from omnirelay.service.procedures import register
from omnirelay.service.streaming import LeaseStream
from omnirelay.telemetry.meters import ShardMeter
from omnirelay.wire.streams import StreamMessage

DEFAULT_NAMESPACE = "resourcelease"
LOG_COUNT_SECONDS = 0.02
"""How often the log is asked for its counters while it is written to."""


@dataclass(frozen=True, kw_only=True)
class ResourceLeaseOptions:
    """`data` is the directory whose subdirectory `namespace` holds the log; None keeps everything in memory.

    `queue` are the options of the queue; None keeps those in the log (the defaults in a new one).
    """

    namespace: str = DEFAULT_NAMESPACE
    data: Path | None = None
    queue: QueueOptions | None = None
    engine: EngineSettings = field(default_factory=EngineSettings)
    owner: str = "omnirelay"
    clock: Clock | None = None


class ResourceLeaseComponent:
    """Registers at once, serves between `start` and `stop`."""

    def __init__(self, dispatcher: Dispatcher, options: ResourceLeaseOptions | None = None) -> None:
        self.options = options or ResourceLeaseOptions()
        self.namespace = self.options.namespace.strip()
        self._dispatcher = dispatcher
        self._shard: Shard | None = None
        self._meter = ShardMeter()
        self._uncounted: list[Sequence[Event]] = []
        self._log_counted_at = 0.0
        self._stopped = False
        self.starting: str | None = "waiting to be started"
        """Why nothing is served yet, for people; None once it is."""
        self._held = HeldLeases()
        register(dispatcher, self.namespace, self.shard)
        dispatcher.duplex(
            f"{self.namespace}::stream",
            self._open_stream,
            request=StreamMessage,
            summary="Many calls over one connection, with leases pushed to it.",
        )

    def shard(self) -> Shard:
        """The shard behind the procedures. Raises Unavailable before `start` is done."""
        if self._shard is None:
            raise Unavailable(
                f"{self.namespace} does not serve yet: {self.starting}",
                code="error.resourcelease.draining" if self._stopped else "error.resourcelease.no_leader",
                retry_after_ms=1_000,
            )
        return self._shard

    def _open_stream(self, meta: RequestMeta, outlet: Outlet) -> Session:
        return LeaseStream(self._dispatcher, self.namespace, self.shard, self._held, meta, outlet)

    @property
    def failure(self) -> OmniRelayError | None:
        """Why the shard cannot be written now; None while all is well or it has not started."""
        return None if self._shard is None else self._shard.failure

    @property
    def given_up(self) -> OmniRelayError | None:
        """Why the shard will not serve again before `stop` and `start`; None while it may, or has not started."""
        return None if self._shard is None else self._shard.given_up

    async def start(self, progress: Progress | None = None) -> None:
        """Open the log and recover. Raises what the log raises when it is damaged, locked or has regressed."""
        if self._shard is not None:
            return
        self.starting = "recovering from the log"
        try:
            log = self._open_log()
            try:
                self._shard = await Shard.open(
                    log,
                    options=self.options.queue,
                    owner=self.options.owner,
                    clock=self.options.clock,
                    settings=self.options.engine,
                    progress=progress,
                )
            except BaseException:
                await log.close()  # Else nobody could open it again while this process lives.
                raise
        except OmniRelayError as error:
            self.starting = error.message
            raise
        self._meter.take_delayed(self._shard.state.delayed)
        self._shard.add_event_listener(self._count)
        self.starting = None

    def _count(self, events: Sequence[Event]) -> None:
        if self._shard is not None:
            self._held.take(events)
            if not self._uncounted:
                # Not now: those who wait for these events are answered in the loop's next turn, and only then.
                loop = asyncio.get_running_loop()
                loop.call_soon(loop.call_soon, self._count_waiting)
            self._uncounted.append(events)

    def _count_waiting(self) -> None:
        shard = self._shard
        waiting, self._uncounted = self._uncounted, []
        if shard is None:
            return
        for events in waiting:
            self._meter.take(events, shard.state.items)
        now = time.monotonic()
        if now >= self._log_counted_at + LOG_COUNT_SECONDS:
            # Looking at the log costs a system call; frames of the same moment are much alike.
            self._log_counted_at = now
            self._count_log(shard)

    def _count_log(self, shard: Shard) -> None:
        log = shard.log.statistics()
        self._meter.take_log(log.frames, log.bytes, log.append_ns_total)

    @property
    def meter(self) -> ShardMeter:
        """What was counted, up to this moment."""
        self._count_waiting()
        if self._shard is not None:
            self._count_log(self._shard)
        return self._meter

    def _open_log(self) -> EventLog:
        if self.options.data is None:
            return MemoryLog(self.namespace)
        return SqliteLog.open(self.options.data, self.namespace)

    def end_streams(self) -> None:
        """Tell every stream that holds leases that the node is going, and take back what its peer has not begun."""
        self._held.stop()

    async def stop(self) -> None:
        """Answer who waits, make durable what was decided, close the log. Safe to call twice."""
        self.end_streams()
        self._count_waiting()
        shard, self._shard = self._shard, None
        self._stopped = True
        self.starting = "it has stopped"
        if shard is not None:
            await shard.close()

    async def __aenter__(self) -> ResourceLeaseComponent:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
