"""Where the time of a cycle goes, how it grows, what an item weighs: the rules by themselves, and what a log adds."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

from benchmarks.machine import Load
from omnirelay.core.commands import CompleteItem, EnforceCaps, EnqueueItems, GrantLeases
from omnirelay.core.decide import Ids, apply, decide
from omnirelay.core.events import Event
from omnirelay.core.evolve import evolve
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import ANONYMOUS, NewItem, Payload
from omnirelay.core.rules.grant import decide_next_grant
from omnirelay.core.state import State
from omnirelay.engine.huge_pages import HugePages
from omnirelay.engine.ids import lease_ids
from omnirelay.log.base import Acquired, Frame
from omnirelay.log.frame import encode_frame
from omnirelay.log.sqlite import SqliteLog

BODY_BYTES = 256
START_MS = 1_700_000_000_000
_scratch = bytearray()

_body = os.urandom(BODY_BYTES)


def new_items(count: int, *, own_bodies: bool = False) -> list[NewItem]:
    return [
        NewItem(
            payload=Payload(
                resource_type="table",
                resource_id=f"sales.orders-{i}",
                body=os.urandom(BODY_BYTES) if own_bodies else _body,
            )
        )
        for i in range(count)
    ]


def filled(depth: int, *, own_bodies: bool = False) -> State:
    """A state with that many pending items, out of the collector's sight as a recovered shard's is."""
    state = State(QueueOptions(capacity=3_000_000))
    ids = lease_ids()
    while state.pending_count < depth:
        fresh = new_items(min(1000, depth), own_bodies=own_bodies)
        apply(state, EnqueueItems(fresh), START_MS, START_MS, ids, [])
    gc.collect()
    gc.freeze()
    return state


class Stages:
    """Time per stage and cycle. Within a stage the clock is read per call only where two stages take turns."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._spent: dict[str, list[float]] = {}
        clock = time.perf_counter
        started = clock()
        for _ in range(1000):
            clock()
        self._clock_cost = (clock() - started) / 1000

    def add(self, stage: str, seconds: float, clock_reads: int = 0) -> None:
        seconds = max(0.0, seconds - clock_reads * self._clock_cost)
        self._spent.setdefault(stage, []).append(seconds / self._batch * 1e6)

    def medians(self) -> dict[str, float]:
        return {stage: statistics.median(values) for stage, values in self._spent.items()}


class LogUnderTest:
    """A log that takes frame after frame, and tells what each costs."""

    def __init__(self, log: SqliteLog, acquired: Acquired) -> None:
        self._log = log
        self._acquired = acquired
        self._position = acquired.position

    def frame(self, now_ms: int, events: list[Event]) -> Frame:
        log, acquired = self._log, self._acquired
        return encode_frame(log.shard, log.log_id, acquired.generation, acquired.epoch, now_ms, events, None, _scratch)

    async def append(self, frame: Frame) -> float:
        """Returns the seconds of processor it took, of all threads; the event loop only waits."""
        before = time.process_time()
        self._position = await self._log.append(frame, self._position)
        return time.process_time() - before


async def split_by_stage(directory: Path, batch: int, passes: int) -> None:
    print(f"\nCPU per cycle by stage, {batch} cycles a frame, 1,000 pending (us)")
    state = State(QueueOptions(capacity=3_000_000))
    ids = lease_ids()
    stages = Stages(batch)
    log = SqliteLog.open(directory, "stages")
    under_test = LogUnderTest(log, await log.acquire("benchmark"))
    before: list[Event] = []
    apply(state, EnqueueItems(new_items(1_000)), START_MS, START_MS, ids, before)
    await under_test.append(under_test.frame(START_MS, before))
    gc.collect()
    gc.freeze()
    load = Load.now()
    for number in range(passes * 20):
        await _staged_frame(state, batch, START_MS + number * 10, ids, stages, under_test)
    await log.close()
    for stage, value in stages.medians().items():
        print(f"  {stage:<16} {value:6.2f}")
    print(f"  {'together':<16} {sum(stages.medians().values()):6.2f}  ({load.since()})")


