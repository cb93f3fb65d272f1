"""What the tests of the SQLite log share: the store of the conformance suite, and ways to look at its files."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import apsw

from omnirelay.log import EventLog, SqliteLog
from omnirelay.testing.conformance import LogStore, Region
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

    def __init__(self, directory: Path, disk: RecordingVFS | None = None) -> None:
        self.directory = directory
        self.root = directory / self.shard
        self.database = self.root / "leases.db"
        self.witness = self.root / "leases.witness"
        self.disk = disk
        self._vfs = disk.name if disk is not None else None

    def open(self, *, accept_loss: bool = False, read_only: bool = False) -> SqliteLog:
        return SqliteLog.open(
            self.directory, self.shard, accept_loss=accept_loss, read_only=read_only, vfs=self._vfs
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

    async def open_damaged(self) -> EventLog:
        return self.open(read_only=True)

    def execute(self, sql: str, *values: object) -> None:
        """Change the database behind the log's back, with the SQLite of the standard library."""
        with closing(sqlite3.connect(self.database)) as connection, connection:
            changed = connection.execute(sql, values).rowcount
        assert changed, f"{sql} changed nothing"


def digest(directory: Path) -> dict[str, str]:
    """A hash of every file below a directory.

    Left out is SQLite's shared memory: an index of the WAL that holds nothing of its own and that any reader may
    rebuild.
    """
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm")
    }
