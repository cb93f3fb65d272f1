"""The schema that every form of an event is made from."""

from __future__ import annotations

import msgspec
import pytest

from omnirelay.core import events as ev
from omnirelay.errors import Internal
from omnirelay.wire.event_meanings import meaning_of
from omnirelay.wire.event_messages import messages
from omnirelay.wire.event_schema import column_of, event_types, flat_fields, snake
from omnirelay.wire.events import readable

COMMON = ["eventType", "sequenceNumber", "timestamp", "schemaVersion"]


def test_every_event_type_is_described_by_its_number() -> None:
    assert {each.name: each.number for each in event_types()} == ev.EVENT_NUMBERS
    assert [each.number for each in event_types()] == sorted(ev.EVENT_NUMBERS.values())


@pytest.mark.parametrize("name", ["Enqueue", "Heartbeat", "RestoreSnapshot", "TimeAdvanced"])
def test_a_type_has_the_fields_of_its_definition_and_the_common_ones_first(name: str) -> None:
    [described] = [each for each in event_types() if each.name == name]
    defined = msgspec.structs.fields(getattr(ev, name))
    assert {field.name for field in described.fields} == {"eventType", *(field.encode_name for field in defined)}
    assert [field.name for field in described.fields][:4] == COMMON
    required = {field.encode_name for field in defined if field.required}
    assert {field.name for field in described.fields if field.required} == required | {"eventType"}


def test_kinds_follow_the_definition() -> None:
    kinds = {(each.name, field.name): field.kind for each in event_types() for field in each.fields}
    assert kinds["Enqueue", "timestamp"] == "instant"
    assert kinds["Enqueue", "sequenceId"] == "whole number"
    assert kinds["Enqueue", "payload"] == "object"
    assert kinds["Enqueue", "requestKey"] == "bytes"
    assert kinds["LeaseGranted", "requestKey"] == "text"
    assert kinds["LeaseGranted", "guard"] == "yes or no"
    assert kinds["Heartbeat", "progress"] == "JSON"
    assert kinds["Failed", "metadata"] == "map of texts"
    assert kinds["Redriven", "notBefore"] == "list of instants"
    assert kinds["RestoreSnapshot", "items"] == "list of objects"
    assert kinds["DrainSnapshot", "sequenceIds"] == "list of whole numbers"
    [mode] = [field for each in event_types() if each.name == "Failed" for field in each.fields if field.name == "mode"]
    assert mode.choices == ("dead", "release", "retry")


def test_every_instant_of_the_schema_becomes_text_in_a_document() -> None:
    for field in flat_fields():
        if field.kind == "instant" and len(field.path) == 1:
            document = readable(msgspec.json.encode({field.path[0]: 0}))
            assert document[field.path[0]] == "1970-01-01T00:00:00.000+00:00"


def test_columns_are_unique_and_members_of_small_objects_stand_by_themselves() -> None:
    columns = [field.column for field in flat_fields()]
    assert len(set(columns)) == len(columns)
    assert {"payload_resource_id", "payload_encoding", "ownership_fence", "error_code", "items", "options"} <= set(
        columns
    )
    by_column = {field.column: field for field in flat_fields()}
    assert by_column["not_before"].kind == "instant"
    assert by_column["not_before_each"].types == ("Redriven",)
    assert len(by_column["sequence_number"].types) == len(ev.EVENT_NUMBERS)


def test_names_in_snake_case() -> None:
    assert snake("resourceId") == "resource_id"
    assert column_of("Enqueue", "payload", "payloadEncoding") == "payload_encoding"
    assert column_of("LeaseGranted", "requestKey") == "lease_request_id"
    assert column_of("Enqueue", "requestKey") == "request_key"


def test_what_nobody_has_described_is_named() -> None:
    with pytest.raises(Internal, match=r"Enqueue\.colour means"):
        meaning_of("Enqueue", "colour")
    with pytest.raises(Internal, match="what Teleported means"):
        meaning_of("Teleported")


def test_protobuf_numbers_are_unique_and_those_of_the_older_system_are_kept() -> None:
    numbers = {name: {field.name: field.number for field in fields} for name, fields in messages().items()}
    for fields in numbers.values():
        assert len(set(fields.values())) == len(fields)
    kept = ["sequence_number", "event_type", "timestamp", "peer_id", "ownership", "payload", "error", "metadata"]
    assert [numbers["Event"][name] for name in kept] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [numbers["Ownership"][name] for name in ("sequence_id", "attempt", "lease_id")] == [1, 2, 3]
    assert [numbers["Error"][name] for name in ("message", "code")] == [1, 2]
    payload = ["resource_type", "resource_id", "partition_key", "payload_encoding", "body", "attributes", "request_id"]
    assert [numbers["Payload"][name] for name in payload] == [1, 2, 3, 4, 5, 6, 7]
