"""Group commit: what becomes one frame, and when callers hear of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.intake import BATCH_ITEMS_MAX, CALLER_MAX
from omnirelay.core.options import MIB, QueueOptions
from omnirelay.core.payload import Caller, OwnershipToken
from omnirelay.core.snapshot import digest
from omnirelay.engine import framing
from omnirelay.engine.settings import EngineSettings
from omnirelay.engine.shard import Shard
from omnirelay.errors import InvalidArgument, OmniRelayError
from omnirelay.log.base import FRAME_BYTES_MAX, Frame, Position
from omnirelay.log.failpoints import armed
from omnirelay.log.frame import encode_frame
from omnirelay.log.sqlite import writer as sqlite_writer
from omnirelay.testing.clock import FakeClock, settle
from tests.integration.shards import (
    WORKER,
    GatedLog,
    Place,
    enqueued,
    events_of,
    frames_of,
    item,
    items,
    on_every_log,
    one_lease,
    soon,
    start,
)
from tests.patience import PATIENCE_S


@on_every_log
async def test_many_concurrent_commands_become_few_frames(kind: str, tmp_path: Path) -> None:
    shard = await Place(kind, tmp_path).open(FakeClock())
    before = shard.log.statistics().frames
    answers = await asyncio.gather(*(shard.enqueue(each) for each in items(500)))
    assert len({answer.results[0].sequence_id for answer in answers}) == 500
    assert shard.log.statistics().frames - before <= 3
    await shard.close()


@on_every_log
async def test_a_command_that_changes_nothing_writes_no_frame(kind: str, tmp_path: Path) -> None:
    shard = await Place(kind, tmp_path).open(FakeClock())
    before = shard.log.statistics().frames
    assert await shard.lease(WORKER) == []
    with pytest.raises(InvalidArgument):
        await shard.enqueue(item(" "))
    await shard.stats()
    assert shard.log.statistics().frames == before
    await shard.close()


async def test_callers_of_a_crowd_who_come_back_one_after_the_other_share_a_frame() -> None:
    log = GatedLog(quick=True)
    shard = await Shard.open(log, clock=FakeClock())
    await asyncio.gather(*(shard.enqueue(each) for each in items(3)))
    before = log.statistics().frames
    calls = []
    for each in items(5):
        calls.append(start(shard.enqueue(each)))
        await asyncio.sleep(0)
    await soon(asyncio.gather(*calls))
    assert log.statistics().frames - before == 1
    await shard.close()


async def test_a_crowd_is_not_held_up_by_readers_who_keep_coming() -> None:
    shard = await Shard.open(GatedLog(quick=True), clock=FakeClock())
    await asyncio.gather(*(shard.enqueue(each) for each in items(3)))
    call = start(shard.enqueue(item()))
    reads: list[Any] = []
    while not call.done() and len(reads) < 10_000:
        reads.append(start(shard.stats()))
        await asyncio.sleep(0)
    assert call.done()
    await soon(asyncio.gather(*reads))
    await shard.close()


async def test_whoever_is_alone_or_one_of_two_does_not_wait_for_company() -> None:
    async def turns_before_the_disk(answered_before: int) -> int:
        log = GatedLog(quick=True)
        shard = await Shard.open(log, clock=FakeClock())
        await asyncio.gather(*(shard.enqueue(each) for each in items(answered_before)))
        await settle()
        tried = len(log.tried)
        call = start(shard.enqueue(item()))
        turns = 0
        while len(log.tried) == tried:
            await asyncio.sleep(0)
            turns += 1
        await soon(call)
        await shard.close()
        return turns

    alone, pair, crowd = [await turns_before_the_disk(answered) for answered in (1, 2, 3)]
    assert alone == pair < crowd


async def test_commands_that_come_while_a_frame_is_written_become_the_next_one() -> None:
    log = GatedLog()
    shard = await Shard.open(log, clock=FakeClock())
    log.gate.clear()
    first = start(shard.enqueue(item("first")))
    await settle()
    rest = [start(shard.enqueue(each)) for each in items(50)]
    await settle()
    assert len(log.tried) == 2, "LeaderElected and one frame: only one may be in flight"
    log.gate.set()
    await soon(asyncio.gather(first, *rest))
    assert len(log.tried) == 3
    await shard.close()


@pytest.mark.parametrize("together", [1, 2], ids=["alone", "in company"])
@pytest.mark.parametrize("quick", [True, False], ids=["without a hop", "with a hop"])
async def test_nothing_is_answered_before_the_frame_it_rests_on_is_durable(quick: bool, together: int) -> None:
    """On a quick disk frames are written on the calling thread; that must not make a difference."""
    log = GatedLog(quick=quick)
    shard = await Shard.open(log, clock=FakeClock())
    [known] = await enqueued(shard)
    log.gate.clear()
    writes = [start(shard.enqueue(item(f"new-{n}", request_id=f"r-{n}"))) for n in range(together)]
    await settle()
    others: dict[str, asyncio.Future[object]] = {
        "stats": start(shard.stats()),
        "peek": start(shard.peek()),
        "get": start(shard.get(known)),
        "get by request": start(shard.get(request_id="r-0")),
        "repeat": start(shard.enqueue(item("new-0", request_id="r-0"))),
        "conflict": start(shard.enqueue(item("else", request_id="r-0"))),
        "refusal": start(shard.enqueue(item(" "))),
        "lease": start(shard.lease(WORKER)),
        "empty drain": start(shard.redrive(everything=True)),
    }
    await settle()
    early = [name for name, future in others.items() if future.done()]
    assert not any(write.done() for write in writes)
    log.gate.set()
    await soon(asyncio.gather(*writes, *others.values(), return_exceptions=True))
    await shard.close()
    assert early == [], "answered from a state that a crash could still take back"


async def test_the_event_loop_waits_for_a_quick_disk_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a lone caller: whatever else lives on the loop would stand still with it."""
    own = threading.current_thread()
    appended: list[bool] = []
    slow = False

    def take_long() -> None:
        appended.append(threading.current_thread() is own)
        if slow:
            threading.Event().wait(0.02)

    shard = await Place("sqlite", tmp_path).open(FakeClock())
    with armed("log.append.begin", take_long), monkeypatch.context() as patch:
        patch.setattr(sqlite_writer, "INLINE_NS_MAX", int(PATIENCE_S) * 1_000_000_000)  # Whatever disk this runs on.
        for each in items(3):
            await shard.enqueue(each)
        assert appended == [True] * 3, "a lone caller on a quick disk needs no hop"
        patch.undo()
        slow = True
        await shard.enqueue(item())  # Nobody knows yet that the disk is slow.
        appended.clear()
        for each in items(3):
            await shard.enqueue(each)
    assert appended == [False] * 3
    await shard.close()


