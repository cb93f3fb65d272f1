"""What leaves the node: events/s of every sink beside the log's own rate, and what callers notice of it, in one run.

    python -m benchmarks.replication [--quick] [--only NAME,NAME] [--events N] [--directory DIR] [--core plain|compiled]

A log of 1,000,000 events (a tenth with --quick) goes through each sink, made anew for it, delivered by the follower of
a node in this process and confirmed by the target. Before and after each, the log is measured: durable cycles in
batches of 1,000, three events each, as `benchmarks.kernel` has them. Then the node is loaded steadily: how far the sink
is behind, and how long an enqueue takes without a sink, with it, and while it catches up with a long log. For
comparison: without a sink and beside programs that do nothing but keep every processor busy. At last the receiver of a
webhook is killed and started again: what callers notice of it while it is down, and while its sink comes back and
catches up by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from benchmarks.kernel import cycles, open_shard
from benchmarks.kernel_flushes import check_flushes
from benchmarks.machine import Load, Passes, environment, is_compiled, spin
from benchmarks.replication_load import LagMeter, Waits, loaded
from benchmarks.replication_targets import TARGETS, Target, is_missing
from hatch_build import compile_hot_path
from omnirelay.engine.process import tune_process
from omnirelay.engine.shard import Shard
from omnirelay.replication.following import Follower
from omnirelay.replication.replication import Replication
from omnirelay.replication.settings import SinkSettings

ROOT = Path(__file__).parent.parent
EVENTS_PER_SECOND = 20_000
"""Of the steady load: a good deal less than the log takes, as a node should be run."""
FEW_PER_SECOND = 600
"""The same for a sink that makes a file of every event."""
FEW_OF_QUICK = 10
"""Such a sink gets one event of so many with --quick, which is to be done soon."""
RETRY_MAX_MS = 1_000
"""Of the sink that is down for a while, 30 s by default: they would be most of what is measured."""
AIM = 1.0


class Scale(msgspec.Struct, frozen=True):
    events: int
    few: int
    """For a sink that makes a file of every event."""
    passes: int
    seconds: float


class Row(msgspec.Struct):
    name: str
    events: int
    rate: float
    log: float
    cpu_us: float
    lag: Waits
    healthy: Waits
    catching_up: Waits
    catching_up_rate: float
    load: str


@asynccontextmanager
async def replicating(shard: Shard, settings: SinkSettings, directory: Path) -> AsyncIterator[Replication]:
    """One sink behind the shard: it is the only follower."""
    os.makedirs(directory, exist_ok=True)
    replication = Replication([settings], directory, durable=True)
    replication.follow(shard)
    try:
        yield replication
    finally:
        await replication.stop()


def cpu_of(pids: Sequence[int]) -> float:
    """Seconds that other processes have used so far."""
    if sys.platform != "linux":
        return 0.0
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def busy_programs() -> Iterator[None]:
    """One for each processor, at usual priority: what callers notice of them, they owe to no sink."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


async def confirmed(follower: Follower, sequence: int) -> None:
    """Return when everything is delivered; raises when that will never be."""
    done = asyncio.create_task(follower.wait_confirmed(sequence))
    failed = asyncio.create_task(follower.wait_state("failed"))
    await asyncio.wait((done, failed), return_when=asyncio.FIRST_COMPLETED)
    failed.cancel()
    if not done.done():
        done.cancel()
        raise RuntimeError(f"{follower.name}: {follower.last_error}")


