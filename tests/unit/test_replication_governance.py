"""The lines of the governance sink, made of what a real shard writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from omnirelay.core.events import Event
from omnirelay.core.payload import Caller
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.files import FileSink
from omnirelay.replication.governance import GovernanceLines, Holder, governance_schema, holder_in
from omnirelay.replication.sinks import ReplicationSink, SinkRefused
from omnirelay.testing.sinks import SHARD, SinkConformance, made_event
from tests.builders import Kernel, new_item
from tests.unit.test_replication_sinks import lines_of

PAGE = (Path(__file__).parents[2] / "docs/replication/sinks.md").read_text()
ANNA = Caller(peer_id="worker-anna", principal="anna@example.org")


def replicated(events: Sequence[Event]) -> list[ReplicatedEvent]:
    return [
        ReplicatedEvent(
            SHARD,
            event.sequence_number,
            event.sequence_number - 1,
            type(event).__name__,
            event.timestamp,
            msgspec.json.encode(event),
            "local",
        )
        for event in events
    ]


def a_day_of_work() -> Kernel:
    kernel = Kernel()
    kernel.enqueue(new_item("orders"), new_item("events", resource_type="topic"), new_item("users"), caller=ANNA)
    done, failed, _ = kernel.lease(3, ANNA)
    kernel.pass_time(8_000)
    kernel.heartbeat(done.token, caller=ANNA)
    kernel.complete(done.token, caller=ANNA)
    kernel.fail(failed.token, caller=ANNA)
    kernel.pass_time(600_000)
    return kernel


def made(lines: GovernanceLines, events: Sequence[ReplicatedEvent]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for event in events if (line := lines.line_of(event)) is not None]


def test_every_deed_has_a_line_that_says_who_and_what() -> None:
    events = replicated(a_day_of_work().events)
    lines = made(GovernanceLines(), events)
    assert [(line["action"], line["resourceType"], line["resourceId"]) for line in lines] == [
        ("enqueue", "table", "orders"),
        ("enqueue", "topic", "events"),
        ("enqueue", "table", "users"),
        ("grant", *lines_resource(lines, 3)),
        ("grant", *lines_resource(lines, 4)),
        ("grant", *lines_resource(lines, 5)),
        ("heartbeat", *lines_resource(lines, 3)),
        ("completion", *lines_resource(lines, 3)),
        ("failure", *lines_resource(lines, 4)),
        ("expiry", *lines_resource(lines, 5)),
    ]
    assert {(line["peer"], line["principal"], line["thumbprint"], line["shard"]) for line in lines} == {
        ("worker-anna", "anna@example.org", None, SHARD)
    }
    fences = [line["fence"] for line in lines]
    assert fences[:3] == [None] * 3
    assert fences[3:6] == [line["sequenceNumber"] for line in lines[3:6]]
    assert fences[6:] == [fences[3], fences[3], fences[4], fences[5]]


def lines_resource(lines: list[dict[str, Any]], index: int) -> tuple[str, str]:
    return lines[index]["resourceType"], lines[index]["resourceId"]


def test_lines_hold_to_the_published_schema() -> None:
    schema = governance_schema()
    validator = jsonschema_rs.validator_for(schema)
    for line in made(GovernanceLines(), replicated(a_day_of_work().events)):
        validator.validate(line)
    [definition] = schema["$defs"].values()
    assert set(definition["required"]) >= {"action", "peer", "resourceId", "fence", "shard", "thumbprint"}
    [published] = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert msgspec.json.decode(published) == schema


def test_what_was_delivered_in_an_earlier_life_is_looked_up() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("orders"))
    lease = kernel.lease_one(ANNA)
    before = len(kernel.events)
    kernel.pass_time(8_000)
    kernel.heartbeat(lease.token, caller=ANNA)
    events = replicated(kernel.events)[before:]
    [line] = made(GovernanceLines(lambda item, lease: holder_in(kernel.state, item, lease)), events)
    assert (line["resourceId"], line["peer"], line["principal"]) == ("orders", "worker-anna", "anna@example.org")
    [line] = made(GovernanceLines(), events)
    assert (line["resourceId"], line["peer"], line["principal"]) == (None, None, None)


def test_a_lease_of_somebody_else_lends_its_name_to_nobody() -> None:
    events = replicated(a_day_of_work().events)
    [heartbeat] = [event for event in events if event.event_type == "Heartbeat"]
    lines = GovernanceLines(lambda item, lease: Holder("table", "orders", 10**9, "a later worker", "later@example.org"))
    [line] = made(lines, [heartbeat])
    assert (line["resourceId"], line["peer"], line["principal"]) == ("orders", None, None)


BOB = Caller(peer_id="worker-bob", principal="bob@example.org")


def test_a_delivery_that_comes_again_says_the_same() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("orders"), new_item("users"), caller=ANNA)
    kernel.fail(kernel.lease_one(ANNA).token, mode="release", caller=ANNA)
    kernel.lease_one(BOB)
    kernel.complete(kernel.lease_one(ANNA).token, caller=ANNA)
    events = replicated(kernel.events)
    expected = made(GovernanceLines(), events)
    assert {line["peer"] for line in expected} == {"worker-anna", "worker-bob"}
    for begin in range(len(events)):
        for end in range(begin, len(events)):
            lines = GovernanceLines()
            made(lines, events[:begin])
            made(lines, events[begin : end + 1])  # Failed, and comes again.
            made(lines, events[begin : end + 1])
            again = made(lines, events[begin:])
            assert again == [line for line in expected if line["sequenceNumber"] > begin], (begin, end)


def test_what_is_delivered_again_from_further_back_than_is_kept_is_looked_up() -> None:
    kernel = Kernel()
    kernel.enqueue(new_item("orders"))
    lease = kernel.lease_one(ANNA)
    begin = len(kernel.events)
    kernel.pass_time(8_000)
    kernel.heartbeat(lease.token, caller=ANNA)
    kernel.fail(lease.token, mode="release", caller=ANNA)
    kernel.lease_one(BOB)
    kernel.enqueue(new_item("users"), new_item("events"))  # So much that what BOB's lease changed is not taken back.
    events = replicated(kernel.events)
    lines = GovernanceLines(lambda item, lease: holder_in(kernel.state, item, lease), repeated_max=1)
    expected = made(lines, events)
    assert made(lines, events[begin:]) == [line for line in expected if line["sequenceNumber"] > begin]


def test_what_can_no_longer_come_again_is_not_kept() -> None:
    lines = GovernanceLines(repeated_max=5)
    made(lines, replicated(a_day_of_work().events))
    assert len(lines._before) <= 5


def test_restored_items_are_known() -> None:
    data = b'{"items":[{"sequenceId":9,"payload":{"resourceType":"table","resourceId":"back"}}]}'
    lines = GovernanceLines()
    restored = msgspec.structs.replace(made_event(1, event_type="RestoreSnapshot"), data=data)
    assert lines.line_of(restored) is None
    data = b'{"ownership":{"sequenceId":9,"attempt":1,"leaseId":"x"},"peerId":"w"}'
    [line] = made(lines, [msgspec.structs.replace(made_event(2, event_type="LeaseGranted"), data=data)])
    assert (line["resourceId"], line["fence"], line["item"]) == ("back", 2, 9)


def test_no_more_items_are_remembered_than_asked_for() -> None:
    lines = GovernanceLines(remembered_max=3)
    made(lines, [made_event(sequence) for sequence in range(1, 50)])
    assert len(lines._holders) == 3


def test_other_events_have_no_line_and_odd_ones_are_refused() -> None:
    assert GovernanceLines().line_of(made_event(7)) is None
    for data in (b'{"ownership":5}', b"{}"):
        with pytest.raises(SinkRefused):
            GovernanceLines().line_of(msgspec.structs.replace(made_event(1, event_type="Completed"), data=data))


class TestGovernanceFile(SinkConformance):
    """Events without a line leave gaps, so only those that have one are compared."""

    def make_sink(self, directory: Path) -> ReplicationSink:
        return FileSink(directory, line_of=GovernanceLines().line_of, keeps_all=False)

    async def read_back(self, directory: Path) -> Sequence[int]:
        return [line["sequenceNumber"] for line in lines_of(directory)]

    def expected(self, events: Sequence[ReplicatedEvent]) -> list[int]:
        return [event.sequence for event in events if event.event_type == "Enqueue"]
