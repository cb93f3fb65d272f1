"""How long a worker believes in a lease: counted from before it asked for it, whatever the answer took on its way."""

from __future__ import annotations

import asyncio
import time

import pytest

from omnirelay.client.client import Client
from omnirelay.core.options import QueueOptions
from omnirelay.worker.handlers import Handlers
from omnirelay.worker.job import Job
from omnirelay.worker.worker import Worker
from tests.integration.http_sockets import until
from tests.integration.node_process import network_before
from tests.integration.nodes import running_node
from tests.integration.test_worker_jobs import ended, working
from tests.integration.test_worker_life import known_to_have_begun, report_twice, reported

LEASE_S = 3_600
ON_ITS_WAY_S = 600
OPTIONS = QueueOptions(lease_duration_ms=LEASE_S * 1_000)


class WorkersClock:
    """The one that leases are counted by. It can be put ahead; that of the node and of event loops goes on as ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead_s = 0.0
        real = time.clock_gettime

        def clock_gettime(clock: int) -> float:
            return real(clock) + (self.ahead_s if clock == time.CLOCK_BOOTTIME else 0.0)

        monkeypatch.setattr(time, "clock_gettime", clock_gettime)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WorkersClock:
    return WorkersClock(monkeypatch)


class Told:
    """What handlers saw of their leases."""

    def __init__(self) -> None:
        self.handlers = Handlers()
        self.at_first_ms: list[float] = []
        self.jobs: list[Job] = []
        self.gate = asyncio.Event()

        @self.handlers.handle("job")
        async def run(job: Job) -> None:
            self.at_first_ms.append(job.remaining_ms())
            self.jobs.append(job)
            await self.gate.wait()


def asking(worker: Worker) -> bool:
    """Whether a heartbeat is on its way."""
    assert worker._keeper is not None
    return bool(worker._keeper.standing._asked)


async def test_a_pushed_lease_is_counted_from_before_it_was_on_its_way(clock: WorkersClock) -> None:
    told = Told()
    async with (
        running_node(options=OPTIONS) as node,
        network_before(node.url) as network,
        Client(node.url) as client,
        working(told.handlers, network.url),
    ):
        await ended_soon(client, told)
        network.swallow()
        item = await client.enqueue("job", "x")
        await granted(client, item.sequence_id)
        clock.ahead_s = ON_ITS_WAY_S
        network.heal()
        await until(lambda: len(told.at_first_ms) == 2)
        assert told.at_first_ms[1] <= (LEASE_S - ON_ITS_WAY_S) * 1_000


async def test_a_lease_that_was_asked_for_is_counted_from_before_it_was_asked_for(clock: WorkersClock) -> None:
    told = Told()
    async with running_node(options=OPTIONS) as node, network_before(node.url) as network, Client(node.url) as client:
        network.refuses_upgrades = True
        async with working(told.handlers, network.url):
            # One for the worker's stream, one for that of its client, both refused; with the third it asks.
            await until(lambda: network.connections == 3)
            clock.ahead_s = ON_ITS_WAY_S
            await client.enqueue("job", "x")
            await until(lambda: len(told.at_first_ms) == 1)
            assert told.at_first_ms[0] <= (LEASE_S - ON_ITS_WAY_S) * 1_000
            told.gate.set()


async def test_a_renewed_lease_is_counted_from_before_the_heartbeat_was_sent(clock: WorkersClock) -> None:
    told = Told()
    async with (
        running_node(options=OPTIONS) as node,
        network_before(node.url) as network,
        Client(node.url) as client,
        working(told.handlers, network.url) as worker,
    ):
        item = await client.enqueue("job", "x")
        await until(lambda: len(told.jobs) == 1)
        [job] = told.jobs
        network.swallow()
        job.report(data=1)
        await until(lambda: asking(worker))
        clock.ahead_s = ON_ITS_WAY_S
        network.heal()
        await reported(client, item.sequence_id, 1)
        await until(lambda: not asking(worker))
        assert job.remaining_ms() <= (LEASE_S - ON_ITS_WAY_S) * 1_000
        told.gate.set()
        assert (await ended(client, item.sequence_id)).attempt == 1


async def test_a_lease_is_given_up_before_it_could_run_out(clock: WorkersClock) -> None:
    """By the guard: the clocks of two machines do not go exactly alike."""
    told = Told()
    guard_s = 600
    async with (
        running_node(options=OPTIONS) as node,
        Client(node.url) as client,
        working(told.handlers, node.url, guard_ms=guard_s * 1_000),
    ):
        item = await client.enqueue("job", "x")
        await until(lambda: len(told.jobs) == 1)
        clock.ahead_s = LEASE_S - guard_s + 1
        await until(lambda: told.jobs[0].stop_reason == "lost")
        assert (await client.get(item.sequence_id)).state == "leased"


async def test_one_heartbeat_that_comes_to_nothing_costs_no_lease() -> None:
    handlers = Handlers()
    again, gate = asyncio.Event(), asyncio.Event()
    jobs: list[Job] = []

    @handlers.handle("job")
    async def run(job: Job) -> None:
        jobs.append(job)
        await report_twice(job, again)
        await gate.wait()

    async with (
        running_node(options=OPTIONS) as node,
        network_before(node.url) as network,
        Client(node.url) as client,
        working(handlers, network.url) as worker,
    ):
        item = await client.enqueue("job", "x")
        await known_to_have_begun(client, [item.sequence_id], again)
        await until(lambda: not asking(worker))
        network.swallow()
        jobs[0].report(data=3)
        await until(lambda: asking(worker))
        network.cut()
        network.heal()
        await reported(client, item.sequence_id, 3)
        assert not jobs[0].stopped
        gate.set()
        assert (await ended(client, item.sequence_id)).attempt == 1


async def ended_soon(client: Client, told: Told) -> None:
    """One job from its beginning to its end: the worker is connected, and the node has its clock."""
    item = await client.enqueue("job", "first")
    told.gate.set()
    await ended(client, item.sequence_id)


async def granted(client: Client, sequence_id: int) -> None:
    state = ""
    while state != "leased":
        state = (await client.get(sequence_id)).state
