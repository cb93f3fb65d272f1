"""Workers through what happens to processes and networks: blocked, stopped, cut off, refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from omnirelay.cli.working import LIVENESS_SECONDS, showing_liveness
from omnirelay.client.client import Client
from omnirelay.core.options import QueueOptions
from omnirelay.worker.handlers import Handlers
from omnirelay.worker.job import Job
from omnirelay.worker.worker import Worker
from tests.integration.http_sockets import until
from tests.integration.node_process import NodeProcess, network_before
from tests.integration.nodes import running_node
from tests.integration.stream_peers import connected, peer_of
from tests.integration.test_worker_jobs import ended, renewed, shard_leases, working
from tests.patience import PATIENCE_MS, PATIENCE_S
from tests.processes import freeze, thaw

# Leases that run out in a test, and still outlive a machine that stands still for a few seconds.
LEASE_MS = 5_000
HEARTBEAT_MS = 300


async def test_a_handler_that_blocks_its_event_loop_keeps_its_lease(tmp_path: Path) -> None:
    handlers = Handlers()
    attempts = []

    @handlers.handle("job")
    async def run(job: Job) -> None:
        attempts.append(job.attempt)
        renewed(job, 10)
        assert not job.stopped
        assert job.remaining_ms() > 0

    with NodeProcess(tmp_path, heartbeat_interval_ms=HEARTBEAT_MS) as node:
        async with Client(node.url) as client, working(handlers, node.url):
            item = await ended(client, (await client.enqueue("job", "x")).sequence_id)
            assert (item.state, item.attempt, attempts) == ("completed", 1, [1])


async def test_a_worker_cut_off_stops_its_handlers_before_the_lease_can_run_out() -> None:
    """And when the network is back, it takes work again without a hand."""
    handlers = Handlers()
    stopped: list[tuple[float, str | None]] = []

    @handlers.handle("job")
    async def run(job: Job) -> None:
        if job.attempt > 1 or job.resource_id == "after":
            return
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append((time.monotonic(), job.stop_reason))

    options = QueueOptions(lease_duration_ms=LEASE_MS, heartbeat_interval_ms=HEARTBEAT_MS)
    async with (
        running_node(options=options) as node,
        network_before(node.url) as network,
        Client(node.url) as client,
        working(handlers, network.url, guard_ms=LEASE_MS // 2) as worker,
    ):
        await client.enqueue("job", "x")
        await until(lambda: worker.health().running == 1)
        watching = client.watch(types=["Expired"])
        expired = asyncio.ensure_future(anext(watching))
        network.swallow()
        await asyncio.wait_for(expired, PATIENCE_S)
        await watching.aclose()
        ran_out_at = time.monotonic()
        [(stopped_at, reason)] = stopped
        assert reason == "lost"
        assert stopped_at < ran_out_at
        network.heal()
        item = await ended(client, (await client.enqueue("job", "after")).sequence_id)
        assert item.state == "completed"


@pytest.mark.usefixtures("impatient_streams")
async def test_a_worker_whose_stream_is_dead_connects_again_by_itself() -> None:
    """Nothing closes the connection. What was pushed into it is released, and other work comes by a new one."""
    handlers = Handlers()

    @handlers.handle("job")
    async def run(job: Job) -> None: ...

    async with (
        running_node() as node,
        network_before(node.url) as network,
        Client(node.url) as client,
        working(handlers, network.url),
    ):
        await until(lambda: network.connections == 1)
        await ended(client, (await client.enqueue("job", "x")).sequence_id)
        network.swallow()
        await until(lambda: network.connections > 1)
        network.heal()
        item = await ended(client, (await client.enqueue("job", "y")).sequence_id)
        assert (item.state, item.attempt) == ("completed", 1)


async def test_a_drop_before_the_node_heard_of_the_beginning_stops_the_handler() -> None:
    """The node releases the item, and another worker may have it at once: this one must not go on meanwhile."""
    handlers = Handlers()
    stopped: list[str | None] = []

    @handlers.handle("job")
    async def run(job: Job) -> None:
        if stopped:
            return
        network.swallow()  # `begin` is still on its way when the work begins.
        network.cut()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(job.stop_reason)

    async with (
        running_node() as node,
        network_before(node.url) as network,
        Client(node.url) as client,
        working(handlers, network.url),
    ):
        sequence_id = (await client.enqueue("job", "x")).sequence_id
        await until(lambda: stopped == ["withdrawn"])
        network.heal()
        item = await ended(client, sequence_id)
        assert (item.state, item.attempt) == ("completed", 1)


async def test_what_was_not_begun_comes_back_at_once_after_the_node_was_killed(tmp_path: Path) -> None:
    """A killed node takes nothing back; its log says that the worker has them. The leases are of 30 seconds."""
    handlers = Handlers()
    gate = asyncio.Event()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        await gate.wait()

    with NodeProcess(tmp_path) as node:
        async with Client(node.url) as client, working(handlers, node.url, concurrency=1, prefetch=5) as worker:
            ids = [(await client.enqueue("job", str(number))).sequence_id for number in range(6)]
            await until(lambda: worker.health().waiting == 5)
            node.kill()
            await until(lambda: worker.health().waiting == 0)
            await asyncio.to_thread(node.start)
            gate.set()
            async with asyncio.timeout(PATIENCE_S):
                for sequence_id in ids:
                    item = await client.get(sequence_id, wait_ms=PATIENCE_MS)
                    assert (item.state, item.attempt) == ("completed", 1)


async def test_work_that_was_done_when_a_killed_node_comes_back_is_not_done_again(tmp_path: Path) -> None:
    """The worker cannot know whether that node had heard of the beginning, and the log says that the worker has it."""
    handlers = Handlers()
    runs: list[str] = []
    finished = asyncio.Event()

    @handlers.handle("job")
    async def run(job: Job) -> str:
        runs.append(job.resource_id)
        if len(runs) == 1:
            network.swallow()  # `begin` is still on its way when the work begins.
            node.kill()
            network.cut()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            finished.set()
        return "done"

    with NodeProcess(tmp_path) as node:
        async with (
            network_before(node.url) as network,
            Client(node.url) as client,
            working(handlers, network.url),
        ):
            sequence_id = (await client.enqueue("job", "x")).sequence_id
            await asyncio.wait_for(finished.wait(), PATIENCE_S)
            await asyncio.to_thread(node.start)
            network.heal()
            assert (await ended(client, sequence_id)).result == b"done"
            assert runs == ["x"]


async def reported(client: Client, sequence_id: int, data: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        progress = None
        while progress is None or progress.data != data:
            progress = (await client.get(sequence_id)).progress


async def report_twice(job: Job, again: asyncio.Event) -> None:
    job.report(data=1)
    await again.wait()
    job.report(data=2)


async def known_to_have_begun(client: Client, ids: list[int], again: asyncio.Event) -> None:
    """Jobs that `report_twice`: a second report goes out when the first is answered, and with that answer the worker
    learns that the node has heard of the beginning. Reported at once, the two would go out as one.
    """
    for data in (1, 2):
        for sequence_id in ids:
            await reported(client, sequence_id, data)
        again.set()


async def test_leases_in_work_outlive_a_drop_and_a_kill_of_the_node(tmp_path: Path) -> None:
    handlers = Handlers()
    again, gate = asyncio.Event(), asyncio.Event()
    begun = []

    @handlers.handle("job")
    async def run(job: Job) -> str:
        begun.append(job.sequence_id)
        await report_twice(job, again)
        await gate.wait()
        return "done"

    with NodeProcess(tmp_path) as node:
        async with (
            network_before(node.url) as network,
            Client(node.url) as client,
            working(handlers, network.url, concurrency=3) as worker,
        ):
            ids = [(await client.enqueue("job", str(number))).sequence_id for number in range(3)]
            await until(lambda: worker.health().running == 3)
            await known_to_have_begun(client, ids, again)
            connections = network.connections
            network.cut()
            await until(lambda: network.connections > connections)
            node.kill()
            await asyncio.to_thread(node.start)
            await until(lambda: worker.health().ok)
            gate.set()
            for sequence_id in ids:
                assert (await ended(client, sequence_id)).attempt == 1
            assert sorted(begun) == sorted(ids)


async def test_what_is_begun_stays_begun_over_drops_that_come_too_fast_for_an_answer() -> None:
    handlers = Handlers()
    again, gate = asyncio.Event(), asyncio.Event()
    begun = []

    @handlers.handle("job")
    async def run(job: Job) -> None:
        begun.append(job.sequence_id)
        await report_twice(job, again)
        await gate.wait()

    async with (
        running_node() as node,
        network_before(node.url) as network,
        Client(node.url) as client,
        working(handlers, network.url),
    ):
        item = await client.enqueue("job", "a")
        await known_to_have_begun(client, [item.sequence_id], again)
        for _ in range(4):
            connections = network.connections
            network.cut()
            await until(lambda connections=connections: network.connections > connections)  # type: ignore[misc]
        gate.set()
        assert (await ended(client, item.sequence_id)).attempt == 1
        assert begun == [item.sequence_id]


# -- a worker that sleeps ------------------------------------------------------------------------

_ZOMBIE = """
import asyncio, sys
from omnirelay.worker.handlers import Handlers
from omnirelay.worker.worker import Worker
handlers = Handlers()
@handlers.handle("job")
async def run(job):
    print("begun", job.attempt, flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("ended", job.stop_reason, flush=True)
async def main():
    worker = Worker(handlers, url=sys.argv[1], peer_id="zombie", concurrency=1, prefetch=0)
    await worker.run()
asyncio.run(main())
"""


def _start_zombie(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _ZOMBIE, url], stdout=subprocess.PIPE, text=True)


async def test_a_worker_that_slept_past_its_lease_is_refused_and_stops(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, lease_duration_ms=LEASE_MS, heartbeat_interval_ms=HEARTBEAT_MS) as node:
        zombie = _start_zombie(node.url)
        try:
            assert zombie.stdout is not None
            async with Client(node.url) as client:
                beats = client.watch(types=["Heartbeat"])
                beating = asyncio.ensure_future(anext(beats))
                sequence_id = (await client.enqueue("job", "x")).sequence_id
                assert await asyncio.to_thread(zombie.stdout.readline) == "begun 1\n"
                await asyncio.wait_for(beating, PATIENCE_S)
                await beats.aclose()
                stale = (await client.get(sequence_id)).ownership_token
                assert stale is not None
                await asyncio.to_thread(freeze, zombie)
                [lease] = await client.lease(peer_id="other", wait_ms=PATIENCE_MS)
                assert lease.attempt == 2
                assert lease.ownership_token.fence is not None
                assert stale.fence is not None
                assert lease.ownership_token.fence > stale.fence
                assert (await client.complete(lease, peer_id="other")).success
                thaw(zombie)
                assert await asyncio.to_thread(zombie.stdout.readline) == "ended lost\n"
                async with peer_of(node.url) as peer:
                    token = {"sequenceId": stale.sequence_id, "attempt": stale.attempt, "leaseId": stale.lease_id}
                    [refused] = await peer.acknowledge({"verb": "complete", "ownershipToken": token})
                    assert refused["errorCode"] == "error.taskqueue.lease_inactive"
                item = await client.get(sequence_id)
                assert (item.state, item.attempt) == ("completed", 2)
        finally:
            zombie.kill()
            zombie.communicate()


async def test_a_lease_that_a_suspended_machine_outlived_is_lost_as_soon_as_it_wakes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Event loops do not notice: their time stood still with the machine. Somebody else may have the item by now."""
    asleep_s = 0.0
    awake = time.clock_gettime

    def clock_gettime(clock: int) -> float:
        return awake(clock) + (asleep_s if clock == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    handlers = Handlers()
    stopped: list[str | None] = []

    @handlers.handle("job")
    async def run(job: Job) -> None:
        if job.resource_id == "after":
            return
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(job.stop_reason)

    async with (
        running_node(options=QueueOptions(lease_duration_ms=3_600_000)) as node,
        Client(node.url) as client,
        working(handlers, node.url, concurrency=2) as worker,
    ):
        sequence_id = (await client.enqueue("job", "x")).sequence_id
        await until(lambda: worker.health().running == 1)
        asleep_s = 3_600.0
        await until(lambda: stopped == ["lost"])
        assert (await client.get(sequence_id)).state == "leased"
        item = await ended(client, (await client.enqueue("job", "after")).sequence_id)
        assert (item.state, item.attempt) == ("completed", 1)
        assert worker.health().ok


async def test_a_worker_comes_back_no_sooner_than_the_node_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def pause(attempt: int, asked_ms: int | None) -> float:
        asked.append(asked_ms)
        return 1.0

    monkeypatch.setattr("omnirelay.worker.keeping.pause_ms", pause)
    handlers = Handlers()
    handlers.handle("job")(lambda job: None)
    async with running_node() as node:
        node.dispatcher.draining = True
        async with working(handlers, node.url):
            await until(lambda: 1_000 in asked)
            node.dispatcher.draining = False
            async with Client(node.url) as client:
                item = await ended(client, (await client.enqueue("job", "x")).sequence_id)
                assert item.state == "completed"


async def test_a_worker_connects_again_as_quickly_as_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that cuts connections every hour makes it no slower."""
    pauses: list[int] = []

    def pause(attempt: int, asked_ms: int | None) -> float:
        pauses.append(attempt)
        return 1.0

    monkeypatch.setattr("omnirelay.worker.keeping.pause_ms", pause)
    monkeypatch.setattr("omnirelay.worker.keeping.CLOCK_EVERY_SECONDS", 0.0)
    handlers = Handlers()
    handlers.handle("job")(lambda job: None)
    async with (
        running_node() as node,
        network_before(node.url) as network,
        Client(node.url) as client,
        working(handlers, network.url),
    ):
        for _ in range(4):
            # Done over this connection, so it has lasted.
            assert (await ended(client, (await client.enqueue("job", "x")).sequence_id)).state == "completed"
            network.cut()
        await until(lambda: len(pauses) >= 4)
        assert set(pauses) == {1}
        network.is_away = True
        network.cut()
        await until(lambda: pauses[-1] == 3)


async def test_a_job_is_completed_though_something_else_answered_in_place_of_the_node() -> None:
    """A page of a proxy, in plain HTTP. The job is done: its lease must not be kept and never acknowledged."""
    handlers = Handlers()
    async with running_node() as node, network_before(node.url) as network, Client(node.url) as client:
        network.refuses_upgrades = True
        network.away_status = b"200 OK"

        @handlers.handle("job")
        async def run(job: Job) -> None:
            network.is_away = True
            network.cut()

        async with working(handlers, network.url, concurrency=1, prefetch=0):
            sequence_id = (await client.enqueue("job", "x")).sequence_id
            await until(lambda: network.is_away)
            before = network.connections
            await until(lambda: network.connections > before + 1)
            network.is_away = False
            item = await ended(client, sequence_id)
            assert (item.state, item.attempt) == ("completed", 1)


# -- liveness ------------------------------------------------------------------------------------


async def test_health_is_red_when_nothing_succeeds_and_green_when_idle() -> None:
    handlers = Handlers()

    @handlers.handle("job")
    async def run(job: Job) -> None: ...

    assert not Worker(handlers).health().ok
    async with (
        running_node() as node,
        network_before(node.url) as network,
        working(handlers, network.url, silent_ms_max=2_500) as worker,
    ):
        # Nothing to do: pongs alone end the silence, again and again.
        silent_ms = 0

        def heard() -> bool:
            nonlocal silent_ms
            before, silent_ms = silent_ms, worker.health().silent_ms
            return silent_ms < before

        for _ in range(3):
            await until(heard)
        await until(lambda: worker.health().ok)
        network.swallow()
        await until(lambda: not worker.health().ok)
        assert "has not answered" in worker.health().reason
        network.heal()
        await until(lambda: worker.health().ok)


async def test_the_liveness_file_goes_stale_while_the_node_is_silent_and_no_longer(tmp_path: Path) -> None:
    handlers = Handlers()
    handlers.handle("job")(lambda job: None)
    file = tmp_path / "alive"

    def age_s() -> float:
        return time.time() - file.stat().st_mtime

    async with (
        running_node() as node,
        network_before(node.url) as network,
        working(handlers, network.url, silent_ms_max=2_500) as worker,
    ):
        with showing_liveness(worker, file):
            await until(file.exists)
            network.swallow()
            await until(lambda: not worker.health().ok and age_s() > 6 * LIVENESS_SECONDS)
            network.heal()
            await until(lambda: age_s() < LIVENESS_SECONDS)


@pytest.mark.parametrize("wrong", ["namespace", "lease"])
async def test_health_is_red_when_the_node_refuses_again_and_again(wrong: str) -> None:
    """It can be reached, and every connection ends with the same refusal: that is no life."""
    handlers = Handlers()
    handlers.handle("job")(lambda job: None)
    async with running_node() as node:
        namespace = "elsewhere" if wrong == "namespace" else "resourcelease"
        duration = 10**12 if wrong == "lease" else None
        async with working(
            handlers, node.url, namespace=namespace, lease_duration_ms=duration, silent_ms_max=1_500
        ) as worker:
            await until(lambda: worker.health().running == 0 and "has not answered" in worker.health().reason)
            said = worker.health()
            assert not said.ok
            assert ("elsewhere" if wrong == "namespace" else "leaseDurationMs") in said.reason


async def test_pongs_do_not_keep_a_worker_green_whose_heartbeats_get_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As from a node whose disk hangs: its event loop, and with it every pong, goes on."""
    handlers = Handlers()
    over, disk = asyncio.Event(), asyncio.Event()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        await over.wait()

    options = QueueOptions(lease_duration_ms=60_000, heartbeat_interval_ms=HEARTBEAT_MS)
    async with running_node(options=options) as node, Client(node.url) as client:
        log = node.components[0].shard().log
        append = log.append

        async def hang(frame: Any, expected: Any) -> Any:
            await disk.wait()
            return await append(frame, expected)

        async with working(handlers, node.url, silent_ms_max=3_000) as worker:
            item = await client.enqueue("job", "x")
            await until(lambda: worker.health().running == 1 and worker.health().ok)
            monkeypatch.setattr(log, "append_now", lambda frame, expected: None)
            monkeypatch.setattr(log, "append", hang)
            await until(lambda: not worker.health().ok)
            assert "has not answered" in worker.health().reason
            disk.set()
            await until(lambda: worker.health().ok)
            over.set()
            assert (await ended(client, item.sequence_id)).attempt == 1


async def test_health_is_red_when_every_outcome_is_refused() -> None:
    """Somebody else ends the leases of this worker: it works, and nothing of it counts."""
    handlers = Handlers()

    async with running_node() as node, Client(node.url) as client:

        @handlers.handle("job")
        async def run(job: Job) -> None:
            await client.release(job.lease)

        async with working(handlers, node.url, silent_ms_max=300) as worker:
            await client.enqueue("job", "x")
            await until(lambda: "has refused everything" in worker.health().reason)
            assert not worker.health().ok


# -- the node stops ------------------------------------------------------------------------------


async def test_a_node_with_open_streams_stops_at_once_and_its_worker_comes_back(tmp_path: Path) -> None:
    handlers = Handlers()

    @handlers.handle("job")
    async def run(job: Job) -> None: ...

    with NodeProcess(tmp_path) as node:
        async with Client(node.url) as client, working(handlers, node.url):
            await ended(client, (await client.enqueue("job", "x")).sequence_id)
            idle = [await connected(node.url) for _ in range(20)]
            for peer in idle:
                await peer.open(credit=1, filters={"resourceTypes": ["other"]})
            await idle[-1].round_trip()
            ends = [asyncio.ensure_future(peer.closed()) for peer in idle]
            assert await asyncio.to_thread(node.stop) == 0
            assert {(await end)[0] for end in ends} == {1012}
            await asyncio.to_thread(node.start)
            item = await ended(client, (await client.enqueue("job", "y")).sequence_id)
            assert item.state == "completed"


async def test_a_worker_that_is_gone_leaves_nothing_leased() -> None:
    handlers = Handlers()
    gate = asyncio.Event()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        await gate.wait()

    async with running_node() as node, Client(node.url) as client:
        async with working(handlers, node.url, concurrency=2, prefetch=4, stop_budget_ms=0) as worker:
            for number in range(10):
                await client.enqueue("job", str(number))
            await until(lambda: worker.health().waiting == 4)
        assert shard_leases(node) == 0
        assert {item.attempt for item in (await client.peek()).items} == {1}
