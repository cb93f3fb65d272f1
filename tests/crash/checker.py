"""What must hold after a crash, checked on plain records.

Two witnesses are compared: what the killed process said to its callers (the records, see `recorder`) and what
the log holds afterwards. An acknowledgement binds; an intention without one may or may not have happened;
what nobody intended must not have happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.crash.ledger import Event, Ledger, LiveLeases, Violation, read_ledger

Record = dict[str, Any]


@dataclass
class Recovered:
    """What a recovery makes of the log: from the newest snapshot, as a restart would."""

    sequence: int = 0
    digest: str = ""
    items: dict[int, str] = field(default_factory=dict)
    """Item → state. Drained items are gone."""
    leases: LiveLeases = field(default_factory=dict)


@dataclass
class History:
    records: list[Record]
    """Of all rounds, in the order they were received; `start` and `killed` stand between rounds."""
    events: list[Event]
    """The log from its first frame."""
    recovered: Recovered
    digests: dict[int, str]
    """Sequence → digest of a replay from the first frame, for every sequence a record or `recovered` names."""


@dataclass
class Call:
    operation: str
    intent: Record
    intended_at: int
    """Place among the records."""
    outcome: Record | None = None
    ended_at: int = 0

    @property
    def done(self) -> bool:
        return self.outcome is not None and self.outcome["kind"] == "done"


def check(history: History) -> int:
    """Everything below; returns how many acknowledgements were checked."""
    opened = [record["sequence"] for record in history.records if record["kind"] == "opened"]
    ledger = read_ledger(history.events, opened)
    calls = list(read_calls(history.records))
    check_fences(history.records)
    check_acknowledged(calls, ledger)
    check_refused(calls, ledger)
    check_nothing_invented(calls, ledger)
    check_recovered(history, ledger)
    check_restarts(history, ledger)
    check_digests(history)
    return sum(call.done for call in calls)


def read_calls(records: list[Record]) -> Iterator[Call]:
    calls: dict[str, Call] = {}
    for place, record in enumerate(records):
        if record["kind"] == "intent":
            calls[record["call"]] = Call(record["op"], record, place)
        elif record["kind"] in ("done", "refused", "abandoned"):
            calls[record["call"]].outcome = record
            calls[record["call"]].ended_at = place
    yield from calls.values()


# -- what was acknowledged ---------------------------------------------------------------------


def check_acknowledged(calls: list[Call], ledger: Ledger) -> None:
    """Every acknowledgement has left its events in the log."""
    totals: dict[str, int] = {}
    for call in calls:
        if not call.done:
            continue
        assert call.outcome is not None
        examine = _EXAMINE.get(call.operation)
        if examine is not None:
            examine(call.intent, call.outcome, ledger)
        for name in ("redrive", "restore", "drain"):
            if call.operation == name:
                totals[name] = totals.get(name, 0) + _counted(call.outcome)
    for name, kind in (("redrive", "Redriven"), ("restore", "RestoreSnapshot"), ("drain", "DrainSnapshot")):
        if totals.get(name, 0) > ledger.counts.get(kind, 0):
            raise Violation("acknowledged_lost", f"{totals[name]} items of {name} were acknowledged, the log has fewer")


def _counted(outcome: Record) -> int:
    count = outcome.get("count", outcome.get("restored", len(outcome.get("ids", ()))))
    assert isinstance(count, int)
    return count


def _lost(what: str) -> Violation:
    return Violation("acknowledged_lost", f"{what} was acknowledged, and the log knows nothing of it")


def _enqueue(intent: Record, outcome: Record, ledger: Ledger) -> None:
    for item, (number, duplicate) in zip(intent["items"], outcome["results"], strict=True):
        entry = ledger.items.get(number)
        if entry is None:
            raise _lost(f"item {number} ({item['marker']})")
        if entry.marker != item["marker"]:
            raise Violation("wrong_answer", f"{item['marker']} was answered with the id of {entry.marker}")
        if duplicate and item["requestId"] is None:
            raise Violation("wrong_answer", f"{item['marker']} has no request id and was called a duplicate")


def _lease(intent: Record, outcome: Record, ledger: Ledger) -> None:
    for grant in outcome["grants"]:
        token = grant["token"]
        lease = ledger.leases.get(token["leaseId"])
        if lease is None or (lease.item, lease.fence) != (token["sequenceId"], token["fence"]):
            raise _lost(f"the lease {token['fence']} on item {token['sequenceId']}")


def _heartbeat(intent: Record, outcome: Record, ledger: Ledger) -> None:
    token = intent["token"]
    if outcome["extended"] and outcome["expiresAt"] not in ledger.heartbeats.get(token["leaseId"], ()):
        raise _lost(f"the heartbeat of lease {token['fence']}")


def _ended_by(intent: Record, ledger: Ledger, kind: str) -> None:
    token = intent["token"]
    lease = ledger.leases.get(token["leaseId"])
    if lease is None or lease.ended is None or lease.ended[0] != kind:
        raise _lost(f"the {intent['op']} of lease {token['fence']} on item {token['sequenceId']}")


def _complete(intent: Record, outcome: Record, ledger: Ledger) -> None:
    _ended_by(intent, ledger, "Completed")
    number = intent["token"]["sequenceId"]
    item = ledger.items[number]
    if item.state != "completed":
        raise Violation("completion_lost", f"item {number} was completed and is {item.state}")
    for follow_up in outcome["followUpIds"]:
        if ledger.parents.get(follow_up) != number:
            raise _lost(f"follow-up {follow_up} of item {number}")


def _fail(intent: Record, outcome: Record, ledger: Ledger) -> None:
    _ended_by(intent, ledger, "Failed")
    _reached(intent, outcome, ledger)


def _release(intent: Record, outcome: Record, ledger: Ledger) -> None:
    _ended_by(intent, ledger, "Released")
    _reached(intent, outcome, ledger)


def _reached(intent: Record, outcome: Record, ledger: Ledger) -> None:
    number = intent["token"]["sequenceId"]
    if outcome["state"] in ("dead", "cancelled") and outcome["state"] not in ledger.ended_items.get(number, ()):
        raise _lost(f"the end of item {number} as {outcome['state']}")


def _cancel(intent: Record, outcome: Record, ledger: Ledger) -> None:
    number = intent["sequenceId"]
    if not outcome["success"]:
        return
    ended = ledger.ended_items.get(number, set())
    if outcome["state"] == "cancelled" and "cancelled" not in ended:
        raise _lost(f"the cancellation of item {number}")
    if outcome["state"] == "leased" and not (ledger.items[number].cancel_requested or ended):
        raise _lost(f"the wish to cancel item {number}")


def _drain(intent: Record, outcome: Record, ledger: Ledger) -> None:
    for number in outcome["ids"]:
        if "drained" not in ledger.ended_items.get(number, ()):
            raise _lost(f"the drain of item {number}")


def _get(intent: Record, outcome: Record, ledger: Ledger) -> None:
    number = intent["sequenceId"]
    if number not in ledger.items:
        raise _lost(f"item {number}, which was shown,")
    if outcome["state"] in ("completed", "dead", "cancelled"):
        if outcome["state"] not in ledger.ended_items.get(number, ()):
            raise _lost(f"item {number}, which was shown as {outcome['state']},")


def _stats(intent: Record, outcome: Record, ledger: Ledger) -> None:
    if outcome["lastSequence"] > ledger.sequence:
        raise _lost(f"event {outcome['lastSequence']}, which was shown,")


_EXAMINE: dict[str, Callable[[Record, Record, Ledger], None]] = {
    "enqueue": _enqueue,
    "lease": _lease,
    "heartbeat": _heartbeat,
    "complete": _complete,
    "fail": _fail,
    "release": _release,
    "cancel": _cancel,
    "drain": _drain,
    "get": _get,
    "stats": _stats,
}


# -- what was refused, and what was not asked for ------------------------------------------------


def check_refused(calls: list[Call], ledger: Ledger) -> None:
    """A refused call left no trace, and no owner of a live lease was turned away."""
    for call in calls:
        outcome = call.outcome
        if outcome is None or outcome["kind"] != "refused":
            continue
        if call.operation == "enqueue":
            for marker in _own_markers(call):
                if marker in ledger.enqueued:
                    raise Violation(
                        "refused_but_happened", f"{marker} was refused with {outcome['code']} and is in the log"
                    )
        elif "token" in call.intent:
            lease = ledger.leases.get(call.intent["token"]["leaseId"])
            if lease is not None and lease.ended is None and outcome["at"] < lease.deadline:
                raise Violation(
                    "live_lease_refused",
                    f"{call.operation} of lease {lease.fence} was refused with {outcome['code']} while it lived",
                )


def _own_markers(call: Call) -> list[str]:
    """Markers that no other call uses: those without a request id."""
    return [item["marker"] for item in call.intent.get("items", ()) if item["requestId"] is None]


def check_nothing_invented(calls: list[Call], ledger: Ledger) -> None:
    """Every item and every end of a lease was asked for, and a batch came in whole or not at all."""
    markers: set[str] = set()
    asked: dict[str, set[str]] = {}
    results: dict[str, set[str | None]] = {}
    for call in calls:
        markers.update(item["marker"] for item in call.intent.get("items", ()))
        if "token" in call.intent:
            asked.setdefault(call.intent["token"]["leaseId"], set()).add(call.operation)
        if call.operation == "complete":
            results.setdefault(call.intent["token"]["leaseId"], set()).add(call.intent["result"])
        own = _own_markers(call)
        present = [marker for marker in own if marker in ledger.enqueued]
        if present and len(present) < len(own):
            name = call.intent["call"]
            raise Violation("batch_torn", f"of the {len(own)} items of {name}, {len(present)} are in the log")
    for marker in ledger.enqueued:
        if marker not in markers:
            raise Violation("invented", f"nobody asked for {marker}")
    for lease in ledger.leases.values():
        verb = {"Completed": "complete", "Failed": "fail"}.get(lease.ended[0] if lease.ended else "")
        if verb is not None and verb not in asked.get(lease.lease_id, ()):
            raise Violation("invented", f"nobody asked for the {verb} of lease {lease.fence}")
        if verb == "complete" and ledger.items[lease.item].result not in results[lease.lease_id]:
            raise Violation("completion_lost", f"item {lease.item} was completed with another result")


# -- fences and leases ---------------------------------------------------------------------------


def check_fences(records: list[Record]) -> None:
    """From acknowledgements alone: fences rise for ever, and an item has one owner at a time.

    A grant must bear a higher fence than every grant that had been acknowledged before it was asked for,
    whatever was restarted, restored or lost in between.
    """
    highest = 0
    before: dict[str, int] = {}
    seen: dict[int, tuple[str, str | None]] = {}
    calls = {call.intent["call"]: call for call in read_calls(records)}
    for record in records:
        if record["kind"] == "intent":
            before[record["call"]] = highest
        elif record["kind"] == "done":
            call = calls[record["call"]]
            for grant in record.get("grants", ()):
                token = grant["token"]
                _check_grant(token, call.intent.get("requestId"), before[record["call"]], seen)
                highest = max(highest, token["fence"])
    _check_heartbeats(records, calls)


def _check_grant(token: Record, request_id: str | None, highest: int, seen: dict[int, tuple[str, str | None]]) -> None:
    fence = token["fence"]
    earlier = seen.get(fence)
    if earlier is not None:
        if earlier[0] != token["leaseId"]:
            raise Violation("fence_not_rising", f"the fence {fence} was given out twice")
        if request_id is None or earlier[1] != request_id:
            raise Violation("double_grant", f"the lease {fence} was given to two callers")
        return
    if fence <= highest:
        raise Violation("fence_not_rising", f"the fence {fence} was granted after {highest}")
    seen[fence] = (token["leaseId"], request_id)


def _check_heartbeats(records: list[Record], calls: dict[str, Call]) -> None:
    """Nobody is told that a lease lives once a later one on the same item was handed out."""
    newest: dict[int, int] = {}
    for record in records:
        if record["kind"] == "intent" and record["op"] == "heartbeat":
            token = record["token"]
            overtaken = newest.get(token["sequenceId"], 0) > token["fence"]
            if overtaken and calls[record["call"]].done:
                raise Violation("double_grant", f"lease {token['fence']} still lived after a later one was granted")
        elif record["kind"] == "done":
            for grant in record.get("grants", ()):
                number, fence = grant["token"]["sequenceId"], grant["token"]["fence"]
                newest[number] = max(newest.get(number, 0), fence)


# -- recovery ------------------------------------------------------------------------------------


def check_recovered(history: History, ledger: Ledger) -> None:
    """What a restart would serve is what the log says, item by item."""
    recovered = history.recovered
    if recovered.sequence != ledger.sequence:
        raise Violation("recovered_differs", f"recovery ends at {recovered.sequence}, the log at {ledger.sequence}")
    expected = {number: item.state for number, item in ledger.items.items() if item.state != "drained"}
    for number in expected.keys() | recovered.items.keys():
        if expected.get(number) != recovered.items.get(number):
            raise Violation(
                "recovered_differs",
                f"item {number} is {expected.get(number)} by the log and {recovered.items.get(number)} recovered",
            )
    _compare_leases(ledger.live, recovered.leases, "after recovery")


def check_restarts(history: History, ledger: Ledger) -> None:
    """Every start found the leases that lived before, with deadlines moved by the time nobody was there."""
    for record in history.records:
        if record["kind"] == "opened":
            if record["sequence"] not in ledger.live_at:
                raise Violation(
                    "acknowledged_lost", f"a start ended at {record['sequence']}, the log has no such event"
                )
            found = {int(number): tuple(lease) for number, lease in record["leases"].items()}
            _compare_leases(ledger.live_at[record["sequence"]], found, f"at the start {record['sequence']}")


def _compare_leases(expected: LiveLeases, found: LiveLeases, when: str) -> None:
    for number in expected.keys() | found.keys():
        if expected.get(number) != found.get(number):
            raise Violation(
                "deadline_not_moved",
                f"the lease on item {number} is {expected.get(number)} by the log, {found.get(number)} {when}",
            )


def check_digests(history: History) -> None:
    """The live state, the recovered state and a replay from the first frame are the same."""
    named = [(record["sequence"], record["digest"]) for record in history.records if "digest" in record]
    for sequence, digest in [*named, (history.recovered.sequence, history.recovered.digest)]:
        replayed = history.digests.get(sequence)
        if replayed is None:
            raise Violation("acknowledged_lost", f"a state after event {sequence} was seen, the log has no such event")
        if replayed != digest:
            raise Violation("digest_differs", f"the state after event {sequence} is not what a replay gives")
