"""What the kernel costs: durable lease cycles beside the bare limit of the disk, in one run.

    python -m benchmarks.kernel [--quick] [--directory DIR] [--core plain|compiled|both]

Cycle = enqueue, lease, complete, each durable, with 256-byte bodies. "Bare" appends the same bytes to a file
with one fdatasync per frame and no leasing at all. The runs are interleaved and the medians are given. Core is measured
as plain Python and as mypyc compiles it, one after the other; compiling takes half a minute and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.kernel_core import growth, memory_per_item, split_by_stage
from benchmarks.kernel_flushes import check_flushes
from benchmarks.machine import Load, Passes, environment, is_compiled, spin
from hatch_build import compile_hot_path
from omnirelay.core.commands import CompleteItem
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import NewItem, Payload
from omnirelay.engine.process import tune_process
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.shard import Shard
from omnirelay.log.sqlite import SqliteLog

ROOT = Path(__file__).parent.parent
BODY = os.urandom(256)
OPTIONS = QueueOptions(capacity=3_000_000)
PIPELINES = 4
"""Batches on their way at the same time. They often share a frame: who waited for one flush comes back together."""


def items(count: int) -> list[NewItem]:
    return [
        NewItem(payload=Payload(resource_type="table", resource_id=f"sales.orders-{i}", body=BODY))
        for i in range(count)
    ]


@asynccontextmanager
async def open_shard(directory: Path, settings: EngineSettings | None = None) -> AsyncIterator[Shard]:
    settings = settings or EngineSettings(snapshot_every_events=0, freeze_after_recovery=True)
    shard = await Shard.open(SqliteLog.open(directory, "bench"), options=OPTIONS, settings=settings)
    try:
        yield shard
    finally:
        await shard.close()


async def cycles(shard: Shard, batch: int, rounds: int) -> tuple[float, float, int, int]:
    """Cycles per second, CPU microseconds per cycle, frames and bytes, for `rounds` of `batch` per pipeline.

    What is enqueued is made before the clock starts: it is the caller's, and over a network it would not be here. There
    are few rounds, so that it is still in the processor's cache when it is enqueued, as what a node has just read is.
    """
    batches = [[items(batch) for _ in range(rounds)] for _ in range(PIPELINES)]

    async def pipeline(batches: list[list[NewItem]]) -> None:
        for fresh in batches:
            await shard.enqueue(fresh)
            leases = await shard.lease(max_items=batch)
            await shard.acknowledge([CompleteItem(lease.token) for lease in leases])

    before = shard.log.statistics()
    started, cpu = time.perf_counter(), time.thread_time()
    await asyncio.gather(*map(pipeline, batches))
    elapsed, cpu = time.perf_counter() - started, time.thread_time() - cpu
    after = shard.log.statistics()
    done = batch * rounds * PIPELINES
    return done / elapsed, cpu / done * 1e6, after.frames - before.frames, after.bytes - before.bytes


def bare(directory: Path, frames: int, frame_bytes: int) -> float:
    """Seconds to append `frames` frames of that size to a file, with one fdatasync each."""
    data = os.urandom(frame_bytes)
    path = directory / "bare.log"
    with open(path, "wb", buffering=0) as file:
        started = time.perf_counter()
        for _ in range(frames):
            file.write(data)
            os.fdatasync(file.fileno())
        elapsed = time.perf_counter() - started
    path.unlink()
    return elapsed


async def durable_cycles(directory: Path, passes: int, scale: int) -> None:
    print("\nDurable full cycles (SQLite log), beside the same bytes in a bare synced file")
    print("quiet: the least disturbed third of the passes, by a fixed piece of Python (spin) timed around each")
    print(
        f"{'batch':>6} {'cycles/s':>10} {'quiet':>8} {'CPU us':>7} {'quiet':>6} {'ev/frame':>9} {'bare cycles/s':>14}"
        f" {'ratio':>6}  load"
    )
    for batch in (1, 10, 100, 1000):
        # Each on a log of its own: what a shard remembers of the row before would be in the way of the next one.
        async with open_shard(directory / str(batch)) as shard:
            await cycles(shard, 100, 20)
            rounds = max(2, min(scale // (batch * PIPELINES), 400))
            seen = Passes()
            load = Load.now()
            for _ in range(passes):
                before = spin()
                rate, cpu, frames, size = await cycles(shard, batch, rounds)
                around = before + spin()
                done = batch * rounds * PIPELINES
                seen.add(around, rate, cpu, done / bare(directory, frames, size // frames), 3 * done / frames)
        rate, cpu, limit, per_frame = (seen.median(figure) for figure in range(4))
        print(
            f"{batch:>6} {rate:>10,.0f} {seen.quiet(0):>8,.0f} {cpu:>7.2f} {seen.quiet(1):>6.2f} {per_frame:>9.0f}"
            f" {limit:>14,.0f} {rate / limit:>6.2f}  {load.since()}, spin {seen.spins}",
            flush=True,
        )


async def recovery(directory: Path, count: int) -> None:
    print(f"\nRecovery of {count:,} pending")
    async with open_shard(directory) as shard:
        for _ in range(count // 1000):
            await shard.enqueue(items(1000))
    for source in ("log", "snapshot"):
        if source == "snapshot":
            async with open_shard(directory) as shard:
                started = time.perf_counter()
                record = await shard.snapshot()
                seconds = time.perf_counter() - started
                print(f"  snapshot made in {seconds:.1f} s by its helper, {record.size / 1e6:.0f} MB")
        gc.collect()
        load = Load.now()
        started = time.perf_counter()
        async with open_shard(directory) as shard:
            leases = await shard.lease()
            assert len(leases) == 1
            print(f"  first lease from {source:>8}: {time.perf_counter() - started:.2f} s  ({load.since()})")


async def measure(arguments: argparse.Namespace) -> None:
    """Everything, with core as this process has it."""
    root = Path(tempfile.mkdtemp(prefix="omnirelay-bench-", dir=arguments.directory))
    passes, scale, deep = (8, 12_000, 100_000) if arguments.quick else (40, 12_000, 1_000_000)
    try:
        tune_process()
        await durable_cycles(root / "cycles", passes, scale)
        await split_by_stage(root / "stages", 1000, 5)
        growth((1_000, 10_000, 100_000, 1_000_000) if not arguments.quick else (1_000, 100_000), 5)
        memory_per_item(deep)
        await recovery(root / "recovery", deep)
    finally:
        shutil.rmtree(root)


def run_with(library: Path, arguments: argparse.Namespace, core: str) -> None:
    """Measure in a process of its own, which finds core in `library`."""
    given = ["--directory", arguments.directory] if arguments.directory else []
    subprocess.run(
        [sys.executable, "-m", "benchmarks.kernel", "--here", core, *given, *(["--quick"] if arguments.quick else [])],
        env={**os.environ, "PYTHONPATH": f"{library}{os.pathsep}{ROOT}"},
        cwd=ROOT,
        check=True,
    )


def main(arguments: argparse.Namespace) -> None:
    print(environment())
    work = Path(tempfile.mkdtemp(prefix="omnirelay-bench-", dir=arguments.directory))
    try:
        check_flushes(work / "flushes")
        for core in ("plain", "compiled") if arguments.core == "both" else (arguments.core,):
            library = ROOT / "src"
            if core == "compiled":
                library = work / "compiled"
                library.mkdir()
                compile_hot_path(ROOT / "src", library)
            print(f"\n=== core {core} " + "=" * 80, flush=True)
            run_with(library, arguments, core)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
    parser.add_argument("--directory", help="where to write (a real disk); default: the system's temporary directory")
    parser.add_argument("--core", choices=["plain", "compiled", "both"], default="both", help="which core to measure")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.here is None:
        main(chosen)
    else:
        assert is_compiled() == (chosen.here == "compiled"), "this would measure the wrong thing"
        asyncio.run(measure(chosen))