async def _staged_frame(
    state: State, batch: int, now_ms: int, ids: Ids, stages: Stages, under_test: LogUnderTest
) -> None:
    clock = time.perf_counter
    fresh = new_items(batch)
    started = clock()
    events = decide(state, EnqueueItems(fresh), now_ms, now_ms)[0]
    decided = clock()
    for event in events:
        evolve(state, event)
    stages.add("decide enqueue", decided - started)
    stages.add("evolve enqueue", clock() - decided)

    tokens = []
    deciding = evolving = 0.0
    for _ in range(batch):
        started = clock()
        granted = decide_next_grant(state, ANONYMOUS, 30_000, None, now_ms, ids())
        assert granted is not None
        decided = clock()
        evolve(state, granted)
        evolving += clock() - decided
        deciding += decided - started
        events.append(granted)
        tokens.append(granted.ownership)
    stages.add("decide grant", deciding, batch)
    stages.add("evolve grant", evolving, batch)

    deciding = evolving = 0.0
    for token in tokens:
        started = clock()
        completed, _ = decide(state, CompleteItem(token), now_ms, now_ms)
        decided = clock()
        evolve(state, completed[0])
        evolving += clock() - decided
        deciding += decided - started
        events += completed
    stages.add("decide complete", deciding, batch)
    stages.add("evolve complete", evolving, batch)

    started = clock()
    if state.caps_exceeded():
        apply(state, EnforceCaps(), now_ms, now_ms, ids, events)
    capped = clock()
    frame = under_test.frame(now_ms, events)
    encoded = clock()
    sha256(frame.data).digest()
    hashing = clock() - encoded
    stages.add("caps", capped - started)
    stages.add("encode", encoded - capped)
    stages.add("hash", hashing)
    # What appends hashes as well, which was counted already.
    stages.add("append", await under_test.append(frame) - hashing)


def one_frame(state: State, batch: int, now_ms: int, ids: Ids) -> list[Event]:
    """Enqueue, lease and complete `batch` items as the engine would."""
    events: list[Event] = []
    apply(state, EnqueueItems(new_items(batch)), now_ms, now_ms, ids, events)
    for lease in apply(state, GrantLeases(ANONYMOUS, batch), now_ms, now_ms, ids, events):
        apply(state, CompleteItem(lease.token), now_ms, now_ms, ids, events)
    if state.caps_exceeded():
        apply(state, EnforceCaps(), now_ms, now_ms, ids, events)
    return events


def growth(depths: tuple[int, ...], passes: int) -> None:
    """The states stand side by side and take turns, so that a busy moment hits all of them."""
    print("\nCost per cycle against the number of pending items (rules, encode and hash; us)")
    states = {depth: filled(depth) for depth in depths}
    HugePages().collapse_full()  # As a node has done some seconds after it started.
    ids = lease_ids()
    costs: dict[int, list[float]] = {depth: [] for depth in depths}
    load = Load.now()
    for number in range(passes * 20):
        now_ms = START_MS + number * 10
        for depth, state in states.items():
            started = time.perf_counter()
            frame = encode_frame("bench", "log", 1, 1, now_ms, one_frame(state, 1000, now_ms, ids), None, _scratch)
            sha256(frame.data).digest()
            costs[depth].append((time.perf_counter() - started) / 1000 * 1e6)
    base = statistics.median(costs[depths[0]])
    for depth in depths:
        median = statistics.median(costs[depth])
        print(f"  {depth:>9,} pending {median:6.2f}  x{median / base:.2f}")
    print(f"  ({load.since()})")
    states.clear()
    gc.unfreeze()
    gc.collect()


def memory_per_item(count: int) -> None:
    """Measured in a fresh process, whose memory nothing else has touched."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kernel_core", str(count)], capture_output=True, text=True, check=True
    )
    print(f"\nMemory per pending item at {count:,}, beyond its {BODY_BYTES}-byte body: {done.stdout.strip()} B")


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _print_memory(count: int) -> None:
    before = _resident()
    state = filled(count, own_bodies=True)
    grown = (_resident() - before) / state.pending_count
    print(f"{grown - sys.getsizeof(_body):.0f}")


if __name__ == "__main__":
    _print_memory(int(sys.argv[1]))
