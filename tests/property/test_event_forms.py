"""Every form of an event says the same: what is stored, the document, protobuf."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core.events import Event
from omnirelay.errors import DataLoss
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.wire.event_protobuf import from_protobuf, to_protobuf
from omnirelay.wire.event_schema import EventType, event_types
from omnirelay.wire.events import event_of
from tests.property.event_strategies import JSON, TEXT, any_stored, of_a_newer_version, stored
from tests.property.strategies import profile


def replicated(event: dict[str, Any]) -> ReplicatedEvent:
    return ReplicatedEvent(
        "jobs",
        event["sequenceNumber"],
        event["sequenceNumber"] - 1,
        event["eventType"],
        event["timestamp"],
        msgspec.json.encode(event),
        "eu",
        pending=3,
        active=1,
    )


def decoded(document: bytes) -> Any:
    return msgspec.json.decode(document)


@pytest.mark.parametrize("event_type", event_types(), ids=lambda each: each.name)
@profile(10)
@given(st.data())
def test_what_the_schema_describes_is_what_the_log_reads(event_type: EventType, data: st.DataObject) -> None:
    event = data.draw(stored(event_type))
    read = msgspec.json.decode(msgspec.json.encode(event), type=Event)
    assert type(read).__name__ == event_type.name
    known = {field.name for field in event_type.fields}
    assert set(event_of(read)) <= known


@pytest.mark.parametrize("event_type", event_types(), ids=lambda each: each.name)
@profile(10)
@given(st.data())
def test_an_event_of_this_version_passes_through_protobuf(event_type: EventType, data: st.DataObject) -> None:
    event = replicated(data.draw(stored(event_type)))
    document = event.json()
    assert decoded(from_protobuf(event.protobuf())) == decoded(document)


@profile(60)
@given(of_a_newer_version())
def test_an_event_of_a_newer_version_passes_through_protobuf(event: dict[str, Any]) -> None:
    document = replicated(event).json()
    assert decoded(from_protobuf(to_protobuf(document))) == decoded(document)


@profile(60)
@given(st.dictionaries(TEXT, JSON, max_size=6))
def test_any_object_at_all_passes_through_protobuf(document: dict[str, Any]) -> None:
    assert decoded(from_protobuf(to_protobuf(msgspec.json.encode(document)))) == document


@profile(60)
@given(of_a_newer_version())
def test_nothing_is_lost_between_what_is_stored_and_the_document(event: dict[str, Any]) -> None:
    document = decoded(replicated(event).json())
    instants = {"timestamp", "expiresAt", "notBefore", "until", "downFrom", "enqueuedAt"}
    for name, value in event.items():
        if name not in instants | {"items", "metadata"}:
            assert document[name] == value
    assert set(event) <= set(document)


@profile(60)
@given(any_stored())
def test_protobuf_is_the_same_bytes_every_time(event: dict[str, Any]) -> None:
    document = replicated(event).json()
    again = msgspec.json.encode(dict(reversed(decoded(document).items())))
    assert to_protobuf(document) == to_protobuf(again)


@profile(60)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused_or_read_as_one(data: bytes) -> None:
    try:
        document = from_protobuf(data)
    except DataLoss:
        return
    # What could be read is JSON, and goes on without loss.
    assert decoded(from_protobuf(to_protobuf(document))) == decoded(document)