class Bench:
    def __init__(self, root: Path, scale: Scale) -> None:
        self._root = root
        self._scale = scale
        self._log = Passes()

    async def run(self, targets: list[Target]) -> None:
        async with open_shard(self._root / "rates") as rates:
            await cycles(rates, 1000, 2)
            alone, rate = await loaded(rates, self._scale.seconds, EVENTS_PER_SECOND)
            print(f"\n{EVENTS_PER_SECOND:,} events/s while loaded ({rate:,.0f} reached)")
            with busy_programs():
                beside, _ = await loaded(rates, self._scale.seconds, EVENTS_PER_SECOND)
            print(f"enqueue p50/p99 with no sink: {alone} ms; beside a busy program for each processor: {beside} ms")
            print("ratio: to what the log took before and after each; enqueue, lag: p50/p99 in ms")
            print("catching up: the same while the sink has a long log to catch up with, and events/s of the sink then")
            print("CPU: per event, of the node and of the processes that make what its sinks write")
            print(f"*: {FEW_PER_SECOND:,} events/s while loaded\n")
            print(
                f"{'':18} {'events':>9} {'events/s':>9} {'log ev/s':>9} {'ratio':>6} {'CPU us':>7}"
                f" {'lag':>17} {'enqueue':>11} {'catching up':>20}  load",
                flush=True,
            )
            reached = []
            for target in targets:
                if is_missing(target):
                    print(f"{target.name:18} not fetched: make kafka")
                    continue
                row = await self._measured(target, rates)
                print(
                    f"{row.name:18} {row.events:>9,} {row.rate:>9,.0f} {row.log:>9,.0f} {row.rate / row.log:>6.2f}"
                    f" {row.cpu_us:>7.2f} {row.lag!s:>17} {row.healthy!s:>11}"
                    f" {row.catching_up!s:>12} {row.catching_up_rate:>7,.0f}  {row.load}",
                    flush=True,
                )
                if target.aims:
                    reached.append(f"{row.name} {'reached' if row.rate / row.log >= AIM else 'missed'}")
            print(f"\nlog, all passes: {self._log.median(0):,.0f} events/s, quiet {self._log.quiet(0):,.0f},", end=" ")
            print(f"CPU us {self._log.median(1):.2f}, quiet {self._log.quiet(1):.2f}, spin {self._log.spins}")
            print(
                f"aim: file, sqlite and segments >= {AIM:.1f} of the log rate: {', '.join(reached) or 'not measured'}"
            )

    async def _rate_of_log(self, rates: Shard) -> list[float]:
        found = []
        for _ in range(self._scale.passes):
            before, cpu, done = spin(), time.process_time(), rates.last_sequence
            rate = 3 * (await cycles(rates, 1000, 3))[0]
            cpu = (time.process_time() - cpu) / (rates.last_sequence - done) * 1e6
            self._log.add(before + spin(), rate, cpu)
            found.append(rate)
        return found

    async def _measured(self, target: Target, rates: Shard) -> Row:
        place = self._root / target.option
        try:
            async with open_shard(place / "node") as shard:
                await _filled(shard, self._scale.few if target.few else self._scale.events)
                return await self._measure(target, place, shard, rates)
        finally:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)

    async def _measure(self, target: Target, place: Path, shard: Shard, rates: Shard) -> Row:
        load, per_second = Load.now(), FEW_PER_SECOND if target.few else EVENTS_PER_SECOND
        with target.served() as (_, url):
            around = await self._rate_of_log(rates)
            last = shard.last_sequence
            began, cpu = time.perf_counter(), time.process_time()
            async with replicating(shard, target.settings(url, place / "first"), place) as replication:
                [follower] = replication.followers
                # The last delivery may not be full, and would wait for company; of few events it is all there is.
                full = last - follower.settings.batch_events
                await confirmed(follower, full if full > 0 else last)
                done, elapsed, cpu = follower.checkpoint, time.perf_counter() - began, time.process_time() - cpu
                cpu += cpu_of(replication.workshop.pids)
                await confirmed(follower, last)
                assert follower.events.total() >= last, "something was left out"
                around += await self._rate_of_log(rates)
                meter = LagMeter(shard, follower)
                healthy, _ = await loaded(shard, self._scale.seconds, per_second)
                lag = await meter.stop()
            async with replicating(shard, target.settings(url, place / "second"), place) as replication:
                began = time.perf_counter()
                catching_up, _ = await loaded(shard, self._scale.seconds, per_second)
                caught_up = replication.followers[0].checkpoint / (time.perf_counter() - began)
        words = load.since()
        return Row(
            target.name + "*" * target.few,
            last,
            done / elapsed,
            statistics.median(around),
            cpu / done * 1e6,
            lag,
            healthy,
            catching_up,
            caught_up,
            words,
        )

    async def down(self) -> None:
        """A receiver that is gone for a while and comes back, under load all the time. Nobody tells the sink of it."""
        [target] = [each for each in TARGETS if each.name == "webhook"]
        seconds = self._scale.seconds
        print("\nwebhook under the same load, its receiver killed and started again; enqueue p50/p99 in ms")
        async with open_shard(self._root / "down") as shard:
            without, _ = await loaded(shard, seconds, EVENTS_PER_SECOND)
            with target.served() as (server, url):
                assert server is not None
                settings = target.settings(url, self._root / "hook", retry_max_ms=RETRY_MAX_MS)
                async with replicating(shard, settings, self._root) as replication:
                    [follower] = replication.followers
                    await confirmed(follower, shard.last_sequence)
                    healthy, _ = await loaded(shard, seconds, EVENTS_PER_SECOND)
                    server.kill()
                    gone, _ = await loaded(shard, seconds, EVENTS_PER_SECOND)
                    stood = follower.checkpoint
                    server.start()
                    began = time.perf_counter()
                    noticed = asyncio.create_task(confirmed(follower, stood + 1))
                    unnoticed, _ = await loaded(shard, 20 * seconds, EVENTS_PER_SECOND, noticed.done)
                    await noticed
                    found, behind = time.perf_counter() - began, follower.status().lag_events
                    began = time.perf_counter()
                    back = asyncio.create_task(confirmed(follower, shard.last_sequence))
                    catching, _ = await loaded(shard, 20 * seconds, EVENTS_PER_SECOND, back.done)
                    await back
                    caught = time.perf_counter() - began
                    await confirmed(follower, shard.last_sequence)
                    assert follower.events.total() >= shard.last_sequence, "something was left out"
        print(f"without a sink {without}, healthy {healthy}, down {gone}, catching up {catching}")
        print(
            f"down for {seconds:.0f} s; found again {found:.1f} s after its start, by the sink's own tries (enqueue",
            end=" ",
        )
        print(f"{unnoticed} until then); {behind:,} events behind, made up for in {caught:.1f} s")


