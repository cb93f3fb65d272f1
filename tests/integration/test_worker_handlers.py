"""Handlers that end oddly, and those with which no job would ever run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from omnirelay.client.client import Client
from omnirelay.core.options import QueueOptions
from omnirelay.errors import InvalidArgument
from omnirelay.worker.handlers import Handlers
from omnirelay.worker.job import Job
from omnirelay.worker.worker import Worker
from tests.integration.http_sockets import until
from tests.integration.nodes import running_node
from tests.integration.test_worker_jobs import SHORT, ended, working


class NotAnException(BaseException):
    """As native libraries raise when they panic."""


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


ODD_ENDS: dict[str, Any] = {
    "exit": SystemExit(3),
    "panic": NotAnException("index out of bounds"),
    "stop": StopIteration(),
    "generator": GeneratorExit(),
    "unsayable": Unsayable(),
}


@pytest.mark.parametrize("name", ODD_ENDS)
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_no_exception_keeps_an_item_leased_or_ends_the_worker(kind: str, name: str) -> None:
    handlers = Handlers()
    tries = 0

    def odd_once() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ODD_ENDS[name]

    @handlers.handle("async")
    async def in_the_loop(job: Job) -> None:
        odd_once()

    @handlers.handle("thread")
    def in_a_thread(job: Job) -> None:
        odd_once()

    options = QueueOptions(max_delivery_attempts=2)
    async with running_node(options=options) as node, Client(node.url) as client:
        async with working(handlers, node.url, concurrency=1, prefetch=0) as worker:
            first = await ended(client, (await client.enqueue(kind, "odd")).sequence_id)
            second = await ended(client, (await client.enqueue(kind, "fine")).sequence_id)
        assert (first.state, second.state) == ("completed", "completed")
        assert tries == 3
        assert worker.counts.completed == 2
        if name == "exit":
            assert first.attempt == 2, "leaving the program is a failure like any other"


async def test_an_exception_without_a_text_is_named_by_its_class_alone() -> None:
    handlers = Handlers()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        raise TimeoutError

    async with running_node() as node, Client(node.url) as client, working(handlers, node.url):
        item = await ended(client, (await client.enqueue("job", "x", max_attempts=1)).sequence_id)
    assert (item.last_error.code, item.last_error.message) == ("TimeoutError", "TimeoutError")


async def test_what_a_plain_function_makes_of_an_async_one_is_run() -> None:
    handlers = Handlers()

    async def later(job: Job) -> str:
        return f"done {job.resource_id}"

    handlers.handle("job")(lambda job: later(job))  # noqa: PLW0108 (a plain function is meant)
    async with running_node() as node, Client(node.url) as client, working(handlers, node.url):
        item = await ended(client, (await client.enqueue("job", "x")).sequence_id)
        assert item.result == b"done x"


async def test_leases_no_longer_than_the_guard_are_handed_back_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    handlers = Handlers()

    @handlers.handle("job")
    async def run(job: Job) -> None:
        raise AssertionError("never begun")

    async with running_node(options=SHORT) as node, Client(node.url) as client:
        async with working(handlers, node.url, guard_ms=30_000):
            accepted = await client.enqueue("job", "x")
            await until(lambda: any(record.message == "lease_too_short" for record in caplog.records))
            item = await client.get(accepted.sequence_id)
        assert (item.attempt, item.state) in ((1, "delayed"), (1, "leased"), (1, "ready"))


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": 2.5},
        {"prefetch": -1},
        {"guard_ms": -1},
        {"lease_duration_ms": 200},
        {"lease_duration_ms": 1_000, "guard_ms": 1_000},
        {"tenants": "acme"},
        {"tenants": []},
    ],
)
async def test_settings_with_which_no_job_would_ever_run_are_refused(options: dict[str, Any]) -> None:
    handlers = Handlers()
    handlers.handle("job")(print)
    with pytest.raises(InvalidArgument) as refused:
        Worker(handlers, **options)
    assert refused.value.details["field"] in ("guard_ms", *options)


def test_handlers_that_could_never_run_are_refused() -> None:
    handlers = Handlers()

    def generator(job: Job) -> Any:
        yield 1

    async def async_generator(job: Job) -> Any:
        yield 1

    bare: Any = handlers.handle
    wrong: list[Callable[[], Any]] = [
        lambda: bare(print),
        handlers.handle,
        lambda: handlers.handle(""),
        lambda: handlers.handle("job")(generator),
        lambda: handlers.handle("job")(async_generator),
        lambda: handlers.handle("job", on_error="dead"),  # type: ignore[arg-type]
        lambda: handlers.handle("job", on_error={"ValueError": "dead"}),  # type: ignore[dict-item]
        lambda: handlers.handle("job", on_error={ValueError: "drop"}),  # type: ignore[dict-item]
    ]
    for register in wrong:
        with pytest.raises(InvalidArgument):
            register()
    assert not handlers.patterns
