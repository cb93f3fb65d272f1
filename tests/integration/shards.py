"""What the tests of the shard share: places to keep a log that survive a crash, and logs that can be held up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from omnirelay.core.answers import GrantedLease
from omnirelay.core.events import Event
from omnirelay.core.payload import Caller, NewItem, Payload
from omnirelay.engine.shard import Shard
from omnirelay.log import EventLog, MemoryLog, SqliteLog
from omnirelay.log.base import Frame, Position
from omnirelay.log.frame import decode_frame
from omnirelay.testing.clock import FakeClock
from tests.patience import PATIENCE_S

NAMESPACE: Final = "jobs"
WORKER: Final = Caller(peer_id="worker-1")

T = TypeVar("T")

on_every_log = pytest.mark.parametrize("kind", ["memory", "sqlite"])
"""For tests that take `kind` and make a Place of it."""


class Place:
    """Where a log lies: what is left of a shard after a crash."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.directory = directory
        self._memory = MemoryLog(NAMESPACE) if kind == "memory" else None

    def log(self) -> MemoryLog | SqliteLog:
        """A new writer on what is there."""
        if self._memory is not None:
            return self._memory.reopen()
        return SqliteLog.open(self.directory, NAMESPACE)

    async def open(self, clock: FakeClock, **how: Any) -> Shard:
        return await Shard.open(self.log(), clock=clock, **how)

    @staticmethod
    def crash(shard: Shard) -> None:
        """End the shard as kill -9 would: only what is durable stays."""
        shard.kill()
        if isinstance(shard.log, SqliteLog):
            shard.log.abandon()


class GatedLog(MemoryLog):
    """A log whose appends wait while the gate is shut, as they do on a slow disk."""

    def __init__(self, shard: str = NAMESPACE, *, quick: bool = False) -> None:
        super().__init__(shard)
        self.quick = quick
        """Whether the engine appends without a hop while the gate is open."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.tried: list[bytes] = []
        """The bytes of every append, also of those that failed."""

    async def append(self, frame: Frame, expected: Position) -> Position:
        self.tried.append(frame.data)
        await self.gate.wait()
        return await super().append(frame, expected)

    def append_now(self, frame: Frame, expected: Position) -> Position | None:
        if not self.quick or not self.gate.is_set():
            return None
        self.tried.append(frame.data)
        return super().append_now(frame, expected)


def item(resource_id: str = "orders", **fields: Any) -> NewItem:
    """One item; `body` and `request_id` go into the payload, the rest beside it."""
    inside = {name: fields.pop(name) for name in ("body", "request_id", "attributes") if name in fields}
    return NewItem(payload=Payload(resource_type="table", resource_id=resource_id, **inside), **fields)


def items(count: int, prefix: str = "orders") -> list[NewItem]:
    return [item(f"{prefix}-{number}") for number in range(count)]


async def enqueued(shard: Shard, *wanted: NewItem) -> list[int]:
    """Enqueue (one plain item when none is given) and return the ids."""
    answer = await shard.enqueue(list(wanted) or [item()])
    return [result.sequence_id for result in answer.results]


async def one_lease(shard: Shard, **how: Any) -> GrantedLease:
    [lease] = await shard.lease(WORKER, **how)
    return lease


def start(call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Have a call run beside the test. Whether it failed is the test's to ask; if that never comes to it, its own
    failure is the one to read.
    """
    task = asyncio.get_running_loop().create_task(call)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def soon(awaitable: Awaitable[T]) -> T:
    """What must come without time going by. The limit is only there so that a hang is a failure."""
    return await asyncio.wait_for(awaitable, PATIENCE_S)


async def passed(clock: FakeClock, shard: Shard, ms: int) -> None:
    """Let time go by, and the shard finish what that has set off: a disk may be slower than the clock."""
    await clock.advance(ms)
    await soon(shard.stats())


async def frames_of(log: EventLog, from_sequence: int = 1) -> list[Frame]:
    return [frame async for frame in log.read(from_sequence)]


async def events_of(log: EventLog, from_sequence: int = 1) -> list[Event]:
    return [
        event
        for frame in await frames_of(log, from_sequence)
        for event in decode_frame(frame, shard=log.shard, log_id=log.log_id)
        if event.sequence_number >= from_sequence
    ]


async def kinds_of(log: EventLog, from_sequence: int = 1) -> list[str]:
    return [type(event).__name__ for event in await events_of(log, from_sequence)]
