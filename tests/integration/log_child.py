"""Processes that work on a log until they are killed or run out of room. Run as `python log_child.py WHAT
DIRECTORY`.

Every acknowledged position goes to standard output as a line `sequence chain`, flushed at once.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path

from omnirelay.errors import LogUnavailable
from omnirelay.log import Position, SqliteLog
from omnirelay.log.failpoints import arm
from omnirelay.log.snapshots import write_snapshot
from omnirelay.log.sqlite.redo_file import RedoPlan
from omnirelay.testing.conformance import Leader

SHARD = "shard"


def acknowledge(position: Position) -> None:
    os.write(1, f"{position.sequence} {position.chain.hex()}\n".encode())


async def be_killed(directory: Path, point: str) -> None:
    """Append, snapshot, trim and back up in a loop; die without a word at the third pass of a failpoint."""
    passes = 0

    def pass_by() -> None:
        nonlocal passes
        passes += 1
        if passes == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    arm(point, pass_by)
    redo = RedoPlan(after_frames=2, half_bytes=64 * 1024, settle_s=0.0)
    leader = await Leader.of(SqliteLog.open(directory, SHARD, redo=redo))
    while True:
        for _ in range(5):
            await leader.append()
            acknowledge(leader.position)
        write_snapshot(directory / SHARD, leader.position.sequence, b"header", [b"chunk"])
        await leader.snapshot()
        snapshots = await leader.log.snapshots()
        if len(snapshots) > 2:
            await leader.log.trim(snapshots[1].sequence, leader.epoch)
        await leader.log.backup(directory / f"backup-{leader.position.sequence}")


async def run_out_of_room(directory: Path, _: str) -> None:
    """Let the kernel refuse to enlarge any file, and then allow it again."""
    leader = await Leader.of(SqliteLog.open(directory, SHARD))
    await leader.append()
    acknowledge(leader.position)
    limit = (directory / SHARD / "leases.db-wal").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    frame = leader.frame(50, body=b"x" * 4096)
    for _attempt in range(3):
        try:
            await leader.append(frame)
        except LogUnavailable:
            os.write(1, b"no room\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await leader.append(frame)
    acknowledge(leader.position)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    work = {"be_killed": be_killed, "run_out_of_room": run_out_of_room}[sys.argv[1]]
    asyncio.run(work(Path(sys.argv[2]), sys.argv[3]))
