"""What the tests of the SQLite log share: the store of the conformance suite, and ways to look at its
files.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import apsw
import pytest

from omnirelay.errors import OmniRelayError
from omnirelay.log import EventLog, SqliteLog
from omnirelay.log.sqlite.redo_file import RedoPlan
from omnirelay.log.sqlite.upkeep import DEFAULT_REDO
from omnirelay.testing.conformance import Leader, LogStore, Region
from omnirelay.testing.disk import RecordingVFS

SHARD: Final = LogStore.shard

_DAMAGE: Final[dict[Region, str]] = {
    "header": """UPDATE frames SET data = replace(data, '"epoch":1', '"epoch":2') WHERE last = ?""",
    "events": "UPDATE frames SET data = replace(data, 'orders', '0rders') WHERE last = ?",
    "chain": "UPDATE frames SET chain = zeroblob(32) WHERE last = ?",
    "first": "UPDATE frames SET first = first + 1 WHERE last = ?",
    "count": "UPDATE frames SET count = count - 1 WHERE last = ?",
    "epoch": "UPDATE frames SET epoch = epoch + 1 WHERE last = ?",
    "generation": "UPDATE frames SET generation = generation + 1 WHERE last = ?",
    "time": "UPDATE frames SET time_ms = time_ms + 1 WHERE last = ?",
    "row": "DELETE FROM frames WHERE last = ?",
}


class SqliteStore(LogStore):
    """A log below a directory; with a `disk` on one that can be told to fail."""

    def __init__(self, directory: Path, disk: RecordingVFS | None = None, redo: RedoPlan = DEFAULT_REDO) -> None:
        self.directory = directory
        self.root = directory / self.shard
        self.database = self.root / "leases.db"
        self.witness = self.root / "leases.witness"
        self.disk = disk
        self.redo = self.root / "leases.redo"
        self._plan = redo
        self._vfs = disk.name if disk is not None else None

    def open(self, *, accept_loss: bool = False, read_only: bool = False) -> SqliteLog:
        return SqliteLog.open(
            self.directory,
            self.shard,
            accept_loss=accept_loss,
            read_only=read_only,
            vfs=self._vfs,
            redo=self._plan,
        )

    def rival(self) -> EventLog:
        return SqliteLog.open(self.directory, self.shard, lock=False, vfs=self._vfs)

    def crash(self, log: EventLog) -> None:
        assert isinstance(log, SqliteLog)
        log.abandon()

    def damage(self, last: int, region: Region) -> None:
        self.execute(_DAMAGE[region], last)

    @contextmanager
    def out_of_room(self) -> Iterator[None]:
        assert self.disk is not None
        self.disk.fail_write(1, code=apsw.SQLITE_FULL, lasting=True)
        yield
        assert self.disk.failures
        self.disk.heal()

    @contextmanager
    def failing_flush(self) -> Iterator[None]:
        assert self.disk is not None
        self.disk.fail_sync(1)
        yield
        assert self.disk.failures == 1
        self.disk.heal()

    def open_backup(self, path: Path) -> EventLog:
        return SqliteLog.open(path.parent, path.name, shard=self.shard)

    def open_damaged(self) -> EventLog:
        return self.open(read_only=True)

    def execute(self, sql: str, *values: object) -> None:
        """Change the database behind the log's back, with the SQLite of the standard library."""
        with closing(sqlite3.connect(self.database)) as connection, connection:
            changed = connection.execute(sql, values).rowcount
        assert changed, f"{sql} changed nothing"


def digest(directory: Path) -> dict[str, str]:
    """A hash of every file below a directory.

    Left out is what holds nothing of its own: SQLite's shared memory, an index of the WAL that any reader may rebuild,
    and a WAL that is empty, which stays or goes with whoever is the last to close.
    """
    contents = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm")
    }
    return {
        name: hashlib.sha256(data).hexdigest() for name, data in contents.items() if data or not name.endswith("-wal")
    }


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
"""Ways to damage the end of the log that `four_frames` makes, and the sequence a refusal names."""


async def four_frames(store: SqliteStore) -> Leader:
    """A log of 1..3, 4..6, 7..9, 10..12, closed."""
    leader = await Leader.of(store.open())
    await leader.append_many(4)
    await leader.log.close()
    return leader


def refused(store: SqliteStore, kind: type[OmniRelayError]) -> OmniRelayError:
    """Opening fails in this way, twice, and every byte of the directory is what it was."""
    before = digest(store.directory)
    with pytest.raises(kind) as first:
        store.open()
    assert digest(store.directory) == before
    with pytest.raises(kind) as second:
        store.open()
    assert digest(store.directory) == before
    assert type(first.value) is type(second.value) is kind
    assert first.value.details == second.value.details
    return first.value
