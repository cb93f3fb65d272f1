"""A disk that fails when it is told to: an SQLite VFS over the real one.

    disk = FaultyDisk()
    log = SqliteLog.open(directory, "shard", vfs=disk.name)
    disk.full = True            # every write fails, as on a full disk
    disk.fail_sync_in(1)        # the next flush fails

Files written beside SQLite (witness, markers, snapshots) do not pass through it.
"""

from __future__ import annotations

import itertools
from types import TracebackType

import apsw

_numbers = itertools.count()


class FaultyDisk(apsw.VFS):
    """Counts writes and flushes and fails the ordered ones. Registered under `name` until `close`."""

    def __init__(self) -> None:
        self.name = f"omnirelay-faulty-{next(_numbers)}"
        super().__init__(self.name, "")
        self.full = False
        """While True every write fails with SQLITE_FULL."""
        self.writes = 0
        self.syncs = 0
        self._fail_write: int | None = None
        self._fail_sync: int | None = None

    def fail_write_in(self, writes: int) -> None:
        """Fail the write that is so many ahead, counted from 1; only that one."""
        self._fail_write = self.writes + writes

    def fail_sync_in(self, syncs: int) -> None:
        """Fail the flush that is so many ahead, counted from 1; only that one."""
        self._fail_sync = self.syncs + syncs

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _FaultyFile(self, name, flags)

    def check_write(self) -> None:
        self.writes += 1
        if self.full:
            raise apsw.exception_for(apsw.SQLITE_FULL)
        if self.writes == self._fail_write:
            raise apsw.exception_for(apsw.SQLITE_IOERR_WRITE)

    def check_sync(self) -> None:
        self.syncs += 1
        if self.syncs == self._fail_sync:
            raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)

    def close(self) -> None:
        """Forget the name. Files that are open stay usable."""
        self.unregister()

    def __enter__(self) -> FaultyDisk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.check_write()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.check_sync()
        super().xSync(flags)
