"""A node, a small data fabric and everything that goes wrong in one, in a quarter of a minute.

    python -m examples.demo [--items 600] [--data DIR] [--no-lakehouse]

Tables are compacted, shards are read by one owner each, sagas go through three steps, views are rebuilt. The workers
are processes: they crash, and are started again; one is stopped until its leases have run out, and comes back as a
zombie. The node itself is killed half way and started again on the same log. In the end what happened is told from
the log, and the log is verified; then Spark makes tables of it, audits it and draws a report, which takes longer than
all the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.demo_fabric import NAMESPACE, FencedStore
from examples.demo_story import tell
from omnirelay import Client, ItemSpec
from omnirelay.errors import OmniRelayError

WORKERS = 3
STUCK = 3
VIEWS = 4
LEASE_SECONDS = 1.0
CONFIG = f"""\
[node]
port = 0
log_level = "error"

[shards.{NAMESPACE}]
lease_duration = "{LEASE_SECONDS:g}s"
heartbeat_interval = "200ms"
requeue_delay = "10ms"
max_delivery_attempts = 6
ordering = "exclusive"
"""
LAKE = "lake"
SINK = f"""
[sinks.{LAKE}]
kind = "objects"
path = "segments"
linger = "200ms"
"""


# -- processes -----------------------------------------------------------------------------------


class NodeProcess:
    """The node, as anybody would run it: `omnirelay serve`."""

    def __init__(self, directory: Path, config: str) -> None:
        self._directory = directory
        self._config = config
        self._process: asyncio.subprocess.Process | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        config = self._directory / "omnirelay.toml"
        config.write_text(self._config)
        node_file = self._directory / "node.json"
        node_file.unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "omnirelay.cli", "serve", "--config", str(config),
            "--data", str(self._directory), "--port", str(self.port), stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        while not node_file.exists():
            if self._process.returncode is not None:
                sys.exit("the node did not start; its error stands above")
            await asyncio.sleep(0.02)
        self.port = json.loads(node_file.read_text())["port"]

    async def end(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        await self._process.wait()


class WorkerProcess:
    """A worker that is started again whenever it dies, as a supervisor would."""

    def __init__(self, url: str, store: Path, name: str, seed: int) -> None:
        self.name = name
        self._arguments = [url, str(store), name]
        self._seed = seed
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False
        self.deaths = 0

    async def run(self) -> None:
        while not self._stopping:
            self._seed += 1
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "examples.demo_fabric", *self._arguments, str(self._seed),
                stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            await self._process.wait()
            self.deaths += not self._stopping

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def stop(self) -> None:
        self._stopping = True
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)


# -- the fabric ----------------------------------------------------------------------------------


def fabric(count: int) -> list[ItemSpec]:
    """Six in ten are tables, one in a hundred of them broken; then shards and sagas."""
    items = []
    for number in range(count):
        request_id = f"demo-{number}"
        if number % 10 < 6:
            broken = {"manifest": "broken"} if number % 100 == 0 else None
            items.append(
                ItemSpec(
                    resource_type="table",
                    resource_id=f"lake.table_{number % 97}",
                    body=b'{"op":"compact"}',
                    attributes=broken,
                    request_id=request_id,
                )
            )
        elif number % 10 < 8:
            items.append(ItemSpec(resource_type="shard", resource_id=f"cdc-{number % 12}", request_id=request_id))
        else:
            items.append(ItemSpec(resource_type="saga.reserve", resource_id=f"order-{number}", request_id=request_id))
    return items


async def owner_of_a_view(client: Client, workers: list[WorkerProcess]) -> WorkerProcess:
    """A worker that is in the middle of something: it has reported how far it is."""
    while True:
        for item in (await client.peek(state="leased", resource_type="view")).items:
            for worker in workers:
                if item.progress is not None and worker.name == item.owner_peer_id:
                    return worker
        await asyncio.sleep(0.02)


async def run_fabric(node: NodeProcess, workers: list[WorkerProcess], items: int, console: Console) -> None:
    """Everything that happens, in its order."""
    sagas = sum(1 for number in range(items) if number % 10 >= 8)
    total = items + 2 * sagas + VIEWS + STUCK
    bar = Progress(
        TextColumn("  {task.description:<44}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    async with Client(node.url, namespace=NAMESPACE, timeout_ms=60_000) as client:
        stuck = await client.enqueue_many(
            [ItemSpec(resource_type="stuck", resource_id=f"s-{n}", priority=0) for n in range(STUCK)]
        )
        views = await client.enqueue_many(
            [ItemSpec(resource_type="view", resource_id=f"v-{n}", priority=0) for n in range(VIEWS)]
        )
        await client.enqueue_many(fabric(items))
        with bar:
            task = bar.add_task("workers crash and come back", total=total)

            async def progress_to(share: float, what: str) -> None:
                bar.update(task, description=what)
                while True:
                    stats = await client.stats()
                    done = stats.completed_count + stats.dead_letter_count
                    bar.update(task, completed=done)
                    if done >= total * share and (share < 1 or stats.pending_count + stats.active_lease_count == 0):
                        return
                    await asyncio.sleep(0.1)

            victim = await owner_of_a_view(client, workers)
            victim.signal(signal.SIGSTOP)
            await progress_to(0.25, "a worker is stopped, its leases run out")
            for view in views:  # Somebody else finishes what the stopped one had.
                await client.get(view.sequence_id, wait_ms=30_000)
            victim.signal(signal.SIGCONT)
            await progress_to(0.5, "the zombie is back")
            for each in stuck:
                await client.cancel(each.sequence_id, reason="demo")
            bar.update(task, description="kill -9 of the node, and started again")
            await node.end(signal.SIGKILL)
            await node.start()
            await progress_to(1, "everybody is back")
            bar.update(task, description="done")


async def segments_written(node: NodeProcess) -> None:
    """Return when the sink has brought everything that happened into its segments."""
    async with httpx.AsyncClient(base_url=node.url) as http:
        while True:
            sinks = (await http.get("/omnirelay/control/replication")).raise_for_status().json()["sinks"]
            if all(sink["lagEvents"] == 0 for sink in sinks):
                return
            await asyncio.sleep(0.1)


async def tables_made(directory: Path) -> int:
    """In a process of its own: Spark is a large guest."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.demo_lakehouse", str(directory), stdin=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


