"""The types that segments are decoded into take what the log's own take, and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from omnirelay.core.events import Event
from omnirelay.segments.strict import strict

TOKEN = {"sequenceId": 1, "attempt": 1, "leaseId": "00000000-0000-0000-0000-000000000001"}
WHEN = {"sequenceNumber": 1, "timestamp": 5}
ITEM = {"sequenceId": 1, "payload": {"resourceType": "a", "resourceId": "b"}}
KNOWN: list[dict[str, Any]] = [
    {"eventType": "Enqueue", **ITEM, **WHEN},
    {"eventType": "Completed", "ownership": TOKEN, "followUpIds": [1], **WHEN},
    {"eventType": "Failed", "ownership": TOKEN, "error": {"message": "x"}, "mode": "retry", **WHEN},
    {"eventType": "RestoreSnapshot", "items": [ITEM], **WHEN},
]
read = msgspec.json.Decoder(strict(Event)).decode


@pytest.mark.parametrize("event", KNOWN, ids=lambda each: each["eventType"])
def test_what_is_known_is_read_as_the_log_reads_it(event: dict[str, Any]) -> None:
    data = msgspec.json.encode(event)
    assert msgspec.json.encode(read(data)) == msgspec.json.encode(msgspec.json.decode(data, type=Event))


@pytest.mark.parametrize("event", KNOWN, ids=lambda each: each["eventType"])
def test_a_name_that_is_not_known_is_refused_wherever_it_stands(event: dict[str, Any]) -> None:
    places = 0
    for data in with_another_name(event):
        places += 1
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            read(msgspec.json.encode(data))
    assert places >= 2


def with_another_name(value: Any) -> list[Any]:
    """The value with something new in each of its objects in turn."""
    if isinstance(value, list):
        return [[changed] for each in value for changed in with_another_name(each)]
    if not isinstance(value, dict):
        return []
    inside = [{**value, name: changed} for name, each in value.items() for changed in with_another_name(each)]
    return [{**value, "brandNew": 1}, *inside]
