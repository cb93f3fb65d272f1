"""Durable means flushed: before anything is measured, count the flushes the log really does.

A short run goes through a VFS that counts syncs of the write-ahead log, and through a redo file that counts writes to a
descriptor that flushes each (which is looked up in /proc); both together are compared with the log's own count of
frames. The measured runs then use the plain disk and the log's count.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw

from omnirelay.core.payload import NewItem, Payload
from omnirelay.engine.shard import Shard
from omnirelay.log.sqlite import SqliteLog
from omnirelay.log.sqlite.redo_disk import OsRedoFile
from omnirelay.log.sqlite.redo_file import RedoFile, stand_ins

CYCLES = 50
VFS = "omnirelay-counting"


class _CountingFile(apsw.VFSFile):
    def __init__(self, vfs: _CountingVFS, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._vfs = vfs
        self._is_wal = bool(flags[0] & apsw.SQLITE_OPEN_WAL)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        if self._is_wal:
            self._vfs.wal_syncs += 1


class _CountingVFS(apsw.VFS):
    def __init__(self) -> None:
        self.wal_syncs = 0
        self.redo_writes = 0
        super().__init__(VFS, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _CountingFile(self, name, flags)

    def make_redo(self, path: Path, size: int) -> RedoFile:
        return _CountingRedo(self, path, size)


class _CountingRedo:
    def __init__(self, vfs: _CountingVFS, path: Path, size: int) -> None:
        self._vfs = vfs
        self._file = OsRedoFile(path, size)
        self._flushes = _flushes_each_write(path)

    def write(self, offset: int, parts: Sequence[bytes]) -> None:
        self._file.write(offset, parts)
        self._vfs.redo_writes += self._flushes

    def close(self) -> None:
        self._file.close()


def _flushes_each_write(path: Path) -> bool:
    """Whether all that this process may write with to a file returns only when the bytes are on the disk."""
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == str(path.resolve()):
                descriptors.append(int(name))
        except FileNotFoundError:
            continue  # That of the listing itself.
    flags = [fcntl.fcntl(descriptor, fcntl.F_GETFL) for descriptor in descriptors]
    return bool(flags) and all(each & os.O_DSYNC for each in flags)


def check_flushes(directory: Path) -> None:
    """Exit when there are fewer flushes than frames: no figure would mean anything."""
    frames, syncs, writes = asyncio.run(_run(directory)) if not _running() else _in_thread(directory)
    print(f"flushes: {syncs} of the write-ahead log and {writes} of the redo file for {frames} frames", flush=True)
    if syncs + writes < frames:
        sys.exit("fewer flushes than frames: the log is not durable, nothing is measured")


def _running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(directory: Path) -> tuple[int, int, int]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(_run(directory))).result()


async def _run(directory: Path) -> tuple[int, int, int]:
    vfs = _CountingVFS()
    stand_ins[VFS] = vfs.make_redo
    log = SqliteLog.open(directory, "flushes", vfs=VFS)
    shard = await Shard.open(log)
    frames, syncs, writes = log.statistics().frames, vfs.wal_syncs, vfs.redo_writes
    for number in range(CYCLES):
        await shard.enqueue(NewItem(payload=Payload(resource_type="table", resource_id=str(number))))
        [lease] = await shard.lease()
        await shard.complete(lease.token)
    counted = log.statistics().frames - frames, vfs.wal_syncs - syncs, vfs.redo_writes - writes
    await shard.close()
    del stand_ins[VFS]
    return counted
