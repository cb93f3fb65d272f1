"""The model of the disk itself: what it may forget and what it must not."""

from __future__ import annotations

from pathlib import Path
from random import Random

import apsw
import pytest

from omnirelay.testing.disk import (
    Appeared,
    Deleted,
    Disk,
    Operation,
    Outcome,
    Rearranged,
    RecordingVFS,
    Synced,
    SyncFailed,
    Truncated,
    Wrote,
)

NEW = Appeared(1, "/d/a.db-wal", None)


def after(*operations: Operation, outcome: Outcome = "dropped", seed: int = 0) -> dict[str, bytes] | None:
    disk = Disk()
    for operation in operations:
        disk.apply(operation)
    return disk.image(outcome, Random(seed))


def test_what_was_not_flushed_is_gone_and_so_is_the_name_of_a_new_file() -> None:
    assert after(NEW, Wrote(1, 0, b"ab")) == {}
    assert after(NEW, Wrote(1, 0, b"ab"), outcome="kept") == {"/d/a.db-wal": b"ab"}
    assert after(NEW, Wrote(1, 0, b"ab"), Synced(1, True), Wrote(1, 2, b"cd")) == {"/d/a.db-wal": b"ab"}
    assert after(NEW, Wrote(1, 0, b"ab"), Synced(1, False)) == {}, "only the contents were flushed"


def test_a_write_beyond_the_end_leaves_zeros_and_a_truncate_can_be_forgotten_too() -> None:
    written = (NEW, Wrote(1, 2, b"cd"), Synced(1, True), Truncated(1, 1))
    assert after(*written) == {"/d/a.db-wal": b"\0\0cd"}
    assert after(*written, outcome="kept") == {"/d/a.db-wal": b"\0"}


def test_a_write_is_torn_between_sectors_only() -> None:
    assert after(NEW, Wrote(1, 0, b"x" * 512), outcome="torn") is None
    assert after(NEW, Wrote(1, 0, b"x" * 900), Synced(1, True), outcome="torn") is None
    sizes = set()
    for seed in range(40):
        image = after(NEW, Wrote(1, 300, b"x" * 1_200), outcome="torn", seed=seed)
        assert image is not None
        sizes.add(len(image["/d/a.db-wal"]))
    assert sizes == {512, 1_024}


def test_a_deleted_name_comes_back_unless_the_directory_was_flushed() -> None:
    written = (NEW, Wrote(1, 0, b"ab"), Synced(1, True))
    assert after(*written, Deleted("/d/a.db-wal", False)) == {"/d/a.db-wal": b"ab"}
    assert after(*written, Deleted("/d/a.db-wal", False), outcome="kept") == {}
    assert after(*written, Deleted("/d/a.db-wal", True)) == {}
    assert after(*written, Rearranged({"/d/b": 1})) == {"/d/b": b"ab"}


def test_what_a_failed_flush_left_behind_is_not_saved_by_the_next_one() -> None:
    failed = (NEW, Wrote(1, 0, b"aa"), Synced(1, True), Wrote(1, 0, b"bb"), SyncFailed(1), Wrote(1, 2, b"cc"))
    assert after(*failed, Synced(1, False)) == {"/d/a.db-wal": b"aacc"}
    assert after(*failed, Synced(1, False), outcome="kept") == {"/d/a.db-wal": b"bbcc"}


def test_a_subset_is_any_of_what_was_not_flushed_in_any_order() -> None:
    seen = set()
    for seed in range(200):
        image = after(
            NEW, Synced(1, True), Wrote(1, 0, b"a"), Wrote(1, 0, b"b"), Wrote(1, 1, b"c"), outcome="subset", seed=seed
        )
        assert image is not None
        seen.add(image["/d/a.db-wal"])
    assert seen == {b"", b"a", b"b", b"ac", b"bc", b"\0c"}


def test_the_record_of_a_real_database_gives_its_files_back(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with RecordingVFS() as vfs:
        connection = apsw.Connection(str(path), vfs=vfs.name)
        connection.execute("PRAGMA journal_mode = WAL; CREATE TABLE t (x); INSERT INTO t VALUES (1), (2)").fetchall()
        disk = Disk()
        for operation in vfs.operations:
            disk.apply(operation)
        files = {str(file): file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")}
        assert disk.image("kept", Random(0)) == files
        assert set(files) == {str(path), f"{path}-wal"}
        connection.close()


@pytest.mark.parametrize(
    ("code", "kind"),
    [(apsw.SQLITE_IOERR_WRITE, apsw.IOError), (apsw.SQLITE_FULL, apsw.FullError)],
    ids=["write", "full"],
)
def test_a_write_fails_once_or_until_the_disk_is_mended(tmp_path: Path, code: int, kind: type[apsw.Error]) -> None:
    with RecordingVFS() as vfs:
        connection = apsw.Connection(str(tmp_path / "a.db"), vfs=vfs.name)
        connection.execute("PRAGMA journal_mode = WAL; CREATE TABLE t (x)").fetchall()
        vfs.fail_write(1, code=code)
        with pytest.raises(kind):
            connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("INSERT INTO t VALUES (2)")
        vfs.fail_write(2, code=code, lasting=True)
        for _ in range(2):
            with pytest.raises(kind):
                connection.execute("INSERT INTO t VALUES (3)")
        vfs.heal()
        connection.execute("INSERT INTO t VALUES (4)")
        assert [row[0] for row in connection.execute("SELECT x FROM t")] == [2, 4]
        assert vfs.failures == 3
        connection.close()


def test_a_flush_fails_with_its_own_code(tmp_path: Path) -> None:
    with RecordingVFS() as vfs:
        connection = apsw.Connection(str(tmp_path / "a.db"), vfs=vfs.name)
        connection.execute("PRAGMA journal_mode = WAL; CREATE TABLE t (x)").fetchall()
        vfs.fail_sync(1)
        with pytest.raises(apsw.IOError) as failed:
            connection.execute("INSERT INTO t VALUES (1)")
        assert getattr(failed.value, "extendedresult", None) == apsw.SQLITE_IOERR_FSYNC
        assert isinstance(vfs.operations[-1], SyncFailed)
        connection.close()
