"""Workers that are to stop while a handler blocks their event loop, or the node is away."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from omnirelay.client.client import Client
from omnirelay.worker.handlers import GiveUp, Handlers
from omnirelay.worker.job import Job
from omnirelay.worker.worker import Counts, Worker
from tests.integration.http_sockets import until
from tests.integration.node_process import network_before
from tests.integration.nodes import running_node
from tests.integration.test_worker_jobs import shard_leases
from tests.patience import PATIENCE_S, Stillness


def in_a_loop_of_its_own(worker: Worker) -> asyncio.Future[Any]:
    """A handler may block that one: the test goes on."""
    return asyncio.ensure_future(asyncio.to_thread(asyncio.run, worker.run()))


async def test_a_stop_is_heard_while_a_handler_blocks_the_event_loop() -> None:
    """Another worker has at once what this one had not begun."""
    handlers = Handlers()
    begun, gate = threading.Event(), threading.Event()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        begun.set()
        gate.wait(PATIENCE_S)

    async with running_node() as node, Client(node.url) as client:
        worker = Worker(handlers, url=node.url, concurrency=1, prefetch=3)
        running = in_a_loop_of_its_own(worker)
        ids = [(await client.enqueue("job", str(number))).sequence_id for number in range(4)]
        await until(lambda: begun.is_set() and shard_leases(node) == 4)
        worker.stop()
        await until(lambda: shard_leases(node) == 1)
        gate.set()
        await asyncio.wait_for(running, PATIENCE_S)
        items = [await client.get(sequence_id) for sequence_id in ids]
        assert [(item.state, item.attempt) for item in items] == [("completed", 1), *[("ready", 1)] * 3]
        assert worker.counts.completed == 1


async def test_what_handlers_get_to_finish_counts_from_the_stop_also_while_one_blocks_the_event_loop() -> None:
    handlers = Handlers()
    begun, gate = threading.Event(), threading.Event()
    stopped_at = 0.0
    budget_s = 2.0

    @handlers.handle("endless")
    async def run(job: Job) -> None:
        nonlocal stopped_at
        try:
            await asyncio.Event().wait()
        finally:
            stopped_at = time.monotonic()

    @handlers.handle("blocking")
    async def block(job: Job) -> None:
        begun.set()
        gate.wait(PATIENCE_S)

    async with running_node() as node, Client(node.url) as client:
        worker = Worker(handlers, url=node.url, concurrency=2, prefetch=0, stop_budget_ms=int(budget_s * 1000))
        running = in_a_loop_of_its_own(worker)
        endless = (await client.enqueue("endless", "x")).sequence_id
        await until(lambda: worker.health().running == 1)
        await client.enqueue("blocking", "y")
        await until(begun.is_set)
        worker.stop()
        over_at = time.monotonic() + budget_s
        await until(lambda: time.monotonic() > over_at)
        with Stillness() as stillness:
            gate.set()
            await asyncio.wait_for(running, PATIENCE_S)
        assert stopped_at - over_at < budget_s / 2 + stillness.longest_s
        item = await client.get(endless)
        assert (item.state, item.attempt) == ("ready", 1)
        assert (worker.counts.completed, worker.counts.released) == (1, 1)


async def test_outcomes_that_the_node_has_not_heard_of_are_counted_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("omnirelay.worker.worker.SETTLE_SECONDS", 0.1)
    handlers = Handlers()
    gate = asyncio.Event()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        await gate.wait()
        if job.resource_id == "bad":
            raise GiveUp("no use")

    async with running_node() as node, network_before(node.url) as network, Client(node.url) as client:
        worker = Worker(handlers, url=network.url, concurrency=2, prefetch=0, stop_budget_ms=100)
        running = asyncio.ensure_future(worker.run())
        ids = [(await client.enqueue("job", name)).sequence_id for name in ("good", "bad")]
        await until(lambda: worker.health().running == 2)
        network.swallow()
        gate.set()
        await until(lambda: worker.health().running == 0)
        worker.stop()
        await asyncio.wait_for(running, PATIENCE_S)
        assert worker.counts == Counts(dropped=2)
    [said] = [record for record in caplog.records if record.message == "outcomes_dropped"]
    assert (said.levelname, said.outcomes, said.completions, said.sequence_ids) == ("WARNING", 2, 1, ids)  # type: ignore[attr-defined]


async def test_a_worker_that_stops_tells_a_node_that_comes_back_within_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("omnirelay.worker.worker.SETTLE_SECONDS", 0.1)
    handlers = Handlers()
    gate = asyncio.Event()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        await gate.wait()

    async with running_node() as node, network_before(node.url) as network, Client(node.url) as client:
        worker = Worker(handlers, url=network.url, concurrency=1, prefetch=0, stop_budget_ms=int(PATIENCE_S * 1000))
        running = asyncio.ensure_future(worker.run())
        item = await client.enqueue("job", "x")
        await until(lambda: worker.health().running == 1)
        network.swallow()
        gate.set()
        await until(lambda: worker.health().running == 0)
        worker.stop()
        settled_at = time.monotonic() + 0.5
        await until(lambda: time.monotonic() > settled_at)
        network.heal()
        await asyncio.wait_for(running, PATIENCE_S)
        assert worker.counts == Counts(completed=1)
        assert (await client.get(item.sequence_id)).state == "completed"
