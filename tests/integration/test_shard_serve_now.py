"""What comes alone is served in the step in which it came; everything else keeps each other company."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from omnirelay.core import commands as cmd
from omnirelay.core.answers import EnqueueAnswer
from omnirelay.core.payload import ANONYMOUS
from omnirelay.engine.shard import Shard
from omnirelay.engine.writer import ALONE_NS_MIN
from omnirelay.errors import LogOutcomeUnknown, LogUnavailable
from omnirelay.log.base import Frame, Position
from omnirelay.log.failpoints import armed
from omnirelay.testing.clock import FakeClock, settle
from tests.integration.http_sockets import until
from tests.integration.shards import WORKER, GatedLog, Place, events_of, item, items, on_every_log, soon, start


async def a_moment() -> None:
    """Let what has begun go on, and so much time go by that others would have come since the last frame."""
    end = time.monotonic_ns() + 2 * ALONE_NS_MIN
    await settle()
    await until(lambda: time.monotonic_ns() >= end)


async def opened(log: GatedLog, clock: FakeClock | None = None) -> Shard:
    shard = await Shard.open(log, clock=clock or FakeClock())
    await a_moment()
    return shard


def submitted(shard: Shard, count: int = 1) -> list[asyncio.Future[EnqueueAnswer]]:
    return [shard.submit_enqueue([each], ANONYMOUS) for each in items(count)]


@on_every_log
async def test_what_comes_alone_is_durable_and_answered_in_the_same_step(kind: str, tmp_path: Path) -> None:
    shard = await Place(kind, tmp_path).open(FakeClock())
    await a_moment()
    heard: list[int] = []
    shard.add_event_listener(lambda events: heard.append(len(events)))
    frames, sequence = shard.log.statistics().frames, shard.last_sequence
    [answer] = submitted(shard)
    assert shard.serve_now()
    assert answer.result().results[0].sequence_id > 0
    assert (shard.log.statistics().frames, shard.last_sequence) == (frames + 1, sequence + 1)
    assert heard == [], "its caller hears first"
    await a_moment()
    assert heard == [1]
    assert [type(event).__name__ for event in await events_of(shard.log, sequence + 1)] == ["Enqueue"]
    await shard.close()


async def test_what_changes_nothing_is_answered_in_the_same_step_too() -> None:
    shard = await opened(GatedLog(quick=True))
    frames = shard.log.statistics().frames
    none = shard.submit_lease(cmd.GrantLeases(WORKER))
    assert shard.serve_now()
    assert none.result() == []
    assert shard.log.statistics().frames == frames
    await shard.close()


async def test_two_that_come_together_share_a_frame() -> None:
    shard = await opened(GatedLog(quick=True))
    frames = shard.log.statistics().frames
    both = submitted(shard, 2)
    assert not shard.serve_now()
    assert not any(each.done() for each in both)
    await soon(asyncio.gather(*both))
    assert shard.log.statistics().frames == frames + 1
    await shard.close()


async def test_behind_a_crowd_nobody_is_alone() -> None:
    shard = await opened(GatedLog(quick=True))
    await soon(asyncio.gather(*submitted(shard, 3)))
    await a_moment()
    [answer] = submitted(shard)
    assert not shard.serve_now()
    await soon(answer)
    await a_moment()
    [answer] = submitted(shard)
    assert shard.serve_now()
    await shard.close()


async def test_whoever_comes_while_a_frame_is_under_way_waits_for_it() -> None:
    log = GatedLog()
    shard = await opened(log)
    log.gate.clear()
    [first] = submitted(shard)
    await a_moment()
    [second] = submitted(shard)
    assert not shard.serve_now()
    await a_moment()
    assert [first.done(), second.done()] == [False, False]
    log.gate.set()
    await soon(asyncio.gather(first, second))
    await shard.close()


async def test_a_slow_disk_holds_up_nobody_but_its_caller() -> None:
    log = GatedLog()
    shard = await opened(log)
    log.gate.clear()
    [answer] = submitted(shard)
    assert not shard.serve_now()
    await a_moment()
    assert len(log.tried) == 2
    assert not answer.done()
    log.gate.set()
    await soon(answer)
    await shard.close()


async def test_a_peer_that_waited_hears_before_the_one_who_brought_the_work() -> None:
    shard = await opened(GatedLog(quick=True))
    waiting = shard.submit_lease(cmd.GrantLeases(WORKER), wait_ms=1_000)
    order: list[str] = []
    waiting.add_done_callback(lambda _: order.append("peer"))
    await a_moment()
    [answer] = submitted(shard)
    assert not shard.serve_now(), "there is another one to be answered"
    answer.add_done_callback(lambda _: order.append("caller"))
    assert [waiting.done(), answer.done()] == [True, True]
    await a_moment()
    assert order == ["peer", "caller"]
    await shard.close()


async def test_time_goes_on_behind_what_was_served_at_once() -> None:
    """The shard has to wake up for what came, also when nothing else ever comes."""
    clock = FakeClock()
    shard = await opened(GatedLog(quick=True), clock)
    delayed = shard.submit_enqueue([item(delay_ms=5_000)], ANONYMOUS)
    assert shard.serve_now()
    assert delayed.done()
    lease = start(shard.lease(WORKER, wait_ms=60_000))
    await a_moment()
    assert not lease.done()
    await clock.advance(5_000)
    assert len(await soon(lease)) == 1
    await shard.close()


async def test_an_interrupt_in_the_midst_of_a_call_gives_the_shard_up() -> None:
    """Ctrl-C goes to where it belongs, and nobody waits for ever for a shard of which half a call is left."""
    shard = await opened(GatedLog(quick=True))

    def interrupt() -> None:
        raise KeyboardInterrupt

    with armed("engine.decided", interrupt):
        [answer] = submitted(shard)
        with pytest.raises(KeyboardInterrupt):
            shard.serve_now()
    with pytest.raises(LogOutcomeUnknown):
        await soon(answer)
    await soon(shard.close())


class RefusingLog(GatedLog):
    """Refuses so many appends for now, as a full disk does."""

    refusals = 0

    def append_now(self, frame: Frame, expected: Position) -> Position | None:
        if self.refusals:
            self.refusals -= 1
            raise LogUnavailable("the disk is full")
        return super().append_now(frame, expected)


async def test_a_full_disk_keeps_the_frame_of_a_lone_caller() -> None:
    clock = FakeClock()
    log = RefusingLog(quick=True)
    shard = await opened(log, clock)
    log.refusals = 1
    [answer] = submitted(shard)
    assert not shard.serve_now()
    await a_moment()
    assert not answer.done()
    assert isinstance(shard.failure, LogUnavailable)
    await clock.advance(10_000)
    assert (await soon(answer)).results[0].sequence_id > 0
    assert shard.failure is None
    await shard.close()


async def test_an_append_of_which_nobody_knows_the_end_gives_the_shard_up() -> None:
    shard = await opened(GatedLog(quick=True))
    heard: list[int] = []
    shard.add_event_listener(lambda events: heard.append(len(events)))

    def fail() -> None:
        raise LogOutcomeUnknown("a flush failed")

    with armed("engine.decided", fail):
        [answer] = submitted(shard)
        assert not shard.serve_now()
    with pytest.raises(LogOutcomeUnknown):
        await soon(answer)
    assert isinstance(shard.given_up, LogOutcomeUnknown)
    assert heard == []
    with pytest.raises(LogOutcomeUnknown):
        submitted(shard)
    assert not shard.serve_now()
    await shard.close()
