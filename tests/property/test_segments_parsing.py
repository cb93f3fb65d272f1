"""Columns that Arrow parses are the columns that events fill one by one, whatever stands in a frame."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core.events import Event
from omnirelay.log.base import Frame
from omnirelay.segments import arrow, parsing
from omnirelay.segments.arrow import frames_to_arrow
from omnirelay.wire.event_schema import EventField, EventType, event_types
from tests.property.event_strategies import JSON, any_stored, of_a_newer_version, stored
from tests.property.strategies import profile

ODD = st.sampled_from(
    ["null", "1", "-0", "1.0", "1e2", "true", '""', '"x"', '"YQ"', '"YQ==="', '"Y Q="', '"YR=="', "[]", "{}", "[1,2]"]
) | st.sampled_from(
    [str((1 << 63) - 1), str(1 << 63), str(-(1 << 63) - 1), '{"sequenceId":1}', '"\\u0041"', '"\\ud800"']
)
"""Values as text, most of them wrong in most places."""


def frame_of(events: list[bytes]) -> Frame:
    start = b'{"shard":"jobs","logId":"log","generation":1,"epoch":1,"first":1,"last":9,"time":5,"schema":1,"events":['
    return Frame(1, 9, len(events), 1, 1, 5, start + b",".join(events) + b'],"pending":3,"active":1}', b"chain")


def made(frames: list[Frame], *, parsed: bool) -> pa.RecordBatch | str:
    """The columns, or how it fails."""
    with pytest.MonkeyPatch.context() as patch:
        if not parsed:
            patch.setattr(arrow, "is_plain", lambda data: False)
        try:
            return frames_to_arrow(frames, "eu")
        except Exception as error:
            return type(error).__name__


def check(*frames: list[bytes]) -> None:
    all_of_them = [frame_of(events) for events in frames if events]
    one_by_one, parsed = made(all_of_them, parsed=False), made(all_of_them, parsed=True)
    if isinstance(parsed, pa.RecordBatch):
        parsed.validate(full=True)
        assert isinstance(one_by_one, pa.RecordBatch)
        assert parsed.schema.equals(one_by_one.schema, check_metadata=True)
        different = [name for name in parsed.schema.names if not parsed[name].equals(one_by_one[name])]
        assert not different, (
            different,
            [parsed[name] for name in different],
            [one_by_one[name] for name in different],
        )
    else:
        assert parsed == one_by_one


def plain(value: Any) -> Any:
    """Without what would keep a frame from being parsed: the same with letters instead."""
    if isinstance(value, str):
        return "".join(each if (each.isalnum() and each.isascii()) or each in "+/=-" else "x" for each in value)
    if isinstance(value, dict):
        return {plain(name): plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def as_the_log_writes(event: dict[str, Any]) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(msgspec.json.encode(event), type=Event))


@pytest.mark.parametrize("event_type", event_types(), ids=lambda each: each.name)
@profile(20)
@given(st.data())
def test_events_of_one_type(event_type: EventType, data: st.DataObject) -> None:
    events = st.lists(stored(event_type).map(plain).map(as_the_log_writes), max_size=5)
    check(data.draw(events), data.draw(events))


@profile(120)
@given(st.data())
def test_events_of_all_types_and_versions_among_each_other(data: st.DataObject) -> None:
    ours, theirs = any_stored(), of_a_newer_version()
    one = (
        ours.map(as_the_log_writes)
        | ours.map(plain).map(as_the_log_writes)
        | ours.map(plain).map(msgspec.json.encode)
        | theirs.map(plain).map(msgspec.json.encode)
        | theirs.map(msgspec.json.encode)
    )
    check(*data.draw(st.lists(st.lists(one, max_size=5), min_size=1, max_size=3)))


@st.composite
def altered(draw: st.DrawFn, event_type: EventType) -> bytes:
    """An event with some of its members left out, twice, elsewhere, or something else."""
    event = plain(draw(stored(event_type)))

    def text_of(members: dict[str, Any], fields: tuple[EventField, ...]) -> str:
        parts = []
        inner = {field.name: field.fields for field in fields if field.kind == "object"}
        for name, value in members.items():
            fate = draw(st.integers(0, 9))
            if fate == 0 and name not in ("eventType", "sequenceNumber", "timestamp"):
                continue
            text = msgspec.json.encode(value).decode()
            if fate == 1 and name != "eventType":
                text = draw(ODD)
            elif name in inner and isinstance(value, dict):
                text = text_of(value, inner[name])
            parts += [f'"{name}":{text}'] * (2 if fate == 2 else 1)
        if draw(st.integers(0, 9)) == 0:
            parts.append(f'"{draw(st.sampled_from(["new", "metadata", "peerId", "eventType"]))}":{draw(ODD)}')
        if draw(st.integers(0, 9)) == 0:
            parts = draw(st.permutations(parts))
        return "{" + ",".join(parts) + "}"

    return text_of(event, event_type.fields).encode()


@pytest.mark.parametrize("event_type", event_types(), ids=lambda each: each.name)
@profile(40)
@given(st.data())
def test_events_that_nobody_wrote(event_type: EventType, data: st.DataObject) -> None:
    check(data.draw(st.lists(altered(event_type), min_size=1, max_size=4)))


@profile(60)
@given(st.lists(JSON, min_size=1, max_size=3))
def test_types_that_only_stand_further_inside(inside: list[Any]) -> None:
    beginning = {"eventType": "TimeAdvanced", "sequenceNumber": 1, "timestamp": 5}
    nested = {"eventType": "Teleported", "sequenceNumber": 2, "timestamp": 5, "was": [beginning, *inside]}
    check([msgspec.json.encode(plain(each)) for each in (beginning, nested)])


@pytest.mark.parametrize(
    "event",
    [
        {"eventType": "Purged", "reason": "whim"},
        {"eventType": "Purged", "reason": "cap"},
        {"eventType": "OptionsChanged"},
        {"eventType": "DeadLettered", "sequenceId": 1, "error": {"code": "late"}},
        {"eventType": "DeadLettered", "sequenceId": 1, "error": {"message": "no", "at": 5}},
        {"eventType": "Completed", "result": "YQ=="},
        {"eventType": "TimeAdvanced", "colour": "red"},
    ],
    ids=lambda event: str(event).replace("'", ""),
)
def test_values_and_fields_that_a_type_does_not_allow(event: dict[str, Any]) -> None:
    check([msgspec.json.encode({**event, "sequenceNumber": 1, "timestamp": 5})])


def test_what_the_log_writes_most_is_parsed() -> None:
    """Else all of the above would compare the same with the same."""
    ownership = {"sequenceId": 1, "attempt": 1, "leaseId": "00000000-0000-0000-0000-000000000001", "fence": 1}
    every = {"sequenceNumber": 1, "timestamp": 6}
    error = {"message": "no", "code": "late"}
    events: dict[str, dict[str, Any]] = {
        "Enqueue": {"sequenceId": 1, "payload": {"resourceType": "t", "resourceId": "r", "body": "YQ=="}},
        "LeaseGranted": {"ownership": ownership, "expiresAt": 9, "peerId": "worker", "requestKey": "k"},
        "Heartbeat": {"ownership": ownership, "expiresAt": 9},
        "Completed": {"ownership": ownership, "result": "YQ==", "resultEncoding": "text"},
        "Failed": {"ownership": ownership, "error": error, "mode": "retry", "notBefore": 7},
        "Expired": {"ownership": ownership, "undelivered": True},
        "DeadLettered": {"sequenceId": 1, "error": error},
        "LeaderElected": {"downFrom": 1, "epoch": 2, "owner": "me"},
    }
    for name, members in events.items():
        event = msgspec.json.encode({"eventType": name, **members, **every})
        frame = frame_of([event] * 3)
        assert parsing.is_plain(frame.data)
        assert parsing.types_of(frame.data, [msgspec.Raw(event)] * 3) == [name]
        assert parsing.parse(name, [event] * 3) is not None
