"""Six ways to be wrong. Each is put on in a child process, and each must be caught.

A suite that has never failed proves nothing. These are the mistakes an engine or a log is most likely to
make, each as small a change of the real code as it takes.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Any

import msgspec

from omnirelay.core.commands import Command, ExpireLeases
from omnirelay.core.decide import decide
from omnirelay.core.events import LeaseGranted
from omnirelay.core.evolve import evolve
from omnirelay.core.payload import OwnershipToken
from omnirelay.core.rules.grant import describe_grant
from omnirelay.engine import writer
from omnirelay.engine.deciding import Decider
from omnirelay.engine.requests import Batch, LeaseRequest, Request
from omnirelay.log.base import Acquired
from omnirelay.log.sqlite import SqliteLog, checks
from omnirelay.log.sqlite import writer as log_writer


def replace(place: object, name: str, replacement: object) -> None:
    """Put something else in the place of what is there; in this process only, and for good."""
    assert hasattr(place, name), f"{place} has no {name} any more: this variant changes nothing"
    setattr(place, name, replacement)


def answers_before_append() -> None:
    """Tells callers what was decided before it is in the log."""

    class AnswersFirst(Decider):
        def build(
            self, batch: Batch, inbox: deque[Request], now_ms: int, *, events_max: int, first: Command | None
        ) -> None:
            super().build(batch, inbox, now_ms, events_max=events_max, first=first)
            batch.undelivered()
            batch.answers.clear()

    replace(writer, "Decider", AnswersFirst)
    # On a thread, so that those who were told go on while the frame is on its way.
    replace(writer, "INLINE_BYTES_MAX", -1)


def skips_the_flush() -> None:
    """Appends return before the disk has the frame. `synchronous=OFF` in the plan is all it takes."""


def drops_expiries() -> None:
    """Ends leases in memory and does not write it down."""

    unwritten = count(1 << 60)

    class Forgetful(Decider):
        def _own(self, batch: Batch, command: Command, now_ms: int) -> Any:
            if type(command) is not ExpireLeases:
                return super()._own(batch, command, now_ms)
            one = ExpireLeases(items_max=1)
            events, expired = decide(self.state, one, now_ms, now_ms)
            if len(events) > 1:  # It ends the item as well; those are not what this variant forgets.
                return super()._own(batch, one, now_ms)
            sequence = self.state.sequence
            for event in events:
                event.sequence_number = next(unwritten)
                evolve(self.state, event)
            self.state.sequence = sequence
            return expired

    replace(writer, "Decider", Forgetful)


def ignores_unproven_history() -> None:
    """Goes on from a restored backup as if nothing had happened since."""
    acquire = SqliteLog.acquire

    async def acquire_blindly(log: SqliteLog, owner: str) -> Acquired:
        return msgspec.structs.replace(await acquire(log, owner), unproven=None)

    replace(SqliteLog, "acquire", acquire_blindly)
    replace(log_writer, "check_generation", lambda *_: None)


def forgets_the_witness() -> None:
    """Opens whatever lies there, however much older than what its witness saw."""
    replace(checks, "check_witness", lambda *_: None)


def grants_twice() -> None:
    """Hands every fifth item out a second time."""
    grants = 0

    class Generous(Decider):
        def _grant(self, batch: Batch, request: LeaseRequest, now_ms: int) -> bool:
            nonlocal grants
            granted = super()._grant(batch, request, now_ms)
            last = batch.events[-1] if granted else None
            if isinstance(last, LeaseGranted):
                grants += 1
                if grants % 5 == 0:
                    self._again(batch, last, now_ms)
            return granted

        def _again(self, batch: Batch, first: LeaseGranted, now_ms: int) -> None:
            """To the same item, in this memory and in the log; no state of the real code would have allowed it."""
            state, token = self.state, first.ownership
            item = state.items[token.sequence_id]
            assert item.lease is not None
            state.sequence += 1
            item.lease.token = OwnershipToken(token.sequence_id, token.attempt, self._ids(), state.sequence)
            batch.events.append(
                msgspec.structs.replace(first, sequence_number=state.sequence, ownership=item.lease.token)
            )
            batch.commands.append(len(batch.events))
            future, leases, _, _ = batch.answers.pop()
            deadline = item.lease.deadline
            batch.answer(future, [*leases, describe_grant(item, item.lease, deadline, deadline - now_ms, 1_000)])

    replace(writer, "Decider", Generous)
