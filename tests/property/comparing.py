"""Core's state and the model's, side by side: everything the rules speak of must agree."""

from __future__ import annotations

import pickle
from typing import Any, TypeVar

import msgspec

from omnirelay.core.answers import GrantedLease
from omnirelay.core.events import RestoredItem
from omnirelay.core.items import COMPLETED, LEASED, STATE_NAMES, Item
from omnirelay.core.payload import ErrorInfo
from omnirelay.core.snapshot import dump, load
from omnirelay.core.state import State
from tests.property.model import LIVE, Record, size_of
from tests.property.model_handling import Model
from tests.property.strategies import plain_payload, plain_token, spec_payload

T = TypeVar("T")


def plain_error(error: ErrorInfo | None) -> tuple[str, str | None] | None:
    return None if error is None else (error.message, error.code)


def plain_progress(progress: bytes | msgspec.Raw | None) -> Any:
    return msgspec.json.decode(bytes(progress)) if progress is not None and bytes(progress) else None


def core_item(item: Item) -> Record:
    trail, lease = item.trail, item.lease
    ended = item.state >= COMPLETED
    assert (item.state == LEASED) == (lease is not None)
    return {
        "state": STATE_NAMES[item.state],
        "payload": plain_payload(item.payload),
        "priority": item.priority,
        "weight": item.weight,
        "max_attempts": item.max_attempts,
        "attempt": item.attempt,
        "enqueued_at": item.enqueued_at,
        "not_before": None if ended else item.not_before,
        "ended_at": item.ended_at if ended else None,
        "last_error": None if trail is None else plain_error(trail.last_error),
        "last_token": None if trail is None else plain_token(trail.last_token),
        "progress": None if trail is None else plain_progress(trail.progress),
        "result": None if trail is None or trail.result is None else (trail.result, trail.result_encoding),
        "parent": None if trail is None else trail.parent,
        "cancel": trail is not None and trail.cancel_requested and not ended,
        "cancel_reason": None if trail is None else trail.cancel_reason,
        "lease": None
        if lease is None
        else (plain_token(lease.token), lease.owner, lease.principal, lease.granted_at, lease.deadline),
    }


def model_item(item: Record) -> Record:
    spec, lease = item["spec"], item["lease"]
    ended = item["state"] not in LIVE
    return {
        "state": item["state"],
        "payload": spec_payload(spec),
        "priority": spec["priority"],
        "weight": spec["weight"],
        "max_attempts": spec["max_attempts"],
        "attempt": item["attempt"],
        "enqueued_at": item["enqueued_at"],
        "not_before": None if ended else item["not_before"],
        "ended_at": item["ended_at"] if ended else None,
        "last_error": item["last_error"],
        "last_token": item["last_token"],
        "progress": item["progress"],
        "result": item["result"],
        "parent": item["parent"],
        "cancel": item["cancel"] and not ended,
        "cancel_reason": item["cancel_reason"],
        "lease": None
        if lease is None
        else (lease["token"], lease["owner"], lease["principal"], lease["granted_at"], lease["deadline"]),
    }


def assert_same_state(state: State, model: Model) -> None:
    assert set(state.items) == set(model.items), "an item appeared or vanished"
    for sequence_id, item in state.items.items():
        assert core_item(item) == model_item(model.items[sequence_id]), sequence_id
    assert state.next_sequence_id == model.next_id
    _assert_same_order(state, model)
    _assert_exact_counters(state, model)
    _assert_same_memories(state, model)


def _ids(items: Any) -> list[int]:
    return [item["sequence_id"] if isinstance(item, dict) else item.sequence_id for item in items]


def _assert_same_order(state: State, model: Model) -> None:
    """Every queue gives its items in the order of the rules, ties by id."""
    assert sorted(_ids(state.ready)) == sorted(_ids(model.having("ready")))
    delayed = sorted(model.having("delayed"), key=lambda item: (item["not_before"], item["sequence_id"]))
    assert _ids(state.delayed) == _ids(delayed)
    assert _ids(state.leased) == _ids(model.due(1 << 60))
    assert _ids(state.dead.after(0)) == _ids(model.dead())
    assert _ids(state.finished) == _ids(model.finished())
    first = state.ready.first()
    assert ([] if first is None else [first.sequence_id]) == _ids(state.ready)[:1]


def _assert_exact_counters(state: State, model: Model) -> None:
    assert state.ready.live == len(model.having("ready"))
    assert state.delayed.live == len(model.having("delayed"))
    assert state.leased.live == len(model.having("leased"))
    assert state.live_count == len(model.having(*LIVE))
    assert state.pending_count == len(model.having("ready", "delayed"))
    assert len(state.dead) == len(model.having("dead"))
    assert state.live_bytes == model.live_bytes()
    assert state.dead.bytes == sum(size_of(item["spec"]) for item in model.having("dead"))
    assert state.finished_bytes == sum(map(model.kept_bytes, model.finished()))


def _assert_same_memories(state: State, model: Model) -> None:
    ended = [lease["token"] for lease in model.ended]
    assert [plain_token(lease.token) for lease in state.ended] == ended
    for lease in state.ended:
        assert state.ended.find(lease.token.sequence_id, lease.token.lease_id) is lease
    requests = sorted((request["id"], request["ended"] or 0) for request in model.requests.values())
    assert sorted((record.sequence_id, record.ended_at) for record in state.requests.values()) == requests
    assert len(state.requests) <= max(state.options.request_id_max, len(requests))
    granted = sorted(sequence_id for key, items in state.grants.items() for sequence_id in items if key is not None)
    repeatable = [item for item in model.having("leased") if item["lease"]["scope"] is not None]
    assert granted == sorted(_ids(repeatable))


def assert_grant(granted: GrantedLease, lease: Record, model: Model, now: int) -> None:
    item = lease["item"]
    assert plain_token(granted.token) == lease["token"]
    assert granted.token.attempt == item["attempt"]
    assert plain_payload(granted.payload) == spec_payload(item["spec"])
    assert (granted.owner, granted.expires_at) == (lease["owner"], lease["deadline"])
    assert granted.remaining_ms == lease["deadline"] - now
    assert granted.heartbeat_after_ms == model.interval(lease["duration"])
    assert (granted.enqueued_at, granted.priority) == (item["enqueued_at"], item["spec"]["priority"])
    assert plain_error(granted.last_error) == item["last_error"]
    assert plain_progress(granted.progress) == item["progress"]


def assert_drained(drained: RestoredItem, item: Record) -> None:
    assert drained.sequence_id == item["sequence_id"]
    assert plain_payload(drained.payload) == spec_payload(item["spec"])
    assert (drained.attempt, drained.enqueued_at) == (item["attempt"], item["enqueued_at"])
    assert (drained.priority, drained.weight) == (item["spec"]["priority"], item["spec"]["weight"])
    assert (drained.not_before, drained.max_attempts) == (item["not_before"], item["spec"]["max_attempts"])
    assert plain_error(drained.last_error) == item["last_error"]
    assert plain_token(drained.last_ownership_token) == item["last_token"]
    assert plain_progress(drained.progress) == item["progress"]
    assert drained.parent_sequence_id == item["parent"]
    assert (drained.attempt_floor, drained.undelivered) == (item["burned"], item["undelivered"])
    assert (drained.request_key is None) == (item["request"] is None)


def through_snapshot(state: State) -> State:
    """The state as a recovery from a snapshot of it would have it."""
    header, chunks = dump(state)
    return load(header, list(chunks))


def copy_of(thing: T) -> T:
    """What deepcopy gives, several times as quickly: machines copy a state at every step."""
    copied: T = pickle.loads(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL))
    return copied
