"""The SQLite log under kill -9 and on disks that fail: what was acknowledged is there, and in one piece."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from omnirelay.errors import LogOutcomeUnknown, LogUnavailable
from omnirelay.log import Frame, Position, SqliteLog
from omnirelay.log.sqlite import log as sqlite_log
from omnirelay.testing.conformance import Leader, frames_of
from omnirelay.testing.disk import RecordingVFS, Synced, Wrote
from tests.integration import log_child
from tests.integration.log_sqlite import SqliteStore
from tests.patience import PATIENCE_S

KILL_POINTS = [
    "log.append.begin",
    "log.append.before_commit",
    "log.append.committed",
    "log.redo.settling",
    "log.redo.settled",
    "log.witness.before_write",
    "log.witness.written",
    "log.trim.slice",
    "log.backup.copied",
]


async def run_child(what: str, directory: Path, argument: str = "") -> list[str]:
    """Run a process of `log_child` to its death by SIGKILL; returns the lines it wrote."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, log_child.__file__, what, directory, argument, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == -signal.SIGKILL
    return output.decode().splitlines()


def position_of(line: str) -> Position:
    sequence, chain = line.split()
    return Position(int(sequence), bytes.fromhex(chain))


@pytest.mark.parametrize("point", KILL_POINTS)
async def test_a_process_killed_at_any_point_leaves_what_it_acknowledged(tmp_path: Path, point: str) -> None:
    acknowledged = [position_of(line) for line in await run_child("be_killed", tmp_path, point)]
    assert acknowledged
    leader = await Leader.of(SqliteLog.open(tmp_path, log_child.SHARD))
    assert leader.unproven is None
    report = await leader.log.verify()
    anchor = report.anchor.sequence
    kept = {frame.last: frame.chain for frame in await frames_of(leader.log, anchor + 1)}
    for position in acknowledged:
        if position.sequence > anchor:
            assert kept[position.sequence] == position.chain
    # At most the one frame in flight is there beyond what was acknowledged.
    assert acknowledged[-1].sequence <= leader.position.sequence <= acknowledged[-1].sequence + 3
    await leader.append()
    await leader.log.close()
    # A backup that has its name is complete.
    for backup in os.listdir(tmp_path):
        if backup == log_child.SHARD or backup.endswith(".partial"):
            continue
        copy = SqliteLog.open(tmp_path, backup, shard=log_child.SHARD, read_only=True)
        await copy.verify()
        await copy.close()


async def test_a_log_that_the_kernel_gives_no_room_goes_on_when_there_is_some(tmp_path: Path) -> None:
    first, *refusals, last = await run_child("run_out_of_room", tmp_path)
    assert refusals == ["no room"] * 3
    log = SqliteLog.open(tmp_path, log_child.SHARD)
    assert (await log.verify()).position == position_of(last)
    assert [frame.last for frame in await frames_of(log)] == [position_of(first).sequence, position_of(last).sequence]
    await log.close()


@pytest.mark.parametrize("what", ["removed", "moved", "replaced"])
async def test_a_log_whose_files_are_taken_away_is_given_up_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(sqlite_log, "WITNESS_INTERVAL_S", 0.0)
    store = SqliteStore(tmp_path / "data")
    leader = await Leader.of(store.open())
    await leader.append()
    log = leader.log
    assert isinstance(log, SqliteLog)
    elsewhere = tmp_path / "elsewhere"
    if what == "removed":
        shutil.rmtree(log.directory)
    else:
        log.directory.rename(elsewhere)
    if what == "replaced":
        shutil.copytree(elsewhere, log.directory)

    async def append_on() -> None:
        while True:
            await leader.append()

    with pytest.raises(LogOutcomeUnknown, match="removed, moved or replaced") as refused:
        await asyncio.wait_for(append_on(), PATIENCE_S)
    assert str(log.directory / "leases.db") in refused.value.message
    assert log.statistics().given_up == refused.value.message
    await log.close()
    if what == "moved":
        # Put back, it has everything that was acknowledged, also what came after the move.
        elsewhere.rename(log.directory)
        again = store.open()
        assert (await again.verify()).position == leader.position
        await again.close()


class Script:
    """A life of a log that passes every kind of write: creation, appends, snapshots, a trim, the checkpoint
    at the end.
    """

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.acknowledged: list[Position] = []
        self.log: SqliteLog | None = None

    async def run(self) -> None:
        self.log = self.store.open()
        leader = await Leader.of(self.log)
        for size in (10, 100_000, 10, 200_000, 10):
            await leader.append(leader.frame(2, body=b"x" * size))
            self.acknowledged.append(leader.position)
            if len(self.acknowledged) > 2:
                await leader.snapshot()
        await leader.log.trim(4, leader.epoch)
        await leader.append()
        self.acknowledged.append(leader.position)
        await self.log.close()

    async def check(self) -> None:
        """Open again and find everything that was acknowledged, and at most one frame more."""
        log = self.store.open()
        leader = await Leader.of(log)
        report = await log.verify()
        kept = {frame.last: frame.chain for frame in await frames_of(log, report.anchor.sequence + 1)}
        for position in self.acknowledged:
            if position.sequence > report.anchor.sequence:
                assert kept[position.sequence] == position.chain
        beyond = [last for last in kept if not self.acknowledged or last > self.acknowledged[-1].sequence]
        assert len(beyond) <= 1
        assert leader.unproven is None
        await leader.append()
        await log.close()


