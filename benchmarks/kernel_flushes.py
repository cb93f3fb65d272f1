"""Durable means flushed: before anything is measured, count the flushes the log really does.

A short run goes through a VFS that counts syncs of the write-ahead log and compares them with the log's own
count of frames. The measured runs then use the plain VFS and the log's count.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import apsw

from omnirelay.core.payload import NewItem, Payload
from omnirelay.engine.shard import Shard
from omnirelay.log.sqlite import SqliteLog

CYCLES = 50


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
        super().__init__("omnirelay-counting", "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _CountingFile(self, name, flags)


def check_flushes(directory: Path) -> None:
    """Exit when there are fewer flushes than frames: no figure would mean anything."""
    frames, syncs = asyncio.run(_run(directory)) if not _running() else _in_thread(directory)
    print(f"flushes: {syncs} syncs of the write-ahead log for {frames} frames", flush=True)
    if syncs < frames:
        sys.exit("fewer flushes than frames: the log is not durable, nothing is measured")


def _running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(directory: Path) -> tuple[int, int]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(_run(directory))).result()


async def _run(directory: Path) -> tuple[int, int]:
    vfs = _CountingVFS()
    log = SqliteLog.open(directory, "flushes", vfs="omnirelay-counting")
    shard = await Shard.open(log)
    frames, syncs = log.statistics().frames, vfs.wal_syncs
    for number in range(CYCLES):
        await shard.enqueue(NewItem(payload=Payload(resource_type="table", resource_id=str(number))))
        [lease] = await shard.lease()
        await shard.complete(lease.token)
    counted = log.statistics().frames - frames, vfs.wal_syncs - syncs
    await shard.close()
    return counted
