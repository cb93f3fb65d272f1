"""The quick way to the text of an event gives what the slow way gives, byte for byte."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core.events import Event, Heartbeat
from omnirelay.wire import event_text
from omnirelay.wire.event_schema import EventType, event_types
from omnirelay.wire.event_text import lines_of, texts_of
from omnirelay.wire.events import INSTANTS, document_of
from tests.property.event_strategies import JSON, TEXT, any_stored, of_a_newer_version, stored
from tests.property.strategies import profile

SURROUNDINGS = st.fixed_dictionaries(
    {
        "shard": TEXT,
        "region": st.none() | TEXT,
        "pending": st.none() | st.integers(0, 9),
        "active": st.none() | st.integers(0, 9),
    }
)
NAMES = st.sampled_from([*sorted(INSTANTS), "items", "metadata", "principal", "principalThumbprint", "schemaVersion"])
TIMES = st.sampled_from([0, 5, 1_700_000_000_000, 1 << 62])


def slowly(data: bytes, surroundings: dict[str, Any]) -> bytes:
    return msgspec.json.encode(document_of(data, **surroundings))


def as_the_log_writes(event: dict[str, Any]) -> bytes:
    """In the order of the log, without what is the default."""
    return msgspec.json.encode(msgspec.json.decode(msgspec.json.encode(event), type=Event))


@pytest.mark.parametrize("event_type", event_types(), ids=lambda each: each.name)
@profile(15)
@given(st.data(), SURROUNDINGS)
def test_events_of_this_version(event_type: EventType, data: st.DataObject, around: dict[str, Any]) -> None:
    events = data.draw(st.lists(stored(event_type).map(as_the_log_writes), max_size=4))
    assert texts_of(events, **around) == [slowly(event, around) for event in events]


@profile(100)
@given(st.lists(any_stored().map(msgspec.json.encode) | of_a_newer_version().map(msgspec.json.encode)), SURROUNDINGS)
def test_events_of_other_versions_among_them(events: list[bytes], around: dict[str, Any]) -> None:
    assert texts_of(events, **around) == [slowly(event, around) for event in events]


@profile(200)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([each.name for each in event_types()]),
            st.dictionaries(NAMES, TIMES | JSON | st.dictionaries(NAMES, TIMES | JSON, max_size=3), max_size=3),
            st.dictionaries(st.sampled_from(["payload", "progress", "ownership"]), st.dictionaries(NAMES, TIMES)),
            TIMES,
        ),
        max_size=3,
    ),
    SURROUNDINGS,
)
def test_names_of_ours_anywhere(parts: list[tuple[str, Any, Any, int]], around: dict[str, Any]) -> None:
    events = [
        msgspec.json.encode({"eventType": name, **members, **nested, "sequenceNumber": 1, "timestamp": timestamp})
        for name, members, nested, timestamp in parts
    ]
    assert texts_of(events, **around) == [slowly(event, around) for event in events]


def test_an_instant_in_somebodys_progress_is_none_of_ours() -> None:
    progress = msgspec.Raw(b'{"expiresAt":5,"timestamp":6,"at":7}')
    ownership = {"sequenceId": 1, "attempt": 1, "leaseId": "00000000-0000-0000-0000-000000000001", "fence": 1}
    stored = {"ownership": ownership, "expiresAt": 5, "progress": progress, "sequenceNumber": 1, "timestamp": 6}
    beat = msgspec.convert({"eventType": "Heartbeat", **stored}, Heartbeat)
    around: dict[str, Any] = {"shard": "jobs", "region": None, "pending": None, "active": None}
    [text] = texts_of([msgspec.json.encode(beat)], **around)
    assert bytes(progress) in text
    assert b'"expiresAt":"1970-01-01T00:00:00.005+00:00"' in text


def test_the_events_of_a_cycle_go_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    token = {"sequenceId": 1, "attempt": 1, "leaseId": "00000000-0000-0000-0000-000000000001", "fence": 1}
    when = {"sequenceNumber": 1, "timestamp": 6}
    payload = {"resourceType": "table", "resourceId": "a", "body": ""}
    events = [
        as_the_log_writes({"eventType": "Enqueue", "sequenceId": 1, "payload": payload, "principal": "p", **when}),
        as_the_log_writes({"eventType": "LeaseGranted", "ownership": token, "expiresAt": 9, "peerId": "w", **when}),
        as_the_log_writes({"eventType": "Completed", "ownership": token, **when}),
    ]
    around: dict[str, Any] = {"shard": "jobs", "region": "eu", "pending": 1, "active": 0}
    expected = [slowly(event, around) for event in events]
    endings = []

    def only_endings(data: bytes, **more: Any) -> dict[str, Any]:
        endings.append(data)
        return document_of(data, **more)

    monkeypatch.setattr(event_text, "document_of", only_endings)
    assert texts_of(events, **around) == expected
    assert endings == [b'{"timestamp":6}']


# -- whole commits ---------------------------------------------------------------------------------


def as_lines(events: list[bytes], around: dict[str, Any]) -> bytes:
    return b"".join(slowly(event, around) + b"\n" for event in events)


def at_one_instant(event: dict[str, Any]) -> bytes:
    return as_the_log_writes({**event, "timestamp": 1_700_000_000_123})


@profile(60)
@given(
    st.lists(
        st.sampled_from(event_types()).flatmap(stored).map(at_one_instant)
        | st.sampled_from([each for each in event_types() if each.name in ("Enqueue", "LeaseGranted", "Completed")])
        .flatmap(stored)
        .map(at_one_instant),
        max_size=6,
    ),
    st.lists(any_stored().map(as_the_log_writes), max_size=1),
    SURROUNDINGS,
)
def test_lines_of_a_commit(events: list[bytes], other: list[bytes], around: dict[str, Any]) -> None:
    mixed = [*events, *other]
    assert lines_of(mixed, **around) == as_lines(mixed, around)


@profile(40)
@given(st.lists(of_a_newer_version().map(msgspec.json.encode), min_size=1, max_size=4), SURROUNDINGS)
def test_lines_of_a_commit_of_a_newer_version(events: list[bytes], around: dict[str, Any]) -> None:
    assert lines_of(events, **around) == as_lines(events, around)


@profile(80)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([each.name for each in event_types()]),
            st.dictionaries(NAMES, TIMES | st.dictionaries(NAMES, TIMES, max_size=3), max_size=2),
            st.booleans(),
        ),
        min_size=1,
        max_size=3,
    ),
    SURROUNDINGS,
)
def test_lines_with_names_of_ours_anywhere(parts: list[tuple[str, Any, bool]], around: dict[str, Any]) -> None:
    events = []
    for name, members, comes_first in parts:
        before = {**members, "eventType": name} if comes_first else {"eventType": name, **members}
        events.append(msgspec.json.encode({**before, "sequenceNumber": 1, "timestamp": 1_700_000_000_000}))
    assert lines_of(events, **around) == as_lines(events, around)


def test_a_field_that_only_looks_like_a_deadline_stays_as_it_is() -> None:
    around: dict[str, Any] = {"shard": "jobs", "region": "eu", "pending": 1, "active": 0}
    lock = b'"lock":{"expiresAt":1800000000000,"by":"me"},"sequenceNumber"'
    enqueue, granted, completed = cycle_of(1, 1_700_000_030_000)
    events = [enqueue.replace(b'"sequenceNumber"', lock), granted, completed]
    assert lines_of(events, **around) == as_lines(events, around)
    assert lock[:-17] in lines_of(events, **around)


def cycle_of(number: int, deadline: int) -> list[bytes]:
    token = {"sequenceId": number, "attempt": 1, "leaseId": f"00000000-0000-0000-0000-{number:012d}", "fence": number}
    when = {"sequenceNumber": number, "timestamp": 1_700_000_000_123}
    attributes = {"expiresAt": "1", "tenant": "a,b"}
    payload = {"resourceType": "table", "resourceId": '"expiresAt":1,', "body": "", "attributes": attributes}
    return [
        as_the_log_writes({"eventType": "Enqueue", "sequenceId": number, "payload": payload, **when}),
        as_the_log_writes({"eventType": "LeaseGranted", "ownership": token, "expiresAt": deadline, **when}),
        as_the_log_writes({"eventType": "Completed", "ownership": token, **when}),
    ]


@pytest.mark.parametrize("deadlines", [1, 2, 8, 9])
def test_the_commits_of_a_busy_shard_go_the_quick_way(deadlines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    around: dict[str, Any] = {"shard": "jobs", "region": "eu", "pending": 1, "active": 0}
    events = [data for n in range(20) for data in cycle_of(n + 1, 1_700_000_030_000 + n % deadlines)]
    expected = as_lines(events, around)
    one_by_one = []

    def seen(stored: list[bytes], **more: Any) -> list[bytes]:
        one_by_one.extend(stored)
        return texts_of(stored, **more)

    monkeypatch.setattr(event_text, "texts_of", seen)
    assert lines_of(events, **around) == expected
    assert bool(one_by_one) == (deadlines > 8)


def test_a_deadline_of_another_century_is_read_like_any_other() -> None:
    around: dict[str, Any] = {"shard": "jobs", "region": "eu", "pending": 1, "active": 0}
    for deadline in (9, 4_000_000_000_000, 1 << 62):
        events = cycle_of(1, deadline)
        assert lines_of(events, **around) == as_lines(events, around)


def test_an_event_with_line_feeds_between_its_tokens_is_one_line() -> None:
    stored = b'{"eventType":"Heartbeat","progress":{"data":{"a b":\n 1}},"sequenceNumber":3,"timestamp":5}'
    compact = stored.replace(b"\n ", b"")
    around: dict[str, Any] = {"shard": "jobs", "region": "eu", "pending": 1, "active": 2}
    assert lines_of([stored, compact], **around) == lines_of([compact, compact], **around)
