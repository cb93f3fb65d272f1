"""What the gates cost: cycles with all of them off and on, few and many pending, core plain and compiled, side by side.

    python -m benchmarks.gates [--quick] [--passes N] [--directory DIR]

"On" is 10 classes, 1,000 tenants, 10,000 exclusive keys, 100 limited resource types, and 100,000 items behind one key
that is held all the time. A key belongs to one tenant and one type, as a table does; classes are drawn per item. Every
measurement runs in a process of its own; plain and compiled take turns. Compiling takes about a minute and leaves
nothing behind.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.machine import Load, environment, is_compiled, spin
from hatch_build import compile_hot_path
from omnirelay.core.commands import CompleteItem, EnforceCaps, EnqueueItems, GrantLeases
from omnirelay.core.decide import apply
from omnirelay.core.events import Event
from omnirelay.core.options import Limit, QueueOptions
from omnirelay.core.payload import ANONYMOUS, NewItem, Payload
from omnirelay.core.state import State
from omnirelay.engine.huge_pages import HugePages
from omnirelay.engine.ids import lease_ids
from omnirelay.engine.process import tune_process
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.shard import Shard
from omnirelay.log.frame import encode_frame
from omnirelay.log.sqlite import SqliteLog

BATCH = 1_000
CALL = 4_000
"""Items of one call, which may carry 6 MiB."""

BLOCKED = 100_000
START_MS = 1_700_000_000_000
ROOT = Path(__file__).parent.parent

OFF = QueueOptions(capacity=3_000_000)
ON = QueueOptions(
    capacity=3_000_000,
    ordering="exclusive",
    tenant_weights={f"tenant-{number}": number % 5 + 1 for number in range(0, 1_000, 10)},
    limits=[Limit(by="type", match="type-*", max=200)],
)

_random = random.Random(7)
_body = _random.randbytes(256)
_scratch = bytearray()


def some_items(count: int, gated: bool) -> list[NewItem]:
    if not gated:
        return [
            NewItem(payload=Payload(resource_type="table", resource_id=f"sales.orders-{number}", body=_body))
            for number in range(count)
        ]
    keys = [_random.randrange(10_000) for _ in range(count)]
    return [
        NewItem(
            payload=Payload(
                resource_type=f"type-{key % 100}",
                resource_id=f"table-{key}",
                body=_body,
                attributes={"tenant": f"tenant-{key % 1_000}"},
            ),
            priority=_random.randrange(10),
        )
        for key in keys
    ]


def blocked_items(count: int) -> list[NewItem]:
    payload = Payload(resource_type="hot", resource_id="held", body=b"x")
    return [NewItem(payload=payload, priority=0) for _ in range(count)]


# -- the rules alone -----------------------------------------------------------------------------


def filled(depth: int, gated: bool) -> State:
    """A state with that many pending items besides those behind the blocked key."""
    state = State(ON if gated else OFF)
    ids = lease_ids()

    def enqueue(items: list[NewItem]) -> None:
        for start in range(0, len(items), CALL):
            apply(state, EnqueueItems(items[start : start + CALL]), START_MS, START_MS, ids, [])

    if gated:
        enqueue(blocked_items(1))
        apply(state, GrantLeases(lease_duration_ms=3_600_000), START_MS, START_MS, ids, [])
        enqueue(blocked_items(BLOCKED))
    enqueue(some_items(depth, gated))
    return state


def settle() -> None:
    """As a node that has had this state for some seconds: out of the collector's sight, and in large pages."""
    gc.collect()
    gc.freeze()
    HugePages().collapse_full()


def frame_of(state: State, fresh: list[NewItem], now_ms: int, ids: Any) -> int:
    """Enqueue, lease, complete, encode and hash as an engine would; returns how many items went through."""
    events: list[Event] = []
    apply(state, EnqueueItems(fresh), now_ms, now_ms, ids, events)
    leases = apply(state, GrantLeases(ANONYMOUS, len(fresh)), now_ms, now_ms, ids, events)
    for lease in leases:
        apply(state, CompleteItem(lease.token), now_ms, now_ms, ids, events)
    if state.caps_exceeded():
        apply(state, EnforceCaps(), now_ms, now_ms, ids, events)
    sha256(encode_frame("bench", "log", 1, 1, now_ms, events, None, _scratch).data).digest()
    return len(leases)


def measure_rules(depth: int, gated: bool, frames: int) -> dict[str, Any]:
    state = filled(depth, gated)
    settle()
    ids = lease_ids()
    costs: list[tuple[float, float]] = []
    for number in range(frames):
        fresh = some_items(BATCH, gated)
        before = spin()
        started = time.perf_counter()
        done = frame_of(state, fresh, START_MS + number * 10, ids)
        spent = time.perf_counter() - started
        costs.append((before + spin(), spent / done * 1e6))
    return {"us": costs}


# -- the whole engine ----------------------------------------------------------------------------