async def demo(directory: Path, items: int, *, lakehouse: bool) -> int:
    console = Console(highlight=False)
    started = time.monotonic()
    console.print(
        f"OmniRelay demo: {items:,} pieces of work, {WORKERS} workers that crash, one zombie, one kill -9",
        soft_wrap=True,
    )
    node = NodeProcess(directory, CONFIG + SINK if lakehouse else CONFIG)
    await node.start()
    store = directory / "store.db"
    FencedStore(store)
    workers = [WorkerProcess(node.url, store, f"worker-{n}", 100 * n) for n in range(WORKERS)]
    supervised = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        try:
            await run_fabric(node, workers, items, console)
        finally:
            for worker in workers:
                worker.stop()
            await asyncio.gather(*supervised)
        if lakehouse:
            await segments_written(node)
    finally:
        await node.end(signal.SIGTERM)
    console.print(f"  finished after {time.monotonic() - started:.1f} s\n")
    story = await tell(directory, NAMESPACE)
    taken, refused = FencedStore(store).counts()
    console.print(
        story.text(deaths=sum(worker.deaths for worker in workers), writes=taken, refused=refused), soft_wrap=True
    )
    if not story.holds(items):
        console.print("something was lost or doubled: this is a bug")
        return 1
    if lakehouse:
        console.print("\nThe same log as tables, with Spark:")
        return await tables_made(directory)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=600, help="how many items to run (600)")
    parser.add_argument("--data", type=Path, help="where to keep the log (a new temporary directory)")
    parser.add_argument("--no-lakehouse", action="store_true", help="end without Spark")
    arguments = parser.parse_args()
    if arguments.items < 100:
        parser.error("--items must be at least 100")
    directory = arguments.data or Path(tempfile.mkdtemp(prefix="omnirelay-demo-"))
    if (directory / NAMESPACE).exists():
        parser.error(f"{directory} has a demo log already; give another directory")
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return asyncio.run(demo(directory, arguments.items, lakehouse=not arguments.no_lakehouse))
    except OmniRelayError as error:
        sys.exit(f"error: {error.message} ({error.code})")
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
