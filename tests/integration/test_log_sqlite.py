"""The SQLite log: the conformance suite, and what only a file can have (locks, readers, the shell's view, the
WAL).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from omnirelay.core.events import Completed, Enqueue, Event, TimeAdvanced
from omnirelay.core.payload import OwnershipToken, Payload
from omnirelay.errors import InvalidArgument, LogDamaged, LogLocked, LogUnavailable
from omnirelay.log import SnapshotRecord, SqliteLog
from omnirelay.log.failpoints import armed
from omnirelay.log.snapshots import read_snapshot, write_snapshot
from omnirelay.log.sqlite import log as sqlite_log
from omnirelay.log.sqlite.redo_file import RedoPlan
from omnirelay.log.sqlite.writer import JOURNAL_BYTES_MAX
from omnirelay.log.witness import read_witness
from omnirelay.testing.conformance import EventLogConformance, Leader, SingleWriterConformance, frames_of
from omnirelay.testing.disk import RecordingVFS
from tests.integration.log_sqlite import SHARD, SqliteStore, digest
from tests.patience import PATIENCE_S


class TestSqliteLog(EventLogConformance):
    @pytest.fixture
    def store(self, fragile: SqliteStore) -> SqliteStore:
        return fragile


class TestSqliteLogWithRedo(SingleWriterConformance):
    """Through a redo file from the first frame on, settled after every few. While there is one, the lock keeps rivals
    away.
    """

    @pytest.fixture
    def store(self, tmp_path: Path, disk: RecordingVFS) -> SqliteStore:
        redo = RedoPlan(after_frames=1, half_bytes=256 * 1024, settle_bytes=8 * 1024, settle_s=0.0)
        return SqliteStore(tmp_path / "data", disk, redo)


# ----------------------------------------------------------------------- one writer, many readers


async def test_a_second_writer_is_locked_out_until_the_first_lets_go(store: SqliteStore) -> None:
    log = store.open()
    before = digest(store.root)
    with pytest.raises(LogLocked) as refusal:
        store.open()
    assert refusal.value.details["file"] == str(store.root / "leases.lock")
    assert digest(store.root) == before
    await log.close()
    await store.open().close()


async def test_a_reader_follows_a_writer_without_writing_anything(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    await leader.append_many(3)
    reader = SqliteLog.open(store.directory, SHARD, read_only=True)
    assert len(await frames_of(reader)) == 3
    await leader.append()
    before = digest(store.root)
    assert len(await frames_of(reader)) == 4
    assert (await reader.verify()).position == leader.position
    for action in (
        reader.acquire("me"),
        reader.append(leader.frame(), leader.position),
        reader.trim(1, leader.epoch),
        reader.add_snapshot(SnapshotRecord(12, leader.position.chain, "d", "p", 0, 0, 0, 0), leader.epoch),
    ):
        with pytest.raises(LogUnavailable, match="read-only"):
            await action
    await reader.close()
    assert digest(store.root) == before
    await leader.append()
    await leader.log.close()


async def test_reading_a_log_that_is_not_there_creates_nothing(store: SqliteStore) -> None:
    with pytest.raises(LogUnavailable):
        store.open(read_only=True)
    assert not store.directory.exists()


async def test_a_reader_that_stays_in_a_transaction_does_not_stop_the_writer(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    await leader.append()
    with closing(sqlite3.connect(f"file:{store.database}?mode=ro", uri=True)) as shell:
        shell.execute("BEGIN")
        assert shell.execute("SELECT last FROM head").fetchone() == (3,)
        for _ in range(12):
            await leader.append(leader.frame(2, body=b"x" * 1_000_000))
        assert shell.execute("SELECT last FROM head").fetchone() == (3,)
    assert leader.position.sequence == 27
    await leader.log.close()


async def test_the_wal_stays_bounded_while_much_is_written_and_read(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    for _ in range(60):
        await leader.append(leader.frame(2, body=b"x" * 1_500_000))
        async for _frame in leader.log.read(leader.position.sequence):
            pass
    counts = leader.log.statistics()
    assert counts.bytes > 100_000_000
    assert 0 < counts.wal_bytes < JOURNAL_BYTES_MAX
    assert counts.checkpoints > 5
    assert counts.checkpoint_failures == 0
    await leader.log.close()
    assert not (store.root / "leases.db-wal").exists()


@pytest.mark.parametrize("inline", [True, False])
async def test_an_append_does_not_hold_up_the_event_loop_behind_a_trim(
    store: SqliteStore, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "MAKE_WAY_S_MAX", PATIENCE_S)
    leader = await Leader.of(store.open())
    for _ in range(2):
        await leader.append_many(3)
        await leader.snapshot()
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        assert go_on.wait(30)

    with armed("log.trim.slice", hold):
        trim = asyncio.create_task(leader.log.trim(9, leader.epoch))
        assert await asyncio.to_thread(inside.wait, 30)
        append = asyncio.create_task(leader.append(inline=inline))
        # If the append waited on this thread, nothing could let the trim go on.
        await asyncio.sleep(0)
        leader.log.make_way()
        assert not append.done()
        go_on.set()
        await append
        await trim
    assert (await leader.log.verify()).position == leader.position
    await leader.log.close()


async def test_appends_pass_between_the_slices_of_a_trim(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    for _ in range(2):
        await leader.append_many(150)
        await leader.snapshot()
    slices = []
    with armed("log.trim.slice", lambda: slices.append(leader.position.sequence)):
        trim = asyncio.create_task(leader.log.trim(450, leader.epoch))
        while not trim.done():
            await leader.append()
    assert (await trim).sequence == 447
    assert len(set(slices)) > 1
    assert (await leader.log.verify()).position == leader.position
    await leader.log.close()


async def test_a_cancelled_append_can_be_asked_again(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    frame = leader.frame()
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        assert go_on.wait(30)

    with armed("log.append.before_commit", hold):
        append = asyncio.ensure_future(leader.log.append(frame, leader.position))
        assert await asyncio.to_thread(inside.wait, 30)
        append.cancel()
        with pytest.raises(asyncio.CancelledError):
            await append
        go_on.set()
        await leader.append(frame)
    assert len(await frames_of(leader.log)) == 1
    await leader.log.close()


@pytest.mark.parametrize("namespace", ["", ".", "..", "a/b", "/etc", "a\0b"])
def test_a_namespace_that_is_no_directory_name_is_refused(tmp_path: Path, namespace: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        SqliteLog.open(tmp_path, namespace)
    assert refusal.value.details["field"] == "namespace"
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_synchronous_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="FULL"):
        SqliteLog.open(tmp_path, "shard", synchronous="FUL")  # type: ignore[arg-type]


def test_a_directory_that_cannot_be_made_is_said_to_be_unavailable(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    with pytest.raises(LogUnavailable):
        SqliteLog.open(tmp_path / "data", "shard")


# ----------------------------------------------------------------------- witness


async def test_the_witness_is_written_at_creation_and_at_the_end(store: SqliteStore) -> None:
    log = store.open()
    created = read_witness(store.witness)
    assert created is not None
    assert (created.shard, created.log_id, created.sequence) == (SHARD, log.log_id, 0)
    leader = await Leader.of(log)
    await leader.append_many(2)
    await log.close()
    closed = read_witness(store.witness)
    assert closed is not None
    assert closed.position == leader.position
    assert log.statistics().witness_writes >= 1  # More when more than a second went by before.


async def test_the_witness_follows_the_last_append_and_is_never_ahead(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    written = asyncio.Event()
    loop = asyncio.get_running_loop()
    heads: list[int] = []

    def look() -> None:
        with closing(sqlite3.connect(f"file:{store.database}?mode=ro", uri=True)) as shell:
            heads.append(shell.execute("SELECT last FROM head").fetchone()[0])

    def tell() -> None:
        loop.call_soon_threadsafe(written.set)

    with (
        armed("log.witness.before_write", look),
        armed("log.witness.written", tell),
    ):
        for _ in range(2):
            await leader.append_many(3)
            # Between two of them it may have been written as well, when they took long.
            while (witness := read_witness(store.witness)) is None or witness.position != leader.position:
                await asyncio.wait_for(written.wait(), PATIENCE_S)
                written.clear()
            assert witness.sequence <= heads[-1]
    await leader.log.close()


async def test_a_witness_that_cannot_be_written_fails_no_append(tmp_path: Path) -> None:
    elsewhere = tmp_path / "other disk"
    elsewhere.mkdir()
    log = SqliteLog.open(tmp_path, "shard", witness=elsewhere / "witness")
    leader = await Leader.of(log)
    (elsewhere / "witness").unlink()
    elsewhere.rmdir()
    await leader.append()
    await log.close()
    assert log.statistics().witness_failures == 1
    log = SqliteLog.open(tmp_path, "shard", witness=elsewhere / "witness")
    acquired = await log.acquire("next")
    assert (acquired.position, acquired.unproven) == (leader.position, "witness missing")
    log.abandon()


# ----------------------------------------------------------------------- the shell, backups


async def test_any_sqlite_reads_the_events_as_rows(store: SqliteStore) -> None:
    leader = await Leader.of(store.open())
    token = OwnershipToken(sequence_id=1, attempt=1, lease_id="lease", fence=1)
    payload = Payload(resource_type="table", resource_id='größe "x"', body=b"\x00\xff")
    events: list[Event] = [
        Enqueue(sequence_number=1, timestamp=1_700_000_000_123, sequence_id=1, payload=payload),
        Completed(sequence_number=2, timestamp=1_700_000_000_456, ownership=token),
    ]
    newer = TimeAdvanced(sequence_number=3, timestamp=1_700_000_001_000, schema_version=2)
    await leader.append(leader.frame_of(events))
    await leader.append(leader.frame_of([newer]))
    with closing(sqlite3.connect(f"file:{store.database}?mode=ro", uri=True)) as shell:
        shell.row_factory = sqlite3.Row
        rows = [dict(row) for row in shell.execute("SELECT * FROM events")]
        resource = shell.execute("SELECT json_extract(event, '$.payload.resourceId') FROM events LIMIT 1").fetchone()[0]
    assert [{**row, "event": None} for row in rows] == [
        {
            "sequence_number": number,
            "event_type": kind,
            "timestamp": instant,
            "epoch": 1,
            "generation": 1,
            "schema_version": version,
            "sequence_id": item,
            "event": None,
        }
        for number, kind, instant, version, item in [
            (1, "Enqueue", "2023-11-14T22:13:20.123Z", 1, 1),
            (2, "Completed", "2023-11-14T22:13:20.456Z", 1, 1),
            (3, "TimeAdvanced", "2023-11-14T22:13:21.000Z", 2, None),
        ]
    ]
    assert resource == payload.resource_id
    await leader.log.close()


async def test_a_backup_takes_the_snapshot_files_along(store: SqliteStore, tmp_path: Path) -> None:
    leader = await Leader.of(store.open())
    paths = []
    for _ in range(3):
        await leader.append_many(2)
        paths.append((await leader.snapshot()).path)
    await leader.log.trim(12, leader.epoch)
    # Pruned meanwhile: the copy must not have a record of files that it lacks.
    for file in (store.root / paths[1]).iterdir():
        file.unlink()
    (store.root / paths[1]).rmdir()
    await leader.log.backup(tmp_path / "copy")
    await leader.log.close()
    copy = store.open_backup(tmp_path / "copy")
    (record,) = await copy.snapshots()
    assert record.path == paths[2]
    header, chunks = read_snapshot(tmp_path / "copy", record.path)
    assert (header, list(chunks)) == (b"the state after %d" % record.sequence, [])
    assert (await copy.verify()).anchor.sequence == 9
    await copy.close()


async def test_a_backup_that_cannot_be_written_leaves_nothing_behind(store: SqliteStore, tmp_path: Path) -> None:
    leader = await Leader.of(store.open())
    await leader.append()
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(LogUnavailable, match="backup"):
        await leader.log.backup(tmp_path / "file" / "copy")

    def fill_up() -> None:
        (tmp_path / "copy.partial" / "snapshots").write_text("in the way")

    await leader.snapshot()
    with armed("log.backup.copied", fill_up), pytest.raises(LogUnavailable, match="backup"):
        await leader.log.backup(tmp_path / "copy")
    assert sorted(os.listdir(tmp_path)) == ["data", "file"]
    await leader.log.backup(tmp_path / "copy")
    await leader.log.close()


async def test_a_backup_is_known_as_one_even_beside_a_witness_that_agrees(store: SqliteStore, tmp_path: Path) -> None:
    leader = await Leader.of(store.open())
    await leader.append_many(2)
    await leader.log.backup(tmp_path / "copy")
    await leader.log.close()
    shutil.copy(store.witness, tmp_path / "copy")
    copy = store.open_backup(tmp_path / "copy")
    acquired = await copy.acquire("me")
    assert (acquired.unproven, acquired.position) == ("restored backup", leader.position)
    await copy.close()


async def test_a_backup_of_a_trimmed_log_without_any_snapshot_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    leader = await Leader.of(store.open())
    for _ in range(2):
        await leader.append_many(2)
        await leader.snapshot()
    await leader.log.trim(6, leader.epoch)
    shutil.rmtree(store.root / "snapshots")
    with pytest.raises(LogUnavailable):
        await leader.log.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    await leader.log.close()


# ------------------------------------------------------------ what a trimmed log cannot do without


async def with_two_snapshots(store: SqliteStore) -> tuple[Leader, list[Path]]:
    leader = await Leader.of(store.open())
    paths = []
    for _ in range(2):
        await leader.append_many(2)
        paths.append(store.root / (await leader.snapshot()).path)
    return leader, paths


def remove(path: Path) -> Path:
    shutil.rmtree(path)
    return path / "manifest.json"


def alter(path: Path) -> Path:
    (path / "header").write_bytes(b"the state after 0")
    return path / "header"


def replace(path: Path) -> Path:
    """Whole by itself, but not what the log has a record of."""
    write_snapshot(path.parent.parent, int(path.name), b"another state", ())
    return path


@pytest.mark.parametrize("spoil", [remove, alter, replace])
async def test_verify_names_the_snapshot_file_without_which_a_trimmed_log_cannot_be_opened(
    store: SqliteStore, spoil: Callable[[Path], Path]
) -> None:
    leader, (older, newer) = await with_two_snapshots(store)
    await leader.log.trim(6, leader.epoch)
    spoiled = spoil(newer)
    assert (await leader.log.verify()).snapshots == 2  # The older one serves as well.
    spoil(older)
    with pytest.raises(LogDamaged, match="no snapshot says") as refusal:
        await leader.log.verify()
    assert refusal.value.details["file"] == str(spoiled)
    assert str(spoiled) in refusal.value.message
    await leader.log.close()


async def test_verify_needs_no_snapshot_while_the_log_reaches_back_to_its_beginning(store: SqliteStore) -> None:
    leader, _ = await with_two_snapshots(store)
    shutil.rmtree(store.root / "snapshots")
    assert (await leader.log.verify()).anchor.sequence == 0
    await leader.log.close()


# ---------------------------------------------------------------------------------- the event loop


async def test_a_slow_disk_is_not_for_the_event_loop(store: SqliteStore) -> None:
    def take_long() -> None:
        threading.Event().wait(0.02)

    leader = await Leader.of(store.open())
    with armed("log.append.begin", take_long):
        await leader.append_many(10)
    assert leader.log.append_now(leader.frame(), leader.position) is None
    await leader.log.close()


async def test_what_comes_next_is_decided_while_a_frame_is_written(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "MAKE_WAY_S_MAX", PATIENCE_S)
    leader = await Leader.of(store.open())
    begun = threading.Event()
    with armed("log.append.begin", begun.set):
        append = asyncio.create_task(leader.append())
        await asyncio.sleep(0)
        leader.log.make_way()
        # The loop goes on, perhaps for long, with code that never lets another thread into the interpreter.
        assert begun.is_set()
    await append
    leader.log.make_way()  # Nothing is under way, and nothing to wait for.
    await leader.log.close()


async def test_the_event_loop_does_not_wait_until_a_frame_is_hashed(store: SqliteStore) -> None:
    """It has answers to write meanwhile; only what would take long has to make way."""
    leader = await Leader.of(store.open())
    goes_on = threading.Event()

    def hashed() -> None:
        assert goes_on.wait(PATIENCE_S)

    with armed("log.append.begin", hashed):
        appended = leader.log.append(leader.frame(), leader.position)
        goes_on.set()
        await appended
    await leader.log.close()


async def test_an_append_that_never_begins_does_not_hold_up_the_event_loop(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "MAKE_WAY_S_MAX", threading.TIMEOUT_MAX)
    leader = await Leader.of(store.open())

    def fail() -> None:
        raise RuntimeError("before it begins")

    with armed("log.append.begin", fail):
        append = asyncio.create_task(leader.append())
        await asyncio.sleep(0)
        leader.log.make_way()
        with pytest.raises(RuntimeError, match="before it begins"):
            await append
    await leader.append()
    await leader.log.close()
