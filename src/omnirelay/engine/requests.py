"""What stands in a shard's inbox, and the frame it becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from omnirelay.core.answers import EnqueueAnswer, GrantedLease
from omnirelay.core.commands import Command, EnqueueItems, GrantLeases
from omnirelay.core.events import Event
from omnirelay.core.state import State
from omnirelay.engine.clock import Timer
from omnirelay.errors import LogOutcomeUnknown, LogUnavailable, OmniRelayError, ResourceExhausted
from omnirelay.log.base import Frame

BEFORE = -1
"""Where a call began whose first commands are in an earlier frame."""


class Request:
    """A caller waits on `future` for what its command leads to."""

    __slots__ = ("arrived_ms", "future")

    def __init__(self, future: asyncio.Future[Any], arrived_ms: int) -> None:
        self.future = future
        self.arrived_ms = arrived_ms


class CommandRequest(Request):
    __slots__ = ("command",)

    def __init__(self, command: Command, future: asyncio.Future[Any], arrived_ms: int) -> None:
        super().__init__(future, arrived_ms)
        self.command = command


class AcknowledgeRequest(Request):
    """Many acknowledgements, each with an outcome of its own. A frame may take some and the next the rest."""

    __slots__ = ("commands", "outcomes", "single")

    def __init__(
        self, commands: Sequence[Command], future: asyncio.Future[Any], arrived_ms: int, *, single: bool
    ) -> None:
        super().__init__(future, arrived_ms)
        self.commands = commands
        self.outcomes: list[Any] = []
        self.single = single


class EnqueueRequest(Request):
    """Items that want to come in; it waits in line while there is no room and its time is not over."""

    __slots__ = ("command", "refusal", "size", "timer", "wait_ms")

    def __init__(
        self, command: EnqueueItems, wait_ms: int, future: asyncio.Future[EnqueueAnswer], arrived_ms: int
    ) -> None:
        super().__init__(future, arrived_ms)
        self.command = command
        self.wait_ms = wait_ms
        self.timer: Timer | None = None
        self.size = 0
        """Bytes it holds while it waits."""
        self.refusal: ResourceExhausted | None = None
        """Why it waits: what it is refused with when its time is over."""


class ReadRequest(Request):
    __slots__ = ("read",)

    def __init__(self, read: Callable[[State, int], Any], future: asyncio.Future[Any], arrived_ms: int) -> None:
        super().__init__(future, arrived_ms)
        self.read = read


class ReturnRequest(Request):
    """Grants whose answer reached nobody. Nobody waits for the outcome either, so the future is of no use."""

    __slots__ = ("grants",)

    def __init__(self, grants: list[GrantedLease], future: asyncio.Future[Any], arrived_ms: int) -> None:
        super().__init__(future, arrived_ms)
        self.grants = grants


class LeaseRequest(Request):
    """A lease call; it waits in line until something is ready or its time is over."""

    __slots__ = ("command", "timer", "wait_ms")

    def __init__(
        self,
        command: GrantLeases,
        wait_ms: int,
        future: asyncio.Future[list[GrantedLease]],
        arrived_ms: int,
    ) -> None:
        super().__init__(future, arrived_ms)
        self.command = command
        self.wait_ms = wait_ms
        self.timer: Timer | None = None


class Batch:
    """A frame with the answers that are held until it is durable. No frames: nothing changed.

    More than one frame only when the events of many commands turned out too large for one; commands
    themselves are never split.
    """

    __slots__ = ("answers", "commands", "deciding", "durable", "events", "frames", "last")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.commands: list[int] = []
        """Where in `events` each command ends."""
        self.answers: list[tuple[asyncio.Future[Any], Any, int, int]] = []
        """A future, its answer or the error it is refused with, and how many of the events were there when a call of
        several commands began (BEFORE if that was in an earlier frame) and when it was answered.
        """
        self.last: list[LeaseRequest] = []
        """Lease calls that do not wait: they get what is left when everybody else was served."""
        self.deciding: list[asyncio.Future[Any]] = []
        """The one being decided right now, for the case that deciding breaks off."""
        self.frames: list[Frame] = []
        self.durable = 0
        """How many of the events are in durable frames."""

    def answer(self, future: asyncio.Future[Any], outcome: Any, begun: int | None = None) -> None:
        """`begun` is for calls of several commands, which frames may part: where the first of them began."""
        end = len(self.events)
        self.answers.append((future, outcome, end if begun is None else begun, end))

    def undelivered(self) -> list[GrantedLease]:
        """Answer everyone; returns the grants that nobody is there to take any more."""
        lost: list[GrantedLease] = []
        for future, outcome, _, _ in self.answers:
            if future.done():
                if isinstance(outcome, list):
                    lost += [grant for grant in outcome if type(grant) is GrantedLease]
            elif isinstance(outcome, OmniRelayError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        return lost

    def refuse(self, error: OmniRelayError) -> None:
        """The shard ends here: everyone gets the error, those whose turn had not come yet too.

        Frames of the batch that are durable stand, and so do the answers that rest on nothing else. A call that is in
        them only in part is not told that nothing came of it.
        """
        standing = []
        for answer in self.answers:
            future, _, begun, end = answer
            if self.durable and end <= self.durable:
                standing.append(answer)
            else:
                refuse(future, error, partly_decided=begun < self.durable)
        for future in (*self.deciding, *(request.future for request in self.last)):
            refuse(future, error)
        self.answers = standing
        self.undelivered()


def refuse(future: asyncio.Future[Any], error: OmniRelayError, *, partly_decided: bool = False) -> None:
    """Refuse who still waits. Nobody whose call is in the log in part is told that nothing was written."""
    if future.done():
        return
    if partly_decided and isinstance(error, LogUnavailable):
        error = LogOutcomeUnknown(f"a part of this call may have taken effect, the rest did not: {error.message}")
    future.set_exception(error)
