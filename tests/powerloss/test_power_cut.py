"""The power fails after every single operation of a script; what was acknowledged is still there."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnirelay.core.payload import NewItem, Payload
from omnirelay.engine.shard import Shard
from omnirelay.log.sqlite import SqliteLog
from omnirelay.log.sqlite.connection import Synchronous
from omnirelay.testing.clock import FakeClock
from omnirelay.testing.disk import Appeared, Outcome, Synced, Wrote
from tests.powerloss.conftest import LONG
from tests.powerloss.recording import NAMESPACE, PromiseBroken, Recording, check, images, lay_out, record

COMMANDS = 200
SEED = 1


@pytest.fixture(scope="module")
def recording(workspace: Path) -> Recording:
    return asyncio.run(record(workspace / "run", SEED, COMMANDS))


def test_the_script_covers_what_a_log_does_to_its_disk(recording: Recording) -> None:
    wal = _file_named(recording, "leases.db-wal")
    database = _file_named(recording, "leases.db.new")
    writes = [operation for operation in recording.operations if isinstance(operation, Wrote)]
    assert recording.commands == COMMANDS
    assert len(recording.known) > 100, "frames"
    assert len(recording.witnesses) > 20
    assert sum(write.file in wal and write.offset == 0 for write in writes) > 4, "restarts of the WAL"
    assert sum(write.file in database for write in writes) > 50, "pages copied by checkpoints"
    assert sum(isinstance(operation, Synced) for operation in recording.operations) > 150
    assert len(recording.starts) == 3
    redo = _file_named(recording, "leases.redo")
    records = [write for write in writes if write.file in redo]
    assert len(records) > 60
    assert sum(record.offset == 0 for record in records) > 2 + len(redo), "records written over"


# Short form: all cuts with nothing kept; every few of the others.
@pytest.mark.parametrize(("outcome", "every"), [("dropped", 1), ("torn", 2), ("subset", 3), ("kept", 6)], ids=str)
@pytest.mark.timeout(1_800)
async def test_whatever_was_acknowledged_survives_a_power_cut_at_any_moment(
    recording: Recording, workspace: Path, outcome: Outcome, every: int
) -> None:
    cuts = 0
    for seed in range(3 if LONG and outcome in ("torn", "subset") else 1):
        for position, image in _once(recording, images(recording, outcome, seed, 1 if LONG else every)):
            await check(recording, position, image, recording.witness_at(position), workspace / "cut")
            cuts += 1
    assert cuts > 40


@pytest.mark.timeout(1_800)
async def test_an_older_witness_a_newer_one_and_none_at_all_refuse_nothing(
    recording: Recording, workspace: Path
) -> None:
    """One on another disk may be behind; the one being written may have made it; a fresh disk has none."""
    for position, image in images(recording, "dropped", 0, 1 if LONG else 11):
        for witness in (
            recording.witness_before(position),
            recording.witness_being_written(position) or recording.witness_at(position),
            None,
        ):
            await check(recording, position, image, witness, workspace / "cut")


@pytest.mark.parametrize("outcome", ["dropped", "subset"])
@pytest.mark.timeout(1_800)
async def test_a_power_cut_in_the_middle_of_a_trim_loses_nothing_that_was_kept(
    workspace: Path, outcome: Outcome
) -> None:
    recording = await record(workspace / f"trim-{outcome}", SEED + 1, 40, trims=True)
    trimmed = 0
    every = 1 if LONG or outcome == "dropped" else 5
    for position, image in _once(recording, images(recording, outcome, 0, every)):
        await check(recording, position, image, recording.witness_at(position), workspace / "cut")
        trimmed += 1
    assert trimmed > 40


@pytest.mark.timeout(1_800)
async def test_a_recovered_shard_goes_on_and_survives_the_next_power_cut(recording: Recording, workspace: Path) -> None:
    """What a cut left behind (half a transaction in the WAL, an old journal) must not harm what comes after."""
    cuts = range(60, len(recording.operations), 97 if LONG else 331)
    wanted = {position: image for position, image in images(recording, "subset", 5) if position in cuts}
    for position, image in wanted.items():
        lay_out(workspace / "again", image, recording.witness_at(position))
        second = await record(workspace / "again", position, 12, restarts=0, due=recording.due(position))
        outcome: Outcome = "subset" if LONG else "dropped"
        for next_position, next_image in _once(second, images(second, outcome, 0)):
            if next_position >= second.starts[0]:
                witness = second.witness_at(next_position)
                await check(second, next_position, next_image, witness, workspace / "cut")


async def test_a_recovered_shard_serves_and_closes_cleanly(recording: Recording, workspace: Path) -> None:
    for position, image in images(recording, "subset", 2, 10 if LONG else 97):
        lay_out(workspace / "cut", image, recording.witness_at(position))
        log = SqliteLog.open(workspace / "cut", NAMESPACE)
        async with await Shard.open(log, clock=FakeClock(1_800_000_000_000)) as shard:
            await shard.enqueue(NewItem(payload=Payload(resource_type="table", resource_id="after")))
            assert await shard.lease()
            last = shard.last_sequence
        log = SqliteLog.open(workspace / "cut", NAMESPACE)
        assert (await log.verify()).position.sequence == last
        await log.close()


@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
@pytest.mark.parametrize("outcome", ["dropped", "torn", "subset"])
@pytest.mark.parametrize("with_witness", [True, False], ids=["witness", "no-witness"])
async def test_a_log_that_skips_flushes_is_caught(
    workspace: Path, synchronous: Synchronous, outcome: Outcome, with_witness: bool
) -> None:
    """A test of the test: the very same check fails on a log that answers before the disk has it."""
    home = workspace / f"{synchronous}-{outcome}-{with_witness}"
    recording = await record(home, SEED, 30, restarts=0, synchronous=synchronous)
    broken = 0
    for position, image in images(recording, outcome, 0):
        witness = recording.witness_at(position) if with_witness else None
        try:
            await check(recording, position, image, witness, workspace / "cut")
        except PromiseBroken:
            broken += 1
            if broken == 5:
                return
    raise AssertionError(f"synchronous={synchronous} passed for safe")


def _once(recording: Recording, cuts: Iterator[tuple[int, dict[str, bytes]]]) -> Iterator[tuple[int, dict[str, bytes]]]:
    """Leave out a cut that leaves the same files, witness and duties as the one before it."""
    before: object = None
    for position, image in cuts:
        contents = {name: hashlib.sha256(data).digest() for name, data in image.items()}
        this = (contents, recording.due(position), recording.witness_at(position))
        if this != before:
            yield position, image
        before = this


def _file_named(recording: Recording, name: str) -> set[int]:
    return {
        operation.file
        for operation in recording.operations
        if isinstance(operation, Appeared) and operation.name.endswith("/" + name)
    }
