"""The golden log of schema version 1: what was written once is read for ever, to the same state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.core.snapshot import digest
from omnirelay.engine.recovery import rebuild
from omnirelay.engine.shard import Shard
from omnirelay.log.sqlite import SqliteLog
from omnirelay.testing.clock import FakeClock
from tests.golden import make

EXPECTED: dict[str, Any] = json.loads((make.DIRECTORY / "expected.json").read_text())

MUCH_LATER_MS = 1_900_000_000_000


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A copy, as opening a database leaves files beside it. The golden files themselves are never touched."""
    shutil.copytree(make.DIRECTORY, tmp_path / make.NAMESPACE)
    return tmp_path


async def test_the_golden_log_verifies_and_replays_to_its_digest(golden: Path) -> None:
    assert await make.describe(golden) == EXPECTED


async def test_the_golden_log_replays_from_its_very_beginning_too(golden: Path) -> None:
    shutil.rmtree(golden / make.NAMESPACE / "snapshots")
    log = SqliteLog.open(golden, make.NAMESPACE, read_only=True)
    recovered = await rebuild(log)
    assert recovered.snapshot_sequence is None
    assert recovered.replayed_events == sum(EXPECTED["events"].values())
    assert digest(recovered.state) == EXPECTED["digest"]
    await log.close()


async def test_the_golden_snapshot_is_the_state_of_its_moment(golden: Path) -> None:
    log = SqliteLog.open(golden, make.NAMESPACE, read_only=True)
    (record,) = await log.snapshots()
    assert (await rebuild(log)).snapshot_sequence == record.sequence
    shutil.rmtree(golden / make.NAMESPACE / "snapshots")
    assert digest((await rebuild(log, record.sequence)).state) == record.digest
    await log.close()


def test_every_type_of_event_occurs_in_the_golden_log() -> None:
    assert set(EXPECTED["events"]) == set(EVENT_NUMBERS)


async def test_the_golden_log_is_proven_complete_and_can_be_led(golden: Path) -> None:
    log = SqliteLog.open(golden, make.NAMESPACE)
    assert log.log_id == EXPECTED["logId"]
    async with await Shard.open(log, clock=FakeClock(MUCH_LATER_MS)) as shard:
        assert (await shard.stats()).generation == EXPECTED["generation"]
        assert shard.last_sequence == EXPECTED["lastSequence"] + 1, "an election, and no new generation"
        assert await shard.lease()


def test_the_golden_log_can_be_made_again(tmp_path: Path) -> None:
    """Today's rules may decide differently, but every type of event still comes about."""
    make.main(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "expected.json").read_text())
    assert set(again["events"]) == set(EVENT_NUMBERS)
    size = sum(file.stat().st_size for file in make.DIRECTORY.rglob("*") if file.is_file())
    assert size < 300_000
