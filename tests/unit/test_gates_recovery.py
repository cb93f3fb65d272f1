"""Gates after a restart: replay and snapshots give the same next grants, with every gate in use."""

from __future__ import annotations

from random import Random
from typing import Literal

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.answers import GrantedLease
from omnirelay.core.events import RestoredItem
from omnirelay.core.options import Limit, QueueOptions
from omnirelay.core.payload import NewItem
from omnirelay.core.snapshot import digest
from omnirelay.errors import ResourceExhausted, Unavailable
from tests.builders import Kernel, new_item, payload, replay
from tests.gates import SECOND, next_grants, pause, resume, signal, through_snapshot

TENANTS = ["", "acme", "umbrella", "initech", "hooli"]
TYPES = ["table", "view", "topic", "file"]
Ordering = Literal["none", "exclusive", "fifo"]


def every_gate(ordering: Ordering) -> QueueOptions:
    return QueueOptions(
        ordering=ordering,
        fifo_head="pass" if ordering == "exclusive" else "hold",
        tenant_weights={"acme": 3, "hooli": 2},
        limits=[
            Limit(by="type", match="table", max=20),
            Limit(by="type", match="t*", max=12),
            Limit(by="tenant", match="initech", max=6),
            Limit(by="key", match="*/hot*", max=4),
        ],
        starvation_every=8,
        starvation_after_ms=2 * SECOND,
        high_watermark=900,
        low_watermark=850,
        backpressure_cooldown_ms=SECOND,
    )


def any_item(random: Random) -> NewItem:
    tenant = random.choice(TENANTS)
    return new_item(
        random.choice(("hot-1", "hot-2", str(random.randrange(40)))),
        resource_type=random.choice(TYPES),
        attributes={"tenant": tenant} if tenant else None,
        priority=random.choice((0, 0, 5, 5, 9)),
        weight=random.choice((1, 1, 1, 2, 5, 30)),
        delay_ms=random.choice((None, None, None, 700)),
    )


def end_somehow(kernel: Kernel, lease: GrantedLease, random: Random) -> None:
    verb = random.random()
    if verb < 0.2:
        kernel.fail(lease.token, delay_ms=random.choice((0, 900)))
    elif verb < 0.3:
        kernel.fail(lease.token, mode="dead")
    elif verb < 0.4:
        kernel.release(lease.token)
    else:
        kernel.complete(lease.token)


def operate(kernel: Kernel, step: int, random: Random) -> None:
    if step % 50 == 20:
        pause(kernel, tenant=random.choice(TENANTS[1:]), intake=step % 100 == 20)
    if step % 50 == 30:
        pause(kernel, resource_type=random.choice(TYPES), until_ms=kernel.now_ms + 2 * SECOND)
    if step % 50 == 40:
        for found in list(kernel.state.pauses.values()):
            if found.tenant is not None:
                resume(kernel, tenant=found.tenant)
    if step % 90 == 80:
        kernel.do(cmd.RedriveItems(cmd.DeadLetterSelection(everything=True)))


def busy(seed: int, ordering: Ordering) -> Kernel:
    """A shard in the middle of everything: backlogs, leases, delays, dead letters, pauses and backpressure."""
    kernel = Kernel(every_gate(ordering))
    random = Random(seed)
    live: dict[int, GrantedLease] = {}
    for step in range(600):
        try:
            kernel.enqueue(*[any_item(random) for _ in range(random.randint(2, 8))])
        except (ResourceExhausted, Unavailable):
            assert kernel.state.backpressure or kernel.state.pauses
        wanted = ("t*", "view") if step % 7 == 0 else None
        for lease in kernel.lease(random.randint(1, 4), resource_types=wanted):
            live[lease.sequence_id] = lease
        while live and random.random() < 0.6:
            end_somehow(kernel, live.pop(random.choice(list(live))), random)
        operate(kernel, step, random)
        signal(kernel)
        kernel.pass_time(random.randint(0, 100))
        live = {number: lease for number, lease in live.items() if kernel.state_of(number) == "leased"}
    # Leave it with plenty to grant: some leases that block nobody, and a backlog that no gate keeps out.
    for lease in live.values():
        kernel.complete(lease.token)
    for found in list(kernel.state.pauses.values()):
        resume(kernel, resource_type=found.resource_type, tenant=found.tenant)
    kernel.do(cmd.RestoreItems([RestoredItem(sequence_id=1 << 20, payload=payload("door", "door"))]))
    kernel.complete(kernel.lease_one(resource_types=("door",)).token, follow_ups=[any_item(random) for _ in range(600)])
    assert kernel.lease(3, resource_types=("view",))
    pause(kernel, tenant="umbrella")
    pause(kernel, resource_type="file", until_ms=kernel.now_ms + 3_600 * SECOND)
    return kernel


@pytest.mark.parametrize("ordering", ["none", "exclusive", "fifo"])
@pytest.mark.parametrize("seed", range(3))
def test_replay_and_snapshot_give_the_same_next_fifty_grants(seed: int, ordering: Ordering) -> None:
    kernel = busy(seed, ordering)
    assert kernel.state.leased.live
    assert kernel.state.delayed.live
    assert kernel.state.ready.live > 100
    assert len(kernel.state.pauses) >= 2
    copies = {
        "replay": kernel.replayed(),
        "snapshot": through_snapshot(kernel.state),
        "snapshot of a replay": through_snapshot(kernel.replayed()),
        "snapshot of a snapshot": through_snapshot(through_snapshot(kernel.state)),
    }
    assert {digest(state) for state in copies.values()} == {kernel.digest()}
    expected = next_grants(kernel.state, kernel.now_ms, 50)
    assert len(expected) == 50
    for name, state in copies.items():
        assert next_grants(state, kernel.now_ms, 50) == expected, name
        assert digest(state) == kernel.digest(), name


def test_a_replay_that_starts_at_a_snapshot_ends_where_the_whole_one_does() -> None:
    kernel = Kernel(every_gate("fifo"))
    kernel.enqueue(*[new_item(str(n % 7), priority=n % 3) for n in range(200)])
    kernel.lease(20)
    middle, written = through_snapshot(kernel.state), len(kernel.events)
    pause(kernel, resource_type="view")
    for lease in kernel.lease(20):
        kernel.complete(lease.token)
    kernel.enqueue(*[new_item(str(n % 7), resource_type="view") for n in range(20)])
    assert digest(replay(kernel.events[written:], middle)) == kernel.digest()


def test_the_guard_goes_on_counting_where_a_snapshot_was_taken() -> None:
    kernel = Kernel()
    kernel.enqueue(*[new_item(str(n), priority=0) for n in range(100)])
    kernel.enqueue(*[new_item(str(n), priority=9) for n in range(100)])
    kernel.pass_time(61 * SECOND)
    kernel.lease(20)
    kernel.state = through_snapshot(kernel.state)
    guarded = [guard for _, guard in next_grants(kernel.state, kernel.now_ms, 44)]
    assert [index for index, guard in enumerate(guarded) if guard] == [11, 43]


def test_a_share_that_offers_for_a_moment_while_a_snapshot_is_loaded_leaves_no_trace() -> None:
    kernel = Kernel(QueueOptions(limits=[Limit(by="type", match="a", max=2)]))
    kernel.enqueue(
        new_item(resource_type="a"),
        new_item(resource_type="a", weight=2, attributes={"tenant": "x"}),
        new_item(resource_type="a"),
        new_item(resource_type="t"),
    )
    assert kernel.lease_one().sequence_id == 1
    kernel.do(cmd.CancelItem(4))
    assert digest(through_snapshot(kernel.state)) == digest(kernel.state)
