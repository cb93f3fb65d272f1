"""The redo file of an SQLite log: what is in it only is as durable as the rest, wherever things stop."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.errors import (
    LogDamaged,
    LogLocked,
    LogOutcomeUnknown,
    LogRegressed,
    LogUnavailable,
)
from omnirelay.log import Frame, SqliteLog, encode_frame
from omnirelay.log.chain import Link
from omnirelay.log.failpoints import arm, disarm
from omnirelay.log.files import WriterLock
from omnirelay.log.frame import chain_of, genesis_chain
from omnirelay.log.sqlite.connection import connect_reader
from omnirelay.log.sqlite.redo_file import RedoPlan
from omnirelay.log.sqlite.redo_layout import BLOCK_BYTES, HEADER_BYTES, header_of, log_mark, padded
from omnirelay.log.sqlite.redo_records import frames_behind, read_records
from omnirelay.log.witness import read_witness
from omnirelay.testing.conformance import Leader, frames_of, make_events
from omnirelay.testing.conformance.leader import TIME_MS
from omnirelay.testing.disk import Disk, RecordingVFS
from tests.integration.http_sockets import until
from tests.integration.log_sqlite import SHARD, SqliteStore, refused
from tests.patience import PATIENCE_S

FAR = 1 << 40
STAYS = RedoPlan(after_frames=1, half_bytes=64 * 1024, frame_bytes_max=16 * 1024, settle_bytes=FAR, settle_s=3_600.0)
"""From the first frame on, and nothing goes into the database before somebody asks for it."""


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "data", redo=STAYS)


async def leader_with_redo(store: SqliteStore) -> Leader:
    """A writer whose next frames go into the redo file. One frame, 1..3, is in the database."""
    leader = await Leader.of(store.open())
    await leader.append()
    await through(leader)
    return leader


async def through(leader: Leader) -> None:
    """Wait for the thread that makes the file and settles."""
    await leader.log.drop_snapshots([], leader.epoch)


def in_database(store: SqliteStore) -> list[int]:
    """What readers in other processes see."""
    with closing(connect_reader(store.database)) as connection:
        return [last for (last,) in connection.execute("SELECT last FROM frames ORDER BY last")]


def version_of(store: SqliteStore) -> object:
    with closing(connect_reader(store.database)) as connection:
        return connection.execute("PRAGMA user_version").get


async def crashed_with(store: SqliteStore, frames: int = 3) -> Leader:
    """A log whose last frames are in the redo file only: 4..6, 7..9, …"""
    leader = await leader_with_redo(store)
    await leader.append_many(frames)
    store.crash(leader.log)
    assert in_database(store) == [3]
    return leader


def record_offsets(store: SqliteStore, log_id: str) -> dict[int, int]:
    """Where the record of the frame that ends with this event lies."""
    return {record.frame.last: record.offset for record in read_records(store.redo.read_bytes(), log_id)}


def flip(path: Path, offset: int) -> None:
    contents = bytearray(path.read_bytes())
    contents[offset] ^= 1
    path.write_bytes(contents)


# ----------------------------------------------------------------------- while a writer lives


async def test_frames_go_into_the_redo_file_and_are_rows_for_whoever_reads(store: SqliteStore) -> None:
    leader = await leader_with_redo(store)
    await leader.append_many(2)
    await leader.append(inline=True)
    assert in_database(store) == [3]
    assert set(record_offsets(store, leader.log.log_id)) == {6, 9, 12}
    assert (await leader.log.head()).position == leader.position
    assert in_database(store) == [3, 6, 9, 12]
    await leader.append()
    assert [frame.last for frame in await frames_of(leader.log)] == [3, 6, 9, 12, 15]
    await leader.append()
    assert (await leader.log.size_after(0)).events == 18
    await leader.append()
    assert (await leader.log.verify()).position == leader.position
    await leader.log.close()


async def test_after_a_moment_other_readers_see_them_too(tmp_path: Path) -> None:
    plan = RedoPlan(after_frames=1, half_bytes=64 * 1024, settle_s=0.0)
    store = SqliteStore(tmp_path / "data", redo=plan)
    leader = await leader_with_redo(store)
    await leader.append()
    await until(lambda: in_database(store) == [3, 6])
    await leader.log.close()


async def test_much_of_it_is_settled_at_once(tmp_path: Path) -> None:
    plan = RedoPlan(after_frames=1, half_bytes=256 * 1024, settle_bytes=20_000, settle_s=3_600.0)
    store = SqliteStore(tmp_path / "data", redo=plan)
    leader = await leader_with_redo(store)
    await leader.append(leader.frame(2, body=b"x" * 2_000))
    await through(leader)
    assert in_database(store) == [3]
    for _ in range(9):
        await leader.append(leader.frame(2, body=b"x" * 2_000))
    await until(lambda: len(in_database(store)) >= 8)
    await leader.log.close()


async def test_a_log_that_is_hardly_written_to_has_none(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data")
    leader = await Leader.of(store.open())
    await leader.append_many(20)
    await through(leader)
    assert not store.redo.exists()
    assert version_of(store) == 1
    await leader.log.close()


async def test_large_frames_go_into_the_database_behind_what_is_not_there_yet(store: SqliteStore) -> None:
    leader = await leader_with_redo(store)
    await leader.append_many(2)
    large = await leader.append(leader.frame(2, body=b"x" * STAYS.frame_bytes_max))
    assert in_database(store) == [3, 6, 9, large.last]
    await leader.append()
    assert in_database(store) == [3, 6, 9, large.last]
    store.crash(leader.log)
    log = store.open()
    assert (await log.verify()).position == leader.position
    await log.close()


async def test_a_frame_that_is_asked_for_again_is_there_once(store: SqliteStore) -> None:
    leader = await leader_with_redo(store)
    before = leader.position
    frame = await leader.append()
    assert await leader.log.append(frame, before) == leader.position
    assert [each.last for each in await frames_of(leader.log)] == [3, 6]
    await leader.log.close()


async def test_appends_go_on_while_what_came_before_is_brought_into_the_database(store: SqliteStore) -> None:
    """Else one call in fifty waited for the settling, and then for a commit of its own."""
    leader = await leader_with_redo(store)
    await leader.append()
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold_up() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(PATIENCE_S)

    arm("log.redo.settling", hold_up)
    try:
        reading = asyncio.create_task(leader.log.head())
        await begun.wait()
        async with asyncio.timeout(PATIENCE_S / 2):
            await leader.append()
            await leader.append(inline=True)
        assert not reading.done()
    finally:
        disarm()
        go_on.set()
    assert (await reading).position.sequence == 6
    assert [frame.last for frame in await frames_of(leader.log)] == [3, 6, 9, 12]
    await leader.log.close()


async def test_a_witness_is_written_although_appends_go_on_beside_it(store: SqliteStore) -> None:
    """A trim beyond a witness that is left behind would make a healthy log one of which nothing is proven."""
    leader = await leader_with_redo(store)
    await leader.append_many(3)
    await leader.snapshot()
    below = leader.position.sequence
    await leader.append_many(2)
    await leader.snapshot()
    await leader.append()
    loop = asyncio.get_running_loop()
    beside = [1, 1]  # While the trim settles, and while the witness does.

    def append_beside() -> None:
        if beside:
            beside.pop()
            asyncio.run_coroutine_threadsafe(leader.append(inline=True), loop).result(PATIENCE_S)

    arm("log.redo.settling", append_beside)
    try:
        anchor = await leader.log.trim(below, leader.epoch)
    finally:
        disarm()
    assert beside == []
    witness = read_witness(store.witness)
    assert witness is not None
    assert witness.sequence >= anchor.sequence
    store.crash(leader.log)
    again = await Leader.of(store.open())
    assert again.unproven is None
    await again.log.close()


async def test_a_repeat_that_flushes_nothing_lets_nothing_be_written_over(tmp_path: Path, disk: RecordingVFS) -> None:
    store = SqliteStore(tmp_path / "data", disk, redo=STAYS)
    leader = await leader_with_redo(store)
    await leader.append_many(15)
    before = leader.position
    frame = await leader.append()
    assert await leader.log.append(frame, before) == leader.position
    await leader.append_many(20)  # The other half, and this one again.
    [(_, files)] = after_power_cuts(disk, len(disk.operations) - 1)
    await holds(files, tmp_path / "cut", leader.position.sequence - 3, "behind a repeat")
    await leader.log.close()


async def test_a_disk_that_takes_the_flag_of_direct_writes_and_refuses_them_is_written_to_as_others(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite

    def refuse_direct(descriptor: int, data: bytes, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", refuse_direct)
    leader = await leader_with_redo(store)
    await leader.append_many(2)
    assert in_database(store) == [3]
    store.crash(leader.log)
    log = store.open()
    assert (await log.head()).position == leader.position
    await log.close()


async def test_a_record_that_is_written_in_pieces_is_whole(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = await leader_with_redo(store)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: write(descriptor, data[:BLOCK_BYTES], offset))
    await leader.append(leader.frame(2, body=b"x" * 3 * BLOCK_BYTES))
    store.crash(leader.log)
    log = store.open()
    assert (await log.verify()).position == leader.position
    await log.close()


async def test_the_file_is_filled_again_and_again(store: SqliteStore) -> None:
    """A quarter of the records that the file has room for at once, each time round."""
    leader = await leader_with_redo(store)
    for _ in range(100):
        await leader.append()
    assert store.redo.stat().st_size == 2 * STAYS.half_bytes
    store.crash(leader.log)
    log = store.open()
    report = await log.verify()
    assert (report.position, report.frames) == (leader.position, 101)
    await log.close()


async def test_backups_snapshots_and_trims_have_what_the_redo_file_has(store: SqliteStore) -> None:
    leader = await leader_with_redo(store)
    await leader.append()
    await leader.snapshot()
    await leader.append()
    await leader.snapshot()
    await leader.append()
    await leader.log.backup(store.directory / "copy")
    copy = SqliteLog.open(store.directory, "copy", shard=SHARD)
    assert (await copy.head()).position == leader.position
    await copy.close()
    assert (await leader.log.trim(6, leader.epoch)).sequence == 3
    await leader.append()
    store.crash(leader.log)
    log = store.open()
    assert (await log.verify()).position == leader.position
    await log.close()


async def test_a_log_that_is_closed_has_no_redo_file(store: SqliteStore) -> None:
    leader = await leader_with_redo(store)
    assert version_of(store) == 1_001, "versions that know of no redo file take this one for too new"
    await leader.append_many(3)
    await leader.log.close()
    assert not store.redo.exists()
    assert version_of(store) == 1
    assert in_database(store) == [3, 6, 9, 12]


async def test_a_redo_file_that_is_taken_away_ends_the_writer(store: SqliteStore) -> None:
    """Every write would go where nobody will ever find it."""
    leader = await leader_with_redo(store)
    store.redo.rename(store.root / "elsewhere")
    await leader.append()
    await until(lambda: leader.log.statistics().given_up is not None)
    with pytest.raises(LogOutcomeUnknown) as refusal:
        await leader.append()
    assert str(store.redo) in refusal.value.message
    await leader.log.close()


async def test_nobody_without_the_lock_writes_beside_a_redo_file(store: SqliteStore) -> None:
    """It is the lock that keeps others from raising the epoch between two frames."""
    leader = await leader_with_redo(store)
    with pytest.raises(LogLocked):
        store.rival()
    await leader.log.close()


async def test_a_witness_is_never_ahead_of_what_others_can_read(store: SqliteStore) -> None:
    leader = await leader_with_redo(store)
    await leader.append()
    assert leader.log.statistics().witness_writes == 0
    await until(lambda: leader.log.statistics().witness_writes > 0)
    witness = read_witness(store.witness)
    assert witness is not None
    assert witness.sequence == in_database(store)[-1] == 6
    reader = SqliteLog.open(store.directory, SHARD, read_only=True)
    await reader.verify()
    await reader.close()
    await leader.log.close()


# ----------------------------------------------------------------------- after a crash


@pytest.mark.parametrize("read_only", [True, False], ids=["reader", "writer"])
async def test_what_a_crash_left_in_it_is_in_the_log_of_whoever_opens_it(store: SqliteStore, read_only: bool) -> None:
    leader = await crashed_with(store)
    log = store.open(read_only=read_only)
    assert (await log.verify()).position == leader.position
    assert not store.redo.exists()
    assert (in_database(store), version_of(store)) == ([3, 6, 9, 12], 1)
    await log.close()


async def test_a_reader_leaves_the_redo_file_of_a_living_writer_alone(store: SqliteStore) -> None:
    leader = await leader_with_redo(store)
    await leader.append()
    reader = store.open(read_only=True)
    assert [frame.last for frame in await frames_of(reader)] == [3]
    await leader.append()
    assert [frame.last for frame in await frames_of(leader.log)] == [3, 6, 9]
    assert [frame.last for frame in await frames_of(reader)] == [3, 6, 9]
    await reader.close()
    await leader.log.close()


async def test_a_reader_that_may_not_write_is_told_what_it_cannot_see(store: SqliteStore) -> None:
    await crashed_with(store)
    lock = store.root / "leases.lock"
    lock.unlink()
    lock.mkdir()  # Opening it fails, as on a file system that is mounted read-only; root may write to all others.
    with pytest.raises(LogUnavailable) as refusal:
        store.open(read_only=True)
    assert "events 4 to 12" in refusal.value.message
    assert str(store.redo) in refusal.value.message
    lock.rmdir()
    await store.open().close()
    lock.unlink()
    lock.mkdir()
    await store.open(read_only=True).close()


async def test_a_writer_waits_for_a_reader_that_brings_something_in(store: SqliteStore) -> None:
    leader = await crashed_with(store)
    with being_brought_in(store) as lock:
        opening = asyncio.create_task(asyncio.to_thread(store.open))
        await asyncio.to_thread(until_somebody_waits_for, store.redo)
        assert not opening.done()
        lock.release()
    log = await opening
    assert (await log.head()).position == leader.position
    await log.close()


@contextmanager
def being_brought_in(store: SqliteStore) -> Iterator[WriterLock]:
    """As another process does it, whose lock of the directory the caller releases first."""
    descriptor = os.open(store.redo, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield WriterLock(store.root / "leases.lock")
    finally:
        os.close(descriptor)


def until_somebody_waits_for(path: Path) -> None:
    inode = f":{path.stat().st_ino} "
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()):
            return


async def test_a_record_that_was_cut_short_was_never_acknowledged(store: SqliteStore) -> None:
    leader = await crashed_with(store)
    flip(store.redo, record_offsets(store, leader.log.log_id)[12] + HEADER_BYTES + 50)
    log = store.open()
    assert (await log.verify()).position.sequence == 9
    await log.close()


@pytest.mark.parametrize("where", [20, HEADER_BYTES + 50], ids=["header", "events"])
async def test_a_damaged_record_with_others_behind_it_is_refused_and_named(store: SqliteStore, where: int) -> None:
    leader = await crashed_with(store)
    flip(store.redo, record_offsets(store, leader.log.log_id)[9] + where)
    refusal = refused(store, LogDamaged)
    assert (refusal.details["sequence"], refusal.details["found"]) == (7, 10)
    assert refusal.details["file"] == str(store.redo)
    with pytest.raises(LogDamaged):
        store.open(read_only=True)

    again = await Leader.of(store.open(accept_loss=True))
    assert again.position.sequence == 6
    assert again.unproven is not None
    assert "event 7 " in again.unproven
    assert again.highest_known >= 12, "a fence that was granted is not granted again"
    assert (store.root / "leases.redo.damaged-1").exists()
    await again.append(again.generation_start())
    await again.append()
    await again.log.close()
    await store.open().close()


async def test_a_witness_shows_that_the_last_record_is_gone(store: SqliteStore) -> None:
    leader = await leader_with_redo(store)
    await leader.append_many(3)
    await until(lambda: leader.log.statistics().witness_writes > 0)
    offsets = record_offsets(store, leader.log.log_id)
    shutil.copy(store.redo, store.directory / "kept")
    older = store.directory / "older.db"
    store.crash(leader.log)
    # The rows were never flushed, and the power cut took them: only the redo file has these frames.
    with closing(sqlite3.connect(store.database)) as connection, connection:
        connection.execute("DELETE FROM frames WHERE last > 3")
        chain = connection.execute("SELECT chain FROM frames").fetchone()[0]
        connection.execute("UPDATE head SET last = 3, chain = ?, time_ms = (SELECT time_ms FROM frames)", (chain,))
    shutil.copy(store.database, older)
    flip(store.redo, offsets[12] + HEADER_BYTES + 1)
    with pytest.raises(LogRegressed):
        store.open()
    shutil.copy(older, store.database)
    shutil.copy(store.directory / "kept", store.redo)
    log = store.open()
    assert (await log.verify()).position == leader.position
    await log.close()


async def test_a_redo_file_that_is_missing_is_refused(store: SqliteStore) -> None:
    await crashed_with(store)
    store.redo.rename(store.directory / "away")
    assert refused(store, LogDamaged).details["file"] == str(store.redo)
    with pytest.raises(LogDamaged):
        store.open(read_only=True)
    again = await Leader.of(store.open(accept_loss=True))
    assert again.position.sequence == 3
    assert again.unproven is not None
    await again.log.close()


async def test_the_redo_file_of_another_log_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    await crashed_with(store)
    other = SqliteStore(tmp_path / "other", redo=STAYS)
    await crashed_with(other)
    shutil.copy(other.redo, store.redo)
    assert "of another log" in refused(store, LogDamaged).message


async def test_a_database_that_is_older_than_its_redo_file_is_refused(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    await leader.append()
    await leader.log.close()
    shutil.copy(store.database, store.directory / "older.db")
    again = await leader_with_redo(store)
    await again.append_many(2)
    await through(again)
    await again.log.head()
    large = again.frame(2, body=b"x" * STAYS.frame_bytes_max)
    await again.append(large)
    await again.append()
    store.crash(again.log)
    (store.root / "leases.db-wal").unlink()
    shutil.copy(store.directory / "older.db", store.database)
    assert refused(store, LogDamaged).details["file"] == str(store.redo)


async def test_a_redo_file_without_its_database_is_refused(store: SqliteStore) -> None:
    await crashed_with(store)
    for name in ("leases.db", "leases.db-wal", "leases.witness"):
        (store.root / name).unlink(missing_ok=True)
    assert "leases.redo is there" in refused(store, LogDamaged).message


async def test_a_damaged_database_and_its_redo_file_are_both_kept_as_far_as_they_go(store: SqliteStore) -> None:
    leader = await leader_with_redo(store)
    await leader.append_many(2)
    await leader.log.head()
    await leader.append_many(2)
    store.crash(leader.log)
    store.damage(6, "events")
    again = await Leader.of(store.open(accept_loss=True))
    assert again.position.sequence == 15, "the redo file has everything behind the damage, too"
    assert again.highest_known >= 15
    await again.log.close()


# ----------------------------------------------------------------------- disks


async def test_a_failed_flush_gives_the_log_up_and_the_next_start_has_what_was_acknowledged(
    tmp_path: Path, disk: RecordingVFS
) -> None:
    store = SqliteStore(tmp_path / "data", disk, STAYS)
    leader = await leader_with_redo(store)
    await leader.append_many(2)
    acknowledged = leader.position
    disk.fail_sync(1)
    with pytest.raises(LogOutcomeUnknown) as refusal:
        await leader.append()
    assert refusal.value.details["sequence"] == 10
    with pytest.raises(LogOutcomeUnknown):
        await leader.append()
    disk.heal()
    await leader.log.close()
    assert store.redo.exists()
    log = store.open()
    kept = await frames_of(log)
    assert acknowledged.sequence in [frame.last for frame in kept]
    assert not store.redo.exists()
    assert not (store.root / "leases.suspect").exists()
    await log.close()


async def test_the_redo_file_stays_until_a_suspect_database_was_copied(tmp_path: Path, disk: RecordingVFS) -> None:
    """A checkpoint could not flush rows that only the redo file has for certain. The power fails while the next start
    makes a copy: nothing may be gone.
    """
    store = SqliteStore(tmp_path / "data", disk, STAYS)
    leader = await leader_with_redo(store)
    await leader.append_many(3)
    await leader.log.head()  # Rows now, and not flushed.
    disk.fail_sync(1, lasting=True)
    with pytest.raises(LogOutcomeUnknown):
        await leader.append(leader.frame(2, body=b"x" * STAYS.frame_bytes_max))
    disk.heal()
    await leader.log.close()
    start = disk.position
    await store.open().close()
    cuts = after_power_cuts(disk, start)
    assert len(cuts) > 10
    for position, files in cuts:
        await holds(files, tmp_path / "cut", 12, f"cut at {position}", suspect=True)


async def test_what_a_reader_keeps_from_being_flushed_is_not_written_over(tmp_path: Path, disk: RecordingVFS) -> None:
    """With a reader in its way a checkpoint copies nothing, and then it flushes nothing either."""
    store = SqliteStore(tmp_path / "data", disk, STAYS)
    leader = await leader_with_redo(store)
    with closing(connect_reader(store.database, vfs=disk.name)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM frames").get == 1
        for _ in range(60):
            await leader.append()
            await leader.log.head()
            image = Disk()
            for operation in disk.operations:
                image.apply(operation)
            files = image.image("dropped", Random(1))
            assert files is not None
            await holds(files, tmp_path / "cut", leader.position.sequence, "with a reader in the way")
    await leader.log.close()


def after_power_cuts(disk: RecordingVFS, start: int) -> list[tuple[int, dict[str, bytes]]]:
    """What the disk holds when the power fails at each moment from then on, and nothing unflushed survives."""
    image = Disk()
    cuts = []
    for position, operation in enumerate(disk.operations):
        if position >= start:
            files = image.image("dropped", Random(position))
            assert files is not None
            cuts.append((position, files))
        image.apply(operation)
    return cuts


async def holds(files: dict[str, bytes], directory: Path, last: int, what: str, *, suspect: bool = False) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    home = directory / SHARD
    home.mkdir(parents=True)
    for name, contents in files.items():
        (home / Path(name).name).write_bytes(contents)
    if suspect and not (home / "leases.db").exists():
        return  # Between the two renames; the marker that finishes them is not written through SQLite.
    if suspect:
        (home / "leases.suspect").write_bytes(b"made by a test\n")
    log = SqliteLog.open(directory, SHARD)
    assert (await log.verify()).position.sequence >= last, what
    log.abandon()


async def test_without_room_for_a_redo_file_the_log_goes_on_without_one(tmp_path: Path, disk: RecordingVFS) -> None:
    store = SqliteStore(tmp_path / "data", disk, STAYS)
    leader = await Leader.of(store.open())
    disk.room_bytes = 2 * STAYS.half_bytes + 20_000
    await leader.append()
    await through(leader)
    disk.heal()
    await leader.append_many(3)
    assert in_database(store) == [3, 6, 9, 12]
    assert not store.redo.exists()
    await leader.log.close()


async def test_a_database_without_room_closes_intake_and_loses_nothing(tmp_path: Path, disk: RecordingVFS) -> None:
    store = SqliteStore(tmp_path / "data", disk, STAYS)
    leader = await leader_with_redo(store)
    await leader.append_many(2)
    with store.out_of_room():
        with pytest.raises(LogUnavailable):
            await leader.log.head()
        frame = leader.frame()
        for _ in range(2):
            with pytest.raises(LogUnavailable):
                await leader.append(frame)
    await leader.append(frame)
    assert [each.last for each in await frames_of(leader.log)] == [3, 6, 9, 12]
    await leader.log.close()


# ----------------------------------------------------------------------- records


def chained(frames: list[Frame], link: Link) -> list[Frame]:
    linked = []
    chain = link.chain
    for frame in frames:
        chain = chain_of(chain, frame.data)
        linked.append(
            Frame(frame.first, frame.last, frame.count, frame.epoch, frame.generation, frame.time_ms, frame.data, chain)
        )
    return linked


@given(
    sizes=st.lists(st.integers(1, 9_000), min_size=1, max_size=8),
    overwritten=st.integers(0, 60_000),
    garbage=st.binary(min_size=1, max_size=600),
)
def test_whatever_is_written_over_frames_are_found_up_to_there_and_none_that_never_were(
    sizes: list[int], overwritten: int, garbage: bytes
) -> None:
    log_id, epoch = "a" * 32, 1
    start = Link(0, genesis_chain(SHARD, log_id), 1)
    made, first = [], 1
    for size in sizes:
        events = make_events(first, 2, body=b"x" * size)
        made.append(encode_frame(SHARD, log_id, 1, epoch, TIME_MS + first + 1, events))
        first += 2
    frames = chained(made, start)
    content, starts = bytearray(), []
    for frame in frames:
        starts.append(len(content))
        content += header_of(log_mark(log_id), frame, frame.chain) + frame.data
        content += bytes(padded(len(frame.data)) - HEADER_BYTES - len(frame.data))
    before = bytes(content)
    offset = overwritten % len(content)
    content[offset : offset + len(garbage)] = garbage[: len(content) - offset]

    found = frames_behind(bytes(content), read_records(bytes(content), log_id), start, shard=SHARD, log_id=log_id)
    whole = 0
    for begin, frame in zip(starts, frames, strict=True):
        end = begin + HEADER_BYTES + len(frame.data)
        if bytes(content[begin:end]) != before[begin:end]:
            break
        whole += 1
    assert len(found) >= whole
    assert [(frame.data, frame.chain) for frame in found] == [
        (frame.data, frame.chain) for frame in frames[: len(found)]
    ]
    assert all(begin % BLOCK_BYTES == 0 for begin in starts)
