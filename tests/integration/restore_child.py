"""A process that restores a log and is killed on the way. Arguments: SEGMENTS DATA SHARD WHERE."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from omnirelay.replication import restoring
from omnirelay.replication.segment_origin import SegmentOrigin
from omnirelay.segments.local import LocalObjectStore


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(segments: Path, data: Path, shard: str, where: str) -> None:
    store = LocalObjectStore(segments)
    origin = await SegmentOrigin.open(store, shard)

    def progress(what: str, done: int, total: int) -> None:
        if what == where and done * 2 >= total:
            die()

    if where == "rename":
        # Only the last step gives the log its name: here it is whole, and still nowhere.
        setattr(restoring, "_put_in_place", die)  # noqa: B010
    await restoring.restore(origin, data, marks=store, progress=progress)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
