"""The cursor and the backlog of a follower against the plainest way to say what they do: a list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirelay.engine.shard import Shard
from omnirelay.errors import LogDamaged
from omnirelay.log import MemoryLog
from omnirelay.log.base import Frame
from omnirelay.replication import cursor
from omnirelay.replication.backlog import STRETCHES_MAX, Backlog
from omnirelay.replication.cursor import SLICE_EVENTS, LogCursor
from omnirelay.replication.events import ReplicatedEvent, events_of_frame
from omnirelay.testing.clock import FakeClock
from tests.integration.shards import frames_of, items

# -- the cursor ------------------------------------------------------------------------------------


async def _log_of(shard: Shard) -> list[ReplicatedEvent]:
    events: list[ReplicatedEvent] = []
    for frame in await frames_of(shard.log):
        events += events_of_frame(frame, "here", events[-1].sequence if events else 0)
    return events


def _expected(log: list[ReplicatedEvent], after: int, events_max: int, bytes_max: int) -> list[ReplicatedEvent]:
    """At least one; then as many as fit."""
    found: list[ReplicatedEvent] = []
    size = 0
    for event in log:
        if event.sequence <= after:
            continue
        size += len(event.data)
        if found and (len(found) >= events_max or size > bytes_max):
            break
        found.append(event)
    return found


def _expected_commits(log: list[ReplicatedEvent], after: int, events_max: int, bytes_max: int) -> list[ReplicatedEvent]:
    """The rest of one frame; then those frames that fit as a whole, the first one counted whole, too."""
    frames = list({id(event.frame): event.frame for event in log if event.sequence > after}.values())
    taken: list[Frame] = []
    for frame in frames:
        assert frame is not None
        together = [*taken, frame]
        fits = sum(each.count for each in together) <= events_max
        if taken and not (fits and sum(len(each.data) for each in together) <= bytes_max):
            break
        taken.append(frame)
    return [event for event in log if event.sequence > after and any(event.frame is frame for frame in taken)]


reads = st.tuples(
    st.one_of(st.none(), st.integers(0, 60)),
    st.integers(1, 12),
    st.sampled_from([1, 400, 2_000, 1 << 20]),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.lists(reads, max_size=25),
    st.booleans(),
    st.integers(1, 5),
    st.sampled_from([1, 1_000, 1 << 20]),
)
def test_a_cursor_reads_what_is_there_wherever_it_is_put(
    frames: list[int], script: list[tuple[int | None, int, int, bool]], ahead: bool, slice_events: int, fetch_bytes: int
) -> None:
    async def run() -> None:
        async with await Shard.open(MemoryLog("jobs"), clock=FakeClock()) as shard:
            for count in frames:
                await shard.enqueue(items(count))
            log = await _log_of(shard)
            reader, after = LogCursor(shard, "here"), 0
            for jump, events_max, bytes_max, whole in script:
                after = after if jump is None else min(jump, shard.last_sequence)
                if whole:
                    found = list(await reader.read_commits(after, events_max, bytes_max))
                    assert found == _expected_commits(log, after, events_max, bytes_max)
                else:
                    found = await reader.read(after, events_max, bytes_max)
                    assert found == _expected(log, after, events_max, bytes_max)
                after = found[-1].sequence if found else after
                if ahead and whole:
                    reader.put_back(await reader.read_commits(after, events_max, bytes_max))
                elif ahead:
                    await reader.read_ahead(events_max, bytes_max)
            await shard.enqueue(items(2))
            rest = await reader.read(shard.last_sequence - 2, 10, 1 << 20)
            assert [event.sequence for event in rest] == [shard.last_sequence - 1, shard.last_sequence]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursor, "SLICE_EVENTS", slice_events)
        patch.setattr(cursor, "FETCH_BYTES", fetch_bytes)
        asyncio.run(run())


async def _turns_during(work: Callable[[], Awaitable[None]]) -> int:
    """How often the event loop came round while the work was going on."""
    turns, done = 0, False

    async def count() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    turns = 0
    await work()
    done = True
    await counting
    return turns


async def test_the_event_loop_goes_on_while_a_large_frame_is_decoded() -> None:
    async with await Shard.open(MemoryLog("jobs"), clock=FakeClock()) as shard:
        await asyncio.gather(*(shard.enqueue(items(5_000)) for _ in range(3)))
        largest = max(frame.count for frame in await frames_of(shard.log))
        assert largest >= 5_000
        reader = LogCursor(shard, "here")
        found: list[ReplicatedEvent] = []

        async def read() -> None:
            found.extend(await reader.read(0, 100_000, 1 << 30))

        turns = await _turns_during(read)
        assert len(found) == shard.last_sequence
        assert turns >= 15_000 // SLICE_EVENTS - 3


async def test_damage_is_told_when_everything_before_it_was_handed_out() -> None:
    log = MemoryLog("jobs")
    async with await Shard.open(log, clock=FakeClock()) as shard:
        for _ in range(3):
            await shard.enqueue(items(2))
        spoilt = log.storage.frames[2]
        log.storage.frames[2] = type(spoilt)(
            spoilt.first, spoilt.last, spoilt.count, spoilt.epoch, spoilt.generation, spoilt.time_ms, b"{}", b"x"
        )
        reader = LogCursor(shard, "here")
        found = await reader.read(0, 100, 1 << 20)
        assert [event.sequence for event in found] == list(range(1, spoilt.first))
        with pytest.raises(LogDamaged, match=f"frame {spoilt.first}"):
            await reader.read(spoilt.first - 1, 100, 1 << 20)
        commits = await reader.read_commits(0, 100, 1 << 20)
        assert [event.sequence for event in commits] == list(range(1, spoilt.first))
        with pytest.raises(LogDamaged, match=f"frame {spoilt.first}"):
            await reader.read_commits(spoilt.first - 1, 100, 1 << 20)


class _CountingLog(MemoryLog):
    """Knows how often somebody began to read, and how many of them have not come to an end."""

    begun = 0
    open = 0

    async def read(self, from_sequence: int = 1, to_sequence: int | None = None) -> AsyncIterator[Frame]:
        self.begun += 1
        self.open += 1
        try:
            async for frame in super().read(from_sequence, to_sequence):
                yield frame
        finally:
            self.open -= 1


async def test_catching_up_is_one_reading_of_the_log_that_ends_with_it_or_with_the_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursor, "FETCH_BYTES", 1)
    log = _CountingLog("jobs")
    async with await Shard.open(log, clock=FakeClock()) as shard:
        for _ in range(6):
            await shard.enqueue(items(2))
        log.begun = 0
        reader, after = LogCursor(shard, "here"), 0
        while batch := await reader.read_commits(after, 2, 1 << 20):
            after = batch.last
        assert (after, log.begun, log.open) == (shard.last_sequence, 1, 0)

        await shard.enqueue(items(2))
        [found] = [await reader.read_commits(after, 2, 1 << 20)]
        assert (found.last, log.begun, log.open) == (shard.last_sequence, 2, 0)

        await reader.read_commits(0, 2, 1 << 20)
        assert log.open == 1
        await reader.close()
        assert log.open == 0
        again = await reader.read_commits(0, 100, 1 << 20)
        assert (again.first, again.last) == (1, shard.last_sequence)


# -- the backlog -----------------------------------------------------------------------------------

moves = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 40)),
    st.tuples(st.just("take"), st.integers(1, 60)),
)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100), st.lists(moves, max_size=60))
def test_a_backlog_counts_events_exactly_and_bytes_within_a_stretch(older: int, script: list[tuple[str, int]]) -> None:
    backlog, size_of_one = Backlog(), 10
    left = [0] * older  # When each event happened.
    backlog.add_older(older, older * size_of_one, 0)
    for now, (verb, count) in enumerate(script, start=1):
        if verb == "add":
            backlog.add(count, count * size_of_one, now)
            left += [now] * count
        else:
            taken, left = left[:count], left[count:]
            if taken:
                backlog.take(len(taken), taken[-1])
        assert backlog.events == len(left)
        assert abs(backlog.bytes - len(left) * size_of_one) <= size_of_one
        assert backlog.oldest_ms == (left[0] if left else None)


def test_a_backlog_stays_small_however_long_it_gets() -> None:
    backlog = Backlog()
    for now in range(50_000):
        backlog.add(3, 100, now)
    assert len(backlog._stretches) <= STRETCHES_MAX
    assert (backlog.events, backlog.bytes, backlog.oldest_ms) == (150_000, 5_000_000, 0)
    backlog.take(149_999, 49_999)
    assert backlog.events == 1
    assert backlog.bytes <= 100
    backlog.take(5, 49_999)
    assert (backlog.events, backlog.bytes, backlog.oldest_ms) == (0, 0, None)
