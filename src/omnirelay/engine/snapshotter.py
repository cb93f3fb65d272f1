"""Making a snapshot, in a process of its own so that the shard goes on meanwhile.

The helper starts from the last snapshot, replays the frames after it, writes the result, reads it back
from the disk and compares digests. What it prints is the record for the log:

    python -m omnirelay.engine.snapshotter DIRECTORY NAMESPACE SHARD TIME_MS NICENESS
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from omnirelay.core.snapshot import digest, dump, load
from omnirelay.engine.recovery import rebuild, snapshot_directory
from omnirelay.errors import InvalidArgument, LogDamaged, OmniRelayError, Unavailable
from omnirelay.log.base import EventLog, SnapshotRecord
from omnirelay.log.failpoints import hit
from omnirelay.log.snapshots import read_snapshot, write_snapshot
from omnirelay.log.sqlite import SqliteLog

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

SNAPSHOT_FAILED: Final = "error.log.snapshot_failed"


async def make_snapshot(log: EventLog, created_ms: int) -> SnapshotRecord:
    """Snapshot the log as it stands; LogDamaged when what was written does not read back the same."""
    directory = snapshot_directory(log)
    if directory is None:
        raise InvalidArgument("this log keeps no snapshot files", field="log")
    recovered = await rebuild(log)
    state = recovered.state
    if state.sequence == 0:
        raise InvalidArgument("an empty log has nothing to snapshot", field="log")
    header, chunks = dump(state)
    running = sha256(header)
    path, size = write_snapshot(directory, state.sequence, header, _hashed(chunks, running))
    expected = running.hexdigest()
    hit("engine.snapshot.written")
    found = digest(load(*read_snapshot(directory, path)))
    if found != expected:
        raise LogDamaged(f"the snapshot at {state.sequence} reads back with another digest", sequence=state.sequence)
    return SnapshotRecord(
        sequence=state.sequence,
        chain=recovered.position.chain,
        digest=expected,
        path=path,
        created_ms=created_ms,
        events=len(state.items),
        size=size,
        highest_fence=state.sequence,
    )


def _hashed(chunks: Iterable[bytes], running: Hash) -> Iterator[bytes]:
    """The chunks, each taken into the digest on its way to the disk: making them twice would cost as much again."""
    for chunk in chunks:
        running.update(chunk)
        yield chunk


async def make_snapshot_in_helper(log: EventLog, created_ms: int, *, niceness: int = 0) -> SnapshotRecord:
    """The same in another process; the log is opened there read-only. `niceness` is added to that of this process.

    Raises Unavailable `error.log.snapshot_failed` when that process cannot be started or fails.
    """
    directory = snapshot_directory(log)
    if directory is None:
        raise InvalidArgument("this log keeps no snapshot files", field="log")
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "omnirelay.engine.snapshotter",
            os.fspath(directory.parent),
            directory.name,
            log.shard,
            str(created_ms),
            str(niceness),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # The helper imports what this process imports, however that came onto the path.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except OSError as error:
        # No memory, no process or no file descriptor left, or the interpreter was replaced under a running node.
        raise Unavailable(f"the snapshot helper cannot be started: {error}", code=SNAPSHOT_FAILED) from error
    try:
        output, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise Unavailable(
            f"the snapshot helper failed with {process.returncode}: {errors.decode(errors='replace')[-500:]}",
            code=SNAPSHOT_FAILED,
        )
    return msgspec.json.decode(output, type=SnapshotRecord)


async def _main(directory: Path, namespace: str, shard: str, created_ms: int) -> None:
    gc.disable()  # One pass over a state that is thrown away at the end: collecting would only cost.
    log = SqliteLog.open(directory, namespace, shard=shard, read_only=True)
    try:
        record = await make_snapshot(log, created_ms)
    finally:
        await log.close()
    sys.stdout.buffer.write(msgspec.json.encode(record))


if __name__ == "__main__":
    os.nice(int(sys.argv[5]))
    try:
        asyncio.run(_main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])))
    except OmniRelayError as error:
        sys.exit(f"{error.code}: {error.message}")
