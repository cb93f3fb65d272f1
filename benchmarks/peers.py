"""A node beside Redis, PostgreSQL and beanstalkd, each as durable as ours, in one run.

    python -m benchmarks.peers [--quick] [--directory DIR] [--only NAME,..]

Names: plain, ids, compiled (ours), streams, list, postgres, beanstalkd. Every system is started here, on loopback, with
its files in a temporary directory; what it acknowledges is flushed. All clients are Python on one event loop in this
process, with 256-byte bodies; cycle = enqueue, lease, complete. The systems take turns and the medians are given.

Ours goes through `omnirelay.Client` over its stream, without request ids for enqueues; "request ids" is the client as
it comes, which keeps one for every item. Pushed leases are those of the stream that workers use.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import uvloop

from benchmarks import peers_load
from benchmarks.kernel_flushes import check_flushes
from benchmarks.machine import Load, environment
from benchmarks.peers_beanstalkd import Beanstalkd
from benchmarks.peers_load import System
from benchmarks.peers_ours import Ours, serve
from benchmarks.peers_postgres import PostgreSQL
from benchmarks.peers_redis import RedisList, RedisStreams
from benchmarks.peers_table import Figures, Row, print_aims, print_tables
from hatch_build import compile_hot_path

ROOT = Path(__file__).parent.parent
RESTART_PENDING = 1_000_000

SYSTEMS: dict[str, Callable[[Path], System]] = {
    "plain": partial(Ours, name="ours"),
    "ids": partial(Ours, name="ours, request ids", request_ids=True),
    "compiled": lambda directory: Ours(directory, "ours, compiled", library=compiled(directory.parent)),
    "streams": RedisStreams,
    "list": RedisList,
    "postgres": PostgreSQL,
    "beanstalkd": Beanstalkd,
}
ASKING = "ours, a lease call that waits"

Run = Callable[[], Awaitable[Figures]]


def compiled(work: Path) -> Path:
    library = work / "library"
    library.mkdir()
    started = time.perf_counter()
    compile_hot_path(ROOT / "src", library)
    print(f"hot path compiled in {time.perf_counter() - started:.0f} s", flush=True)
    return library


class Measuring:
    """All runs of all systems; a line of progress for each, with what else used the machine meanwhile."""

    def __init__(self, systems: dict[str, System], passes: int) -> None:
        self._systems = systems
        self._passes = passes
        self.rows = {key: Row(name=system.name, figures={}) for key, system in systems.items()}

    def load(self) -> Load:
        load = Load.now()
        load.own += self._servers_cpu()
        return load

    def since(self, load: Load) -> str:
        """The servers run on while this process is asked for its children, so their time is added here."""
        load.own -= self._servers_cpu()
        return load.since()

    def _servers_cpu(self) -> float:
        return sum(system.server.cpu for system in self._systems.values())

    async def take_turns(self, name: str, runs: dict[str, Run]) -> None:
        seen: dict[str, list[Figures]] = {key: [] for key in runs}
        load = self.load()
        for _ in range(self._passes):
            for key, run in runs.items():
                gc.collect()
                seen[key].append(await run())
        for key, figures in seen.items():
            medians = {each: statistics.median(one[each] for one in figures) for each in figures[0]}
            self.rows.setdefault(key, Row(name=key, figures={})).figures[name] = medians
        print(f"  {name:>10}: {self.since(load)}", flush=True)


async def measure(systems: dict[str, System], quick: bool) -> Measuring:
    passes, seconds, items, hand_offs = (3, 1.0, 40_000, 200) if quick else (5, 3.0, 200_000, 1_000)
    measuring = Measuring(systems, passes)
    for system in systems.values():
        system.start()
        await system.prepare()
    print(f"medians of {passes} passes in turn; load of the machine meanwhile, without what is measured:")
    for clients in (1, 32):
        name = f"{clients} client{'s' if clients > 1 else ''}"
        runs: dict[str, Run] = {
            key: partial(peers_load.cycles, system, clients, seconds) for key, system in systems.items()
        }
        await measuring.take_turns(name, runs)
    for batch in (200, 1_000):
        runs = {key: partial(peers_load.batches, system, 4, batch, items) for key, system in systems.items()}
        await measuring.take_turns(f"batch {batch}", runs)
    runs = {}
    for key, system in systems.items():
        if system.hands_off:
            connect = system.connect_pushed if isinstance(system, Ours) else system.connect
            runs[key] = partial(peers_load.hand_off, connect, hand_offs)
        if key == "plain":
            runs[ASKING] = partial(peers_load.hand_off, system.connect, hand_offs)
    await measuring.take_turns("hand-off", runs)
    return measuring


async def restart(measuring: Measuring, systems: dict[str, System]) -> None:
    """Kill a system that has a million pending items; the time until the next start gives its first lease."""
    for key, system in systems.items():
        await system.prepare()
        await system.fill(RESTART_PENDING)
        system.server.end(signal.SIGKILL)
        started = time.perf_counter()
        load = measuring.load()
        system.start()
        seconds = await peers_load.restart_lease(system, started)
        measuring.rows[key].figures["restart"] = {"seconds": seconds}
        print(f"  {'restart':>10}: {measuring.since(load)}, {system.name}", flush=True)
        system.server.end(signal.SIGKILL)


def main(arguments: argparse.Namespace) -> None:
    wanted = arguments.only.split(",") if arguments.only else list(SYSTEMS)
    unknown = [name for name in wanted if name not in SYSTEMS]
    if unknown:
        sys.exit(f"--only knows {', '.join(SYSTEMS)}; not {', '.join(unknown)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # No server outlives this process.
    print(environment())
    work = Path(tempfile.mkdtemp(prefix="omnirelay-peers-", dir=arguments.directory))
    work.chmod(0o755)  # PostgreSQL may run as another user.
    systems: dict[str, System] = {}
    try:
        check_flushes(work / "flushes")
        for name in wanted:
            systems[name] = SYSTEMS[name](work / name)
        measuring = uvloop.run(measure(systems, arguments.quick))
        if not arguments.quick:
            uvloop.run(restart(measuring, systems))
    finally:
        for system in systems.values():
            system.server.end(signal.SIGTERM)
        shutil.rmtree(work, ignore_errors=True)
    rows = measuring.rows
    ours = rows.get("plain") or rows.get("ids") or rows.get("compiled") or Row(name="")
    print_tables(list(rows.values()), ours, restart=not arguments.quick)
    print_aims(rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]), sys.argv[3] == "compiled")
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--quick", action="store_true", help="fewer and shorter passes, no restart")
        parser.add_argument("--directory", help="where to write (a real disk); default: the temporary directory")
        parser.add_argument("--only", metavar="NAME,..", help=f"of {', '.join(SYSTEMS)}")
        main(parser.parse_args())
