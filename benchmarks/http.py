"""What HTTP costs: a node beside a bare ASGI application under the same server, in one run.

    python -m benchmarks.http [--quick] [--directory DIR]

The bare application reads the body and answers with a constant; it decides nothing and keeps nothing. The node flushes
every frame before it answers. Client and server are one process each; the runs take turns and the medians are given.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from benchmarks import http_load
from benchmarks.kernel_flushes import check_flushes
from benchmarks.machine import Load, environment
from omnirelay.node.running import run_node
from omnirelay.node.settings import NodeSection, NodeSettings

ROOT = Path(__file__).parent.parent
ANSWER = b'{"stats":{"pendingCount":1,"activeLeaseCount":0},"sequenceId":1,"duplicate":false}'


async def bare(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


def serve_bare() -> None:
    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            print(self.servers[0].sockets[0].getsockname()[1], flush=True)

    config = uvicorn.Config(
        bare, port=0, http="httptools", ws="none", lifespan="off", access_log=False, log_level="error"
    )
    uvloop.run(Server(config).serve())


def serve_node(directory: Path) -> None:
    run_node(
        NodeSettings(node=NodeSection(data=directory, port=0)),
        lambda node: print(node.port, flush=True),
    )


@contextmanager
def server(what: str, directory: Path) -> Iterator[int]:
    """A server in a process of its own; gives its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.http", "--serve", what, directory],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ,
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        process.stdout.close()


Run = Callable[[int], Awaitable[dict[str, float]]]


def measure(runs: dict[str, tuple[str, Run]], passes: int, work: Path) -> dict[str, dict[str, float]]:
    """Every run `passes` times, taking turns, each on a server of its own; the medians by name."""
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for number in range(passes):
        for name, (what, run) in runs.items():
            with server(what, work / f"{name.replace(' ', '-')}-{number}") as port:

                async def once(run: Run = run, port: int = port) -> dict[str, float]:
                    return await run(port)

                figures[name].append(uvloop.run(once()))
    return {
        name: {key: statistics.median(each[key] for each in rows) for key in rows[0]} for name, rows in figures.items()
    }


def main(arguments: argparse.Namespace) -> None:
    print(environment())
    work = Path(tempfile.mkdtemp(prefix="omnirelay-http-", dir=arguments.directory))
    seconds, passes = (1.5, 3) if arguments.quick else (4.0, 5)
    runs: dict[str, tuple[str, Run]] = {}
    for connections in (1, 32):
        runs[f"bare {connections}"] = ("bare", lambda port, n=connections: http_load.single_calls(port, n, seconds))  # type: ignore[misc]
        runs[f"enqueue {connections}"] = ("node", lambda port, n=connections: http_load.single_calls(port, n, seconds))  # type: ignore[misc]
        runs[f"cycle {connections}"] = ("node", lambda port, n=connections: http_load.cycles(port, n, 1, seconds))  # type: ignore[misc]
    for batch in (100, 1_000):
        runs[f"batch {batch}"] = ("node", lambda port, n=batch: http_load.cycles(port, 4, n, seconds))  # type: ignore[misc]
    runs["hand-off"] = ("node", lambda port: http_load.hand_off(port, 300 if arguments.quick else 1_000))
    try:
        check_flushes(work / "flushes")
        load = Load.now()
        figures = measure(runs, passes, work)
    finally:
        shutil.rmtree(work)
    print(f"\nmedians of {passes} passes of {seconds:g} s, client and server on the same machine  ({load.since()})\n")
    print(f"{'':>24} {'calls/s':>9} {'of bare':>8} {'p50 us':>8} {'p99 us':>8}")
    for connections in (1, 32):
        base = figures[f"bare {connections}"]["rate"]
        for name, calls in (("bare", 1), ("enqueue", 1), ("cycle", 3)):
            row = figures[f"{name} {connections}"]
            rate = row["rate"] * calls
            latency = f"{row['p50_us']:>8.0f} {row['p99_us']:>8.0f}" if "p50_us" in row else ""
            label = f"{name}, {connections} connection{'s' if connections > 1 else ''}"
            print(f"{label:>24} {rate:>9,.0f} {rate / base:>8.2f} {latency}")
    print(f"\ndurable full cycles/s: {figures['cycle 1']['rate']:,.0f} with 1 connection and single calls, ", end="")
    print(f"{figures['cycle 32']['rate']:,.0f} with 32")
    for batch in (100, 1_000):
        print(f"durable full cycles/s, 4 connections, batches of {batch}: {figures[f'batch {batch}']['rate']:,.0f}")
    hand = figures["hand-off"]
    print(
        f"hand-off (enqueue sent -> waiting lease answered): p50 {hand['p50_us']:.0f} us, p99 {hand['p99_us']:.0f} us"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        if sys.argv[2] == "bare":
            serve_bare()
        else:
            serve_node(Path(sys.argv[3]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--quick", action="store_true", help="fewer and shorter passes, for a first look")
        parser.add_argument("--directory", help="where to write (a real disk); default: the temporary directory")
        main(parser.parse_args())
