"""Snapshots that are whole but not the ones that a log has recorded: nothing of them comes into a state or a copy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from omnirelay.core.snapshot import digest
from omnirelay.engine.recovery import rebuild
from omnirelay.engine.shard import Shard
from omnirelay.engine.snapshotter import make_snapshot
from omnirelay.errors import LogDamaged
from omnirelay.log import SqliteLog
from tests.integration.shards import enqueued, item

NAMES = ("here", "there")


async def two_shards(data: Path, *, trimmed: bool = False) -> str:
    """Shards of equal length with other items, whose snapshots have changed places; the digest that "here" had."""
    digests = []
    for name in NAMES:
        async with await Shard.open(SqliteLog.open(data, name)) as shard:
            for count in range(3):
                await enqueued(shard, item(f"{name}-{count}"))
                await shard.log.add_snapshot(await make_snapshot(shard.log, 1), shard.epoch)
            if trimmed:
                assert (await shard.trim(retention_ms=0)).sequence > 0
            await enqueued(shard, item(f"{name}-last"))
            digests.append(digest(shard.state))
    here, there = (data / name / "snapshots" for name in NAMES)
    assert sorted(os.listdir(here)) == sorted(os.listdir(there))
    os.rename(here, data / "aside")
    os.rename(there, here)
    os.rename(data / "aside", there)
    return digests[0]


async def test_a_snapshot_of_another_shard_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    served = await two_shards(tmp_path)
    async with await Shard.open(SqliteLog.open(tmp_path, "here")) as shard:
        assert digest(await shard.state_at(shard.last_sequence - 1)) == served
        assert {view.payload.resource_id for view in (await shard.peek()).items} == {
            *(f"here-{count}" for count in range(3)),
            "here-last",
        }
    passed_over = [record for record in caplog.records if record.message == "snapshot_passed_over"]
    assert "is another one than was recorded" in passed_over[0].__dict__["reason"]


async def test_a_trimmed_log_is_refused_with_the_snapshots_of_another_shard(tmp_path: Path) -> None:
    await two_shards(tmp_path, trimmed=True)
    log = SqliteLog.open(tmp_path, "here")
    with pytest.raises(LogDamaged, match="is another one than was recorded") as refusal:
        await Shard.open(log)
    assert str(refusal.value.details["file"]).startswith(str(tmp_path / "here" / "snapshots"))
    await log.close()


async def test_a_backup_leaves_the_snapshots_of_another_shard_behind(tmp_path: Path) -> None:
    served = await two_shards(tmp_path / "data")
    log = SqliteLog.open(tmp_path / "data", "here", read_only=True)
    await log.backup(tmp_path / "copy" / "here")
    await log.close()
    copy = SqliteLog.open(tmp_path / "copy", "here", read_only=True)
    assert await copy.snapshots() == []
    assert digest((await rebuild(copy)).state) == served
    await copy.close()
