"""The registry of handlers, and what a worker refuses before it connects anywhere."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial

import pytest

from omnirelay.client.messages import PushedMessage
from omnirelay.client.retrying import BUDGET_MAX, PAUSE_MAX_MS, RetryBudget, pause_ms
from omnirelay.core.commands import Progress
from omnirelay.core.intake import DELAY_MAX_MS
from omnirelay.core.payload import OwnershipToken
from omnirelay.errors import InvalidArgument
from omnirelay.wire.answers import Lease, OutgoingPayload
from omnirelay.worker.handlers import Handlers, Release, Retry
from omnirelay.worker.job import Job, JobStopped
from omnirelay.worker.worker import Worker


def make_lease() -> Lease:
    return Lease(
        payload=OutgoingPayload(
            resource_type="table",
            resource_id="orders",
            partition_key="orders",
            payload_encoding="application/json",
            body=b"",
            attributes={},
        ),
        sequence_id=7,
        attempt=2,
        enqueued_at="2026-01-01T00:00:00+00:00",
        ownership_token=OwnershipToken(7, 2, "00000000-0000-0000-0000-000000000000", 9),
        owner_peer_id="w",
        expires_at="2026-01-01T00:00:30+00:00",
        remaining_ms=30_000,
        heartbeat_after_ms=5_000,
        priority=5,
    )


def test_importing_and_registering_connects_and_starts_nothing() -> None:
    script = """
import socket, threading
def refuse(*_): raise AssertionError("something connects")
socket.socket.connect = refuse
from omnirelay.worker.handlers import Handlers, Release, Retry
from omnirelay.worker.worker import Worker
handlers = Handlers()
handlers.handle("table")(lambda job: None)
Worker(handlers, url="http://127.0.0.1:1")
assert threading.active_count() == 1, threading.enumerate()
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_handler_whose_pattern_fits_is_taken() -> None:
    handlers = Handlers()

    @handlers.handle("table.*", "view")
    def tables(job: Job) -> None: ...

    @handlers.handle("*")
    async def rest(job: Job) -> None: ...

    assert handlers.patterns == ["table.*", "view", "*"]
    for kind, call in (("table.a", tables), ("view", tables), ("table", rest), ("TABLE.A", rest)):
        found = handlers.find(kind)
        assert found is not None
        assert found.call is call
    empty = Handlers()
    assert empty.find("table") is None
    with pytest.raises(InvalidArgument):
        empty.handle()


def test_what_is_async_is_known_of_functions_partials_and_objects() -> None:
    async def function(job: Job, more: int = 0) -> None: ...

    class Called:
        async def __call__(self, job: Job) -> None: ...

    class Plain:
        def __call__(self, job: Job) -> None: ...

    handlers = Handlers()
    for name, call in (("f", function), ("p", partial(function, more=1)), ("c", Called()), ("o", Plain())):
        handlers.handle(name)(call)
    kinds = {name: found.is_async for name in "fpco" if (found := handlers.find(name)) is not None}
    assert kinds == {"f": True, "p": True, "c": True, "o": False}


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"prefetch": -1}, {"url": "127.0.0.1:7070"}])
def test_a_worker_names_the_option_that_is_wrong(options: dict[str, object]) -> None:
    handlers = Handlers()
    with pytest.raises(InvalidArgument):
        Worker(handlers)
    handlers.handle("x")(print)
    with pytest.raises(InvalidArgument) as wrong:
        Worker(handlers, **options)  # type: ignore[arg-type]
    assert wrong.value.details["field"] == next(iter(options))


def test_a_job_is_told_to_stop_once_and_for_all() -> None:
    reports: list[Progress] = []
    job = Job(make_lease(), reports.append, lambda: 12.5)
    assert (job.resource_type, job.resource_id, job.attempt, job.fence, job.remaining_ms()) == (
        "table",
        "orders",
        2,
        9,
        12.5,
    )
    job.check()
    job.report(0.5, "half")
    assert [each.fraction for each in reports] == [0.5]
    waiting = threading.Thread(target=job.wait_stopped, args=(20,))
    waiting.start()
    job.stop("lost")
    waiting.join()
    job.stop("cancelled")
    assert (job.stopped, job.stop_reason) == (True, "lost")
    with pytest.raises(JobStopped):
        job.check()


def test_retries_are_paid_for_by_calls_that_work() -> None:
    budget = RetryBudget()
    spent = 0
    while budget.spend():
        spent += 1
    assert spent == BUDGET_MAX
    for _ in range(4):
        budget.earn()
    assert not budget.spend()
    for _ in range(2):
        budget.earn()
    assert budget.spend()
    for _ in range(int(20 * BUDGET_MAX)):
        budget.earn()
    assert sum(budget.spend() for _ in range(int(2 * BUDGET_MAX))) == BUDGET_MAX


def test_pauses_grow_to_a_limit_and_are_never_shorter_than_asked() -> None:
    assert max(pause_ms(each, None) for each in range(20)) <= PAUSE_MAX_MS * 1.3
    assert min(pause_ms(0, None) for _ in range(100)) > 0
    assert min(pause_ms(0, 10_000) for _ in range(100)) >= 7_000
    assert PushedMessage().leases is None


@pytest.mark.parametrize("kind", [Retry, Release])
@pytest.mark.parametrize("delay_ms", [-5, DELAY_MAX_MS + 1])
def test_a_delay_that_no_node_takes_is_refused_where_it_is_said(kind: type[Retry | Release], delay_ms: int) -> None:
    """Sent to the node, it would be refused there, and burn an attempt as an outcome that is none."""
    with pytest.raises(InvalidArgument, match="delay_ms must be from 0"):
        kind("not now", delay_ms=delay_ms)
    assert kind("not now", delay_ms=0).delay_ms == 0
