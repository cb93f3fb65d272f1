"""The data fabric of the demo: handlers that a worker process runs, and the store they write to.

    python -m examples.demo_fabric URL STORE NAME SEED

Tables are compacted, shards are owned one at a time, and a saga moves in three steps, each the follow-up of the one
before. Every write carries the fence of its lease, and the store refuses a fence lower than the highest it has seen.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import sys
from pathlib import Path

from omnirelay import GiveUp, Handlers, ItemSpec, Job, Retry, Worker

NAMESPACE = "fabric"
CRASH = 0.004
TIMEOUT = 0.04

handlers = Handlers()


class FencedStore:
    """A store that compares fences: what a zombie writes is refused, however late it wakes up."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._database.execute(
            "create table if not exists written (resource text primary key, fence integer, writes integer)"
        )
        self._database.execute("create table if not exists refused (resource text, fence integer)")

    def write(self, resource: str, fence: int) -> bool:
        cursor = self._database.execute(
            "insert into written values (?, ?, 1) on conflict (resource) do update"
            " set fence = excluded.fence, writes = writes + 1 where excluded.fence >= fence",
            (resource, fence),
        )
        if cursor.rowcount == 0:
            self._database.execute("insert into refused values (?, ?)", (resource, fence))
        return cursor.rowcount == 1

    def counts(self) -> tuple[int, int]:
        """Writes taken and refused."""
        (taken,) = self._database.execute("select coalesce(sum(writes), 0) from written").fetchone()
        (refused,) = self._database.execute("select count(*) from refused").fetchone()
        return taken, refused


store: FencedStore
chance = random.Random()


def misfortune() -> None:
    """Now and then a worker dies in the middle of its work, or something it needs does not answer."""
    if chance.random() < CRASH:
        os._exit(137)
    if chance.random() < TIMEOUT:
        raise Retry("object store timed out", error_code="demo.timeout", delay_ms=20)


def write(job: Job) -> None:
    if not store.write(f"{job.resource_type}/{job.resource_id}", job.fence):
        raise GiveUp("a later owner has written already", error_code="demo.fenced")


@handlers.handle("table")
async def compact(job: Job) -> dict[str, int]:
    if job.attributes.get("manifest") == "broken":
        raise GiveUp("cannot read the manifest", error_code="demo.poison")
    misfortune()
    await asyncio.sleep(0.02)
    write(job)
    return {"files": 42}


@handlers.handle("shard")
def own(job: Job) -> None:
    """In a thread: reads a shard in steps, and goes on where an earlier owner stopped."""
    done = int((job.progress.data or 0) if job.progress is not None else 0)
    for step in range(done, 5):
        job.check()
        if job.wait_stopped(0.03):
            continue
        job.report(fraction=(step + 1) / 5, data=step + 1)


@handlers.handle("stuck")
async def wait_for_ever(job: Job) -> None:
    """Nobody ends this one but a cancellation."""
    await asyncio.sleep(3_600)


@handlers.handle("saga.*")
async def step_of_saga(job: Job) -> None:
    misfortune()
    steps = {"saga.reserve": "saga.transfer", "saga.transfer": "saga.confirm"}
    following = steps.get(job.resource_type)
    if following is not None:
        job.follow_up(ItemSpec(resource_type=following, resource_id=job.resource_id))
    await asyncio.sleep(0.005)


@handlers.handle("view")
async def rebuild(job: Job) -> None:
    """Long enough that a worker which is stopped meanwhile comes back as a zombie, and tries to write all the same."""
    job.report(message="reading")
    try:
        await asyncio.sleep(2)
    finally:
        store.write(f"view/{job.resource_id}", job.fence)


async def main(url: str, path: Path, name: str, seed: int) -> None:
    global store
    store = FencedStore(path)
    chance.seed(seed)
    worker = Worker(handlers, url=url, namespace=NAMESPACE, peer_id=name, concurrency=6, guard_ms=50)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