async def _filled(shard: Shard, events: int) -> None:
    while shard.last_sequence < events:
        await cycles(shard, 1000, min(3, -(-(events - shard.last_sequence) // 12_000)))


def chosen_targets(only: str | None) -> list[Target]:
    """Raises ArgumentTypeError for a name that no sink begins with."""
    names = only.split(",") if only else [""]
    for name in names:
        if not any(target.option.startswith(name) for target in TARGETS):
            options = ", ".join(target.option for target in TARGETS)
            raise argparse.ArgumentTypeError(f"no sink begins with {name!r}; there are {options}")
    return [target for target in TARGETS if target.option.startswith(tuple(names))]


async def measure(arguments: argparse.Namespace) -> None:
    root = Path(tempfile.mkdtemp(prefix="omnirelay-bench-", dir=arguments.directory))
    events = arguments.events or (100_000 if arguments.quick else 1_000_000)
    few = events // FEW_OF_QUICK if arguments.quick else events
    scale = Scale(events, few, 2, 3.0) if arguments.quick else Scale(events, few, 4, 10.0)
    try:
        tune_process()
        bench = Bench(root, scale)
        await bench.run(arguments.only)
        if any(target.kind == "webhook" for target in arguments.only):
            await bench.down()
    finally:
        shutil.rmtree(root)


def main(arguments: argparse.Namespace) -> None:
    print(environment())
    work = Path(tempfile.mkdtemp(prefix="omnirelay-bench-", dir=arguments.directory))
    try:
        check_flushes(work / "flushes")
        library = ROOT / "src"
        if arguments.core == "compiled":
            library = work / "compiled"
            library.mkdir()
            compile_hot_path(ROOT / "src", library)
        print(f"core {arguments.core}", flush=True)
        subprocess.run(
            [sys.executable, "-m", "benchmarks.replication", "--here", arguments.core, *sys.argv[1:]],
            env={**os.environ, "PYTHONPATH": f"{library}{os.pathsep}{ROOT}"},
            cwd=ROOT,
            check=True,
        )
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
    parser.add_argument(
        "--only",
        type=chosen_targets,
        default=chosen_targets(None),
        metavar="NAME,NAME",
        help=f"these sinks, or those that begin so: {', '.join(target.option for target in TARGETS)}",
    )
    parser.add_argument("--events", type=int, help="of the log that goes through each sink")
    parser.add_argument("--directory", help="where to write (a real disk); default: the system's temporary directory")
    parser.add_argument("--core", choices=["plain", "compiled"], default="compiled", help="which core to measure")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.here is None:
        main(chosen)
    else:
        assert is_compiled() == (chosen.here == "compiled"), "this would measure the wrong thing"
        asyncio.run(measure(chosen))
