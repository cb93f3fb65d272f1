"""A log of the next schema version: a node does not lead it, and every sink passes it on unharmed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.engine.shard import Shard
from omnirelay.errors import LogSchemaTooNew
from omnirelay.log.sqlite import SqliteLog
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.files import FileSink
from omnirelay.replication.governance import GovernanceLines
from omnirelay.replication.settings import OWN_KINDS
from omnirelay.testing.sinks import SHARD
from omnirelay.wire.event_protobuf import from_protobuf
from tests.golden import make_next_version as golden
from tests.golden.next_version_sinks import LONG_PASSAGES, PASSAGES, deliver

EXPECTED: dict[str, Any] = json.loads((golden.DIRECTORY / "expected.json").read_text())
BIG = b'"carbonGrams":12345678901234567890123'

ELSEWHERE = {"governance"}
"""Kinds that do not pass events on, but make something else of them: they have a test of their own below."""


@pytest.fixture
def log_directory(tmp_path: Path) -> Path:
    shutil.copytree(golden.DIRECTORY, tmp_path / "log" / SHARD)
    return tmp_path / "log"


@pytest.fixture
def events(log_directory: Path) -> list[ReplicatedEvent]:
    return asyncio.run(golden.read(log_directory))


def decoded(document: bytes) -> Any:
    return msgspec.json.decode(document)


def test_the_log_is_read_as_it_was_written(events: list[ReplicatedEvent]) -> None:
    assert golden.describe(events) == EXPECTED
    assert set(EXPECTED["types"]) == {*EVENT_NUMBERS, "Teleported"}


async def test_a_node_does_not_lead_it_and_says_why(log_directory: Path) -> None:
    log = SqliteLog.open(log_directory, SHARD)
    with pytest.raises(LogSchemaTooNew, match="event schema 2, this version knows 1"):
        await Shard.open(log)
    await log.close()


def test_a_document_holds_all_that_is_stored(events: list[ReplicatedEvent]) -> None:
    for event in events:
        document, stored = decoded(event.json()), decoded(event.data)
        assert set(document) == {*stored, "metadata"}
        assert document["schemaVersion"] == 2
        assert document["carbonGrams"] == stored["carbonGrams"]
        assert BIG in event.json()
        if event.event_type == "Teleported":
            assert document["from"] == {"shard": "a", "fence": 1 << 62}
            assert document["metadata"]["why"] == "moved"
            assert document["metadata"]["count"] == 3
        else:
            assert document["colour"] == {"name": "größer", "rgb": [255, 0.5, None], "timestamp": 5}
            assert document["metadata"]["rpc.principal_thumbprint"] == "ab:cd"
        for name in ("payload", "ownership", "error"):
            assert document.get(name) == stored.get(name)
        assert document["metadata"]["queue.pending"] == "7"


def test_protobuf_holds_all_of_a_document(events: list[ReplicatedEvent]) -> None:
    for event in events:
        back = from_protobuf(event.protobuf())
        assert decoded(back) == decoded(event.json())
        assert BIG in back


@pytest.mark.parametrize("kind", [*PASSAGES, *(LONG_PASSAGES if os.environ.get("OMNIRELAY_LONG") else ())])
def test_every_sink_passes_it_on_unharmed(
    kind: str, tmp_path: Path, events: list[ReplicatedEvent], request: pytest.FixtureRequest
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    held = asyncio.run({**PASSAGES, **LONG_PASSAGES}[kind](target, events, request))
    assert [decoded(document) for document in held] == [decoded(event.json()) for event in events]
    # Decoding rounds such a number; what is passed on as text has every digit.
    assert all(BIG in document for document in held)


def test_the_audit_trail_has_a_line_for_every_action_it_knows(tmp_path: Path, events: list[ReplicatedEvent]) -> None:
    sink = FileSink(tmp_path / "audit", line_of=GovernanceLines().line_of, keeps_all=False)
    asyncio.run(deliver(sink, events))
    lines = [
        decoded(line)
        for path in sorted((tmp_path / "audit" / SHARD).glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]
    actions = {"Enqueue", "LeaseGranted", "Heartbeat", "Completed", "Failed", "Expired"}
    assert [line["sequenceNumber"] for line in lines] == [
        event.sequence for event in events if event.event_type in actions
    ]
    assert {line["thumbprint"] for line in lines if line["action"] in ("enqueue", "grant")} == {"ab:cd"}


def test_no_kind_of_sink_was_forgotten() -> None:
    passed = {re.split(r"\W", name)[0] for name in (*PASSAGES, *LONG_PASSAGES)}
    assert passed | ELSEWHERE == set(OWN_KINDS), "add its passage to tests/golden/next_version_sinks.py"


def test_the_log_can_be_made_again(tmp_path: Path) -> None:
    golden.main(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "expected.json").read_text()) == EXPECTED