async def measure_durable(directory: Path, depth: int, gated: bool, rounds: int) -> dict[str, Any]:
    settings = EngineSettings(snapshot_every_events=0, freeze_after_recovery=True)
    log = SqliteLog.open(directory, "bench")
    async with await Shard.open(log, options=ON if gated else OFF, settings=settings) as shard:
        if gated:
            await shard.enqueue(blocked_items(1))
            await shard.lease(lease_duration_ms=3_600_000)
            for _ in range(BLOCKED // CALL):
                await shard.enqueue(blocked_items(CALL))
        for start in range(0, depth, CALL):
            await shard.enqueue(some_items(min(CALL, depth - start), gated))
        settle()
        rates = []
        for _ in range(rounds):
            batches = [[some_items(BATCH, gated) for _ in range(3)] for _ in range(4)]
            done = 0

            async def pipeline(mine: list[list[NewItem]]) -> None:
                nonlocal done
                for fresh in mine:
                    await shard.enqueue(fresh)
                    leases = await shard.lease(max_items=BATCH)
                    await shard.acknowledge([CompleteItem(lease.token) for lease in leases])
                    done += len(leases)

            before = spin()
            cpu, started = time.thread_time(), time.perf_counter()
            await asyncio.gather(*map(pipeline, batches))
            seconds, cpu = time.perf_counter() - started, time.thread_time() - cpu
            rates.append((before + spin(), done / seconds, cpu / done * 1e6))
    return {"rates": rates}


# -- side by side --------------------------------------------------------------------------------


def run_one(library: Path, what: str, depth: int, gated: bool, amount: int, directory: Path) -> dict[str, Any]:
    directory.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gates", "--one", what, str(depth), str(int(gated)), str(amount), directory],
        env={**os.environ, "PYTHONPATH": f"{library}{os.pathsep}{ROOT}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    shutil.rmtree(directory, ignore_errors=True)
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["compiled"] == (library.name == "compiled"), "this would compare the wrong things"
    return result


def one(what: str, depth: int, gated: bool, amount: int, directory: Path) -> None:
    tune_process()
    if what == "rules":
        result = measure_rules(depth, gated, amount)
    else:
        result = asyncio.run(measure_durable(directory, depth, gated, amount))
    result["compiled"] = is_compiled()
    print(json.dumps(result))


def quiet(rows: list[list[float]], figure: int) -> float:
    """The median of the least disturbed third; the first figure of a row says how slow the machine was."""
    ordered = sorted(rows, key=lambda row: row[0])
    return statistics.median(row[figure] for row in ordered[: max(1, len(ordered) // 3)])


def compare(libraries: dict[str, Path], depths: tuple[int, ...], passes: int, work: Path) -> None:
    print(
        "\nCPU of the rules, encoding and hashing per cycle (us), frames of 1,000 cycles; growth against 1,000 pending"
    )
    print("Durable cycles/s through the engine and the CPU of its thread (us)")
    print("median, and the least disturbed third of the passes (quiet)\n")
    print(
        f"{'gates':>6} {'pending':>10} {'core':>9} {'us':>6} {'quiet':>6} {'growth':>7}"
        f" {'durable/s':>10} {'quiet':>8} {'CPU us':>7}"
    )
    for gated in (False, True):
        base: dict[str, float] = {}
        for depth in depths:
            rules: dict[str, list[list[float]]] = {name: [] for name in libraries}
            durable: dict[str, list[list[float]]] = {name: [] for name in libraries}
            load = Load.now()
            for number in range(passes):
                for name, library in libraries.items():
                    where = work / f"{name}-{number}"
                    rules[name] += run_one(library, "rules", depth, gated, 20, where)["us"]
                    durable[name] += run_one(library, "durable", depth, gated, 5, where)["rates"]
            for name in libraries:
                cost = quiet(rules[name], 1)
                base.setdefault(name, cost)
                rates = durable[name]
                print(
                    f"{'on' if gated else 'off':>6} {depth:>10,} {name:>9}"
                    f" {statistics.median(row[1] for row in rules[name]):>6.2f} {cost:>6.2f} {cost / base[name]:>6.2f}x"
                    f" {statistics.median(row[1] for row in rates):>10,.0f} {quiet(rates, 1):>8,.0f}"
                    f" {quiet(rates, 2):>7.2f}  {load.since()}",
                    flush=True,
                )


def main(arguments: argparse.Namespace) -> None:
    print(environment())
    work = Path(tempfile.mkdtemp(prefix="omnirelay-gates-", dir=arguments.directory))
    try:
        compiled = work / "compiled"
        started = time.perf_counter()
        compiled.mkdir()
        compile_hot_path(ROOT / "src", compiled)
        print(f"hot path compiled in {time.perf_counter() - started:.0f} s")
        depths = (1_000, 100_000) if arguments.quick else (1_000, 10_000, 100_000, 1_000_000)
        libraries = {"plain": ROOT / "src", "compiled": compiled}
        compare(libraries, depths, 1 if arguments.quick else arguments.passes, work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1", int(sys.argv[5]), Path(sys.argv[6]))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--quick", action="store_true", help="two depths and one pass, for a first look")
        parser.add_argument("--passes", type=int, default=3, help="how often everything is measured; default: 3")
        parser.add_argument("--directory", help="where to write (a real disk); default: the temporary directory")
        main(parser.parse_args())
