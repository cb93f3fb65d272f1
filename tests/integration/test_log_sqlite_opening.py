"""What an SQLite log refuses to open: the place is named, nothing is altered, and accepting the loss is explicit."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from omnirelay.core.events import GenerationStarted
from omnirelay.errors import (
    DataLoss,
    InvalidArgument,
    LogDamaged,
    LogRegressed,
    LogSchemaTooNew,
    OmniRelayError,
)
from omnirelay.log import Frame, SqliteLog
from omnirelay.log.failpoints import armed
from omnirelay.log.witness import Witness, read_witness, write_witness
from omnirelay.testing.conformance import Leader, SimulatedCrash, frames_of
from tests.integration.log_sqlite import SHARD, SqliteStore, digest


async def four_frames(store: SqliteStore) -> Leader:
    """A log of 1..3, 4..6, 7..9, 10..12, closed."""
    leader = await Leader.of(store.open())
    await leader.append_many(4)
    await leader.log.close()
    return leader


def refused(store: SqliteStore, kind: type[OmniRelayError]) -> OmniRelayError:
    """Opening fails in this way, twice, and every byte of the directory is what it was."""
    before = digest(store.directory)
    for _ in range(2):
        with pytest.raises(kind) as refusal:
            store.open()
        assert type(refusal.value) is kind
        assert digest(store.directory) == before
    return refusal.value


# ----------------------------------------------------------------------- damage in the database

DAMAGES: dict[str, tuple[str, int]] = {
    "events of the last frame": ("UPDATE frames SET data = replace(data, 'orders', '0rders') WHERE last = 12", 10),
    "chain of the last frame": ("UPDATE frames SET chain = zeroblob(32) WHERE last = 12", 10),
    "short chain": ("UPDATE frames SET chain = x'00' WHERE last = 12", 10),
    "count of the last frame": ("UPDATE frames SET count = 2 WHERE last = 12", 10),
    "epoch of the last frame": ("UPDATE frames SET epoch = 9 WHERE last = 12", 10),
    "time of the last frame": ("UPDATE frames SET time_ms = 1 WHERE last = 12", 10),
    "last frame missing": ("DELETE FROM frames WHERE last = 12", 10),
    "frame before the last missing": ("DELETE FROM frames WHERE last = 9", 7),
    "chain of the frame before the last": ("UPDATE frames SET chain = zeroblob(32) WHERE last = 9", 10),
    "all frames missing": ("DELETE FROM frames", 1),
    "last frame renumbered": ("UPDATE frames SET last = 13 WHERE last = 12", 10),
    "head behind the last frame": ("UPDATE head SET last = 9", 10),
    "head ahead of the last frame": ("UPDATE head SET last = 15", 13),
    "chain of the head": ("UPDATE head SET chain = zeroblob(32)", 12),
    "generation of the head": ("UPDATE head SET generation = 7", 12),
    "time of the head": ("UPDATE head SET time_ms = 7", 12),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_end_is_refused_and_named(store: SqliteStore, damage: str) -> None:
    await four_frames(store)
    sql, sequence = DAMAGES[damage]
    store.execute(sql)
    refusal = refused(store, LogDamaged)
    assert refusal.details["sequence"] == sequence
    assert refusal.details["shard"] == SHARD


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM head",
        "DELETE FROM anchor",
        "UPDATE anchor SET chain = zeroblob(32)",
        "DELETE FROM meta WHERE key = 'log_id'",
        "UPDATE meta SET value = 'other' WHERE key = 'shard'",
    ],
)
async def test_a_database_without_its_identity_is_refused(store: SqliteStore, sql: str) -> None:
    await four_frames(store)
    store.execute(sql)
    refusal = refused(store, LogDamaged)
    assert refusal.details["file"] == str(store.database)


@pytest.mark.parametrize("sql", ["DROP TABLE frames", "DROP TABLE head", "PRAGMA application_id = 1", "PRAGMA user_version = 0"])
async def test_a_database_that_is_no_log_is_refused(store: SqliteStore, sql: str) -> None:
    await four_frames(store)
    with closing(sqlite3.connect(store.database)) as connection:
        connection.execute(sql)
    assert str(store.database) in refused(store, LogDamaged).message


@pytest.mark.parametrize("contents", [b"", b"no database at all" * 100])
async def test_a_file_that_is_no_database_is_refused(store: SqliteStore, contents: bytes) -> None:
    await four_frames(store)
    store.database.write_bytes(contents)
    refused(store, LogDamaged)


async def test_a_newer_schema_is_refused(store: SqliteStore) -> None:
    await four_frames(store)
    with closing(sqlite3.connect(store.database)) as connection:
        connection.execute("PRAGMA user_version = 99")
    refusal = refused(store, LogSchemaTooNew)
    assert (refusal.details["found"], refusal.details["expected"]) == (99, 1)
    with pytest.raises(LogSchemaTooNew):
        store.open(accept_loss=True)
    with pytest.raises(LogSchemaTooNew):
        store.open(read_only=True)


async def test_damage_further_back_is_found_by_reading_and_not_by_opening(store: SqliteStore) -> None:
    await four_frames(store)
    store.damage(6, "events")
    log = store.open()
    assert (await log.acquire("me")).position.sequence == 12
    with pytest.raises(LogDamaged) as refusal:
        await frames_of(log)
    assert refusal.value.details["sequence"] == 4
    await log.close()


async def test_a_refusal_after_a_crash_leaves_the_wal_as_it_is(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    await leader.append_many(3)
    store.crash(leader.log)
    witness = read_witness(store.witness)
    assert witness is not None
    ahead = Witness(SHARD, witness.log_id, 1, 99, witness.chain, witness.time)
    write_witness(store.witness, ahead)
    assert (store.root / "leases.db-wal").stat().st_size > 0
    assert refused(store, LogRegressed).details["found"] == 9


async def test_every_flipped_bit_of_the_last_row_is_refused_or_harmless(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    await leader.append()
    frame = await leader.append(leader.frame(1))
    await leader.log.close()
    contents = store.database.read_bytes()
    data = contents.rindex(frame.data)
    chain = contents.rindex(leader.position.chain, 0, data)
    accepted = []
    # From the cell's own header (sizes, row id, types) over the columns and the chain to the last byte of the data.
    for offset in range(chain - 48, data + len(frame.data)):
        altered = bytearray(contents)
        altered[offset] ^= 1 << (offset % 8)
        store.database.write_bytes(altered)
        before = digest(store.root)
        try:
            log = store.open()
        except DataLoss:
            assert digest(store.root) == before
        else:
            accepted.append(offset)
            frames = await frames_of(log)
            assert [read.data for read in frames][-1] == frame.data
            await log.close()
    # What may be flipped unseen lies before the row: free bytes of the page.
    assert all(offset < chain - 16 for offset in accepted)


# ----------------------------------------------------------------------- regression against the witness


async def test_a_log_behind_its_witness_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    leader = await four_frames(store)
    shutil.copy(store.database, tmp_path / "old.db")
    again = await Leader.of(store.open())
    await again.append()
    await again.log.close()
    shutil.copy(tmp_path / "old.db", store.database)
    refusal = refused(store, LogRegressed)
    assert refusal.details["expected"] == again.position.sequence == 15
    assert refusal.details["found"] == leader.position.sequence == 12
    assert refusal.details["sequence"] == 13


async def test_a_log_beside_its_witness_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    await four_frames(store)
    shutil.copytree(store.root, tmp_path / "fork")
    one = await Leader.of(store.open())
    await one.append()
    await one.log.close()
    other = await Leader.of(SqliteLog.open(tmp_path, "fork", shard=SHARD))
    await other.append(other.frame(body=b"another history"))
    await other.append()
    await other.log.close()
    shutil.copy(tmp_path / "fork" / "leases.db", store.database)
    refusal = refused(store, LogRegressed)
    assert (refusal.details["expected"], refusal.details["found"]) == (15, 18)


async def test_a_witness_inside_a_frame_is_beside_the_log(store: SqliteStore) -> None:
    await four_frames(store)
    witness = read_witness(store.witness)
    assert witness is not None
    write_witness(store.witness, Witness(SHARD, witness.log_id, 1, 11, witness.chain, 0))
    refused(store, LogRegressed)


async def test_a_witness_of_another_log_is_refused(store: SqliteStore) -> None:
    leader = await four_frames(store)
    write_witness(store.witness, Witness(SHARD, "other", 1, 3, leader.position.chain.hex(), 0))
    assert "belongs to log other" in refused(store, LogRegressed).message


async def test_a_witness_without_its_log_is_refused(store: SqliteStore) -> None:
    await four_frames(store)
    store.database.unlink()
    assert refused(store, LogRegressed).details["expected"] == 12
    assert not store.database.exists()


async def test_a_wal_without_its_database_is_refused(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    await leader.append()
    store.crash(leader.log)
    store.database.unlink()
    store.witness.unlink()
    refused(store, LogDamaged)


async def test_an_unreadable_witness_is_refused(store: SqliteStore) -> None:
    leader = await four_frames(store)
    store.witness.write_bytes(b"{}")
    assert refused(store, LogDamaged).details["file"] == str(store.witness)
    log = store.open(accept_loss=True)
    assert (await log.acquire("me")).unproven == "witness missing"
    assert (await log.head()).position == leader.position
    await log.close()


async def test_a_flipped_bit_in_the_wal_is_a_regression_that_the_witness_shows(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    frames = await leader.append_many(4)
    store.crash(leader.log)
    wal = store.root / "leases.db-wal"
    contents = bytearray(wal.read_bytes())
    witness = Witness(SHARD, leader.log.log_id, 1, 12, leader.position.chain.hex(), 0)
    write_witness(store.witness, witness)
    contents[contents.rindex(frames[-1].data) + 100] ^= 1
    wal.write_bytes(contents)
    (store.root / "leases.db-shm").unlink()
    assert refused(store, LogRegressed).details["found"] == 9


async def test_a_missing_witness_is_not_refused_but_history_is_unproven(store: SqliteStore) -> None:
    leader = await four_frames(store)
    store.witness.unlink()
    log = store.open()
    again = await Leader.of(log)
    assert (again.unproven, again.highest_known) == ("witness missing", 12)
    with pytest.raises(InvalidArgument):
        await again.append()
    await log.close()
    # The witness is back, but what it says was not proven either.
    assert read_witness(store.witness) is not None
    third = await Leader.of(store.open())
    assert third.unproven == "witness missing"
    await third.append(third.generation_start())
    await third.log.close()
    fourth = await Leader.of(store.open())
    assert (fourth.unproven, fourth.generation) == (None, leader.generation + 1)
    await fourth.append()
    await fourth.log.close()


async def test_a_witness_from_before_the_horizon_proves_nothing(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    await leader.append()
    await leader.log.close()
    old = store.witness.read_bytes()
    leader = await Leader.of(store.open())
    for _ in range(2):
        await leader.append_many(2)
        await leader.snapshot()
    await leader.log.trim(9, leader.epoch)
    await leader.log.close()
    store.witness.write_bytes(old)
    log = store.open()
    assert (await log.acquire("me")).unproven == "witness older than the oldest frame"
    await log.close()


async def test_trimming_takes_the_witness_along(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    for _ in range(2):
        await leader.append_many(2)
        await leader.snapshot()
    await leader.log.trim(6, leader.epoch)
    store.crash(leader.log)
    log = store.open()
    assert (await log.acquire("me")).unproven is None
    await log.close()


# ----------------------------------------------------------------------- accepting the loss


async def led(store: SqliteStore, log: SqliteLog) -> Leader:
    """Lead an accepted log: still unproven after a crash, then a generation, then like any other."""
    first = await Leader.of(log)
    assert first.unproven is not None
    assert first.unproven.startswith("accepted loss: ")
    store.crash(log)
    leader = await Leader.of(store.open())
    assert (leader.unproven, leader.highest_known) == (first.unproven, first.highest_known)
    with pytest.raises(InvalidArgument):
        await leader.append()
    start = leader.generation_start()
    assert start.first > first.highest_known
    await leader.append(start)
    await leader.append()
    await leader.log.close()
    again = await Leader.of(store.open())
    assert again.unproven is None
    assert (await again.log.verify()).position == leader.position
    await again.log.close()
    return first


@pytest.mark.parametrize("damage", DAMAGES)
async def test_an_accepted_loss_keeps_the_valid_prefix_and_the_old_file(store: SqliteStore, damage: str) -> None:
    leader = await four_frames(store)
    sql, _ = DAMAGES[damage]
    store.execute(sql)
    old = store.database.read_bytes()
    log = store.open(accept_loss=True)
    assert (store.root / "leases.db.damaged-1").read_bytes() == old
    assert not store.database.with_name("leases.db.new").exists()
    frames = await frames_of(log)
    assert [frame.last for frame in frames] == list(range(3, 3 * len(frames) + 1, 3))
    accepted = await led(store, log)
    assert accepted.highest_known >= leader.position.sequence
    assert accepted.position.sequence == 3 * len(frames)
    kept = {
        "frame before the last missing": 6,
        "chain of the frame before the last": 6,
        "all frames missing": 0,
    }
    of_the_head_only = damage.startswith(("head", "chain of the head", "generation", "time of the head"))
    assert accepted.position.sequence == kept.get(damage, 12 if of_the_head_only else 9)


async def test_damage_in_the_middle_can_be_accepted_too(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    await leader.append_many(2)
    early = await leader.snapshot()
    await leader.append_many(2)
    await leader.snapshot()
    await leader.log.close()
    store.damage(9, "events")
    log = store.open(accept_loss=True)
    # A snapshot beyond the valid prefix belongs to a history that no longer exists.
    assert await log.snapshots() == [early]
    accepted = await led(store, log)
    assert (accepted.position.sequence, accepted.highest_known) == (6, 12)


async def test_the_lost_part_is_known_even_from_a_file_sqlite_cannot_read(store: SqliteStore) -> None:
    await four_frames(store)
    store.witness.unlink()
    contents = bytearray(store.database.read_bytes())
    contents[:100] = bytes(100)
    store.database.write_bytes(contents)
    refused(store, LogDamaged)
    log = store.open(accept_loss=True)
    assert await frames_of(log) == []
    assert (await led(store, log)).highest_known == 12


async def test_a_log_that_is_gone_can_be_accepted_as_lost(store: SqliteStore) -> None:
    await four_frames(store)
    store.database.unlink()
    log = store.open(accept_loss=True)
    accepted = await led(store, log)
    assert (accepted.position.sequence, accepted.highest_known) == (0, 12)


async def test_a_regression_can_be_accepted_without_touching_the_frames(store: SqliteStore, tmp_path: Path) -> None:
    await four_frames(store)
    shutil.copy(store.database, tmp_path / "old.db")
    again = await Leader.of(store.open())
    await again.append_many(3)
    await again.log.close()
    shutil.copy(tmp_path / "old.db", store.database)
    log = store.open(accept_loss=True)
    assert not list(store.root.glob("*.damaged-*"))
    assert len(await frames_of(log)) == 4
    early = await Leader.of(log)
    early.generation += 1
    # 21 was a sequence of the lost history; nobody may get it again.
    start = GenerationStarted(sequence_number=21, timestamp=0, generation=2, reason="test", next_sequence_id=21)
    with pytest.raises(InvalidArgument) as refusal:
        await early.append(early.frame_of([start]))
    assert refusal.value.details["expected"] == 22
    accepted = await led(store, log)
    assert (accepted.position.sequence, accepted.highest_known) == (12, 21)


async def test_accepting_the_loss_of_a_whole_log_changes_nothing(store: SqliteStore) -> None:
    leader = await four_frames(store)
    before = store.database.read_bytes()
    log = store.open(accept_loss=True)
    assert store.database.read_bytes() == before
    acquired = await log.acquire("me")
    assert (acquired.unproven, acquired.position) == (None, leader.position)
    await log.close()


async def test_another_shards_log_is_no_loss_to_accept(store: SqliteStore) -> None:
    await four_frames(store)
    before = digest(store.root)
    with pytest.raises(LogDamaged):
        SqliteLog.open(store.directory, SHARD, shard="other", accept_loss=True)
    assert digest(store.root) == before


@pytest.mark.parametrize("point", ["copied", "marked", "moved_aside", "renamed"])
async def test_a_crash_at_any_step_of_a_recovery_can_be_recovered_from(store: SqliteStore, point: str) -> None:
    await four_frames(store)
    store.damage(12, "events")
    crash_in_recovery(f"log.recovery.{point}", lambda: store.open(accept_loss=True))
    if point == "copied":
        # Nothing was decided yet: the damage is still refused.
        with pytest.raises(LogDamaged):
            store.open()
        log = store.open(accept_loss=True)
    elif point == "renamed":
        # The new file is in place, only the old witness still speaks against it.
        with pytest.raises(LogRegressed):
            store.open()
        log = store.open(accept_loss=True)
    else:
        with pytest.raises(LogRegressed):
            store.open()
        log = store.open(accept_loss=True)
    assert [frame.last for frame in await frames_of(log)] == [3, 6, 9]
    assert not (store.root / "leases.replacement").exists()
    assert (await led(store, log)).highest_known == 12


def crash_in_recovery(point: str, recover: Callable[[], SqliteLog]) -> None:
    def crash() -> None:
        raise SimulatedCrash(point)

    with armed(point, crash), pytest.raises(SimulatedCrash):
        recover()


# ----------------------------------------------------------------------- after a failed flush


async def suspect(store: SqliteStore) -> tuple[Leader, Frame]:
    """A log that was given up in the middle of its third frame."""
    leader = await Leader.of(store.open())
    await leader.append_many(2)
    frame = leader.frame()
    with store.failing_flush(), pytest.raises(OmniRelayError):
        await leader.append(frame)
    assert (store.root / "leases.suspect").exists()
    return leader, frame


@pytest.mark.parametrize("ended", ["closed", "killed"])
async def test_after_a_failed_flush_the_log_is_copied_to_a_new_file(fragile: SqliteStore, ended: str) -> None:
    leader, frame = await suspect(fragile)
    if ended == "closed":
        await leader.log.close()
    else:
        fragile.crash(leader.log)
    inode = fragile.database.stat().st_ino
    log = fragile.open()
    assert fragile.database.stat().st_ino != inode
    assert (fragile.root / "leases.db.suspect-1").exists()
    assert not (fragile.root / "leases.suspect").exists()
    again = await Leader.of(log)
    assert again.unproven is None
    assert [read.last for read in await frames_of(log)] in ([3, 6], [3, 6, frame.last])
    await again.append()
    await log.close()
    await fragile.open().close()


async def test_a_suspect_log_that_is_damaged_is_refused(fragile: SqliteStore) -> None:
    leader, _ = await suspect(fragile)
    await leader.log.close()
    fragile.damage(3, "events")
    assert refused(fragile, LogDamaged).details["sequence"] == 1
    log = fragile.open(accept_loss=True)
    assert not (fragile.root / "leases.suspect").exists()
    await led(fragile, log)


@pytest.mark.parametrize("point", ["copied", "marked", "moved_aside", "renamed"])
async def test_a_crash_while_a_suspect_log_is_copied_loses_nothing(fragile: SqliteStore, point: str) -> None:
    leader, _ = await suspect(fragile)
    await leader.log.close()
    crash_in_recovery(f"log.recovery.{point}", fragile.open)
    log = fragile.open()
    assert [read.last for read in await frames_of(log)][:2] == [3, 6]
    assert (await log.acquire("me")).unproven is None
    assert not (fragile.root / "leases.suspect").exists()
    await log.close()
