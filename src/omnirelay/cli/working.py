"""`work`: a worker in this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirelay.cli.commands import RUNNING, command
from omnirelay.cli.exits import DONE, Stop, usage
from omnirelay.cli.options import DEFAULT_NAMESPACE, DEFAULT_URL, Namespace, Url, duration
from omnirelay.cli.printing import note
from omnirelay.client.addresses import without_password

if TYPE_CHECKING:
    from omnirelay.cli.worker_stop import WorkerStop
    from omnirelay.worker.worker import Worker

LIVENESS_SECONDS = 0.5
TEN_SECONDS: Any = "10s"


def add_to(app: typer.Typer) -> None:
    command(app, "work", _WORK, RUNNING)(work)


_WORK = """
    omnirelay work jobs:handlers
    omnirelay work mycompany.tables:handlers --concurrency 20 --peer worker-1
    omnirelay work jobs:handlers --liveness-file /run/worker.alive
"""


def work(
    registry: Annotated[
        str, typer.Argument(help="Where the handlers are: a module and the name in it.", metavar="MODULE:NAME")
    ],
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Jobs at a time.")] = 10,
    prefetch: Annotated[
        int | None, typer.Option("--prefetch", min=0, help="Leases held beyond those. [half of --concurrency]")
    ] = None,
    peer: Annotated[str | None, typer.Option("--peer", help="Name of this worker. [host and pid]")] = None,
    lease_duration: Annotated[
        int | None,
        duration("--duration", help="Ask for leases this long."),
    ] = None,
    budget: Annotated[
        int,
        duration("--stop-budget", help="What jobs get to finish after SIGTERM."),
    ] = TEN_SECONDS,
    liveness_file: Annotated[
        Path | None,
        typer.Option("--liveness-file", metavar="FILE", help="Touched while the worker gets anywhere, for probes."),
    ] = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
) -> None:
    """Run a worker. SIGTERM lets running jobs finish, within --stop-budget, and releases the rest; a second one ends it
    at once.
    """
    import asyncio

    from omnirelay.cli.handler_modules import find_handlers
    from omnirelay.cli.worker_stop import WorkerStop
    from omnirelay.node.logs import set_up_logs
    from omnirelay.worker.worker import Worker

    handlers = find_handlers(registry)
    if liveness_file is not None:
        _check_writable(liveness_file)
    set_up_logs("info", as_json=not sys.stderr.isatty())
    worker = Worker(
        handlers,
        url=url,
        namespace=namespace,
        peer_id=peer,
        concurrency=concurrency,
        prefetch=prefetch,
        lease_duration_ms=lease_duration,
        stop_budget_ms=budget,
    )
    place = f"{without_password(url)} ({namespace})"
    note(f"{worker.peer_id} works on {', '.join(handlers.patterns)} from {place}; ctrl-C stops it")
    stop = WorkerStop(worker, budget)
    asyncio.run(_run(stop, worker, liveness_file))
    if (code := stop.end()) != DONE:
        raise Stop(code)


def _check_writable(path: Path) -> None:
    try:
        path.touch()
    except OSError as error:
        raise usage(f"--liveness-file cannot be written: {error}") from None


async def _run(stop: WorkerStop, worker: Worker, liveness_file: Path | None) -> None:
    with nullcontext() if liveness_file is None else showing_liveness(worker, liveness_file):
        await stop.run()


@contextmanager
def showing_liveness(worker: Worker, path: Path) -> Iterator[None]:
    """Touch the file while all is well. A probe looks at its age: it goes stale when the worker gets nowhere.

    From a thread of its own: a handler that blocks the event loop keeps its lease, and must not have its worker killed
    for it.
    """
    over = threading.Event()

    def show() -> None:
        failed: str | None = None
        while not over.is_set():
            if worker.health().ok:
                try:
                    path.touch()
                    failed = None
                except OSError as error:
                    if str(error) != failed:
                        failed = str(error)
                        note(f"the liveness file cannot be written, so probes will fail: {error}")
            over.wait(LIVENESS_SECONDS)

    # A daemon: a file system that hangs must not keep a process alive that is done.
    thread = threading.Thread(target=show, name="omnirelay-liveness", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LIVENESS_SECONDS)
