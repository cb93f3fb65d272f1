"""Events as protobuf: what stands where, and what becomes of what does not fit."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from omnirelay.errors import DataLoss, InvalidArgument
from omnirelay.testing.sinks import made_event
from omnirelay.wire.event_classes import classes
from omnirelay.wire.event_filling import UNKNOWN
from omnirelay.wire.event_protobuf import from_protobuf, to_protobuf
from tests.patience import PATIENCE_S

LEASE = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"


def message_of(document: dict[str, Any]) -> Any:
    return classes()["Event"].FromString(to_protobuf(msgspec.json.encode(document)))


def there_and_back(document: dict[str, Any]) -> Any:
    return msgspec.json.decode(from_protobuf(to_protobuf(msgspec.json.encode(document))))


def test_the_fields_of_the_older_system_stand_where_its_readers_look() -> None:
    document = {
        "eventType": "Failed",
        "sequenceNumber": 9,
        "timestamp": "2025-11-24T10:00:00.123+00:00",
        "ownership": {"sequenceId": 4, "attempt": 2, "leaseId": LEASE, "fence": 7},
        "error": {"message": "no", "code": "io"},
        "metadata": {"shard.id": "jobs"},
    }
    message = message_of(document)
    assert (message.sequence_number, message.event_type, message.timestamp) == (9, 5, document["timestamp"])
    assert (message.ownership.sequence_id, message.ownership.attempt, message.ownership.fence) == (4, 2, 7)
    assert message.ownership.lease_id.hex() == "e004253f894fd3419a0c0305e82c3301", "three groups are little-endian"
    assert message.ownership.lease_id_text == LEASE
    assert (message.error.message, message.error.code) == ("no", "io")
    assert dict(message.metadata) == {"shard.id": "jobs"}
    assert not message.extra
    assert there_and_back(document) == document


def test_a_message_of_the_older_system_is_read() -> None:
    message = classes()["Event"](sequence_number=3, event_type=2, timestamp="2025-01-01T00:00:00Z", peer_id="w")
    message.ownership.sequence_id = 1
    message.ownership.lease_id = bytes.fromhex("e004253f894fd3419a0c0305e82c3301")
    document = msgspec.json.decode(from_protobuf(message.SerializeToString()))
    assert document == {
        "eventType": "LeaseGranted",
        "sequenceNumber": 3,
        "timestamp": "2025-01-01T00:00:00Z",
        "peerId": "w",
        "ownership": {"sequenceId": 1, "leaseId": LEASE},
    }


def test_a_type_that_is_not_known_keeps_its_name() -> None:
    document = {"eventType": "Teleported", "sequenceNumber": 3, "schemaVersion": 2, "where": {"x": [1, None]}}
    message = message_of(document)
    assert (message.event_type, message.event_type_name) == (0, "Teleported")
    assert dict(message.extra) == {"where": '{"x":[1,null]}'}
    assert there_and_back(document) == document


@pytest.mark.parametrize(
    "members",
    [
        {"peerId": None},
        {"peerId": 5},
        {"sequenceId": "4"},
        {"sequenceId": 1 << 63},
        {"sequenceId": 4.0},
        {"priority": True},
        {"guard": 1},
        {"sequenceIds": []},
        {"sequenceIds": [1, "2"]},
        {"sequenceIds": [1, 1 << 70]},
        {"metadata": {}},
        {"metadata": {"a": 1}},
        {"metadata": [1]},
        {"payload": None},
        {"payload": []},
        {"payload": {}},
        {"payload": {"resourceType": None, "body": "not base64", "colour": "red"}},
        {"result": "QQ"},
        {"result": "QR=="},
        {"ownership": {"leaseId": 5}},
        {"ownership": {"leaseId": "not a uuid"}},
        {"ownership": {"leaseId": LEASE.upper()}},
        {"items": [{"sequenceId": 1, "payload": {"resourceId": "r"}, "size": 3}, {}]},
        {"items": [1]},
        {"items": []},
        {"notBefore": ["2025-01-01T00:00:00Z"]},
        {"notBefore": 5},
        {"requestKey": "a request"},
        {"extra": {"a": 1}},
        {"": 1},
        {"eventType": None},
        {UNKNOWN: "not base64"},
        {UNKNOWN: "/w=="},
    ],
    ids=str,
)
def test_what_does_not_fit_is_kept_all_the_same(members: dict[str, Any]) -> None:
    for event_type in ("Enqueue", "LeaseGranted", "Redriven", "Teleported"):
        document = {"eventType": event_type, **members}
        assert there_and_back(document) == document


def test_numbers_beyond_what_a_machine_holds_keep_every_digit() -> None:
    document = b'{"eventType":"X","big":12345678901234567890123,"pi":3.140}'
    text = from_protobuf(to_protobuf(document))
    assert b'"big":12345678901234567890123' in text
    assert b'"pi":3.140' in text


def test_fields_that_only_a_newer_writer_knows_are_passed_on() -> None:
    newer = to_protobuf(b'{"eventType":"Enqueue","payload":{"resourceType":"t"}}')
    # Field 200, a text; and inside the payload (field 6) field 99, a number.
    newer += bytes([0xC2, 0x0C, 3]) + b"new" + bytes([0x32, 3, 0x98, 0x06, 7])
    document = from_protobuf(newer)
    members = msgspec.json.decode(document)
    assert members["payload"]["resourceType"] == "t"
    assert UNKNOWN in members
    assert UNKNOWN in members["payload"]
    again = to_protobuf(document)
    message = classes()["Event"].FromString(again)
    assert bytes([0xC2, 0x0C, 3]) + b"new" in again
    assert bytes([0x98, 0x06, 7]) in message.payload.SerializeToString()
    assert from_protobuf(again) == document


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"event_type": 99}, "type 99 has no name"),
        ({"progress": "{"}, "progress is not JSON"),
        ({"extra": {"a": "nope"}}, "a is not JSON"),
        ({"ownership": {"lease_id": b"123"}}, "3 bytes instead of 16"),
    ],
)
def test_a_message_that_no_writer_of_ours_made_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(DataLoss, match=named):
        from_protobuf(classes()["Event"](**fields).SerializeToString())


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(DataLoss, match="not the protobuf form"):
        from_protobuf(b"\xff\xff")
    for document in (b"[]", b"{", b'{"a":"\xff"}', b'{"peerId":"\xff"}'):
        with pytest.raises(InvalidArgument, match="JSON of"):
            to_protobuf(document)


def test_an_event_as_sinks_get_it_has_the_form_too() -> None:
    event = made_event(7)
    document = msgspec.json.decode(from_protobuf(event.protobuf()))
    assert document == msgspec.json.decode(event.json())
    assert document["addedLater"] == {"nested": [1, 2.5, None, "ü"]}


def test_the_library_is_needed_only_by_who_uses_it_and_named_when_it_is_missing() -> None:
    script = """
import sys
import omnirelay, omnirelay.node.node, omnirelay.cli.app
from omnirelay.wire.event_protobuf import from_protobuf, to_protobuf
assert not any(name.startswith("google.protobuf") for name in sys.modules)
sys.modules["google.protobuf"] = None
for call, given in ((to_protobuf, b"{}"), (from_protobuf, b"")):
    try:
        call(given)
    except omnirelay.errors.FailedPrecondition as error:
        assert "pip install 'omnirelay[protobuf]'" in error.message
    else:
        raise AssertionError("nobody missed the library")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_S)
