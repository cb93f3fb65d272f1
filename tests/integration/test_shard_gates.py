"""Gates at the shard: who waits for what, in which order, and what wakes them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from omnirelay.core.answers import BackpressureSignal
from omnirelay.core.options import Limit, QueueOptions
from omnirelay.core.payload import Caller, NewItem, Payload
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.shard import Shard
from omnirelay.errors import InvalidArgument, RequestIdsFull, ResourceExhausted, Unavailable
from omnirelay.log import MemoryLog
from omnirelay.testing.clock import FakeClock, settle
from tests.integration.shards import (
    WORKER,
    Place,
    enqueued,
    item,
    items,
    kinds_of,
    on_every_log,
    one_lease,
    soon,
    start,
)

TIGHT = QueueOptions(capacity=4, high_watermark=4, low_watermark=1, backpressure_cooldown_ms=1_000)


def work(resource_type: str, tenant: str | None = None, resource_id: str = "a") -> NewItem:
    attributes = None if tenant is None else {"tenant": tenant}
    return NewItem(payload=Payload(resource_type=resource_type, resource_id=resource_id, attributes=attributes))


async def open_shard(options: QueueOptions | None = None, **settings: Any) -> tuple[Shard, FakeClock]:
    clock = FakeClock()
    shard = await Shard.open(
        MemoryLog("jobs"), options=options, clock=clock, settings=EngineSettings(**settings) if settings else None
    )
    return shard, clock


# -- lease calls that take only some -----------------------------------------------------------


async def test_a_waiting_call_is_passed_over_by_work_it_does_not_take() -> None:
    shard, _ = await open_shard()
    views = start(shard.lease(WORKER, wait_ms=60_000, resource_types=["view*"]))
    tables = start(shard.lease(WORKER, wait_ms=60_000, resource_types=["table"]))
    await settle()
    await shard.enqueue(work("table"))
    [lease] = await soon(tables)
    assert lease.payload.resource_type == "table"
    assert not views.done()
    await shard.enqueue(work("view-daily"))
    [lease] = await soon(views)
    assert lease.payload.resource_type == "view-daily"
    await shard.close()


async def test_calls_that_take_the_same_are_served_in_the_order_they_came() -> None:
    shard, _ = await open_shard()
    calls = [
        start(shard.lease(Caller(peer_id=f"p{number}"), wait_ms=60_000, tenants=["a"] if number % 2 else None))
        for number in range(4)
    ]
    await settle()
    await shard.enqueue([work("table", "a"), work("table", "a"), work("table", "b"), work("table", "b")])
    # What is left after three is b's, and the fourth call takes only a's.
    leases = [(await soon(call))[0] for call in calls[:3]]
    assert [(lease.owner, lease.payload.attributes) for lease in leases] == [
        ("p0", {"tenant": "a"}),
        ("p1", {"tenant": "a"}),
        ("p2", {"tenant": "b"}),
    ]
    assert not calls[3].done()
    await shard.close()


async def test_a_call_that_does_not_wait_is_served_past_those_that_wait_for_something_else() -> None:
    shard, _ = await open_shard()
    waiting = start(shard.lease(WORKER, wait_ms=60_000, tenants=["nobody"]))
    await settle()
    await shard.enqueue(work("table", "a"))
    [lease] = await soon(shard.lease(WORKER))
    assert lease.payload.attributes == {"tenant": "a"}
    assert not waiting.done()
    assert await soon(shard.lease(WORKER)) == []
    await shard.close()
    assert await soon(waiting) == []


async def test_a_call_nothing_fits_does_not_keep_the_shard_busy() -> None:
    shard, clock = await open_shard()
    waiting = start(shard.lease(WORKER, wait_ms=5_000, resource_types=["other"]))
    await shard.enqueue(work("table"))
    frames = shard.log.statistics().frames
    await settle()
    assert shard.log.statistics().frames == frames
    await clock.advance(5_000)
    assert await soon(waiting) == []
    await shard.close()


async def test_repeats_of_a_call_that_take_something_else_leave_the_line_with_it() -> None:
    shard, _ = await open_shard()
    calls = [
        start(shard.lease(WORKER, wait_ms=60_000, request_id="once", resource_types=types))
        for types in (["table"], ["view"], None)
    ]
    await settle()
    await shard.enqueue(work("table"))
    leases = [await soon(call) for call in calls]
    assert len({lease.token for [lease] in leases}) == 1
    await shard.close()


async def test_filters_that_are_no_names_are_refused() -> None:
    shard, _ = await open_shard()
    with pytest.raises(InvalidArgument, match="resourceTypes"):
        await shard.lease(resource_types=["a\0b"])
    with pytest.raises(InvalidArgument, match="tenants"):
        await shard.lease(tenants=["t"] * 1_001)
    with pytest.raises(InvalidArgument, match="resourceTypes"):
        await shard.lease(resource_types="table")
    await shard.close()


# -- enqueues that wait ------------------------------------------------------------------------


async def test_an_enqueue_waits_for_room_and_is_taken_in_when_there_is() -> None:
    shard, clock = await open_shard(TIGHT)
    await shard.enqueue(items(4))
    waiting = start(shard.enqueue(item("late"), wait_ms=60_000))
    await settle()
    assert not waiting.done()
    for _ in range(4):
        await shard.complete((await one_lease(shard)).token)
    await settle()
    assert not waiting.done(), "the cooldown holds the signal back"
    await clock.advance(1_000)
    assert (await soon(waiting)).results[0].sequence_id == 5
    await shard.close()


async def test_an_enqueue_that_waited_in_vain_is_refused_as_if_it_had_not_waited() -> None:
    shard, clock = await open_shard(TIGHT)
    await shard.enqueue(items(4))
    waiting = start(shard.enqueue(item("late"), wait_ms=3_000))
    await settle()
    await clock.advance(2_999)
    assert not waiting.done()
    await clock.advance(1)
    with pytest.raises(ResourceExhausted) as refused:
        await soon(waiting)
    assert refused.value.code == "error.resourcelease.backpressure"
    assert refused.value.retry_after_ms
    await shard.close()


@pytest.mark.parametrize("others_wait", [False, True])
async def test_an_enqueue_that_could_never_fit_is_refused_at_once_and_holds_nobody_up(others_wait: bool) -> None:
    shard, clock = await open_shard(TIGHT)
    waiting = None
    if others_wait:
        await shard.enqueue(items(4))
        waiting = start(shard.enqueue(item("late"), wait_ms=60_000))
        await settle()
    with pytest.raises(InvalidArgument) as refused:
        await soon(start(shard.enqueue(items(5), wait_ms=60_000)))
    assert refused.value.code == "resourcelease.payload.too_large"
    assert (refused.value.details["field"], refused.value.details["limit"]) == ("items", 4)
    for _ in range(4 if others_wait else 0):
        await shard.complete((await one_lease(shard)).token)
    await clock.advance(1_000)
    if waiting is not None:
        await soon(waiting)
    await shard.enqueue(item("next"))
    await shard.close()


async def test_a_full_table_of_request_ids_refuses_those_that_bring_one_and_holds_nobody_up() -> None:
    shard, _ = await open_shard(QueueOptions(request_id_max=1))
    await shard.enqueue(item("a", request_id="r1"))
    with pytest.raises(RequestIdsFull) as refused:
        await soon(start(shard.enqueue(item("b", request_id="r2"), wait_ms=60_000)))
    assert refused.value.code == "error.resourcelease.request_ids_full"
    assert (refused.value.details["field"], refused.value.details["limit"]) == ("requestId", 1)
    await soon(shard.enqueue(item("b")))
    assert (await soon(shard.enqueue(item("a", request_id="r1")))).results[0].duplicate
    await shard.close()


async def test_a_full_table_of_request_ids_refuses_at_once_also_behind_others_that_wait() -> None:
    shard, _ = await open_shard(QueueOptions(capacity=1, request_id_max=1))
    await shard.enqueue(item("a", request_id="r1"))
    waiting = start(shard.enqueue(item("late"), wait_ms=60_000))
    await settle()
    with pytest.raises(RequestIdsFull):
        await soon(start(shard.enqueue(item("b", request_id="r2"), wait_ms=60_000)))
    assert not waiting.done()
    waiting.cancel()
    await shard.close()


async def test_an_enqueue_that_waits_is_refused_when_capacity_falls_below_what_it_needs() -> None:
    shard, _ = await open_shard(TIGHT)
    await shard.enqueue(items(4))
    waiting = start(shard.enqueue(items(3), wait_ms=60_000))
    await settle()
    await shard.change_options(QueueOptions(capacity=2))
    with pytest.raises(InvalidArgument):
        await soon(waiting)
    await shard.close()


async def test_waiting_enqueues_come_in_as_they_came_and_nobody_overtakes_them() -> None:
    shard, clock = await open_shard(TIGHT)
    await shard.enqueue(items(4))
    waiting = [start(shard.enqueue(item(f"late-{number}"), wait_ms=60_000)) for number in range(3)]
    await settle()
    for _ in range(4):
        await shard.complete((await one_lease(shard)).token)
    with pytest.raises(ResourceExhausted, match="3 enqueues wait for room already, and nobody overtakes them"):
        await shard.enqueue(item("hasty"))
    await clock.advance(1_000)
    assert [(await soon(call)).results[0].sequence_id for call in waiting] == [5, 6, 7]
    await shard.close()


async def test_acknowledgements_and_leases_pass_a_waiting_enqueue() -> None:
    shard, _ = await open_shard(TIGHT)
    await shard.enqueue(items(4))
    waiting = start(shard.enqueue(item("late"), wait_ms=60_000))
    lease = await soon(one_lease(shard))
    await soon(shard.heartbeat(lease.token))
    await soon(shard.complete(lease.token, follow_ups=[item("next")]))
    assert not waiting.done()
    await shard.close()
    with pytest.raises(Unavailable):
        await soon(waiting)


async def test_a_repeat_by_request_id_is_answered_past_those_that_wait() -> None:
    shard, _ = await open_shard(TIGHT)
    await shard.enqueue([item("once", request_id="r1"), *items(3)])
    waiting = start(shard.enqueue(item("late"), wait_ms=60_000))
    await settle()
    answer = await soon(shard.enqueue(item("once", request_id="r1")))
    assert answer.results[0].duplicate
    assert not waiting.done()
    waiting.cancel()
    await shard.close()


async def test_waiting_enqueues_are_bounded_in_number_and_bytes() -> None:
    shard, _ = await open_shard(TIGHT, waiting_enqueues_max=2, waiting_enqueue_bytes_max=10_000)
    await shard.enqueue(items(4))
    first = start(shard.enqueue(item("one", body=b"x" * 6_000), wait_ms=60_000))
    await settle()
    for large in (
        [item("body", body=b"x" * 6_000)],
        [item("attributes", attributes={f"name-{number}": "v" * 600 for number in range(10)})],
        [item("i" * 200 + str(number), request_id="r" * 200 + str(number)) for number in range(4)],
    ):
        with pytest.raises(ResourceExhausted):
            await soon(shard.enqueue(large, wait_ms=60_000))
    second = start(shard.enqueue(item("two"), wait_ms=60_000))
    await settle()
    with pytest.raises(ResourceExhausted):
        await soon(shard.enqueue(item("three"), wait_ms=60_000))
    first.cancel()
    await settle()
    third = start(shard.enqueue(item("three", body=b"x" * 6_000), wait_ms=60_000))
    await settle()
    assert [second.done(), third.done()] == [False, False]
    await shard.close()


async def test_a_waiting_enqueue_whose_caller_is_gone_leaves_no_trace() -> None:
    shard, clock = await open_shard(TIGHT)
    await shard.enqueue(items(4))
    gone = start(shard.enqueue(item("gone"), wait_ms=60_000))
    stays = start(shard.enqueue(item("stays"), wait_ms=60_000))
    await settle()
    gone.cancel()
    for _ in range(4):
        await shard.complete((await one_lease(shard)).token)
    await clock.advance(1_000)
    await soon(stays)
    assert [view.payload.resource_id for view in (await shard.peek()).items] == ["stays"]
    await shard.close()


async def test_a_bad_enqueue_is_refused_at_once_while_others_wait_and_harms_nobody() -> None:
    shard, clock = await open_shard(TIGHT)
    await shard.enqueue(items(4))
    waiting = start(shard.enqueue(item("late"), wait_ms=60_000))
    await settle()
    for wait_ms in (0, 60_000):
        with pytest.raises(InvalidArgument):
            await soon(shard.enqueue([None], wait_ms=wait_ms))  # type: ignore[list-item]
        with pytest.raises(InvalidArgument) as refused:
            await soon(shard.enqueue(item(" "), wait_ms=wait_ms))
        assert refused.value.code == "resourcelease.payload.resource_id_required"
    for _ in range(4):
        await shard.complete((await one_lease(shard)).token)
    await clock.advance(1_000)
    await soon(waiting)
    assert shard.failure is None
    await shard.close()


@pytest.mark.parametrize("wait_ms", [0, 60_000])
async def test_an_enqueue_whose_intake_is_paused_is_refused_as_such_while_others_wait(wait_ms: int) -> None:
    shard, _ = await open_shard(TIGHT)
    [known, *_] = await enqueued(shard, item(request_id="r"), *items(3))
    waiting = start(shard.enqueue(item("late"), wait_ms=60_000))
    await settle()
    await shard.pause(tenant="acme", intake=True)
    with pytest.raises(Unavailable) as refused:
        await soon(shard.enqueue(item(attributes={"tenant": "acme"}), wait_ms=wait_ms))
    assert refused.value.code == "error.resourcelease.paused"
    await shard.pause(intake=True)
    with pytest.raises(Unavailable):
        await soon(waiting)
    again = await soon(shard.enqueue(item(request_id="r"), wait_ms=wait_ms))
    assert (again.results[0].sequence_id, again.results[0].duplicate) == (known, True)
    await shard.close()


# -- backpressure ------------------------------------------------------------------------------


async def test_listeners_hear_of_every_change_in_order_and_one_that_fails_does_not_silence_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shard, clock = await open_shard(TIGHT)
    heard: list[BackpressureSignal] = []

    def fails(signal: BackpressureSignal) -> None:
        raise RuntimeError("broken listener")

    shard.add_backpressure_listener(fails)
    shard.add_backpressure_listener(heard.append)
    await shard.enqueue(items(4))
    assert [signal.active for signal in heard] == [True]
    assert (heard[0].pending, heard[0].high_watermark, heard[0].low_watermark) == (4, 4, 1)
    assert (heard[0].shard, heard[0].since) == ("jobs", shard.backpressure.since)
    late: list[BackpressureSignal] = []
    shard.add_backpressure_listener(late.append)
    assert [signal.active for signal in late] == [True], "who comes late hears that intake is closed"
    for _ in range(4):
        await shard.complete((await one_lease(shard)).token)
    assert len(heard) == 1, "within the cooldown"
    await clock.advance(1_000)
    await settle()
    assert [signal.active for signal in heard] == [True, False]
    assert not (await shard.stats()).backpressure.active
    assert "backpressure_listener_failed" in caplog.text
    await shard.close()


@on_every_log
async def test_backpressure_and_pauses_outlive_a_restart(kind: str, tmp_path: Path) -> None:
    place, clock = Place(kind, tmp_path), FakeClock()
    shard = await place.open(clock, options=TIGHT)
    await shard.enqueue(items(4))
    await shard.pause(tenant="a", reason="audit", until_ms=shard.now_ms() + 60_000)
    await shard.pause(resource_type="view", intake=True)
    place.crash(shard)
    shard = await place.open(clock)
    stats = await shard.stats()
    assert stats.backpressure.active
    assert [(pause.scope, pause.reason, pause.intake) for pause in stats.pauses] == [
        ("tenant a", "audit", False),
        ("resource type view", None, True),
    ]
    await clock.advance(61_000)
    await settle()
    assert [pause.scope for pause in (await shard.stats()).pauses] == ["resource type view"]
    await shard.close()


# -- pauses and why ----------------------------------------------------------------------------


async def test_a_pause_that_ends_by_itself_wakes_those_who_wait() -> None:
    shard, clock = await open_shard()
    await shard.pause(until_ms=shard.now_ms() + 5_000, reason="deploy", caller=Caller(principal="ops"))
    [sequence_id] = await enqueued(shard)
    call = start(shard.lease(WORKER, wait_ms=60_000))
    await settle()
    assert not call.done()
    [gate] = (await shard.why(sequence_id)).gates
    assert (gate.gate, gate.reason, gate.principal) == ("pause", "deploy", "ops")
    await clock.advance(5_000)
    assert [lease.sequence_id for lease in await soon(call)] == [sequence_id]
    await shard.close()


async def test_a_resume_wakes_those_who_wait() -> None:
    shard, _ = await open_shard()
    assert [pause.scope for pause in await shard.pause(resource_type="table")] == ["resource type table"]
    [sequence_id] = await enqueued(shard)
    call = start(shard.lease(WORKER, wait_ms=60_000))
    await settle()
    assert not call.done()
    assert await shard.resume(resource_type="table") == []
    assert [lease.sequence_id for lease in await soon(call)] == [sequence_id]
    assert (await kinds_of(shard.log)).count("Resumed") == 1
    await shard.resume(resource_type="table")
    assert (await kinds_of(shard.log)).count("Resumed") == 1, "resuming what is not paused writes nothing"
    await shard.close()


async def test_the_end_of_a_lease_wakes_whoever_waits_for_its_key_or_limit() -> None:
    shard, _ = await open_shard(QueueOptions(ordering="exclusive", limits=[Limit(by="type", match="view", max=1)]))
    await shard.enqueue([work("table"), work("table"), work("view", resource_id="a"), work("view", resource_id="b")])
    table, view = await shard.lease(WORKER, max_items=4)
    calls = [start(shard.lease(WORKER, wait_ms=60_000)) for _ in range(2)]
    await settle()
    assert not any(call.done() for call in calls)
    await shard.complete(table.token)
    await shard.fail(view.token, mode="dead")
    leases = [lease for call in calls for lease in await soon(call)]
    assert sorted(lease.payload.resource_type for lease in leases) == ["table", "view"]
    await shard.close()


async def test_a_drain_may_close_the_shard_behind_it() -> None:
    shard, _ = await open_shard()
    await shard.enqueue(items(3))
    answer = await shard.drain(pause_intake=True)
    assert len(answer.items) == 3
    with pytest.raises(Unavailable) as refused:
        await shard.enqueue(item("late"))
    assert refused.value.code == "error.resourcelease.paused"
    await shard.resume()
    await shard.enqueue(item("late"))
    await shard.close()


async def test_many_callers_wait_for_room_at_the_same_time() -> None:
    """Whatever order things happen in, everyone is let in and nothing is doubled."""
    shard, clock = await open_shard(TIGHT)
    calls = [start(shard.enqueue(item(f"i-{number}"), wait_ms=3_600_000)) for number in range(40)]
    seen: list[int] = []
    while len(seen) < 40:
        for lease in await shard.lease(WORKER, max_items=2):
            seen.append(lease.sequence_id)
            await shard.complete(lease.token)
        await clock.advance(500)
        await settle()
    assert sorted(seen) == list(range(1, 41))
    await soon(asyncio.gather(*calls))
    await shard.close()
