"""Older events, made into events of today where the log is read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from omnirelay.core import events as ev
from omnirelay.errors import DataLoss, LogDamaged
from omnirelay.log.base import Frame
from omnirelay.log.frame import decode_frame
from omnirelay.wire.event_upcasting import UPCASTS, Members, upcast


def from_version_0(members: Members) -> Members:
    """In a version that never was, an item was called `task` and a lease began at `since` and had a length."""
    if "task" in members:
        members["sequenceId"] = members.pop("task")
    if "since" in members:
        members["expiresAt"] = members.pop("since") + members.pop("length")
    return members


@pytest.fixture
def version_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UPCASTS, 0, from_version_0)


ENQUEUE = {"eventType": "Enqueue", "timestamp": 5, "payload": {"resourceType": "t", "resourceId": "r"}}
TOKEN = {"sequenceId": 4, "attempt": 1, "leaseId": "x"}


def frame_of(schema: int, *events: dict[str, Any]) -> Frame:
    numbered = [{**event, "sequenceNumber": number} for number, event in enumerate(events, 1)]
    header = {
        "shard": "s", "logId": "x", "generation": 1, "epoch": 1, "first": 1, "last": len(events), "time": 5,
        "schema": schema, "events": numbered, "pending": 2, "active": 0,
    }  # fmt: skip
    return Frame(1, len(events), len(events), 1, 1, 5, msgspec.json.encode(header))


@pytest.mark.usefixtures("version_0")
def test_a_frame_of_an_older_version_is_read_as_events_of_today() -> None:
    frame = frame_of(
        0,
        {**ENQUEUE, "schemaVersion": 0, "task": 4},
        {"eventType": "Heartbeat", "schemaVersion": 0, "timestamp": 5, "ownership": TOKEN, "since": 5, "length": 7},
    )
    enqueue, beat = decode_frame(frame, shard="s", log_id="x")
    assert isinstance(enqueue, ev.Enqueue)
    assert (enqueue.sequence_id, enqueue.sequence_number, enqueue.schema_version) == (4, 1, 1)
    assert isinstance(beat, ev.Heartbeat)
    assert beat.expires_at == 12


@pytest.mark.usefixtures("version_0")
def test_an_older_event_that_happens_to_decode_is_upcast_all_the_same() -> None:
    frame = frame_of(0, {**ENQUEUE, "schemaVersion": 0, "task": 4, "sequenceId": 99})
    [event] = decode_frame(frame, shard="s", log_id="x")
    assert isinstance(event, ev.Enqueue)
    assert event.sequence_id == 4


@pytest.mark.usefixtures("version_0")
def test_events_of_this_version_in_an_older_frame_are_left_alone() -> None:
    frame = frame_of(0, {**ENQUEUE, "sequenceId": 4, "task": 7})
    [event] = decode_frame(frame, shard="s", log_id="x")
    assert isinstance(event, ev.Enqueue)
    assert event.sequence_id == 4


@pytest.mark.usefixtures("version_0")
def test_an_older_event_that_is_damaged_is_refused_with_its_place() -> None:
    frame = frame_of(0, {**ENQUEUE, "schemaVersion": 0, "task": "four"})
    with pytest.raises(LogDamaged, match=r"frame 1\.\.1 of 's' cannot be decoded"):
        decode_frame(frame, shard="s", log_id="x")


def test_a_version_without_a_way_to_today_is_refused_by_name() -> None:
    frame = frame_of(0, {**ENQUEUE, "schemaVersion": 0, "task": 4})
    with pytest.raises(DataLoss, match="event 1 has schema version 0") as refused:
        decode_frame(frame, shard="s", log_id="x")
    assert refused.value.code == "error.log.schema_too_old"


@pytest.mark.parametrize("version", [None, 1, 2, 99])
def test_what_is_not_older_stays_byte_for_byte(version: int | None) -> None:
    stored = msgspec.json.encode({**ENQUEUE, **({} if version is None else {"schemaVersion": version})})
    assert upcast(stored) == stored


def test_there_is_a_way_from_every_version_to_the_one_of_today() -> None:
    assert sorted(UPCASTS) == list(range(1, ev.SCHEMA_VERSION))
