"""A naive reading of the log: what became of every item and every lease, from plain JSON events.

Shares no code with core on purpose. It believes nothing: whatever no sound shard could have written is a
Violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
"""An event as it stands in the log."""


class Violation(AssertionError):
    """A promise that was broken. `check` names it; the same name is what a wrong variant is caught by."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f"{check}: {message}")
        self.check = check


@dataclass
class LeaseEntry:
    item: int
    lease_id: str
    fence: int
    deadline: int
    ended: tuple[str, int] | None = None
    """The type and number of the event that ended it."""


@dataclass
class ItemEntry:
    marker: str
    state: str
    not_before: int | None = None
    lease: LeaseEntry | None = None
    result: str | None = None
    cancel_requested: bool = False


LiveLeases = dict[int, tuple[str, int, int]]
"""Item → (lease id, fence, deadline)."""


@dataclass
class Ledger:
    items: dict[int, ItemEntry] = field(default_factory=dict)
    leases: dict[str, LeaseEntry] = field(default_factory=dict)
    """Every lease ever granted, by its id."""
    enqueued: dict[str, int] = field(default_factory=dict)
    """Marker → item."""
    request_ids: dict[str, int] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Items named by events that name several, by event type."""
    heartbeats: dict[str, list[int]] = field(default_factory=dict)
    """Lease id → the deadlines its heartbeats set."""
    ended_items: dict[int, set[str]] = field(default_factory=dict)
    """Item → every final state it ever reached: a dead one may be redriven later."""
    live_at: dict[int, LiveLeases] = field(default_factory=dict)
    """Sequence → the leases that lived then, for the sequences asked for."""
    sequence: int = 0
    time_ms: int = 0
    alive_ms: int = 0
    """Time of the last event that was not itself part of a start."""

    @property
    def live(self) -> LiveLeases:
        return {
            number: (item.lease.lease_id, item.lease.fence, item.lease.deadline)
            for number, item in self.items.items()
            if item.lease is not None
        }


def read_ledger(events: Iterable[Event], remember: Iterable[int] = ()) -> Ledger:
    """Go through the log; `remember` are the sequences after which live leases are kept."""
    ledger = Ledger()
    wanted = set(remember)
    for event in events:
        kind, number, time_ms = event["eventType"], event["sequenceNumber"], event["timestamp"]
        if number != ledger.sequence + 1 and not (kind == "GenerationStarted" and number > ledger.sequence + 1):
            raise Violation("gap", f"event {number} follows {ledger.sequence}")
        if time_ms < ledger.time_ms:
            raise Violation("time_went_back", f"event {number} is of {time_ms}, after {ledger.time_ms}")
        take = _TAKE.get(kind)
        if take is None:
            raise Violation("unknown_event", f"event {number} is a {kind}")
        take(ledger, event)
        ledger.sequence, ledger.time_ms = number, time_ms
        if kind != "GenerationStarted":
            ledger.alive_ms = time_ms
        if number in wanted:
            ledger.live_at[number] = ledger.live
    return ledger


def _item(ledger: Ledger, number: int, event: Event) -> ItemEntry:
    item = ledger.items.get(number)
    if item is None or item.state == "drained":
        raise Violation("unknown_item", f"event {event['sequenceNumber']} is about item {number}, which is not there")
    return item


def _enqueue(ledger: Ledger, event: Event) -> None:
    number = event["sequenceId"]
    payload = event["payload"]
    marker = payload["resourceId"]
    if marker in ledger.enqueued:
        raise Violation("enqueued_twice", f"{marker} is item {ledger.enqueued[marker]} and again {number}")
    if number in ledger.items:
        raise Violation("item_id_reused", f"event {event['sequenceNumber']} gives the id {number} again")
    request_id = payload.get("requestId")
    if request_id is not None:
        if request_id in ledger.request_ids:
            raise Violation("enqueued_twice", f"{request_id} stands for {ledger.request_ids[request_id]} and {number}")
        ledger.request_ids[request_id] = number
    not_before = event.get("notBefore")
    ledger.items[number] = ItemEntry(marker, "ready" if not_before is None else "delayed", not_before)
    ledger.enqueued[marker] = number
    if event.get("parentSequenceId") is not None:
        ledger.parents[number] = event["parentSequenceId"]


def _granted(ledger: Ledger, event: Event) -> None:
    token, number = event["ownership"], event["sequenceNumber"]
    item = _item(ledger, token["sequenceId"], event)
    if item.lease is not None:
        raise Violation(
            "double_grant",
            f"event {number} grants item {token['sequenceId']} while lease {item.lease.fence} on it lives",
        )
    if item.state != "ready":
        raise Violation("granted_not_ready", f"event {number} grants item {token['sequenceId']}, which is {item.state}")
    if token.get("fence") != number:
        raise Violation("fence_not_sequence", f"the grant {number} bears the fence {token.get('fence')}")
    if token["leaseId"] in ledger.leases:
        raise Violation("lease_id_reused", f"event {number} uses lease id {token['leaseId']} again")
    item.state = "leased"
    item.lease = LeaseEntry(token["sequenceId"], token["leaseId"], number, event["expiresAt"])
    ledger.leases[token["leaseId"]] = item.lease


def _held(ledger: Ledger, event: Event) -> tuple[ItemEntry, LeaseEntry]:
    token = event["ownership"]
    item = _item(ledger, token["sequenceId"], event)
    if item.lease is None or item.lease.lease_id != token["leaseId"]:
        raise Violation(
            "not_the_owner",
            f"event {event['sequenceNumber']} ({event['eventType']}) is by a lease that does not hold "
            f"item {token['sequenceId']}",
        )
    return item, item.lease


def _heartbeat(ledger: Ledger, event: Event) -> None:
    _, lease = _held(ledger, event)
    lease.deadline = event["expiresAt"]
    ledger.heartbeats.setdefault(lease.lease_id, []).append(lease.deadline)


def _end_lease(item: ItemEntry, event: Event) -> None:
    assert item.lease is not None
    item.lease.ended = (event["eventType"], event["sequenceNumber"])
    item.lease = None


def _end(ledger: Ledger, number: int, item: ItemEntry, state: str) -> None:
    item.state = state
    item.not_before = None
    ledger.ended_items.setdefault(number, set()).add(state)


def _completed(ledger: Ledger, event: Event) -> None:
    item, lease = _held(ledger, event)
    item.result = event.get("result")
    _end_lease(item, event)
    _end(ledger, lease.item, item, "completed")


def _back(ledger: Ledger, event: Event) -> None:
    item, _ = _held(ledger, event)
    _end_lease(item, event)
    _pending(item, event.get("notBefore"))


def _pending(item: ItemEntry, not_before: int | None) -> None:
    item.state = "ready" if not_before is None else "delayed"
    item.not_before = not_before


def _expired(ledger: Ledger, event: Event) -> None:
    _, lease = _held(ledger, event)
    early_ms = lease.deadline - event["timestamp"]
    if early_ms > 0:
        raise Violation("expired_early", f"event {event['sequenceNumber']} ends a lease {early_ms} ms early")
    _back(ledger, event)


def _dead(ledger: Ledger, event: Event) -> None:
    _end(ledger, event["sequenceId"], _item(ledger, event["sequenceId"], event), "dead")


def _cancelled(ledger: Ledger, event: Event) -> None:
    item = _item(ledger, event["sequenceId"], event)
    if item.lease is not None:
        _end_lease(item, event)
    _end(ledger, event["sequenceId"], item, "cancelled")


def _cancel_requested(ledger: Ledger, event: Event) -> None:
    _item(ledger, event["sequenceId"], event).cancel_requested = True


def _drained(ledger: Ledger, event: Event) -> None:
    for number in event["sequenceIds"]:
        item = _item(ledger, number, event)
        if item.state not in ("ready", "delayed"):
            raise Violation("drained_not_pending", f"item {number} was drained while {item.state}")
        _end(ledger, number, item, "drained")
    _count(ledger, event, len(event["sequenceIds"]))


def _restored(ledger: Ledger, event: Event) -> None:
    for restored in event["items"]:
        number = restored["sequenceId"]
        item = ledger.items.get(number)
        if item is not None and item.state != "drained":
            raise Violation("restored_twice", f"item {number} was restored while {item.state}")
        entry = item or ItemEntry(restored["payload"]["resourceId"], "ready")
        _pending(entry, restored.get("notBefore"))
        ledger.items[number] = entry
    _count(ledger, event, len(event["items"]))


def _redriven(ledger: Ledger, event: Event) -> None:
    later = event.get("notBefore")
    for index, number in enumerate(event["sequenceIds"]):
        item = _item(ledger, number, event)
        if item.state != "dead":
            raise Violation("redriven_not_dead", f"item {number} was redriven while {item.state}")
        item.cancel_requested = False
        _pending(item, None if later is None else later[index])
    _count(ledger, event, len(event["sequenceIds"]))


def _count(ledger: Ledger, event: Event, count: int) -> None:
    ledger.counts[event["eventType"]] = ledger.counts.get(event["eventType"], 0) + count


def _leader(ledger: Ledger, event: Event) -> None:
    """Nobody could heartbeat since the last sign of life, so every deadline moves by that much."""
    down_from = event["downFrom"]
    if ledger.alive_ms and down_from != ledger.alive_ms:
        raise Violation(
            "deadline_not_moved",
            f"event {event['sequenceNumber']} says the shard was down from {down_from}, its last sign of life "
            f"was at {ledger.alive_ms}",
        )
    for item in ledger.items.values():
        if item.lease is not None:
            item.lease.deadline += event["timestamp"] - down_from


def _time(ledger: Ledger, event: Event) -> None:
    for item in ledger.items.values():
        if item.state == "delayed" and item.not_before is not None and item.not_before <= event["timestamp"]:
            _pending(item, None)


def _nothing(ledger: Ledger, event: Event) -> None:
    pass


_TAKE: dict[str, Callable[[Ledger, Event], None]] = {
    "Enqueue": _enqueue,
    "LeaseGranted": _granted,
    "Heartbeat": _heartbeat,
    "Completed": _completed,
    "Failed": _back,
    "Released": _back,
    "Expired": _expired,
    "DeadLettered": _dead,
    "Cancelled": _cancelled,
    "CancelRequested": _cancel_requested,
    "DrainSnapshot": _drained,
    "RestoreSnapshot": _restored,
    "Redriven": _redriven,
    "LeaderElected": _leader,
    "TimeAdvanced": _time,
    "OptionsChanged": _nothing,
    "GenerationStarted": _nothing,
}
