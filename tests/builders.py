"""Builders with defaults for what a test does not care about, and a driver around the pure core.

`Kernel` does what an engine does and no more: it owns a state, a clock that moves only when told, a
source of lease ids, and the list of events a log would hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec
import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.answers import (
    CompleteAnswer,
    EnqueueAnswer,
    FailAnswer,
    GrantedLease,
    HeartbeatAnswer,
)
from omnirelay.core.decide import apply
from omnirelay.core.events import Event
from omnirelay.core.evolve import evolve
from omnirelay.core.items import STATE_NAMES, Item
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, NewItem, OwnershipToken, Payload
from omnirelay.core.snapshot import digest
from omnirelay.core.state import State
from omnirelay.errors import OmniRelayError

START_MS = 1_700_000_000_000
WORKER = Caller(peer_id="worker-1")

_encode_events = msgspec.json.Encoder().encode
_decode_events = msgspec.json.Decoder(list[Event]).decode


def payload(resource_id: str = "orders", resource_type: str = "table", **fields: Any) -> Payload:
    return Payload(resource_type=resource_type, resource_id=resource_id, **fields)


def new_item(
    resource_id: str = "orders",
    *,
    resource_type: str = "table",
    body: bytes = b"",
    request_id: str | None = None,
    attributes: dict[str, str] | None = None,
    **fields: Any,
) -> NewItem:
    """One item to enqueue; what goes into the payload and what goes beside it is sorted out here."""
    return NewItem(
        payload=payload(resource_id, resource_type, body=body, request_id=request_id, attributes=attributes),
        **fields,
    )


def lease_id(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-abcdefabcdef"


def lease_ids() -> Callable[[], str]:
    """Lease ids that count: unique, lower-case, shaped like UUIDs, the same in every run."""
    numbers = count(1)
    return lambda: lease_id(next(numbers))


def stored_and_read(events: Sequence[Event]) -> list[Event]:
    """The events as a log gives them back: fresh objects, by way of JSON."""
    return _decode_events(_encode_events(list(events)))


def replay(events: Sequence[Event], state: State | None = None) -> State:
    """What a recovery makes of the events; goes on from `state` when one is given."""
    state = State() if state is None else state
    for event in stored_and_read(events):
        evolve(state, event)
    return state


class Kernel:
    """The core with a clock, a source of ids and a log. Each verb raises what core raises."""

    def __init__(self, options: QueueOptions | None = None, *, start_ms: int = START_MS) -> None:
        self.state = State()
        self.now_ms = start_ms
        self.ids = lease_ids()
        self.events: list[Event] = []
        if options is not None:
            self.do(cmd.ChangeOptions(options))

    # -- driving -------------------------------------------------------------------------------

    def do(self, command: cmd.Command, *, arrived_ms: int | None = None) -> Any:
        arrived = self.now_ms if arrived_ms is None else arrived_ms
        return apply(self.state, command, self.now_ms, arrived, self.ids, self.events)

    def refusal(self, command: cmd.Command, *, arrived_ms: int | None = None) -> OmniRelayError:
        """The error a command is refused with; fails when it is not refused, or changed anything."""
        before, written = self.digest(), len(self.events)
        with pytest.raises(OmniRelayError) as refused:
            self.do(command, arrived_ms=arrived_ms)
        assert self.digest() == before, f"{refused.value!r} changed the state"
        assert len(self.events) == written, f"{refused.value!r} wrote events"
        return refused.value

    def pass_time(self, ms: int = 0, *, upkeep: bool = True) -> None:
        """Let time go by, and with `upkeep` do what an engine does about it."""
        self.now_ms += ms
        if not upkeep:
            return
        if self.state.time_has_work(self.now_ms):
            self.do(cmd.AdvanceTime())
        deadline = self.state.leased.first_key()
        if deadline is not None and deadline <= self.now_ms:
            self.do(cmd.ExpireLeases())
        if self.state.caps_exceeded():
            self.do(cmd.EnforceCaps())

    def restart(self, down_ms: int = 0) -> None:
        """Crash, stay away for a while, come back from the log alone."""
        self.state = self.replayed()
        self.now_ms += down_ms
        self.do(cmd.ElectLeader(epoch=2, owner="node-1"))

    # -- verbs ---------------------------------------------------------------------------------

    def enqueue(self, *items: NewItem, caller: Caller = WORKER) -> list[int]:
        """Enqueue the items, or one plain item when none is given; their ids."""
        answer: EnqueueAnswer = self.do(cmd.EnqueueItems(list(items) or [new_item()], caller))
        return [result.sequence_id for result in answer.results]

    def lease(self, items_max: int = 1, caller: Caller = WORKER, **fields: Any) -> list[GrantedLease]:
        granted: list[GrantedLease] = self.do(cmd.GrantLeases(caller, items_max, **fields))
        return granted

    def lease_one(self, caller: Caller = WORKER, **fields: Any) -> GrantedLease:
        granted = self.lease(1, caller, **fields)
        assert len(granted) == 1, "nothing was ready"
        return granted[0]

    def heartbeat(self, token: OwnershipToken, **fields: Any) -> HeartbeatAnswer:
        answer: HeartbeatAnswer = self.do(cmd.ExtendLease(token, **fields))
        return answer

    def complete(self, token: OwnershipToken, **fields: Any) -> CompleteAnswer:
        answer: CompleteAnswer = self.do(cmd.CompleteItem(token, **fields))
        return answer

    def fail(self, token: OwnershipToken, **fields: Any) -> FailAnswer:
        answer: FailAnswer = self.do(cmd.FailItem(token, **fields))
        return answer

    def release(self, token: OwnershipToken, **fields: Any) -> FailAnswer:
        answer: FailAnswer = self.do(cmd.ReleaseItem(token, **fields))
        return answer

    def dead_item(self, resource_id: str = "orders", **fields: Any) -> int:
        """An item that has died by a fail in mode `dead`; needs an otherwise empty ready queue."""
        (sequence_id,) = self.enqueue(new_item(resource_id, **fields))
        granted = self.lease_one()
        assert granted.sequence_id == sequence_id, "something else was ready"
        self.fail(granted.token, mode="dead", reason="broken", error_code="app.broken")
        return sequence_id

    # -- looking -------------------------------------------------------------------------------

    def item(self, sequence_id: int) -> Item:
        return self.state.items[sequence_id]

    def state_of(self, sequence_id: int) -> str:
        item = self.state.items.get(sequence_id)
        return "unknown" if item is None else STATE_NAMES[item.state]

    def digest(self) -> str:
        return digest(self.state)

    def replayed(self) -> State:
        return replay(self.events)

    def kinds(self, last: int) -> list[str]:
        """The types of the last few events, oldest first."""
        return [type(event).__name__ for event in self.events[-last:]]