@pytest.mark.parametrize("ended", ["closed", "killed"])
@pytest.mark.parametrize("what", ["write", "sync"])
@pytest.mark.timeout(600)
async def test_whichever_write_or_flush_fails_nothing_acknowledged_is_lost(
    tmp_path: Path, what: str, ended: str
) -> None:
    with RecordingVFS() as healthy:
        await Script(SqliteStore(tmp_path / "healthy", healthy)).run()
        kind = Wrote if what == "write" else Synced
        total = sum(isinstance(operation, kind) for operation in healthy.operations)
    # Writes differ little from their neighbours; flushes are few and each is tried.
    numbers = range(1, total + 1, 1 if what == "sync" else 3)
    assert len(numbers) > 15
    outcomes = set()
    for number in numbers:
        with RecordingVFS() as disk:
            script = Script(SqliteStore(tmp_path / f"{what}-{number}", disk))
            (disk.fail_write if what == "write" else disk.fail_sync)(number)
            try:
                await script.run()
                outcomes.add("unharmed")
            except (LogUnavailable, LogOutcomeUnknown) as error:
                outcomes.add(type(error).__name__)
            assert disk.failures <= 1
            disk.heal()
            if script.log is not None:
                if ended == "closed":
                    await script.log.close()
                else:
                    script.log.abandon()
            await script.check()
    assert outcomes >= ({"LogUnavailable"} if what == "write" else {"LogOutcomeUnknown"})


async def test_a_flush_that_fails_in_a_checkpoint_gives_the_shard_up(fragile: SqliteStore, disk: RecordingVFS) -> None:
    leader = await Leader.of(fragile.open())
    for _ in range(2):
        await leader.append(leader.frame(2, body=b"x" * 3_000_000))
    # The next append makes the WAL long enough; behind its own flush come those of the checkpoint.
    disk.fail_sync(2)
    await leader.append(leader.frame(2, body=b"x" * 3_000_000))
    with pytest.raises(LogOutcomeUnknown):
        await leader.log.drop_snapshots([], leader.epoch)  # Comes behind the checkpoint.
    with pytest.raises(LogOutcomeUnknown):
        await leader.append()
    assert disk.failures == 1
    disk.heal()
    counts = leader.log.statistics()
    assert (counts.checkpoint_failures, counts.frames) == (1, 3)
    assert counts.given_up is not None
    await leader.log.close()
    assert (fragile.root / "leases.suspect").exists()
    again = await Leader.of(fragile.open())
    assert again.position == leader.position
    await again.log.close()


async def append_until_refused(leader: Leader) -> Frame:
    """Append until there is no room; returns the frame that found none."""
    while True:
        frame = leader.frame(2, body=b"x" * 500_000)
        try:
            await leader.append(frame)
        except LogUnavailable:
            return frame


async def test_a_checkpoint_without_room_costs_nothing_but_the_wal(fragile: SqliteStore, disk: RecordingVFS) -> None:
    leader = await Leader.of(fragile.open())
    for _ in range(3):
        await leader.append(leader.frame(2, body=b"x" * 1_000_000))
    sizes = sum(path.stat().st_size for path in fragile.root.glob("leases.db*") if not path.name.endswith("-shm"))
    # Room for the WAL to reach its checkpoint, none for the database to take it in.
    disk.room_bytes = sizes + 6_500_000
    refused = await append_until_refused(leader)
    assert leader.log.statistics().checkpoint_failures > 0
    assert leader.log.statistics().checkpoints == 0
    disk.heal()
    await leader.append(refused)
    # With room again the checkpoint catches up, whenever the writer's thread comes to it.
    while not leader.log.statistics().checkpoints:
        await leader.append(leader.frame(2, body=b"x" * 500_000))
    assert (await leader.log.verify()).position == leader.position
    await leader.log.close()


async def test_a_full_disk_takes_more_when_the_database_has_free_pages(
    fragile: SqliteStore, disk: RecordingVFS
) -> None:
    leader = await Leader.of(fragile.open())
    for _ in range(2):
        await leader.append(leader.frame(2, body=b"x" * 1_000_000))
        await leader.snapshot()
    await leader.append()
    await leader.snapshot()
    await leader.log.trim(4, leader.epoch)
    await leader.log.close()
    leader = await Leader.of(fragile.open())
    await leader.append(leader.frame(2, body=b"x" * 500_000))
    disk.notice_names()
    disk.room_bytes = fragile.database.stat().st_size + (fragile.root / "leases.db-wal").stat().st_size
    frame = leader.frame(2, body=b"x" * 300_000)
    # Not a byte of room is left, but the WAL can be copied into what the trim freed and start over.
    with pytest.raises(LogUnavailable):
        await leader.append(frame)
    await leader.append(frame)
    assert (await leader.log.verify()).position == leader.position
    await leader.log.close()
