"""A few thousand items through the kernel, with workers that crash and a process that is killed.

    python -m examples.demo [--items 3000] [--data DIR]

The work happens in a child process: it enqueues tables to compact, and eight workers lease, heartbeat, complete
and fail them. Some workers vanish in the middle of an item. Half way through, the whole child is killed with
SIGKILL and started again on the same log. At the end the log is verified and replayed, and what happened is told
from the log alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from examples.demo_story import Story, tell
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import Caller, NewItem, Payload
from omnirelay.engine.shard import Shard
from omnirelay.errors import FailedPrecondition
from omnirelay.log.sqlite import SqliteLog

NAMESPACE = "demo"
WORKERS = 8
POISON_EVERY = 211
OPTIONS = QueueOptions(lease_duration_ms=400, heartbeat_interval_ms=50, requeue_delay_ms=10, max_delivery_attempts=4)


# -- the child: a shard, a producer and workers ------------------------------------------------


async def serve(directory: Path, items: int, seed: int) -> None:
    shard = await Shard.open(SqliteLog.open(directory, NAMESPACE), options=OPTIONS, owner=f"demo-{os.getpid()}")
    chance = random.Random(seed)
    await produce(shard, items)
    workers = [asyncio.create_task(work(shard, f"worker-{n}", random.Random(chance.random()))) for n in range(WORKERS)]
    reporter = asyncio.create_task(report(shard))
    await until_done(shard)
    for task in (*workers, reporter):
        task.cancel()
    await asyncio.gather(*workers, reporter, return_exceptions=True)
    print("done", flush=True)
    await shard.close()


async def produce(shard: Shard, items: int) -> None:
    """Request ids make this safe to repeat: after a restart nothing comes in twice."""
    for start in range(0, items, 250):
        batch = [
            NewItem(
                payload=Payload(
                    resource_type="table",
                    resource_id=f"lake.table_{number}",
                    body=b'{"op":"compact"}',
                    attributes={"poison": "yes"} if number % POISON_EVERY == 0 else None,
                    request_id=f"compact-{number}",
                )
            )
            for number in range(start, min(start + 250, items))
        ]
        await shard.enqueue(batch)


async def work(shard: Shard, name: str, chance: random.Random) -> None:
    """Most items go well. Some fail and are retried, poisoned ones always do, and now and then a worker vanishes."""
    me = Caller(peer_id=name)
    while True:
        leases = await shard.lease(me, max_items=10, wait_ms=1_000)
        for lease in leases:
            if chance.random() < 0.01:
                await shard.heartbeat(lease.token, caller=me)
                break  # The worker is gone: this lease and the rest of its batch run out by themselves.
            try:
                if lease.payload.attributes:
                    await shard.fail(
                        lease.token, caller=me, reason="cannot read the manifest", error_code="demo.poison"
                    )
                elif chance.random() < 0.03:
                    await shard.fail(lease.token, caller=me, reason="object store timed out", error_code="demo.timeout")
                else:
                    await shard.complete(lease.token, caller=me)
            except FailedPrecondition:
                pass  # The lease ran out meanwhile: somebody else has the item now, and this answer was refused.


async def report(shard: Shard) -> None:
    while True:
        stats = await shard.stats()
        print(f"progress {stats.completed_count + stats.dead_letter_count}", flush=True)
        await asyncio.sleep(0.05)


async def until_done(shard: Shard) -> None:
    async for _ in shard.tail(shard.last_sequence + 1):
        stats = await shard.stats()
        if not stats.pending_count and not stats.active_lease_count:
            return


# -- the parent: kills the child once, and tells the story -------------------------------------


async def run_child(directory: Path, items: int, seed: int, kill_at: int | None) -> bool:
    """Run the child to its end, or kill it when that many items are done; true when it was killed."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.demo", "--serve", str(directory), "--items", str(items), "--seed", str(seed),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    async for line in child.stdout:
        word, _, number = line.decode().strip().partition(" ")
        if word == "progress":
            show_progress(int(number), items)
            if kill_at is not None and int(number) >= kill_at:
                child.send_signal(signal.SIGKILL)
                await child.wait()
                return True
        elif word == "done":
            show_progress(items, items)
    if await child.wait() != 0:
        sys.exit("the demo's child process failed; its error stands above")
    return False


def show_progress(done: int, items: int) -> None:
    if sys.stdout.isatty():
        bar = "#" * (40 * done // items)
        print(f"\r  [{bar:<40}] {done:,} of {items:,} items ended", end="", flush=True)


async def demo(directory: Path, items: int) -> None:
    started = time.monotonic()
    print(f"OmniRelay demo: {items:,} items, {WORKERS} workers that sometimes vanish, one kill -9 half way")
    killed = await run_child(directory, items, seed=1, kill_at=items // 2)
    print(f"\n  kill -9 of the process{'' if killed else ' came too late'}; starting again on the same log")
    await run_child(directory, items, seed=2, kill_at=None)
    print(f"\n  finished after {time.monotonic() - started:.1f} s\n")
    story: Story = await tell(directory, NAMESPACE)
    print(story.text())
    if not story.holds(items):
        sys.exit("something was lost or doubled: this is a bug")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=3_000, help="how many items to run (3000)")
    parser.add_argument("--data", type=Path, help="where to keep the log (a new temporary directory)")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.items < 1:
        parser.error("--items must be at least 1")
    if arguments.serve is not None:
        asyncio.run(serve(arguments.serve, arguments.items, arguments.seed))
        return
    directory = arguments.data or Path(tempfile.mkdtemp(prefix="omnirelay-demo-"))
    if (directory / NAMESPACE).exists():
        parser.error(f"{directory} has a demo log already; give another directory")
    asyncio.run(demo(directory, arguments.items))


if __name__ == "__main__":
    main()
