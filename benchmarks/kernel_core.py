"""The rules alone, without a disk: where the time of a cycle goes, how it grows, what an item weighs."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from hashlib import sha256

from benchmarks.machine import Load
from omnirelay.core.commands import CompleteItem, EnforceCaps, EnqueueItems, GrantLeases
from omnirelay.core.decide import apply, decide
from omnirelay.core.events import Event
from omnirelay.core.evolve import evolve
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import ANONYMOUS, NewItem, OwnershipToken, Payload
from omnirelay.core.rules.grant import decide_next_grant
from omnirelay.core.state import State
from omnirelay.engine.ids import LeaseIds
from omnirelay.log.frame import encode_frame

BODY = os.urandom(256)
START_MS = 1_700_000_000_000


def new_items(count: int) -> list[NewItem]:
    return [NewItem(payload=Payload(resource_type="table", resource_id=f"sales.orders-{i}", body=BODY)) for i in range(count)]


def filled(depth: int) -> State:
    state = State(QueueOptions(capacity=3_000_000))
    ids = LeaseIds()
    while state.pending_count < depth:
        apply(state, EnqueueItems(new_items(min(1000, depth))), START_MS, START_MS, ids, [])
    gc.collect()
    gc.freeze()
    return state


def one_frame(state: State, batch: int, now_ms: int, ids: LeaseIds) -> list[Event]:
    """Enqueue, lease and complete `batch` items as the engine would."""
    events: list[Event] = []
    apply(state, EnqueueItems(new_items(batch)), now_ms, now_ms, ids, events)
    for lease in apply(state, GrantLeases(ANONYMOUS, batch), now_ms, now_ms, ids, events):
        apply(state, CompleteItem(lease.token), now_ms, now_ms, ids, events)
    if state.caps_exceeded():
        apply(state, EnforceCaps(), now_ms, now_ms, ids, events)
    return events


def split_by_stage(batch: int, passes: int) -> None:
    """Decide and evolve are timed apart, in runs over a whole frame, so that the clock costs next to nothing."""
    print(f"\nCPU per cycle by stage, {batch} cycles a frame, 1,000 pending (us)")
    state = filled(1_000)
    ids = LeaseIds()
    now_ms = START_MS
    spent: dict[str, list[float]] = {}
    load = Load.now()

    def timed(stage: str, work: Callable[[], None]) -> None:
        started = time.perf_counter()
        work()
        spent.setdefault(stage, []).append((time.perf_counter() - started) / batch * 1e6)

    for _ in range(passes * 20):
        now_ms += 10
        fresh = new_items(batch)
        events: list[Event] = []
        tokens: list[OwnershipToken] = []
        timed("decide enqueue", lambda: events.extend(decide(state, EnqueueItems(fresh), now_ms, now_ms)[0]))
        timed("evolve enqueue", lambda: _evolve(state, events))
        _grant(state, batch, now_ms, ids, spent, events, tokens)
        _complete(state, batch, now_ms, spent, events, tokens)
        if state.caps_exceeded():
            apply(state, EnforceCaps(), now_ms, now_ms, ids, events)
        timed("encode", lambda: data.append(encode_frame("bench", "log", 1, 1, now_ms, events).data) if True else None)
        timed("hash", lambda: hashed.append(sha256(data.pop()).digest()))
    medians = {stage: statistics.median(values) for stage, values in spent.items()}
    for stage, value in medians.items():
        print(f"  {stage:<16} {value:6.2f}")
    print(f"  {'together':<16} {sum(medians.values()):6.2f}  ({load.since()})")


data: list[bytes] = []
hashed: list[bytes] = []


def _evolve(state: State, events: list[Event]) -> None:
    for event in events:
        evolve(state, event)


def _grant(
    state: State,
    batch: int,
    now_ms: int,
    ids: LeaseIds,
    spent: dict[str, list[float]],
    events: list[Event],
    tokens: list[OwnershipToken],
) -> None:
    """Grants decide and evolve in turns, so their two halves are told apart call by call."""
    clock = time.perf_counter
    deciding = evolving = 0.0
    for _ in range(batch):
        started = clock()
        event = decide_next_grant(state, ANONYMOUS, 30_000, None, now_ms, ids())
        decided = clock()
        assert event is not None
        evolve(state, event)
        evolving += clock() - decided
        deciding += decided - started
        events.append(event)
        tokens.append(event.ownership)
    overhead = _clock_overhead()
    spent.setdefault("decide grant", []).append(max(0.0, deciding / batch - overhead) * 1e6)
    spent.setdefault("evolve grant", []).append(max(0.0, evolving / batch - overhead) * 1e6)


def _complete(
    state: State,
    batch: int,
    now_ms: int,
    spent: dict[str, list[float]],
    events: list[Event],
    tokens: list[OwnershipToken],
) -> None:
    clock = time.perf_counter
    deciding = evolving = 0.0
    for token in tokens:
        started = clock()
        decided_events, _ = decide(state, CompleteItem(token), now_ms, now_ms)
        decided = clock()
        evolve(state, decided_events[0])
        evolving += clock() - decided
        deciding += decided - started
        events += decided_events
    overhead = _clock_overhead()
    spent.setdefault("decide complete", []).append(max(0.0, deciding / batch - overhead) * 1e6)
    spent.setdefault("evolve complete", []).append(max(0.0, evolving / batch - overhead) * 1e6)


def _clock_overhead() -> float:
    """Seconds that one pair of clock reads adds to what stands between them."""
    clock = time.perf_counter
    started = clock()
    for _ in range(100):
        clock()
    return (clock() - started) / 100


def growth(depths: tuple[int, ...], passes: int) -> None:
    print("\nCost per cycle against the number of pending items (rules, encode and hash; us)")
    base = 0.0
    for depth in depths:
        state = filled(depth)
        ids = LeaseIds()
        now_ms = START_MS
        values = []
        load = Load.now()
        for _ in range(passes * 20):
            now_ms += 10
            started = time.perf_counter()
            frame = encode_frame("bench", "log", 1, 1, now_ms, one_frame(state, 1000, now_ms, ids))
            sha256(frame.data).digest()
            values.append((time.perf_counter() - started) / 1000 * 1e6)
        median = statistics.median(values)
        base = base or median
        print(f"  {depth:>9,} pending {median:6.2f}  x{median / base:.2f}  ({load.since()})")
        del state
        gc.unfreeze()
        gc.collect()


def memory_per_item(count: int) -> None:
    """Resident memory that `count` pending items add, less their bodies."""
    gc.unfreeze()
    gc.collect()
    before = _resident()
    state = filled(count)
    grown = (_resident() - before) / count
    body = len(BODY)
    print(f"\nMemory per pending item at {count:,}: {grown:.0f} B with its {body} B body shared, {grown:.0f} B beyond the body")
    del state
    gc.unfreeze()
    gc.collect()


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
