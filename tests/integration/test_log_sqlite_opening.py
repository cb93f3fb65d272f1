"""What an SQLite log refuses to open: the place is named, nothing is altered, and accepting the loss is
explicit.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from omnirelay.errors import (
    DataLoss,
    InvalidArgument,
    LogDamaged,
    LogRegressed,
    LogSchemaTooNew,
)
from omnirelay.log import SqliteLog
from omnirelay.log.witness import Witness, read_witness, write_witness
from omnirelay.testing.conformance import Leader, frames_of
from tests.integration.log_sqlite import DAMAGES, SHARD, SqliteStore, digest, four_frames, refused

# ----------------------------------------------------------------------- damage in the database


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


@pytest.mark.parametrize(
    "sql", ["DROP TABLE frames", "DROP TABLE head", "PRAGMA application_id = 1", "PRAGMA user_version = 0"]
)
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
    # From the cell's own header (sizes, row id, types) over the columns and the chain to the last byte of the
    # data.
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
    assert "saw event 15, the log ends at 12" in refusal.message


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


async def test_snapshots_without_their_database_are_refused(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    await leader.append()
    sequence = (await leader.snapshot()).sequence
    await leader.log.close()
    store.database.unlink()
    store.witness.unlink()
    assert f"after event {sequence} " in refused(store, LogDamaged).message
    assert not store.database.exists()
    leader = await Leader.of(store.open(accept_loss=True))
    assert leader.unproven is not None
    assert leader.highest_known == sequence
    await leader.log.close()


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
