"""Commits whose events differ in little: what is made of them in one go is what is made of them one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core.events import Event
from omnirelay.log.base import Frame
from omnirelay.log.frame import decode_header, encode_frame
from omnirelay.replication.commits import Commits
from omnirelay.replication.rows import rows_of
from omnirelay.wire import event_uniform
from omnirelay.wire.event_schema import event_types
from omnirelay.wire.event_uniform import Places, Uniform, places_of, uniform_of
from omnirelay.wire.events import INSTANTS, document_of
from tests.property.event_strategies import JSON, TEXT, stored
from tests.property.strategies import profile

NOW = 1_700_000_000_123
CALLERS = st.fixed_dictionaries(
    {}, optional={"peerId": st.sampled_from(["w-1", "w-2", 'a "b"', "ü"]), "principal": st.sampled_from(["p", "q\\"])}
)


def frame_of(events: list[dict[str, Any]], depth: tuple[int, int] | None = (3, 4)) -> Frame:
    """As the log writes them."""
    decoded = msgspec.json.decode(msgspec.json.encode(events), type=list[Event])
    return encode_frame("jobs", "log", 1, 1, NOW, decoded, depth)


def raw_frame(events: list[dict[str, Any]]) -> Frame:
    """As some other version may write them."""
    header = {"shard": "jobs", "logId": "log", "generation": 1, "epoch": 1, "first": 1, "last": len(events)}
    data = msgspec.json.encode({**header, "time": NOW, "schema": 1, "events": events, "pending": 3, "active": 4})
    return Frame(1, len(events), len(events), 1, 1, NOW, data)


def slowly(frame: Frame, region: str | None) -> bytes:
    header = decode_header(frame.data)
    around: dict[str, Any] = {"shard": header.shard, "region": region}
    around |= {"pending": header.pending, "active": header.active}
    return b"".join(msgspec.json.encode(document_of(raw, **around)) + b"\n" for raw in header.events)


def cut_out(data: bytes, places: Places, first: int) -> Iterator[bytes]:
    """The lines that `places` says, with a line feed behind each."""
    at, behind = places.begins, places.number_behind
    for number, size in enumerate(places.sizes, first):
        yield data[at : at + size] + (f"{behind}{number}".encode() if behind else b"") + places.alike.reads + b"\n"
        at += size + places.gap


def check(frame: Frame, region: str | None = "eu") -> bool:
    """Whether it was uniform. If so, everything that is said of it must be so."""
    uniform = uniform_of(frame.data, frame.count, region)
    places = places_of(frame.data, frame.count, region)
    if uniform is None:
        assert places is None
        return False
    assert places is not None
    if isinstance(places, Uniform):
        assert places == uniform
    else:
        assert b"".join(cut_out(frame.data, places, frame.first)) == uniform.lines
        alike = places.alike
        assert (alike.event_type, alike.timestamp, alike.peer) == (uniform.event_type, uniform.timestamp, uniform.peer)
    assert uniform.lines == slowly(frame, region)
    events = [msgspec.json.decode(raw) for raw in decode_header(frame.data).events]
    assert {event["eventType"] for event in events} == {uniform.event_type}
    assert {event["timestamp"] for event in events} == {uniform.timestamp}
    peers = [event.get("peerId") for event in events]
    assert {peer if isinstance(peer, str) else None for peer in peers} == {uniform.peer}
    return True


@pytest.mark.parametrize("event_type", event_types(), ids=lambda each: each.name)
@profile(25)
@given(st.data())
def test_commits_of_one_type(event_type: Any, data: st.DataObject) -> None:
    """Some from a few callers: what is not the same for all must not be taken for it."""
    shapes = data.draw(st.lists(stored(event_type), min_size=1, max_size=2))
    callers = data.draw(st.lists(CALLERS, min_size=1, max_size=2))
    events = [
        {**data.draw(st.sampled_from(shapes)), "sequenceNumber": at, "timestamp": NOW}
        for at in range(1, data.draw(st.integers(2, 6)))
    ]
    if event_type.name in ("Enqueue", "LeaseGranted"):
        for event in events:
            event.pop("peerId", None)
            event.pop("principal", None)
            event |= data.draw(st.sampled_from(callers))
    depth = data.draw(st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)))
    check(frame_of(events, depth), data.draw(st.none() | TEXT))


NAMES = st.sampled_from(
    [
        *sorted(INSTANTS),
        *("items", "metadata", "principal", "principalThumbprint", "schemaVersion", "peerId"),
        *("eventType", "sequenceNumber", "progress", "attributes", "note"),
    ]
)
VALUES = st.sampled_from([5, NOW, "w-1", "Completed", 'x"},{"eventType":"Completed",', None]) | JSON
NESTED = st.dictionaries(NAMES, VALUES, max_size=3)


@profile(400)
@given(
    st.sampled_from(["Enqueue", "LeaseGranted", "Completed", "NewerType"]),
    st.lists(
        st.tuples(st.dictionaries(NAMES, VALUES | NESTED | st.lists(NESTED, max_size=2), max_size=3), st.booleans()),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([(), ("expiresAt",)]),
)
def test_names_of_ours_anywhere(name: str, parts: list[tuple[dict[str, Any], bool]], more: tuple[str, ...]) -> None:
    always = dict.fromkeys(more, NOW + 30_000)
    events = []
    for at, (members, is_plain) in enumerate(parts, 1):
        between = {key: value for key, value in members.items() if key not in ("eventType", "timestamp")}
        event = {"eventType": name, **always, **({} if is_plain else between)}
        event.pop("sequenceNumber", None)
        events.append({**event, "sequenceNumber": at, "timestamp": NOW})
    frame = raw_frame(events)
    if check(frame):
        assert rows_of(Commits([frame], "eu", 0)) == rows_of(list(Commits([frame], "eu", 0)))


TOKEN = {"sequenceId": 1, "attempt": 1, "leaseId": "00000000-0000-0000-0000-000000000001", "fence": 1}
PAYLOAD: dict[str, Any] = {"resourceType": "table", "resourceId": "a", "body": "", "attributes": {"a": "1", "b": "2"}}


def many(kind: str, count: int = 5, **members: Any) -> list[dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {
        "Enqueue": {"sequenceId": 1, "payload": PAYLOAD},
        "LeaseGranted": {"ownership": TOKEN, "expiresAt": NOW + 30_000},
        "Completed": {"ownership": TOKEN},
    }
    own = kinds[kind]
    return [{"eventType": kind, **own, **members, "sequenceNumber": at, "timestamp": NOW} for at in range(1, count + 1)]


@pytest.mark.parametrize("kind", ["Enqueue", "LeaseGranted", "Completed"])
@pytest.mark.parametrize("caller", [{}, {"peerId": "w"}, {"principal": "p"}, {"peerId": "w", "principal": 'q"'}])
def test_the_commits_of_a_busy_shard_are_uniform(kind: str, caller: dict[str, Any]) -> None:
    """Else nothing here would be of use."""
    assert check(frame_of(many(kind, **({} if kind == "Completed" else caller))))
    assert check(frame_of(many(kind, 1)))
    frame = frame_of(many(kind, **({} if kind == "Completed" else caller)))
    assert isinstance(places_of(frame.data, frame.count, "eu"), Places)


def test_leases_of_a_few_durations_are_uniform() -> None:
    events = many("LeaseGranted")
    for at, event in enumerate(events):
        event["expiresAt"] += at % 3
    frame = frame_of(events)
    assert check(frame)
    assert isinstance(places_of(frame.data, frame.count, "eu"), Uniform)


@pytest.mark.parametrize("count", [9, 10, 99, 100])
def test_leases_whose_numbers_are_not_equally_long_are_uniform(count: int) -> None:
    """The database puts numbers behind what it cuts out, and how long they were says where it begins."""
    frame = frame_of(many("LeaseGranted", count, guard=True))
    assert check(frame)
    assert isinstance(places_of(frame.data, frame.count, "eu"), Places if count == 9 else Uniform)


@pytest.mark.parametrize(
    "changes",
    [
        {"peerId": "other"},
        {"principal": "other"},
        {"timestamp": NOW + 1},
        {"eventType": "Cancelled", "payload": None},
        {"priority": 3, "notBefore": NOW},
        {"payload": {**PAYLOAD, "attributes": {"a": "1", "peerId": "w", "principal": "p"}}, "peerId": None},
    ],
    ids=str,
)
def test_one_event_that_differs_is_noticed(changes: dict[str, Any]) -> None:
    for at in range(3):
        events = many("Enqueue", 3, peerId="w", principal="p")
        merged = {**events[at], **changes}
        events[at] = {key: value for key, value in merged.items() if value is not None}
        assert not check(frame_of(events))


def test_a_callers_name_in_a_map_that_somebody_wrote_is_nobody() -> None:
    attributes = {"a": "1", "peerId": "w"}
    frame = frame_of(many("Enqueue", payload={**PAYLOAD, "attributes": attributes}))
    assert {row[3] for row in rows_of(Commits([frame], "eu", 0))} == {None}
    check(frame)


@pytest.mark.parametrize(
    "inside",
    [
        {"note": [{"timestamp": NOW}, {"eventType": "Completed", "sequenceNumber": 1}]},
        {"note": {"a": 1, "expiresAt": NOW}},
        {"principalThumbprint": "ab"},
        {"metadata": {"a": "b"}},
        {"schemaVersion": 2},
    ],
    ids=str,
)
def test_what_a_newer_version_added_is_not_taken_for_ours(inside: dict[str, Any]) -> None:
    for kind in ("Completed", "LeaseGranted"):
        events = many(kind, 3)
        events[1] = {"eventType": kind, **inside, **events[1]}
        assert not check(raw_frame(events))


def test_line_feeds_between_tokens_are_left_to_others() -> None:
    frame = frame_of(many("Completed"))
    spread = msgspec.structs.replace(frame, data=frame.data.replace(b'"attempt":1', b'"attempt":\n1'))
    assert not check(spread)


@pytest.mark.parametrize("has_deadline", [True, False])
def test_every_unusual_name_is_suspect(has_deadline: bool) -> None:
    """Else it would not be looked for."""
    plain, named = event_uniform._UNUSUAL[has_deadline]
    for pattern in (plain, named):
        names = re.findall(rb"[a-zA-Z]+(?![a-zA-Z]*\])", pattern.pattern)
        assert b"expiresAt" in names
        for name in names:
            text = b'{"a":1,"%b":2}' % name
            assert pattern.search(text), "else it is not a name"
            assert event_uniform._SUSPECT[has_deadline].search(text)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"shard":"a","events":[]}', b"\xff"])
def test_what_is_no_frame_is_not_uniform(data: bytes) -> None:
    assert uniform_of(data, 1, "eu") is None
