"""Following a shard, waiting for an item, and looking into the past."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from omnirelay.core.answers import ItemView
from omnirelay.core.events import Event
from omnirelay.core.options import QueueOptions
from omnirelay.core.snapshot import digest
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.shard import Shard
from omnirelay.errors import LogOutcomeUnknown, NotFound, OmniRelayError, OutOfRange
from omnirelay.testing.clock import FakeClock, settle
from tests.integration.shards import (
    WORKER,
    GatedLog,
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


async def take(events: AsyncIterator[Event], count: int) -> list[str]:
    return [type(await soon(anext(events))).__name__ for _ in range(count)]


@on_every_log
async def test_a_tail_gives_the_past_and_goes_on_with_what_comes(kind: str, tmp_path: Path) -> None:
    shard = await Place(kind, tmp_path).open(FakeClock())
    await enqueued(shard)
    tail = shard.tail(1)
    assert await take(tail, 2) == ["LeaderElected", "Enqueue"]
    following = start(take(tail, 2))
    await settle()
    assert not following.done()
    lease = await one_lease(shard)
    await shard.complete(lease.token)
    assert await soon(following) == ["LeaseGranted", "Completed"]
    from_now = start(take(shard.tail(), 1))
    await settle()
    await enqueued(shard)
    assert await soon(from_now) == ["Enqueue"]
    await shard.close()
    assert [event async for event in tail if event.sequence_number < 5] == []


async def test_a_tail_sees_durable_events_only() -> None:
    log = GatedLog()
    shard = await Shard.open(log, clock=FakeClock())
    following = start(take(shard.tail(), 3))
    await settle()
    log.gate.clear()
    writes = [start(shard.enqueue(each)) for each in items(3)]
    await settle()
    assert not following.done()
    log.gate.set()
    await soon(asyncio.gather(*writes))
    assert await soon(following) == ["Enqueue"] * 3
    await shard.close()


@on_every_log
async def test_a_tail_ends_when_the_shard_does(kind: str, tmp_path: Path) -> None:
    shard = await Place(kind, tmp_path).open(FakeClock())
    all_seen = asyncio.Event()
    seen = 0

    async def follow() -> None:
        nonlocal seen
        async for _ in shard.tail(1):
            seen += 1
            if seen == 4:
                all_seen.set()

    following = start(follow())
    await enqueued(shard, *items(3))
    await soon(all_seen.wait())
    await soon(shard.close())
    await soon(following)
    assert seen == 4


@on_every_log
async def test_a_tail_that_is_behind_when_the_shard_closes_ends_too(kind: str, tmp_path: Path) -> None:
    """Wherever the reading is by then; what it raises, if anything, is one of our errors."""
    foreign: list[BaseException] = []
    for rounds in range(25):
        shard = await Place(kind, tmp_path / str(rounds)).open(FakeClock())

        async def follow(shard: Shard = shard) -> None:
            async for _ in shard.tail(1):
                pass

        following = start(follow())
        await settle()
        await enqueued(shard)
        await settle(rounds)
        await soon(shard.close())
        [outcome] = await soon(asyncio.gather(following, return_exceptions=True))
        if outcome is not None and not isinstance(outcome, OmniRelayError):
            foreign.append(outcome)
    assert foreign == []


async def test_a_tail_crosses_into_a_new_generation(tmp_path: Path) -> None:
    clock = FakeClock()
    shard = await Place("memory", tmp_path).open(clock)
    await enqueued(shard)
    [pending] = (await shard.drain()).items
    following = start(take(shard.tail(), 3))
    await settle()
    other = await Place("memory", tmp_path).open(clock)
    await enqueued(other, *items(10))
    foreign = await one_lease(other)
    pending.last_ownership_token = foreign.token
    await other.close()
    await shard.restore([pending])
    await enqueued(shard)
    assert await soon(following) == ["GenerationStarted", "RestoreSnapshot", "Enqueue"]
    assert (await one_lease(shard)).fence > foreign.fence
    await shard.close()


@on_every_log
async def test_the_state_at_an_earlier_event_is_what_it_was(kind: str, tmp_path: Path) -> None:
    shard = await Place(kind, tmp_path).open(FakeClock())
    digests: dict[int, str] = {}
    for number in range(5):
        await enqueued(shard, item(f"{number}"))
        digests[shard.last_sequence] = digest(shard.state)
        lease = await one_lease(shard)
        digests[shard.last_sequence] = digest(shard.state)
        await shard.complete(lease.token)
        digests[shard.last_sequence] = digest(shard.state)
    for sequence, expected in digests.items():
        assert digest(await shard.state_at(sequence)) == expected
    assert (await shard.state_at(0)).sequence == 0
    with pytest.raises(OutOfRange):
        await shard.state_at(shard.last_sequence + 1)
    await shard.close()


# -- waiting for an item ------------------------------------------------------------------------


@on_every_log
@pytest.mark.parametrize("end", ["completed", "dead", "cancelled"])
async def test_get_waits_for_the_end_of_the_item(end: str, kind: str, tmp_path: Path) -> None:
    shard = await Place(kind, tmp_path).open(FakeClock())
    [sequence_id] = await enqueued(shard)
    waiting = start(shard.get(sequence_id, wait_ms=60_000))
    await settle()
    lease = await one_lease(shard)
    await shard.heartbeat(lease.token)
    assert not waiting.done()
    if end == "completed":
        await shard.complete(lease.token, result=b"well", result_encoding="text/plain")
    elif end == "dead":
        await shard.fail(lease.token, mode="dead")
    else:
        await shard.cancel(sequence_id, force=True)
    view = await soon(waiting)
    assert view.state == end
    assert view.result == (b"well" if end == "completed" else None)
    assert (await soon(shard.get(sequence_id, wait_ms=60_000))).state == end
    await shard.close()


async def test_get_by_request_id_waits_too() -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    await enqueued(shard, item(request_id="r"))
    waiting = start(shard.get(request_id="r", wait_ms=60_000))
    await settle()
    lease = await one_lease(shard)
    await shard.complete(lease.token)
    assert (await soon(waiting)).state == "completed"
    await shard.close()


async def test_get_gives_the_item_as_it_is_when_its_time_is_over() -> None:
    clock = FakeClock()
    shard = await Place("memory", Path()).open(clock)
    [sequence_id] = await enqueued(shard)
    waiting = start(shard.get(sequence_id, wait_ms=1_000))
    await settle()
    await clock.advance(1_000)
    assert (await soon(waiting)).state == "ready"
    await shard.close()


async def test_get_says_so_when_the_item_leaves_while_it_waits() -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    [sequence_id] = await enqueued(shard)
    waiting = start(shard.get(sequence_id, wait_ms=60_000))
    await settle()
    await shard.drain()
    with pytest.raises(NotFound):
        await soon(waiting)
    await shard.close()


async def test_each_of_many_that_wait_hears_of_the_end_of_its_own_item() -> None:
    """However it ends; those whose items live go on waiting."""
    clock = FakeClock()
    options = QueueOptions(max_delivery_attempts=1, lease_duration_ms=1_000)
    shard = await Place("memory", Path()).open(clock, options=options)
    ids = await enqueued(shard, *items(40))
    waiting = {sequence_id: start(shard.get(sequence_id, wait_ms=3_600_000)) for sequence_id in ids}
    await settle()
    completed, failed, given_back, forced, lost = await shard.lease(WORKER, max_items=5)
    await shard.complete(completed.token)
    await shard.fail(failed.token)
    await shard.cancel(given_back.sequence_id)
    await shard.release(given_back.token)
    await shard.cancel(forced.sequence_id, force=True)
    await shard.cancel(ids[5])
    await shard.heartbeat(lost.token)
    await clock.advance(1_000)
    ends = ["completed", "dead", "cancelled", "cancelled", "dead", "cancelled"]
    assert [(await soon(waiting.pop(sequence_id))).state for sequence_id in ids[:6]] == ends
    assert not any(call.done() for call in waiting.values())
    for drained in (await shard.drain(max_items=3)).items:
        with pytest.raises(NotFound):
            await soon(waiting.pop(drained.sequence_id))
    await settle()
    assert not any(call.done() for call in waiting.values())
    await shard.close()
    assert {(await soon(call)).state for call in waiting.values()} == {"ready"}


async def test_the_end_of_an_item_is_shown_when_it_is_durable() -> None:
    log = GatedLog()
    shard = await Shard.open(log, clock=FakeClock())
    [sequence_id] = await enqueued(shard)
    lease = await one_lease(shard)
    waiting = start(shard.get(sequence_id, wait_ms=60_000))
    await settle()
    log.gate.clear()
    completing = start(shard.complete(lease.token))
    await settle()
    late = start(shard.get(sequence_id, wait_ms=60_000))
    await settle()
    early = [waiting.done(), late.done()]
    log.gate.set()
    await soon(completing)
    assert {(await soon(waiting)).state, (await soon(late)).state} == {"completed"}
    assert early == [False, False]
    await shard.close()


async def test_a_cancelled_get_is_forgotten() -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    [sequence_id] = await enqueued(shard)
    waiting = start(shard.get(sequence_id, wait_ms=60_000))
    await settle()
    waiting.cancel()
    await settle()
    lease = await one_lease(shard)
    await shard.complete(lease.token)
    assert waiting.cancelled()
    assert await kinds_of(shard.log, 4) == ["Completed"]
    await shard.close()


async def a_get_that_registers(shard: Shard, log: GatedLog, sequence_id: int) -> asyncio.Task[ItemView]:
    """A call that has looked at its item and waits for it, while what it looked at is not all on the disk yet."""
    log.gate.clear()
    start(shard.enqueue(item("in flight")))
    await settle()
    call = start(shard.get(sequence_id, wait_ms=60_000))
    for name in ("decided with the look", "keeps the disk busy then"):
        start(shard.enqueue(item(name)))
        await settle()
    for _ in range(2):
        log.gate.set()  # Lets through the one frame that waits.
        log.gate.clear()
        await settle()
    start(shard.enqueue(item("decided with the registration")))
    await settle()
    assert len(shard._writer.items) == 1
    return call


async def test_a_get_cancelled_while_its_registration_waits_for_the_disk_is_forgotten() -> None:
    log = GatedLog()
    shard = await Shard.open(log, clock=FakeClock(), settings=EngineSettings(stage_events_min=1))
    [sequence_id] = await enqueued(shard)
    call = await a_get_that_registers(shard, log, sequence_id)
    call.cancel()
    await settle()
    assert len(shard._writer.items) == 0
    log.gate.set()
    await soon(shard.close())


async def test_a_get_whose_registration_meets_a_failing_disk_is_refused_once() -> None:
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
    log = GatedLog()
    shard = await Shard.open(log, clock=FakeClock(), settings=EngineSettings(stage_events_min=1))
    [sequence_id] = await enqueued(shard)
    call = await a_get_that_registers(shard, log, sequence_id)
    log.fail_next_append("unknown-lost")
    log.gate.set()
    assert [type(each) for each in await soon(asyncio.gather(call, return_exceptions=True))] == [LogOutcomeUnknown]
    await soon(shard.close())
    del call, shard, log  # The error holds its traceback, and that all that was under way.
    gc.collect()
    assert not unheard


async def test_reads_are_answered_from_one_moment() -> None:
    """A read that comes behind a write sees it; one that came before does not."""
    shard = await Place("memory", Path()).open(FakeClock())
    before = start(shard.stats())
    write = start(shard.enqueue(item()))
    after = start(shard.stats())
    counts = [(await soon(read)).ready_count for read in (before, after)]
    assert not isinstance(await write, OmniRelayError)
    assert counts == [0, 1]
    await shard.close()
