"""Events as watchers get them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from omnirelay.core import events as ev
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import ErrorInfo, OwnershipToken, Payload
from omnirelay.wire.events import event_of

TOKEN = OwnershipToken(4, 1, "3f2504e0-4f89-41d3-9a0c-0305e82c3301", 9)
PAYLOAD = Payload(resource_type="t", resource_id="r", body=b"\x00\xff", attributes={"until": "5"})
AT = 1_763_978_400_123
TEXT = "2025-11-24T10:00:00.123+00:00"


def written(event: ev.Event) -> Any:
    return msgspec.json.decode(msgspec.json.encode(event_of(event)))


def both(**fields: Any) -> dict[str, Any]:
    return {"sequence_number": 9, "timestamp": AT, **fields}


EVENTS: list[ev.Event] = [
    ev.Enqueue(**both(sequence_id=4, payload=PAYLOAD, not_before=AT, request_key=b"k" * 16)),
    ev.LeaseGranted(**both(ownership=TOKEN, expires_at=AT)),
    ev.Heartbeat(**both(ownership=TOKEN, expires_at=AT)),
    ev.Heartbeat(**both(ownership=TOKEN, expires_at=AT, progress=msgspec.Raw(b'{"fraction":0.5}'))),
    ev.Completed(**both(ownership=TOKEN, result=b"42", follow_up_ids=[5])),
    ev.Failed(**both(ownership=TOKEN, error=ErrorInfo("no", "io"), mode="retry", metadata={"until": "never"})),
    ev.DrainSnapshot(**both(sequence_ids=[1, 2])),
    ev.RestoreSnapshot(**both(items=[ev.RestoredItem(sequence_id=4, payload=PAYLOAD, enqueued_at=AT)])),
    ev.Expired(**both(ownership=TOKEN, undelivered=True)),
    ev.DeadLettered(**both(sequence_id=4, error=ErrorInfo("no"))),
    ev.Redriven(**both(sequence_ids=[1, 2], not_before=[AT, AT])),
    ev.Released(**both(ownership=TOKEN, not_before=AT)),
    ev.Cancelled(**both(sequence_id=4, reason="x")),
    ev.Paused(**both(until=AT)),
    ev.Resumed(**both()),
    ev.BackpressureChanged(**both(active=True, pending=5, high_watermark=5, low_watermark=2)),
    ev.LeaderElected(**both(down_from=AT, epoch=1, owner="n")),
    ev.CancelRequested(**both(sequence_id=4)),
    ev.DeadLetterEdited(**both(sequence_id=4, payload=PAYLOAD)),
    ev.Purged(**both(sequence_ids=[4])),
    ev.OptionsChanged(**both(options=QueueOptions(tenant_weights={"until": 3}))),
    ev.GenerationStarted(**both(generation=2, reason="x", next_sequence_id=7)),
    ev.TimeAdvanced(**both()),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_can_be_written_with_its_instants_as_text(event: ev.Event) -> None:
    shown = written(event)
    assert shown["eventType"] == type(event).__name__
    assert shown["sequenceNumber"] == 9
    assert shown["timestamp"] == TEXT
    for name in ("expiresAt", "until", "downFrom"):
        assert shown.get(name, TEXT) == TEXT
    assert shown.get("notBefore", TEXT) in (TEXT, [TEXT, TEXT])


def test_every_type_of_event_is_among_those() -> None:
    assert {type(event).__name__ for event in EVENTS} == set(ev.EVENT_NUMBERS)


def test_what_callers_sent_is_left_alone() -> None:
    progress = msgspec.Raw(b'{"data":{"timestamp":5,"until":[1,2],"big":123456789012345678901234567890}}')
    beat = ev.Heartbeat(**both(ownership=TOKEN, expires_at=AT, progress=progress))
    assert bytes(progress) in msgspec.json.encode(event_of(beat))
    restored = ev.RestoredItem(sequence_id=4, payload=PAYLOAD, enqueued_at=AT, not_before=AT, progress=progress)
    shown = msgspec.json.encode(event_of(ev.RestoreSnapshot(**both(items=[restored]))))
    assert bytes(progress) in shown
    [item] = msgspec.json.decode(shown.replace(bytes(progress), b"null"))["items"]
    assert (item["enqueuedAt"], item["notBefore"]) == (TEXT, TEXT)
    assert item["payload"]["attributes"] == {"until": "5"}
    options = written(ev.OptionsChanged(**both(options=QueueOptions(tenant_weights={"until": 3}))))
    assert options["options"]["tenantWeights"] == {"until": 3}
