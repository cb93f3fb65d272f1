"""The node is killed and started again under workers and producers, again and again.

Nobody is restarted but the node. In the end every item that was acknowledged has been completed once, none was enqueued
twice, no handler ran beside another one of the same item, and every worker is at work.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from omnirelay.client.client import Client, ItemSpec
from omnirelay.worker.handlers import Handlers
from omnirelay.worker.job import Job
from omnirelay.worker.worker import Worker
from tests.integration.http_sockets import until
from tests.integration.node_process import NodeProcess
from tests.patience import PATIENCE_MS, PATIENCE_S
from tests.property.strategies import LONG

WORKERS = 8
PRODUCERS = 4
KILLS = 60 if LONG else 3
SEED = 3


class Runs:
    """When handlers ran, by item."""

    def __init__(self) -> None:
        self.by_item: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        self.random = Random(SEED)
        self.handlers = Handlers()
        self.handlers.handle("job")(self.run)

    async def run(self, job: Job) -> str:
        started = time.monotonic()
        try:
            await asyncio.sleep(self.random.choice((0, 0.002, 0.02, 0.2, 0.5)))
        finally:
            self.by_item[job.sequence_id].append((started, time.monotonic()))
        return job.resource_id

    def beside_each_other(self) -> list[tuple[int, list[tuple[float, float]]]]:
        found = []
        for item, runs in self.by_item.items():
            runs.sort()
            if any(later[0] < earlier[1] for earlier, later in pairwise(runs)):
                found.append((item, runs))
        return found


async def produce(url: str, number: int, stop: asyncio.Event, accepted: dict[str, int]) -> None:
    """Enqueue until told to stop. What raises is not in `accepted`, and may be in the node or not."""
    async with Client(url, timeout_ms=PATIENCE_MS) as client:
        for round_ in range(1_000_000):
            if stop.is_set():
                return
            names = [f"{number}-{round_}-{each}" for each in range(5)]
            results = await client.enqueue_many([ItemSpec(resource_type="job", resource_id=name) for name in names])
            accepted.update({name: result.sequence_id for name, result in zip(names, results, strict=True)})
            await asyncio.sleep(0.02)


@pytest.mark.timeout(1_800 if LONG else 600)
async def test_the_node_is_killed_under_workers_and_producers_again_and_again(tmp_path: Path) -> None:
    runs = Runs()
    random = Random(SEED)
    accepted: dict[str, int] = {}
    stop = asyncio.Event()
    # A worker stops by itself half a lease before another may begin: so long the machine may stand still.
    with NodeProcess(tmp_path, lease_duration_ms=8_000, heartbeat_interval_ms=300) as node:
        workers = [
            Worker(runs.handlers, url=node.url, peer_id=f"w{number}", concurrency=4, guard_ms=4_000)
            for number in range(WORKERS)
        ]
        working = [asyncio.ensure_future(worker.run()) for worker in workers]
        producing = [asyncio.ensure_future(produce(node.url, number, stop, accepted)) for number in range(PRODUCERS)]
        for _ in range(KILLS):
            await asyncio.sleep(random.random() * 1.5)
            await asyncio.to_thread(node.kill)
            if random.random() < 0.5:
                await asyncio.sleep(random.random() * 0.5)
            await asyncio.to_thread(node.start)
        stop.set()
        await asyncio.wait_for(asyncio.gather(*producing), PATIENCE_S)
        async with Client(node.url) as client:
            for name, sequence_id in accepted.items():
                item = await client.get(sequence_id, wait_ms=PATIENCE_MS)
                assert (item.state, item.result) == ("completed", name.encode()), item
            await until(lambda: all(worker.health().ok for worker in workers))
            assert not any(task.done() for task in working)
            before = [worker.counts.completed for worker in workers]
            marks = 0
            # Until each has done something: one that took nothing any more would keep this going for ever.
            while any(worker.counts.completed == done for worker, done in zip(workers, before, strict=True)):
                last = [ItemSpec(resource_type="job", resource_id="last") for _ in range(100)]
                for mark in await client.enqueue_many(last):
                    await client.get(mark.sequence_id, wait_ms=PATIENCE_MS)
                marks += len(last)
            events = [event async for event in client.watch(1, until_caught_up=True)]
            stats = await client.stats()
        for worker in workers:
            worker.stop()
        await asyncio.wait_for(asyncio.gather(*working), PATIENCE_S)
    kinds = Counter(event["eventType"] for event in events)
    completed = Counter(event["ownership"]["sequenceId"] for event in events if event["eventType"] == "Completed")
    assert set(completed.values()) == {1}
    assert kinds["Enqueue"] == len(accepted) + marks == len(completed)
    assert stats.dead_letter_count == 0
    assert runs.beside_each_other() == []
