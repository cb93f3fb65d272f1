"""What the tests of gates share: short ways to say who asks for what, copies of a shard, and counting its work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

from omnirelay.core import commands as cmd
from omnirelay.core.answers import Gate, GrantedLease, PauseAnswer
from omnirelay.core.pauses import Pause
from omnirelay.core.payload import NewItem
from omnirelay.core.snapshot import dump, load
from omnirelay.core.state import State
from omnirelay.core.why import why
from tests.builders import WORKER, Kernel, new_item, payload

SECOND = 1_000
BATCH = 5_000


# -- items ---------------------------------------------------------------------------------------


def of_tenant(tenant: str, resource_id: str = "orders", **fields: Any) -> NewItem:
    return new_item(resource_id, attributes={"tenant": tenant}, **fields)


def in_partition(partition: str, resource_id: str = "orders", resource_type: str = "table", **fields: Any) -> NewItem:
    return NewItem(payload=payload(resource_id, resource_type, partition_key=partition), **fields)


def fill(kernel: Kernel, count: int, *, tenant: str | None = None, prefix: str = "", **fields: Any) -> None:
    """Enqueue many items that differ in their resource id only, or not even in that when one is given."""
    if tenant is not None:
        fields["attributes"] = {"tenant": tenant}
    same = fields.pop("resource_id", None)
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        kernel.enqueue(*[new_item(f"{prefix}{number}" if same is None else same, **fields) for number in numbers])


# -- grants --------------------------------------------------------------------------------------


def ids(granted: Iterable[GrantedLease]) -> list[int]:
    return [lease.sequence_id for lease in granted]


def tenants(granted: Iterable[GrantedLease]) -> list[str]:
    return [(lease.payload.attributes or {}).get("tenant", "") for lease in granted]


def types(granted: Iterable[GrantedLease]) -> list[str]:
    return [lease.payload.resource_type for lease in granted]


def classes(granted: Iterable[GrantedLease]) -> list[int]:
    return [lease.priority for lease in granted]


def grant(kernel: Kernel, count: int, **fields: Any) -> list[GrantedLease]:
    """Exactly so many grants, however many calls that takes."""
    granted: list[GrantedLease] = []
    while len(granted) < count:
        page = kernel.lease(min(1_000, count - len(granted)), **fields)
        assert page, f"nothing was left after {len(granted)} grants"
        granted += page
    return granted


def grant_and_complete(kernel: Kernel, count: int, **fields: Any) -> list[GrantedLease]:
    """Grants one at a time, each of them completed before the next."""
    granted: list[GrantedLease] = []
    for _ in range(count):
        lease = kernel.lease_one(**fields)
        kernel.complete(lease.token)
        granted.append(lease)
    return granted


def windows(names: Sequence[object], name: object, size: int) -> list[int]:
    """How often the name comes in each stretch of so many, from the first to the last."""
    hits = [1 if other == name else 0 for other in names]
    count = sum(hits[:size])
    counts = [count]
    for gone, come in zip(hits, hits[size:], strict=False):
        count += come - gone
        counts.append(count)
    return counts


# -- commands ------------------------------------------------------------------------------------


def pause(kernel: Kernel, **fields: Any) -> list[Pause]:
    answer: PauseAnswer = kernel.do(cmd.PauseScope(**fields))
    return answer.pauses


def resume(kernel: Kernel, **fields: Any) -> list[Pause]:
    answer: PauseAnswer = kernel.do(cmd.ResumeScope(**fields))
    return answer.pauses


def signal(kernel: Kernel) -> bool:
    """What an engine does after every frame and when `next_due` says so; whether backpressure changed."""
    changed: bool = kernel.do(cmd.SignalBackpressure())
    return changed


def gates(kernel: Kernel, sequence_id: int) -> list[Gate]:
    return why(kernel.state, sequence_id, kernel.now_ms).gates


def gate(kernel: Kernel, sequence_id: int) -> Gate:
    """The only gate before an item."""
    found = gates(kernel, sequence_id)
    assert len(found) == 1, found
    return found[0]


def gate_names(kernel: Kernel, sequence_id: int) -> list[str]:
    return [found.gate for found in gates(kernel, sequence_id)]


# -- ways a lease ends ---------------------------------------------------------------------------


def _complete(kernel: Kernel, lease: GrantedLease) -> None:
    kernel.complete(lease.token)


def _fail(kernel: Kernel, lease: GrantedLease) -> None:
    kernel.fail(lease.token, mode="dead")


def _expire(kernel: Kernel, lease: GrantedLease) -> None:
    kernel.heartbeat(lease.token)
    kernel.pass_time(lease.expires_at - kernel.now_ms)
    assert kernel.state_of(lease.sequence_id) == "dead"


def _cancel(kernel: Kernel, lease: GrantedLease) -> None:
    kernel.do(cmd.CancelItem(lease.sequence_id, force=True))


def _cancel_when_released(kernel: Kernel, lease: GrantedLease) -> None:
    kernel.do(cmd.CancelItem(lease.sequence_id))
    kernel.release(lease.token)
    assert kernel.state_of(lease.sequence_id) == "cancelled"


ENDS: dict[str, Callable[[Kernel, GrantedLease], None]] = {
    "complete": _complete,
    "fail": _fail,
    "expire": _expire,
    "cancel": _cancel,
    "cancel when released": _cancel_when_released,
}
"""Ends after which the item is gone; an item that is to expire for good needs `max_attempts=1`."""


# -- copies and costs ----------------------------------------------------------------------------


def through_snapshot(state: State) -> State:
    header, chunks = dump(state)
    return load(header, list(chunks))


def next_grants(state: State, now_ms: int, count: int) -> list[tuple[int, bool]]:
    """The ids of the next grants and whether the guard chose them, each completed at once. Uses the state up."""
    kernel = Kernel()
    kernel.state, kernel.now_ms = state, now_ms
    found: list[tuple[int, bool]] = []
    for _ in range(count):
        leases: list[GrantedLease] = kernel.do(cmd.GrantLeases(WORKER))
        if not leases:
            break
        event = kernel.events[-1]
        found.append((leases[0].sequence_id, bool(getattr(event, "guard", False))))
        kernel.complete(leases[0].token)
    return found


def operations(work: Callable[[], object]) -> int:
    """How many bytecode operations a piece of work takes: the same on every machine, unlike its time."""
    count = 0

    def tracer(frame: FrameType, what: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        if what == "opcode":
            count += 1
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def keep_lanes(kernel: Kernel, count: int) -> None:
    """Have lanes that nobody has to remember dropped from so many on, instead of from many thousands."""
    kernel.state.schedule.lanes_kept = kernel.state.schedule.sweep_at = count
