"""Whatever fails, stalls or races: what the segments hold is the log, from its first event on, each once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirelay.errors import LogDamaged, Unavailable
from omnirelay.log.base import Frame
from omnirelay.segments.archive import VERSIONS_KEPT, Archive
from omnirelay.segments.errors import SegmentsFenced
from omnirelay.segments.local import LocalObjectStore
from omnirelay.segments.manifest import manifest_key, segment_key
from omnirelay.segments.reader import SegmentReader
from omnirelay.segments.segment import FORMATS, SegmentFormat
from omnirelay.segments.store import ObjectStore
from omnirelay.segments.upkeep import compact, expire, purge, sweep
from omnirelay.segments.verification import verify
from omnirelay.segments.writer import SegmentWriter
from tests.segment_logs import SHARD, FailingStore, FrameLog, log_of, quick_directory

FAULTS = st.sampled_from([None, None, None, "before", "after"])


async def held(store: ObjectStore) -> list[Frame]:
    reader = SegmentReader(store, SHARD)
    if await reader.archive.newest() is None:
        return []
    await verify(store, SHARD)
    return [frame async for frame in reader.frames()]


@pytest.fixture
def memory() -> Iterator[Path]:
    with quick_directory() as directory:
        yield directory


def writer_on(store: ObjectStore, kind: SegmentFormat = "jsonl") -> SegmentWriter:
    return SegmentWriter(Archive(store, SHARD), kind=kind)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.lists(FAULTS, max_size=60),
    st.lists(st.sampled_from(["append", "again", "restart", "compact", "purge", "sweep"]), min_size=3, max_size=25),
    st.sampled_from(FORMATS),
)
def test_the_segments_are_the_log_whatever_fails(
    counts: list[int], faults: list[str | None], steps: list[str], kind: SegmentFormat
) -> None:
    log = log_of(*counts)
    plan = iter(faults)

    async def play(directory: Path) -> None:
        real = LocalObjectStore(directory)
        store = FailingStore(real, lambda what, key: next(plan, None))
        writer = writer_on(store, kind)
        done = 0
        for step in steps:
            with suppress(Unavailable):
                match step:
                    case "append":
                        upcoming = log.frames[: done + 2]
                        await writer.append(upcoming[max(0, done - 1) :])
                        done = len(upcoming)
                    case "again":
                        await writer.append(log.frames[:done])
                    case "restart":
                        writer = writer_on(store, kind)
                        last = await writer.last()
                        # What was confirmed is there, and nothing that is not of the log.
                        assert last >= (log.frames[done - 1].last if done else 0)
                        done = sum(frame.last <= last for frame in log.frames)
                    case "compact":
                        await compact(writer.archive, segment_bytes=10_000, at_least=2)
                    case "purge":
                        await purge(writer.archive, grace_ms=0)
                    case "sweep":
                        await sweep(writer.archive, grace_ms=0)
            now = await held(real)
            assert now == log.frames[: len(now)]
            assert len(now) >= done
        await writer_on(real, kind).append(log.frames)
        assert await held(real) == log.frames

    with quick_directory() as directory:
        asyncio.run(play(directory))


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=4, max_size=10),
    st.integers(2, 4),
    st.integers(0, 1 << 30),
)
def test_writers_that_race_write_each_frame_once(counts: list[int], writers: int, seed: int) -> None:
    log = log_of(*counts)
    # Not Hypothesis's own: threads make every run draw in another order.
    choice = random.Random(seed)

    async def shuffled(what: str, key: str) -> None:
        for _ in range(choice.randint(0, 3)):
            await asyncio.sleep(0)

    async def write(store: ObjectStore) -> None:
        slow = FailingStore(store)
        slow.before = shuffled
        writer = writer_on(slow)
        at = 0
        while at < len(log.frames):
            step = choice.randint(1, 3)
            await writer.append(log.frames[at : at + step])
            if choice.random() < 0.3:
                await compact(writer.archive, segment_bytes=10_000, at_least=2)
            if choice.random() < 0.2:
                await sweep(writer.archive, grace_ms=0)
            at += step

    async def play(directory: Path) -> None:
        store = LocalObjectStore(directory)
        await asyncio.gather(*(write(store) for _ in range(writers)))
        assert await held(store) == log.frames

    with quick_directory() as directory:
        asyncio.run(play(directory))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=6), st.integers(0, 1 << 30))
def test_of_two_histories_one_is_written_and_the_other_is_told(counts: list[int], seed: int) -> None:
    choice = random.Random(seed)
    ours = log_of(1)
    theirs = ours.fork()
    for count in counts:
        ours.commit(count)
        theirs.commit(count, time_ms=7)

    async def write(store: ObjectStore, frames: Sequence[Frame]) -> bool:
        writer = writer_on(store)
        try:
            for frame in frames:
                for _ in range(choice.randint(0, 3)):
                    await asyncio.sleep(0)
                await writer.append([frame])
        except SegmentsFenced:
            return False
        return True

    async def play(directory: Path) -> None:
        store = LocalObjectStore(directory)
        told = await asyncio.gather(write(store, ours.frames), write(store, theirs.frames))
        assert sorted(told) == [False, True]
        assert await held(store) == (ours if told[0] else theirs).frames

    with quick_directory() as directory:
        asyncio.run(play(directory))


# -- a writer that sleeps ------------------------------------------------------------------------


class Stalled:
    """A writer that stops right before it puts the next manifest, until it is let go."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = FailingStore(store)
        self.store.before = self._before
        self.writer = writer_on(self.store)
        self.stopped = asyncio.Event()
        self.go = asyncio.Event()

    def _before(self, what: str, key: str) -> Any:
        if what == "put" and "/manifest/" in key and not self.stopped.is_set():
            self.stopped.set()
            return self.go.wait()
        return None


