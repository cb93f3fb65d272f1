"""The checker itself, on histories written by hand: a sound one passes, and each broken promise is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.checker import History, Record, Recovered, check
from tests.crash.ledger import Event, Violation

Change = Callable[[History], None]


def event(kind: str, number: int, time_ms: int, **fields: Any) -> Event:
    return {"eventType": kind, "sequenceNumber": number, "timestamp": time_ms, **fields}


def token(item: int, lease_id: str, fence: int) -> Record:
    return {"sequenceId": item, "attempt": 1, "leaseId": lease_id, "fence": fence}


def enqueue(number: int, item: int, marker: str, time_ms: int = 100, **fields: Any) -> Event:
    payload = {"resourceType": "table", "resourceId": marker, **fields}
    return event("Enqueue", number, time_ms, sequenceId=item, payload=payload)


def intent(call: str, operation: str, **fields: Any) -> Record:
    return {"kind": "intent", "call": call, "op": operation, **fields}


def done(call: str, **fields: Any) -> Record:
    return {"kind": "done", "call": call, **fields}


def item(marker: str, request_id: str | None = None) -> Record:
    return {"marker": marker, "requestId": request_id}


def sound() -> History:
    """Two items in, one leased, a crash for 500 ms, the lease taken up again and completed, the other leased."""
    return History(
        records=[
            {"kind": "start"},
            {"kind": "opened", "sequence": 1, "digest": "d1", "leases": {}},
            intent("a", "enqueue", items=[item("first"), item("second")]),
            done("a", results=[[1, False], [2, False]]),
            intent("b", "lease", peer="w", requestId=None),
            done("b", grants=[{"token": token(1, "L1", 4), "expiresAt": 1100}]),
            intent("h", "heartbeat", token=token(1, "L1", 4)),
            done("h", extended=False, expiresAt=1100),
            intent("lost", "enqueue", items=[item("third")]),
            {"kind": "killed"},
            {"kind": "start"},
            {"kind": "opened", "sequence": 5, "digest": "d5", "leases": {"1": ["L1", 4, 1600]}},
            intent("c", "complete", token=token(1, "L1", 4), result="cg==", items=[item("then")]),
            done("c", followUpIds=[3]),
            intent("d", "lease", peer="w", requestId="again"),
            done("d", grants=[{"token": token(2, "L2", 8), "expiresAt": 2000}]),
            intent("e", "lease", peer="w", requestId="again"),
            done("e", grants=[{"token": token(2, "L2", 8), "expiresAt": 2000}]),
            intent("f", "stats"),
            done("f", lastSequence=8),
            intent("g", "get", sequenceId=1),
            done("g", state="completed"),
            {"kind": "killed"},
        ],
        events=[
            event("LeaderElected", 1, 100, downFrom=100, epoch=1, owner="x"),
            enqueue(2, 1, "first"),
            enqueue(3, 2, "second"),
            event("LeaseGranted", 4, 100, ownership=token(1, "L1", 4), expiresAt=1100),
            event("LeaderElected", 5, 600, downFrom=100, epoch=2, owner="x"),
            event("Completed", 6, 700, ownership=token(1, "L1", 4), result="cg==", followUpIds=[3]),
            enqueue(7, 3, "then", 700) | {"parentSequenceId": 1},
            event("LeaseGranted", 8, 700, ownership=token(2, "L2", 8), expiresAt=2000),
        ],
        recovered=Recovered(8, "d8", {1: "completed", 2: "leased", 3: "ready"}, {2: ("L2", 8, 2000)}),
        digests={1: "d1", 5: "d5", 8: "d8"},
    )


def test_a_sound_history_passes_and_its_acknowledgements_are_counted() -> None:
    assert check(sound()) == 8


def records(*more: Record) -> Change:
    """Something else was said at the end."""
    return lambda history: history.records.extend(more)


def granted(held: Record) -> Change:
    """Another caller was given this lease."""
    return records(intent("x", "lease", requestId=None), done("x", grants=[{"token": held}]))


def outcome(call: str, **fields: Any) -> Change:
    """A call was answered in another way."""

    def change(history: History) -> None:
        next(each for each in history.records if each["kind"] == "done" and each["call"] == call).update(fields)

    return change


def log(*more: Event) -> Change:
    """The log holds more events than it should, and recovery agrees with it."""

    def change(history: History) -> None:
        history.events.extend(more)
        history.recovered.sequence = history.events[-1]["sequenceNumber"]

    return change


def changed(number: int, **fields: Any) -> Change:
    """An event says something else."""
    return lambda history: history.events[number - 1].update(fields)


def cut(to: int) -> Change:
    """The log lost its tail."""

    def change(history: History) -> None:
        del history.events[to:]
        history.recovered.sequence = to

    return change


def recovered(**fields: Any) -> Change:
    def change(history: History) -> None:
        for name, value in fields.items():
            setattr(history.recovered, name, value)

    return change


def refused(call: str, code: str, at: int) -> Record:
    return {"kind": "refused", "call": call, "code": code, "at": at}


BROKEN: list[tuple[str, Change]] = [
    ("acknowledged_lost", cut(7)),
    ("acknowledged_lost", cut(5)),
    ("acknowledged_lost", cut(2)),
    ("acknowledged_lost", outcome("a", results=[[1, False], [9, False]])),
    ("acknowledged_lost", outcome("h", extended=True, expiresAt=1500)),
    ("acknowledged_lost", outcome("f", lastSequence=9)),
    ("acknowledged_lost", outcome("g", state="dead")),
    ("acknowledged_lost", outcome("c", followUpIds=[2])),
    ("acknowledged_lost", records(intent("x", "fail", token=token(2, "L2", 8)), done("x", state="ready"))),
    ("acknowledged_lost", records(intent("x", "release", token=token(2, "L2", 8)), done("x", state="ready"))),
    ("acknowledged_lost", records(intent("x", "cancel", sequenceId=3), done("x", success=True, state="cancelled"))),
    ("acknowledged_lost", records(intent("x", "cancel", sequenceId=2), done("x", success=True, state="leased"))),
    ("acknowledged_lost", records(intent("x", "drain"), done("x", ids=[3]))),
    ("acknowledged_lost", records(intent("x", "redrive"), done("x", count=1))),
    ("acknowledged_lost", records({"kind": "digest", "sequence": 9, "digest": "d9"})),
    ("wrong_answer", outcome("a", results=[[2, False], [1, False]])),
    ("wrong_answer", outcome("a", results=[[1, True], [2, False]])),
    ("enqueued_twice", log(enqueue(9, 4, "first", 700))),
    ("enqueued_twice", log(enqueue(9, 4, "p", 700, requestId="r"), enqueue(10, 5, "q", 700, requestId="r"))),
    ("item_id_reused", log(enqueue(9, 2, "other", 700))),
    ("invented", log(enqueue(9, 4, "unasked", 700))),
    ("invented", log(event("Completed", 9, 700, ownership=token(2, "L2", 8)))),
    ("completion_lost", changed(6, result="eA==")),
    ("batch_torn", records(intent("x", "enqueue", items=[item("then"), item("fourth")]))),
    (
        "refused_but_happened",
        records(intent("x", "enqueue", items=[item("then")]), refused("x", "no", 700)),
    ),
    ("live_lease_refused", records(intent("x", "release", token=token(2, "L2", 8)), refused("x", "no", 900))),
    ("double_grant", log(event("LeaseGranted", 9, 700, ownership=token(2, "L3", 9), expiresAt=2000))),
    ("double_grant", granted(token(2, "L2", 8))),
    (
        "double_grant",
        records(
            intent("x", "lease", requestId=None),
            done("x", grants=[{"token": token(2, "L3", 9)}]),
            intent("y", "heartbeat", token=token(2, "L2", 8)),
            done("y", extended=False, expiresAt=2000),
        ),
    ),
    ("fence_not_rising", granted(token(3, "L3", 5))),
    ("fence_not_rising", granted(token(3, "L3", 8))),
    ("fence_not_sequence", changed(8, ownership=token(2, "L2", 7))),
    ("granted_not_ready", log(event("LeaseGranted", 9, 700, ownership=token(1, "L3", 9), expiresAt=2000))),
    ("not_the_owner", log(event("Completed", 9, 700, ownership=token(2, "L1", 4)))),
    ("expired_early", log(event("Expired", 9, 1999, ownership=token(2, "L2", 8)))),
    ("gap", log(event("TimeAdvanced", 10, 700))),
    ("time_went_back", log(event("TimeAdvanced", 9, 699))),
    ("deadline_not_moved", changed(5, downFrom=600)),
    ("deadline_not_moved", recovered(leases={2: ("L2", 8, 1999)})),
    ("recovered_differs", recovered(items={1: "completed", 2: "leased"})),
    ("recovered_differs", recovered(items={1: "ready", 2: "leased", 3: "ready"})),
    ("recovered_differs", recovered(sequence=7)),
    ("digest_differs", recovered(digest="other")),
    ("digest_differs", records({"kind": "digest", "sequence": 5, "digest": "other"})),
]


@pytest.mark.parametrize(("name", "change"), BROKEN, ids=[f"{n}-{name}" for n, (name, _) in enumerate(BROKEN)])
def test_a_broken_promise_is_named(name: str, change: Change) -> None:
    history = copy.deepcopy(sound())
    change(history)
    with pytest.raises(Violation) as violation:
        check(history)
    assert violation.value.check == name, violation.value


def test_an_intention_without_an_answer_may_or_may_not_have_happened() -> None:
    history = sound()
    log(enqueue(9, 4, "third", 700))(history)
    history.recovered.items[4] = "ready"
    history.digests[9] = history.recovered.digest
    check(history)


def test_a_restart_that_finds_another_deadline_is_named() -> None:
    history = sound()
    opened = next(each for each in history.records if each["kind"] == "opened" and each["sequence"] == 5)
    opened["leases"] = {"1": ["L1", 4, 1100]}
    with pytest.raises(Violation, match="deadline_not_moved"):
        check(history)
