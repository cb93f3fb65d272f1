"""The disk has no room for a while: intake closes, nothing is lost, and the shard goes on by itself."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from omnirelay.core.payload import NewItem, Payload
from omnirelay.core.snapshot import digest
from omnirelay.engine.shard import Shard
from omnirelay.errors import LogUnavailable
from omnirelay.log.sqlite import SqliteLog
from omnirelay.testing.clock import FakeClock, settle
from omnirelay.testing.disk import RecordingVFS
from tests.powerloss.conftest import LONG
from tests.powerloss.failing import FailingDisk
from tests.powerloss.recording import NAMESPACE

KIB = 1024
COMMANDS = 40


def some_more_room(vfs: RecordingVFS) -> None:
    assert vfs.room_bytes is not None
    vfs.room_bytes += 48 * KIB


# From too small for a new log to enough for nearly all of the script.
@pytest.mark.parametrize("room_kib", range(64, 1_200, 32 if LONG else 160))
@pytest.mark.parametrize("all_at_once", [True, False], ids=["cleared", "bit by bit"])
async def test_a_full_disk_costs_time_and_nothing_else(workspace: Path, room_kib: int, all_at_once: bool) -> None:
    shutil.rmtree(workspace / "full", ignore_errors=True)
    with RecordingVFS() as vfs:
        vfs.room_bytes = room_kib * KIB
        disk = FailingDisk(
            workspace / "full" / "log",
            vfs,
            room_kib,
            patience=1,
            mend=RecordingVFS.heal if all_at_once else some_more_room,
        )
        story = await disk.run(COMMANDS)
        assert disk.script.commands == COMMANDS
        assert story.given_up == story.copies == 0
        if vfs.failures and not story.refused_starts:
            assert story.stalls > 0 or vfs.failures < 3, "a checkpoint may fail without holding anybody up"


async def test_a_shard_without_room_can_still_be_read(workspace: Path) -> None:
    clock = FakeClock()
    directory = workspace / "read"
    with RecordingVFS() as vfs:
        log = SqliteLog.open(directory, NAMESPACE, vfs=vfs.name)
        shard = await Shard.open(log, clock=clock)
        item = NewItem(payload=Payload(resource_type="table", resource_id="a", body=b"x" * 20_000))
        await shard.enqueue(item)
        last, before = shard.last_sequence, digest(shard.state)
        vfs.room_bytes = 0
        waiting = asyncio.ensure_future(shard.enqueue(item))
        while shard.failure is None:
            await settle()
        assert isinstance(shard.failure, LogUnavailable)
        assert (await log.head()).position.sequence == last
        assert digest(await shard.state_at(last)) == before
        reader = SqliteLog.open(directory, NAMESPACE, read_only=True)
        assert (await reader.verify()).position.sequence == last
        await reader.close()
        vfs.heal()
        await clock.advance(100)
        assert (await waiting).results
        assert shard.last_sequence == last + 1
        await shard.close()


async def test_a_new_log_without_room_is_refused_and_leaves_nothing_in_the_way(workspace: Path) -> None:
    directory = workspace / "new"
    with RecordingVFS() as vfs:
        vfs.room_bytes = 40 * KIB
        with pytest.raises(LogUnavailable) as refused:
            SqliteLog.open(directory, NAMESPACE, vfs=vfs.name)
        assert refused.value.details["file"]
        assert not (directory / NAMESPACE / "leases.db").exists()
        vfs.heal()
        log = SqliteLog.open(directory, NAMESPACE, vfs=vfs.name)
        assert (await log.verify()).frames == 0
        await log.close()