async def test_a_writer_that_slept_cannot_win_a_version_that_was_trimmed(memory: Path) -> None:
    store = LocalObjectStore(memory)
    log = log_of(*[1] * (3 * VERSIONS_KEPT))
    await writer_on(store).append(log.frames[:1])
    asleep = Stalled(store)
    forked = log_of(1)
    forked.commit(2, time_ms=7)
    task = asyncio.create_task(asleep.writer.append(forked.frames[1:]))
    await asleep.stopped.wait()
    writer = writer_on(store)
    for frame in log.frames[1:]:
        await writer.append([frame])
    versions = {each.key for each in await store.list(f"{SHARD}/manifest")}
    assert manifest_key(SHARD, 2) not in versions  # It is gone, so that putting it "wins".
    asleep.go.set()
    with pytest.raises(SegmentsFenced):
        await task
    assert await held(store) == log.frames


async def test_a_writer_that_slept_with_the_same_frames_finds_them(memory: Path) -> None:
    store = LocalObjectStore(memory)
    log = log_of(*[1] * (3 * VERSIONS_KEPT))
    await writer_on(store).append(log.frames[:1])
    asleep = Stalled(store)
    task = asyncio.create_task(asleep.writer.append(log.frames[1:3]))
    await asleep.stopped.wait()
    writer = writer_on(store)
    for frame in log.frames[1:]:
        await writer.append([frame])
    asleep.go.set()
    await task
    assert await held(store) == log.frames


async def test_a_sweep_does_not_take_a_segment_that_is_about_to_be_listed(memory: Path) -> None:
    store = LocalObjectStore(memory)
    log = log_of(1, 2, 3)
    await writer_on(store).append(log.frames[:1])
    asleep = Stalled(store)
    task = asyncio.create_task(asleep.writer.append(log.frames[1:]))
    await asleep.stopped.wait()
    assert await sweep(Archive(store, SHARD), grace_ms=0) == 1
    asleep.go.set()
    await task
    assert await held(store) == log.frames
    assert len(await store.list(f"{SHARD}/segments")) == 2


async def test_a_sweep_does_not_take_a_merged_segment_that_is_about_to_be_listed(memory: Path) -> None:
    store = LocalObjectStore(memory)
    log = log_of(1, 2, 3)
    writer = writer_on(store)
    for frame in log.frames:
        await writer.append([frame])
    asleep = Stalled(store)
    merging = asyncio.create_task(compact(asleep.writer.archive, segment_bytes=10_000, at_least=2))
    await asleep.stopped.wait()
    assert await sweep(writer.archive, grace_ms=0) == 1
    asleep.go.set()
    assert await merging == 0
    assert await held(store) == log.frames


