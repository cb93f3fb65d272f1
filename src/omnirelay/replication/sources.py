"""What a follower follows: the log of a shard, or the journal of a replicator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from omnirelay.log.base import EventLog


class Happened(Protocol):
    """An event, as far as a listener looks at it."""

    @property
    def sequence_number(self) -> int: ...

    @property
    def timestamp(self) -> int: ...


class LogSource(Protocol):
    """A log that grows. `Shard` is one."""

    @property
    def log(self) -> EventLog: ...

    @property
    def last_sequence(self) -> int:
        """The last durable event."""
        ...

    def now_ms(self) -> int: ...

    def add_event_listener(self, listener: Callable[[Sequence[Happened]], None]) -> None:
        """Have a function called with the events of every frame, in order, when they are durable."""
        ...

    async def close_intake(self, cause: str, reason: str) -> bool:
        """Take nothing new until `open_intake` with the same cause; true when that is news."""
        ...

    async def open_intake(self, cause: str, reason: str | None = None) -> bool: ...