class NotingLog(GatedLog):
    """Notes when an append is begun, which is before anybody awaits it."""

    happened: list[str]

    def append(self, frame: Frame, expected: Position) -> asyncio.Future[Position]:  # type: ignore[override]
        self.happened.append("append")
        return asyncio.ensure_future(super().append(frame, expected))


async def test_the_next_frame_is_on_its_way_to_the_disk_before_listeners_hear_of_the_last() -> None:
    log = NotingLog()
    log.happened = happened = []
    shard = await Shard.open(log, clock=FakeClock(), settings=EngineSettings(stage_events_min=1))
    shard.add_event_listener(lambda events: happened.append(f"told of {len(events)}"))
    happened.clear()
    log.gate.clear()
    large = [item(f"large-{n}", body=b"x" * 10_000) for n in range(10)]
    first = start(shard.enqueue(large))
    await settle()
    second = start(shard.enqueue([*large, *large]))
    await settle()
    log.gate.set()
    await soon(asyncio.gather(first, second))
    await settle()
    assert happened == ["append", "append", "told of 10", "told of 20"]
    await shard.close()


class WayLog(GatedLog):
    """Tells what had been decided when it was made way for."""

    shard_of_it: Shard
    decided: list[int]

    def make_way(self) -> None:
        self.decided.append(self.shard_of_it.state.sequence)


async def test_a_frame_under_way_is_made_way_for_before_the_next_is_decided() -> None:
    log = WayLog()
    log.decided = []
    shard = log.shard_of_it = await Shard.open(log, clock=FakeClock(), settings=EngineSettings(stage_events_min=1))
    begun_at = shard.last_sequence
    log.gate.clear()
    writes = [start(shard.enqueue(item(str(n)))) for n in range(2)]
    await settle()
    writes.append(start(shard.enqueue(item("staged"))))
    await settle()
    assert log.decided == [begun_at + 2]
    assert shard.state.sequence == begun_at + 3
    log.gate.set()
    await soon(asyncio.gather(*writes))
    await shard.close()


async def test_events_beyond_the_limit_of_a_frame_go_to_the_next() -> None:
    log = GatedLog()
    shard = await Shard.open(log, clock=FakeClock(), settings=EngineSettings(frame_events_max=10))
    answers = await soon(asyncio.gather(*(shard.enqueue(each) for each in items(35))))
    assert [answer.results[0].sequence_id for answer in answers] == list(range(1, 36))
    assert [frame.count for frame in await frames_of(log)][1:] == [10, 10, 10, 5]
    await shard.close()


# -- frames over 8 MiB ---------------------------------------------------------------------------


async def check_frames(shard: Shard) -> None:
    """No frame is over the limit, and the log gives the state that was served."""
    assert shard.failure is None, f"the shard was given up: {shard.failure!r}"
    log = shard.log
    assert max(len(frame.data) for frame in await frames_of(log)) <= FRAME_BYTES_MAX
    expected = digest(shard.state)
    assert digest(await shard.state_at(shard.last_sequence)) == expected