async def test_a_crash_between_segment_and_manifest_leaves_what_a_sweep_removes(memory: Path) -> None:
    real = LocalObjectStore(memory)
    log = log_of(2, 2)
    await writer_on(real).append(log.frames[:1])
    failing = FailingStore(real, lambda what, key: "before" if what == "put" and "/manifest/" in key else None)
    with pytest.raises(Unavailable):
        await writer_on(failing).append(log.frames[1:])
    assert await held(real) == log.frames[:1]
    assert len(await real.list(f"{SHARD}/segments")) == 2
    writer = writer_on(real)
    assert await writer.last() == 2
    await writer.append(log.frames)
    assert await held(real) == log.frames
    assert await sweep(writer.archive, grace_ms=3_600_000) == 0  # It might still be wanted.
    assert await sweep(writer.archive, grace_ms=0) == 1
    assert await held(real) == log.frames


async def test_who_looks_slowly_does_not_make_the_writer_beside_it_forget(memory: Path) -> None:
    store = FailingStore(LocalObjectStore(memory))
    log = log_of(1, 1, 1)
    writer = writer_on(store)
    await writer.append(log.frames[:1])
    listed, go = asyncio.Event(), asyncio.Event()
    real = store.list

    async def slow(prefix: str, after: str | None = None) -> Any:
        found = await real(prefix, after)
        if not listed.is_set():
            listed.set()
            await go.wait()
        return found

    store.list = slow  # type: ignore[method-assign]
    looking = asyncio.create_task(writer.archive.newest())
    await listed.wait()
    await writer.append(log.frames[1:2])
    go.set()
    found = await looking
    assert found is not None
    assert found.last == 2
    await writer.append(log.frames[2:])
    assert await held(store) == log.frames


async def test_a_reader_does_not_notice_that_segments_are_merged_and_removed(memory: Path) -> None:
    store = LocalObjectStore(memory)
    log = log_of(*[2] * 12)
    writer = writer_on(store)
    for frame in log.frames:
        await writer.append([frame])
    reading = SegmentReader(store, SHARD).frames()
    seen = [await anext(reading) for _ in range(3)]
    assert await compact(writer.archive, segment_bytes=1 << 20, at_least=4) == 12
    assert await purge(writer.archive, grace_ms=0) == 12
    seen += [frame async for frame in reading]
    assert seen == log.frames
    [entry] = await SegmentReader(store, SHARD).segments()
    assert [each.key for each in await store.list(f"{SHARD}/segments")] == [segment_key(SHARD, entry.name)]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(0, 25))
def test_what_is_left_after_retention_is_the_end_of_the_log(ages: list[int], retention: int) -> None:
    log = FrameLog()
    for at in sorted(ages):
        log.commit(2, time_ms=at)

    async def play(directory: Path) -> None:
        store = LocalObjectStore(directory)
        writer = SegmentWriter(Archive(store, SHARD, clock=lambda: 20), kind="jsonl")
        for frame in log.frames:
            await writer.append([frame])
        await expire(writer.archive, retention_ms=retention)
        expected = [frame for frame in log.frames if frame.time_ms >= 20 - retention]
        assert await held(store) == expected
        # Extending and checking go on as before, with the anchor as the horizon.
        log.commit(1, time_ms=21)
        await writer.append(log.frames)
        assert await held(store) == [*expected, log.frames[-1]]
        report = await verify(store, SHARD)
        assert report.begin == (expected[0].first if expected else log.frames[-1].first) - 1

    with quick_directory() as directory:
        asyncio.run(play(directory))


async def test_frames_that_a_log_has_checked_still_have_to_continue_what_is_there(memory: Path) -> None:
    """And of others every single one is checked."""
    store = LocalObjectStore(memory)
    log, forked = log_of(1, 2, 1), log_of(1)
    forked.commit(2, time_ms=7)
    forked.commit(1, time_ms=8)
    await writer_on(store).append(log.frames[:2], linked=True)
    with pytest.raises(SegmentsFenced):
        await writer_on(store).append(forked.frames[2:], linked=True)
    altered = msgspec.structs.replace(log.frames[2], chain=bytes(32))
    with pytest.raises(SegmentsFenced):
        await writer_on(store).append([altered], linked=True)
    other = LocalObjectStore(memory / "other")
    with pytest.raises(LogDamaged):
        await writer_on(other).append([*log.frames[:2], altered])
    await writer_on(store).append(log.frames[2:], linked=True)
    assert await held(store) == log.frames
