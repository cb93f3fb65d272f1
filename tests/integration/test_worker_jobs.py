"""Workers and what their handlers say: results, follow-ups, failures, progress, cancellation, and a graceful stop."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from omnirelay.client.client import Client, ItemSpec
from omnirelay.core.options import QueueOptions
from omnirelay.errors import FailedPrecondition, InvalidArgument
from omnirelay.node.node import Node
from omnirelay.worker.handlers import GiveUp, Handlers, Release, Retry
from omnirelay.worker.job import Job
from omnirelay.worker.kept import Kept
from omnirelay.worker.worker import Counts, Worker
from tests.integration.http_sockets import until
from tests.integration.node_process import network_before
from tests.integration.nodes import running_node
from tests.patience import PATIENCE_MS, PATIENCE_S, Stillness

SHORT = QueueOptions(lease_duration_ms=600, heartbeat_interval_ms=150)


@asynccontextmanager
async def working(handlers: Handlers, url: str, **options: Any) -> AsyncIterator[Worker]:
    worker = Worker(handlers, url=url, **{"guard_ms": 100, "stop_budget_ms": 5_000, **options})
    running = asyncio.ensure_future(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        worker.stop()
        await asyncio.wait_for(running, PATIENCE_S)


async def ended(client: Client, sequence_id: int) -> Any:
    item = await client.get(sequence_id, wait_ms=PATIENCE_MS)
    assert item.state in ("completed", "dead", "cancelled"), item
    return item


def renewed(job: Job, times: int) -> None:
    """Keep this thread busy until the lease was renewed so often: nothing else makes what remains of it more."""
    before = job.remaining_ms()
    while times and not job.stopped:
        now = job.remaining_ms()
        times -= now > before
        before = now


def shard_leases(node: Node) -> int:
    return len([item for item in node.components[0].shard().state.items.values() if item.lease is not None])


# -- outcomes ------------------------------------------------------------------------------------


async def test_results_of_sync_and_async_handlers_are_kept() -> None:
    handlers = Handlers()
    threads = set()

    @handlers.handle("async.*")
    async def in_the_loop(job: Job) -> Any:
        threads.add(threading.current_thread())
        return {"b": b"raw", "t": "text", "j": {"n": 1}, "n": None}[job.resource_id]

    @handlers.handle("sync")
    def in_a_thread(job: Job) -> str:
        assert threading.current_thread() not in threads
        return f"{job.json()} {job.attributes['a']} {job.fence}"

    class Counter:
        async def __call__(self, job: Job) -> str:
            return "object"

    handlers.handle("object")(Counter())
    async with running_node() as node, Client(node.url) as client, working(handlers, node.url) as worker:
        for name, result in (("b", b"raw"), ("t", b"text"), ("j", b'{"n":1}'), ("n", None)):
            item = await ended(client, (await client.enqueue("async.x", name)).sequence_id)
            assert (item.state, item.result) == ("completed", result)
        assert threads == {threading.current_thread()}
        item = await ended(client, (await client.enqueue("sync", "x", body=b"[1]", attributes={"a": "b"})).sequence_id)
        assert item.result is not None
        assert item.result.startswith(b"[1] b ")
        assert (await ended(client, (await client.enqueue("object", "x")).sequence_id)).result == b"object"
        await until(lambda: worker.counts.completed == 6)


async def test_a_worker_counts_what_the_node_took() -> None:
    """A completion that is refused, or turned into a failure, is none."""
    handlers = Handlers()

    async with running_node() as node, Client(node.url) as client:

        @handlers.handle("ended-elsewhere")
        async def ended_elsewhere(job: Job) -> str:
            await client.fail(job.lease, mode="dead", peer_id=job.lease.owner_peer_id)
            return "too late"

        @handlers.handle("too-large", on_error={Exception: "dead"})
        async def too_large(job: Job) -> bytes:
            return bytes(5_000_000)

        @handlers.handle("fine")
        async def fine(job: Job) -> None: ...

        async with working(handlers, node.url) as worker:
            for kind in ("ended-elsewhere", "fine"):
                await ended(client, (await client.enqueue(kind, "x")).sequence_id)
            too_big = (await client.enqueue("too-large", "x", max_attempts=1)).sequence_id
            assert (await ended(client, too_big)).state == "dead"
        assert worker.counts == Counts(completed=1, failed=1, lost=1)


async def test_an_exception_says_what_becomes_of_the_item() -> None:
    handlers = Handlers()
    attempts: list[tuple[str, int, Any]] = []

    @handlers.handle("job", on_error={KeyError: "dead", ConnectionError: "release"})
    async def run(job: Job) -> None:
        attempts.append((job.resource_id, job.attempt, job.last_error and job.last_error.code))
        again = len([each for each in attempts if each[0] == job.resource_id])
        if again > 1 and job.resource_id != "always":
            return
        raise {
            "retry": Retry("later", delay_ms=10, error_code="my.code"),
            "release": Release("not here", delay_ms=10),
            "giveup": GiveUp("never \ud800", error_code="bad.schema"),
            "dead": KeyError("column"),
            "released": ConnectionResetError("peer"),
            "always": ValueError("boom \x00"),
            "cancelled": asyncio.CancelledError(),
        }[job.resource_id]

    async with running_node(options=QueueOptions(max_delivery_attempts=3)) as node, Client(node.url) as client:
        async with working(handlers, node.url):
            ids = {
                name: (await client.enqueue("job", name)).sequence_id
                for name in ("retry", "release", "giveup", "dead", "released", "always", "cancelled")
            }
            items = {name: await ended(client, sequence_id) for name, sequence_id in ids.items()}
        ends = {name: (item.state, item.attempt) for name, item in items.items()}
        assert ends == {
            "retry": ("completed", 2),
            "release": ("completed", 1),
            "giveup": ("dead", 1),
            "dead": ("dead", 1),
            "released": ("completed", 1),
            "always": ("dead", 3),
            "cancelled": ("completed", 2),
        }
        assert items["giveup"].last_error.code == "bad.schema"
        assert ("retry", 2, "my.code") in attempts


async def test_follow_ups_come_in_with_the_completion_only() -> None:
    handlers = Handlers()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        job.follow_up(ItemSpec(resource_type="next", resource_id=f"{job.attempt}"))
        if job.attempt == 1:
            raise ValueError("not yet")

    async with running_node() as node, Client(node.url) as client, working(handlers, node.url):
        sequence_id = (await client.enqueue("job", "x")).sequence_id
        await ended(client, sequence_id)
        [child] = (await client.peek(resource_type="next")).items
        assert (child.payload.resource_id, child.parent_sequence_id) == ("2", sequence_id)


async def test_an_outcome_that_the_node_does_not_take_fails_its_own_attempt_and_no_other() -> None:
    """All of these acknowledgements go out together with good ones."""
    handlers = Handlers()

    @handlers.handle("job")
    async def run(job: Job) -> Any:
        await gate.wait()
        if job.resource_id == "follow-up":
            job.follow_up(ItemSpec(resource_type="next", resource_id="x", priority=99))
        if job.resource_id == "no json":
            job.follow_up(ItemSpec(resource_type="next", resource_id="x", attributes={"a": object()}))  # type: ignore[dict-item]
        if job.resource_id == "delay":
            raise Retry("x", delay_ms=-5)
        if job.resource_id == "code":
            raise GiveUp("x", error_code="c" * 5_000)
        return b"x" * 20_000_000 if job.resource_id == "large" else None

    gate = asyncio.Event()
    bad = ("follow-up", "delay", "code", "large", "no json")
    async with (
        running_node(options=QueueOptions(max_delivery_attempts=2)) as node,
        Client(node.url) as client,
        working(handlers, node.url, concurrency=20) as worker,
    ):
        good = [(await client.enqueue("job", f"good{number}")).sequence_id for number in range(10)]
        ids = {name: (await client.enqueue("job", name)).sequence_id for name in bad}
        await until(lambda: worker.health().running == 15)
        gate.set()
        for sequence_id in good:
            item = await ended(client, sequence_id)
            assert (item.state, item.attempt) == ("completed", 1)
        for name, sequence_id in ids.items():
            item = await ended(client, sequence_id)
            assert (item.state, name) == ("dead", name)


@dataclass
class Summary:
    mean: float
    worst: float | None = None


@pytest.mark.parametrize("bad", [math.nan, {"x": math.nan}, [1, (2, -math.inf)], Summary(math.inf)], ids=repr)
async def test_a_result_with_a_number_that_json_does_not_have_fails_its_attempt(bad: Any) -> None:
    """It would be kept as null, and nobody would hear of it."""
    handlers = Handlers()

    @handlers.handle("job", on_error={ValueError: "dead"})
    async def run(job: Job) -> Any:
        return bad if job.resource_id == "bad" else {"none": None, "text": "null", "x": 1.5}

    async with running_node() as node, Client(node.url) as client, working(handlers, node.url):
        item = await ended(client, (await client.enqueue("job", "bad")).sequence_id)
        assert (item.state, item.result, item.last_error.code) == ("dead", None, "ValueError")
        good = await ended(client, (await client.enqueue("job", "good")).sequence_id)
        assert (good.state, good.result) == ("completed", b'{"none":null,"text":"null","x":1.5}')


async def test_progress_is_handed_to_the_next_attempt_and_bad_progress_costs_nothing() -> None:
    handlers = Handlers()
    seen = []

    @handlers.handle("job")
    def run(job: Job) -> None:
        seen.append(None if job.progress is None else job.progress.data)
        if job.attempt == 1:
            job.report(fraction=7.5)
            job.report(data=object())
            job.report(data=math.nan)
            job.report(data={"rows": [1, {"mean": math.inf, "none": None}]})
            job.report(fraction=math.nan)
            job.report(message="\ud800")
            renewed(job, 3)  # The lease is kept although what was reported is refused.
            assert not job.stopped
            job.report(0.5, "half", {"row": 7})
            raise ValueError("again")

    options = QueueOptions(heartbeat_interval_ms=150)
    async with running_node(options=options) as node, Client(node.url) as client, working(handlers, node.url):
        item = await ended(client, (await client.enqueue("job", "x")).sequence_id)
        assert (item.state, item.attempt) == ("completed", 2)
        assert seen == [None, {"row": 7}]


async def test_a_report_with_a_number_that_json_does_not_have_leaves_the_one_before_it() -> None:
    handlers = Handlers()
    seen = []

    @handlers.handle("job")
    def run(job: Job) -> None:
        seen.append(None if job.progress is None else job.progress.data)
        if job.attempt == 1:
            job.report(data={"row": 7})
            renewed(job, 1)
            job.report(data={"row": 8, "mean": math.nan})
            renewed(job, 2)
            raise Retry("again", delay_ms=0)

    options = QueueOptions(heartbeat_interval_ms=150)
    async with running_node(options=options) as node, Client(node.url) as client, working(handlers, node.url):
        await ended(client, (await client.enqueue("job", "x")).sequence_id)
        assert seen == [None, {"row": 7}]


async def test_what_was_reported_last_is_there_when_the_job_ends() -> None:
    """Reports come faster than heartbeats are answered; the last one must not be left behind."""
    handlers = Handlers()
    seen: list[Any] = []

    @handlers.handle("job")
    async def run(job: Job) -> None:
        seen.append(None if job.progress is None else job.progress.data)
        for number in range(job.attempt * 100, job.attempt * 100 + 5):
            job.report(data=number)
            await asyncio.sleep(int(job.resource_id) / 4_000)
        job.report(data="last")
        if job.attempt < 4:
            raise Retry("again", delay_ms=0)

    async with running_node() as node, Client(node.url) as client, working(handlers, node.url):
        for pause in range(12):
            seen.clear()
            item = await ended(client, (await client.enqueue("job", f"{pause}")).sequence_id)
            assert (seen, item.progress.data) == ([None, "last", "last", "last"], "last")


async def test_what_was_reported_stays_as_it_was_when_the_handler_goes_on() -> None:
    handlers = Handlers()
    seen: list[Any] = []

    @handlers.handle("job")
    async def run(job: Job) -> None:
        seen.append(None if job.progress is None else job.progress.data)
        rows = {"done": 1}
        job.report(data=rows)
        rows["done"] = 2  # Begun, and not done.
        if job.attempt < 4:
            raise Retry("again", delay_ms=0)

    async with running_node() as node, Client(node.url) as client, working(handlers, node.url):
        await ended(client, (await client.enqueue("job", "x")).sequence_id)
        assert seen == [None, {"done": 1}, {"done": 1}, {"done": 1}]


async def test_a_follow_up_that_is_none_is_refused_where_it_was_made() -> None:
    handlers = Handlers()
    refused: list[str] = []

    @handlers.handle("job")
    async def run(job: Job) -> None:
        wrong: Any = {"resource_type": "job"}
        with pytest.raises(InvalidArgument) as caught:
            job.follow_up(wrong)
        refused.append(caught.value.message)

    async with running_node() as node, Client(node.url) as client, working(handlers, node.url):
        assert (await ended(client, (await client.enqueue("job", "x")).sequence_id)).state == "completed"
        assert refused == ["items must be ItemSpec, not dict"]


async def test_a_worker_runs_once_and_is_not_harmed_by_a_second_time() -> None:
    handlers = Handlers()
    handlers.handle("job")(lambda job: job.resource_id)
    async with running_node() as node, Client(node.url) as client, working(handlers, node.url) as worker:
        await ended(client, (await client.enqueue("job", "x")).sequence_id)
        with pytest.raises(FailedPrecondition, match="a worker runs once"):
            await worker.run()
        assert (await ended(client, (await client.enqueue("job", "y")).sequence_id)).result == b"y"


# -- stopping jobs -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_cancelled_item_stops_its_handler_and_ends(kind: str) -> None:
    handlers = Handlers()
    started, stopped = threading.Event(), []

    @handlers.handle("async")
    async def in_the_loop(job: Job) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(job.stop_reason)

    @handlers.handle("sync")
    def in_a_thread(job: Job) -> None:
        started.set()
        job.wait_stopped(PATIENCE_S)
        stopped.append(job.stop_reason)
        job.check()

    async with running_node() as node, Client(node.url) as client, working(handlers, node.url) as worker:
        sequence_id = (await client.enqueue(kind, "x")).sequence_id
        await until(started.is_set)
        assert (await client.cancel(sequence_id)).cancel_requested
        assert (await ended(client, sequence_id)).state == "cancelled"
        assert stopped == ["cancelled"]
        await until(lambda: worker.counts.cancelled == 1)


async def test_an_item_that_is_cancelled_before_its_turn_ends_too() -> None:
    """It waits in the worker behind another one; nobody may keep its lease alive for ever."""
    handlers = Handlers()
    gate = asyncio.Event()
    ran = []

    @handlers.handle("job")
    async def run(job: Job) -> None:
        ran.append(job.resource_id)
        await gate.wait()

    async with (
        running_node() as node,
        Client(node.url) as client,
        working(handlers, node.url, concurrency=1, prefetch=1) as worker,
    ):
        first = (await client.enqueue("job", "first")).sequence_id
        second = (await client.enqueue("job", "second")).sequence_id
        await until(lambda: worker.health().waiting == 1)
        await client.cancel(second)
        assert (await ended(client, second)).state == "cancelled"
        third = (await client.enqueue("job", "third")).sequence_id
        await until(lambda: worker.health().waiting == 1)
        gate.set()
        await ended(client, first)
        await ended(client, third)
        assert ran == ["first", "third"]


async def test_an_item_that_is_cancelled_in_the_turn_in_which_its_handler_was_to_begin_is_not_kept_for_ever() -> None:
    handlers = Handlers()

    @handlers.handle("job")
    async def run(job: Job) -> None: ...

    class StoppedAtOnce(Worker):
        stopped = False

        def _arrived(self, kept: Kept) -> None:
            super()._arrived(kept)
            if not self.stopped:
                self.stopped = True
                self._stop_job(kept.lease.ownership_token.lease_id, "cancelled")

    async with running_node() as node, Client(node.url) as client:
        worker = StoppedAtOnce(handlers, url=node.url)
        running = asyncio.ensure_future(worker.run())
        item = await ended(client, (await client.enqueue("job", "x")).sequence_id)
        worker.stop()
        await asyncio.wait_for(running, PATIENCE_S)
        assert (item.state, item.attempt, worker.counts.cancelled) == ("completed", 1, 1)


BEATS = QueueOptions(lease_duration_ms=PATIENCE_MS, heartbeat_interval_ms=100, ordering="exclusive")
"""Every heartbeat says again that the item is to be cancelled."""


async def test_the_cleanup_of_a_cancelled_handler_is_not_cut_off_by_later_heartbeats() -> None:
    handlers = Handlers()
    begun = asyncio.Event()
    cleanup: list[str] = []

    @handlers.handle("job")
    async def run(job: Job) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleanup.append("begun")
            for _ in range(3):
                before = job.remaining_ms()
                while (now := job.remaining_ms()) <= before:
                    before = now
                    await asyncio.sleep(0.01)
            cleanup.append("done")

    async with running_node(options=BEATS) as node, Client(node.url) as client, working(handlers, node.url):
        sequence_id = (await client.enqueue("job", "x")).sequence_id
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        await client.cancel(sequence_id)
        assert (await ended(client, sequence_id)).state == "cancelled"
        assert cleanup == ["begun", "done"]


async def test_a_cancelled_thread_keeps_its_key_until_it_has_ended() -> None:
    handlers = Handlers()
    begun, second = threading.Event(), threading.Event()
    inside: list[str] = []
    most = 0

    @handlers.handle("table")
    def run(job: Job) -> None:
        nonlocal most
        inside.append(job.resource_id)
        most = max(most, len(inside))
        if begun.is_set():
            second.set()
        begun.set()
        if not second.is_set():
            job.wait_stopped(PATIENCE_S)
            times, before = 3, job.remaining_ms()
            while times and not second.is_set():  # A step that cannot be interrupted.
                now = job.remaining_ms()
                times -= now > before
                before = now
        inside.remove(job.resource_id)

    async with running_node(options=BEATS) as node, Client(node.url) as client, working(handlers, node.url) as worker:
        first = (await client.enqueue("table", "orders")).sequence_id
        other = (await client.enqueue("table", "orders")).sequence_id
        await until(begun.is_set)
        await client.cancel(first)
        assert (await ended(client, other)).state == "completed"
        assert most == 1
        assert (await client.get(first)).state == "completed"  # It finished all the same.
        await until(lambda: worker.counts.completed == 2)


async def test_a_worker_that_stops_does_not_give_back_what_a_cancelled_thread_still_works_on() -> None:
    handlers = Handlers()
    begun, stopped, release = threading.Event(), threading.Event(), threading.Event()

    @handlers.handle("table")
    def run(job: Job) -> None:
        begun.set()
        job.wait_stopped(PATIENCE_S)
        stopped.set()
        release.wait(PATIENCE_S)

    async with running_node(options=BEATS) as node, Client(node.url) as client:
        try:
            async with working(handlers, node.url, stop_budget_ms=0):
                sequence_id = (await client.enqueue("table", "orders")).sequence_id
                await until(begun.is_set)
                await client.cancel(sequence_id)
                await until(stopped.is_set)
            assert (await client.get(sequence_id)).state == "leased"
        finally:
            release.set()


@pytest.mark.parametrize("force", [True, False], ids=["forced", "expired"])
async def test_a_lost_lease_stops_the_handler(force: bool) -> None:
    handlers = Handlers()
    begun, stopped = asyncio.Event(), asyncio.Event()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        if begun.is_set():  # Not by the attempt: a lease that ran out before any heartbeat burned none.
            return
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert job.stop_reason == "lost"
            stopped.set()

    async with (
        running_node(options=SHORT) as node,
        network_before(node.url) as network,
        Client(node.url) as client,
        working(handlers, network.url) as worker,
    ):
        sequence_id = (await client.enqueue("job", "x")).sequence_id
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        if force:
            await client.cancel(sequence_id, force=True)
        else:
            network.swallow()
        await asyncio.wait_for(stopped.wait(), PATIENCE_S)
        await until(
            lambda: worker.counts.lost >= 1
        )  # More when the machine stood still for longer than such a lease lasts.
        network.heal()
        await ended(client, sequence_id)


async def test_a_thread_that_does_not_stop_keeps_its_place() -> None:
    """Another job must not be begun, and kept alive, while no thread is free to run it."""
    handlers = Handlers()
    release, started = threading.Event(), threading.Event()
    ran = []

    @handlers.handle("job")
    def run(job: Job) -> None:
        ran.append(job.resource_id)
        started.set()
        if job.resource_id == "stubborn":
            release.wait(PATIENCE_S)

    async with (
        running_node() as node,
        Client(node.url) as client,
        working(handlers, node.url, concurrency=1, prefetch=0) as worker,
    ):
        sequence_id = (await client.enqueue("job", "stubborn")).sequence_id
        await until(started.is_set)
        await client.cancel(sequence_id, force=True)
        other = (await client.enqueue("job", "other")).sequence_id
        await until(lambda: worker.health().waiting == 1)
        assert (worker.health().running, ran) == (1, ["stubborn"])
        release.set()
        assert (await ended(client, other)).state == "completed"


# -- taking and giving back ----------------------------------------------------------------------


async def test_no_more_run_at_a_time_than_allowed_and_no_more_are_held() -> None:
    handlers = Handlers()
    running = most = 0

    @handlers.handle("job")
    async def run(job: Job) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert shard_leases(node) <= 6
        await asyncio.sleep(0.001)
        running -= 1

    async with (
        running_node() as node,
        Client(node.url) as client,
        working(handlers, node.url, concurrency=4, prefetch=2) as worker,
    ):
        results = await client.enqueue_many([ItemSpec(resource_type="job", resource_id=str(n)) for n in range(200)])
        for each in results:
            await ended(client, each.sequence_id)
        assert most == 4
        await until(lambda: worker.counts.completed == 200)


async def test_a_worker_takes_only_what_it_has_handlers_for() -> None:
    handlers = Handlers()

    @handlers.handle("mine.*")
    async def run(job: Job) -> None: ...

    async with running_node() as node, Client(node.url) as client, working(handlers, node.url, tenants=["a"]):
        other = await client.enqueue("other", "x", attributes={"tenant": "a"})
        foreign = await client.enqueue("mine.x", "x", attributes={"tenant": "b"})
        mine = await client.enqueue("mine.x", "x", attributes={"tenant": "a"})
        assert (await ended(client, mine.sequence_id)).state == "completed"
        assert (await client.get(other.sequence_id)).state == "ready"
        assert (await client.get(foreign.sequence_id)).state == "ready"


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_graceful_stop_finishes_within_its_budget_and_releases_the_rest(how: str) -> None:
    handlers = Handlers()
    gate = asyncio.Event()
    begun: list[str] = []

    @handlers.handle("job")
    async def run(job: Job) -> None:
        begun.append(job.resource_id)
        if job.resource_id == "endless":
            await asyncio.Event().wait()
        await gate.wait()

    async with running_node() as node, Client(node.url) as client:
        worker = Worker(handlers, url=node.url, concurrency=2, prefetch=3, stop_budget_ms=4_000)
        running = asyncio.ensure_future(worker.run())
        ids = {name: (await client.enqueue("job", name)).sequence_id for name in ("endless", "short", "c", "d", "e")}
        await until(lambda: worker.health().waiting == 3)
        worker.stop() if how == "stop" else running.cancel()
        await until(lambda: shard_leases(node) == 2)
        more = (await client.enqueue("job", "later")).sequence_id
        gate.set()
        assert (await ended(client, ids["short"])).state == "completed"
        await asyncio.wait((running,), timeout=PATIENCE_S)
        assert running.done()
        for sequence_id in (ids["endless"], ids["c"], ids["d"], ids["e"], more):
            item = await client.get(sequence_id)
            assert (item.state, item.attempt) == ("ready", 1), item
        assert begun == ["endless", "short"]


async def test_a_worker_that_stops_is_leased_nothing_any_more() -> None:
    """It has room for thousands: neither what it gives back nor what comes in meanwhile must be pushed to it."""
    handlers = Handlers()
    gate = asyncio.Event()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        await gate.wait()

    async with running_node() as node, Client(node.url) as client:
        async with working(handlers, node.url, concurrency=1, prefetch=2_000, stop_budget_ms=PATIENCE_MS) as worker:
            ids = [(await client.enqueue("job", str(number))).sequence_id for number in range(4)]
            await until(lambda: worker.health().waiting == 3)
            worker.stop()
            await until(lambda: shard_leases(node) == 1)
            ids += [(await client.enqueue("job", "later")).sequence_id for _ in range(3)]
            gate.set()
        assert [(await client.get(each)).state for each in ids] == ["completed", *["ready"] * 6]
        events = [event["eventType"] async for event in client.watch(1, until_caught_up=True)]
        assert (events.count("LeaseGranted"), events.count("Released")) == (4, 3)


async def test_work_goes_on_where_no_stream_gets_through() -> None:
    handlers = Handlers()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        await asyncio.sleep(0)

    async with running_node(options=SHORT) as node, network_before(node.url) as network, Client(node.url) as client:
        network.refuses_upgrades = True
        async with working(handlers, network.url):
            pauses = [0.0, 0.7, 0.0]
            while pauses:
                # The call for leases has waited for longer than a lease lasts; what it brings is fresh all the same.
                await until(lambda: node.dispatcher.active == 1)
                await asyncio.sleep(pauses[0])
                with Stillness() as stillness:
                    item = await ended(client, (await client.enqueue("job", "x")).sequence_id)
                if stillness.longest_s < 0.1:  # Else the lease was too short for this machine.
                    assert (item.state, item.attempt) == ("completed", 1)
                    pauses.pop(0)


async def test_a_worker_has_a_stream_as_soon_as_one_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnirelay.worker.keeping.STREAM_AGAIN_SECONDS", 0.5)
    handlers = Handlers()
    gate = asyncio.Event()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        if job.resource_id == "long":
            await gate.wait()

    async with running_node() as node, network_before(node.url) as network, Client(node.url) as client:
        network.refuses_upgrades = True
        async with working(handlers, network.url, concurrency=2, prefetch=0) as worker:
            long = [(await client.enqueue("job", "long")).sequence_id for _ in range(2)]
            await until(lambda: worker.health().running == 2)  # There is no room for more, so it asks for nothing.
            network.refuses_upgrades = False
            await until(lambda: worker._keeper is not None and worker._keeper._stream is not None)
            gate.set()
            for sequence_id in (*long, (await client.enqueue("job", "x")).sequence_id):
                item = await ended(client, sequence_id)
                assert (item.state, item.attempt) == ("completed", 1)


async def test_an_idle_stream_does_not_make_fresh_leases_look_old() -> None:
    """Leases shorter than the pause between two clocks: every one of them must be worked on at its first attempt."""
    options = QueueOptions(lease_duration_ms=400, heartbeat_interval_ms=100, max_undelivered=0)
    handlers = Handlers()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        assert job.remaining_ms() > 0

    async with running_node(options=options) as node, Client(node.url) as client, working(handlers, node.url):
        shown = 0
        while shown < 8:
            with Stillness() as stillness:
                item = await ended(client, (await client.enqueue("job", "x")).sequence_id)
            if stillness.longest_s < 0.1:  # Else the lease was too short for this machine.
                assert (item.state, item.attempt) == ("completed", 1)
                shown += 1
            await asyncio.sleep(0.3)  # Idle on purpose: clocks go out once a second.