@on_every_log
@pytest.mark.parametrize("calls", ["one call", "many calls"])
async def test_large_results_are_split_into_frames_at_commands(kind: str, calls: str, tmp_path: Path) -> None:
    shard = await Place(kind, tmp_path).open(FakeClock())
    await shard.enqueue(items(12))
    leases = await shard.lease(WORKER, max_items=12)
    before = shard.log.statistics().frames
    commands = [cmd.CompleteItem(lease.token, result=bytes([number]) * MIB) for number, lease in enumerate(leases)]
    if calls == "one call":
        outcomes = await soon(shard.acknowledge(commands))
    else:
        calling = (shard.complete(each.token, result=each.result) for each in commands)
        outcomes = await soon(asyncio.gather(*calling))
    assert not [outcome for outcome in outcomes if isinstance(outcome, OmniRelayError)]
    assert shard.log.statistics().frames - before >= 2
    await check_frames(shard)
    assert (await shard.get(leases[7].sequence_id)).result == b"\x07" * MIB
    await shard.close()


async def test_splitting_a_batch_does_not_encode_it_over_and_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop stands still meanwhile: what is written once may be encoded a few times, not per command."""
    encoded = 0

    def count_and_encode(*arguments: Any) -> Frame:
        nonlocal encoded
        frame = encode_frame(*arguments)
        encoded += len(frame.data)
        return frame

    monkeypatch.setattr(framing, "encode_frame", count_and_encode)
    log = GatedLog()
    shard = await Shard.open(log, clock=FakeClock())
    await shard.enqueue(items(400))
    leases = await shard.lease(WORKER, max_items=400)
    before, encoded = sum(len(data) for data in log.tried), 0
    await asyncio.gather(*(shard.complete(lease.token, result=b"r" * 30_000) for lease in leases))
    written = sum(len(data) for data in log.tried) - before
    await shard.close()
    assert written > FRAME_BYTES_MAX
    assert encoded <= 4 * written, f"{encoded} bytes were encoded to write {written}"


async def refused_as(call: Awaitable[object]) -> str | None:
    """The code a call is refused with, or None when it is done. Too much for a frame must be known before it is
    decided: what was decided cannot be taken back.
    """
    try:
        await soon(call)
    except InvalidArgument as refused:
        return refused.code
    return None


TOO_LARGE = (None, "resourcelease.payload.too_large")


async def test_a_completion_with_large_follow_ups_is_refused_or_written_but_never_ends_the_shard() -> None:
    shard = await Place("memory", Path()).open(FakeClock(), options=QueueOptions(body_limit=4 * MIB))
    await enqueued(shard)
    lease = await one_lease(shard)
    large = item("then", body=b"b" * (4 * MIB - 100))
    outcome = await refused_as(shard.complete(lease.token, result=b"r" * (4 * MIB), follow_ups=[large]))
    await check_frames(shard)
    assert outcome in TOO_LARGE
    await shard.close()


LONG_NAME = "\N{GRINNING FACE}" * CALLER_MAX
"""As long as the name of a caller may be, and four bytes a character."""


async def test_a_large_batch_from_a_caller_with_a_long_name_never_ends_the_shard() -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    caller = Caller(peer_id=LONG_NAME, principal=LONG_NAME)
    for count in (1_000, 3_000, BATCH_ITEMS_MAX):
        outcome = await refused_as(shard.enqueue(items(count, f"{count}"), caller=caller))
        await check_frames(shard)
        assert outcome in TOO_LARGE
    await shard.close()


async def test_many_leases_for_a_caller_with_a_long_name_never_end_the_shard() -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    await shard.enqueue(items(1_000))
    caller = Caller(peer_id=LONG_NAME, principal=LONG_NAME)
    leases = await soon(shard.lease(caller, max_items=1_000, request_id=LONG_NAME))
    assert leases
    await check_frames(shard)
    await shard.close()


async def test_a_restore_with_long_tokens_never_ends_the_shard() -> None:
    shard = await Place("memory", Path()).open(FakeClock())
    await shard.enqueue(items(5_000))
    page = (await shard.drain(max_items=5_000)).items
    for each in page:
        each.last_ownership_token = OwnershipToken(each.sequence_id, 1, LONG_NAME, 1)
    outcome = await refused_as(shard.restore(page))
    await check_frames(shard)
    assert outcome in TOO_LARGE
    await shard.close()


async def test_a_frame_may_hold_a_new_generation_and_still_be_split() -> None:
    """A restore that brings fences from elsewhere starts a generation in the middle of a frame."""
    log = GatedLog()
    shard = await Shard.open(log, clock=FakeClock())
    await shard.enqueue(items(13))
    leases = await shard.lease(WORKER, max_items=12)
    [pending] = (await shard.drain()).items
    pending.last_ownership_token = OwnershipToken(pending.sequence_id, 1, "x", 1_000_000)
    completions = [shard.complete(lease.token, result=b"r" * MIB) for lease in leases]
    await soon(asyncio.gather(*completions, shard.restore([pending]), shard.enqueue(item("after"))))
    await check_frames(shard)
    assert shard.state.generation == 2
    assert (await one_lease(shard)).fence > 1_000_000
    kinds = [type(event).__name__ for event in await events_of(log)]
    assert kinds.count("GenerationStarted") == 1
    await shard.close()
