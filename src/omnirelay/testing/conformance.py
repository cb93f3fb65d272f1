"""The conformance suite of `EventLog`: a store that passes it keeps the log's promise.

A store's test module says how to open, crash and damage it, and inherits the tests:

    class TestMyLog(EventLogConformance):
        @pytest.fixture
        def store(self, tmp_path: Path) -> LogStore:
            return MyStore(tmp_path)

Needs pytest and pytest-asyncio. The tests use public methods of `EventLog` only; everything else a store must be able
to do to itself is a method of `LogStore`. `SimulatedCrash` is raised at the failpoints of `omnirelay.log.failpoints`,
so a store has to pass the `log.append.…` points in its append.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Literal

import pytest

from omnirelay.core.events import Enqueue, Event, GenerationStarted, TimeAdvanced
from omnirelay.core.payload import Payload
from omnirelay.errors import (
    InvalidArgument,
    LogDamaged,
    LogFenced,
    LogOutcomeUnknown,
    LogTrimmed,
    LogUnavailable,
)
from omnirelay.log import (
    FIRST_GENERATION,
    FRAME_BYTES_MAX,
    Acquired,
    EventLog,
    Frame,
    Position,
    SnapshotRecord,
    chain_of,
    decode_frame,
    encode_frame,
    genesis_chain,
)
from omnirelay.log.failpoints import armed

Region = Literal["header", "events", "chain", "first", "count", "epoch", "generation", "time", "row"]
"""A part of a stored frame that `LogStore.damage` can alter: two parts of its bytes, each column, or the whole row."""

REGIONS: Final[tuple[Region, ...]] = (
    "header",
    "events",
    "chain",
    "first",
    "count",
    "epoch",
    "generation",
    "time",
    "row",
)

APPEND_POINTS: Final = ("log.append.begin", "log.append.inserted", "log.append.before_commit", "log.append.committed")

TIME_MS: Final = 1_700_000_000_000


class SimulatedCrash(BaseException):
    """Raised at a failpoint. Not an Exception, so that nothing that handles errors handles it."""


class LogStore(ABC):
    """What a store can do to itself in a test. One object stands for one place where one log lies."""

    shard: str = "conformance"

    @abstractmethod
    def open(self) -> EventLog:
        """A writer on the log; it is created the first time. The one before was closed or crashed."""

    @abstractmethod
    def rival(self) -> EventLog:
        """One more writer beside those that are open, past any lock that would keep it out."""

    @abstractmethod
    def crash(self, log: EventLog) -> None:
        """Take the log away from a writer as the death of its process would: nothing more is written."""

    @abstractmethod
    def damage(self, last: int, region: Region) -> None:
        """Alter a part of the stored frame that ends at `last`, or remove it (`row`), while nobody has it open."""

    @abstractmethod
    def out_of_room(self) -> AbstractContextManager[None]:
        """Writes fail definitely for the length of the block."""

    @abstractmethod
    def failing_flush(self) -> AbstractContextManager[None]:
        """The next flush of an append fails, so that nobody knows what was kept."""

    @abstractmethod
    def open_backup(self, path: Path) -> EventLog:
        """A writer on what `backup` left at `path`."""

    async def open_damaged(self) -> EventLog:
        """The log after `damage`, for `read` and `verify`; a store that refuses to open may open read-only here."""
        return self.open()


def make_events(first: int, count: int, *, body: bytes = b"work") -> list[Event]:
    """`count` events from sequence `first` on: enqueues, and a TimeAdvanced at the end of every frame."""
    events: list[Event] = [
        Enqueue(
            sequence_number=sequence,
            timestamp=TIME_MS + sequence,
            sequence_id=sequence,
            payload=Payload(resource_type="table", resource_id=f"orders-{sequence}", body=body),
        )
        for sequence in range(first, first + count - 1)
    ]
    last = first + count - 1
    return [*events, TimeAdvanced(sequence_number=last, timestamp=TIME_MS + last)]


class Leader:
    """A writer in the way an engine is one: knows its epoch and generation, and where the log ends."""

    def __init__(self, log: EventLog, acquired: Acquired) -> None:
        self.log = log
        self.epoch = acquired.epoch
        self.generation = acquired.generation
        self.position = acquired.position
        self.unproven = acquired.unproven
        self.highest_known = acquired.highest_known

    @classmethod
    async def of(cls, log: EventLog, owner: str = "tester") -> Leader:
        return cls(log, await log.acquire(owner))

    def frame(self, count: int = 3, *, body: bytes = b"work") -> Frame:
        """The next frame, not appended."""
        return self.frame_of(make_events(self.position.sequence + 1, count, body=body))

    def frame_of(self, events: Sequence[Event]) -> Frame:
        time_ms = events[-1].timestamp
        return encode_frame(self.log.shard, self.log.log_id, self.generation, self.epoch, time_ms, events)

    async def append(self, frame: Frame | None = None, *, inline: bool = False) -> Frame:
        """Append a frame (by default the next one) and move on."""
        frame = frame if frame is not None else self.frame()
        self.position = await self.log.append(frame, self.position, inline=inline)
        return frame

    async def append_many(self, frames: int) -> list[Frame]:
        return [await self.append() for _ in range(frames)]

    def generation_start(self) -> Frame:
        """The frame that starts a generation above everything known."""
        first = max(self.highest_known, self.position.sequence) + (1 << 32)
        self.generation += 1
        event = GenerationStarted(
            sequence_number=first,
            timestamp=TIME_MS + first,
            generation=self.generation,
            reason="test",
            next_sequence_id=first,
        )
        return self.frame_of([event])

    async def snapshot(self, *, highest_fence: int = 0) -> SnapshotRecord:
        """Record a snapshot at the end of the log. Its files do not matter to the log."""
        record = SnapshotRecord(
            sequence=self.position.sequence,
            chain=self.position.chain,
            digest=f"digest-{self.position.sequence}",
            path=f"snapshots/{self.position.sequence:020d}",
            created_ms=TIME_MS,
            events=self.position.sequence,
            size=1000,
            highest_fence=highest_fence,
        )
        await self.log.add_snapshot(record, self.epoch)
        return record


async def frames_of(log: EventLog, from_sequence: int = 1, to_sequence: int | None = None) -> list[Frame]:
    return [frame async for frame in log.read(from_sequence, to_sequence)]


@pytest.mark.asyncio
class EventLogConformance:
    """Inherit and supply the fixture `store`."""

    @pytest.fixture
    def store(self) -> LogStore:
        raise NotImplementedError("a conformance test supplies the fixture `store`")

    # ------------------------------------------------------------------- what is written is read

    async def test_a_new_log_is_empty_and_starts_at_its_genesis(self, store: LogStore) -> None:
        log = store.open()
        acquired = await log.acquire("first")
        genesis = Position(0, genesis_chain(store.shard, log.log_id))
        assert acquired == Acquired(1, FIRST_GENERATION, genesis, 0, None, 0)
        assert (await log.head()).position == genesis
        assert (await log.anchor()).sequence == 0
        assert await frames_of(log) == []
        assert (await log.verify()).frames == 0
        await log.close()

    @pytest.mark.parametrize("inline", [False, True])
    async def test_frames_come_back_byte_for_byte_in_order_with_their_chain(
        self, store: LogStore, inline: bool
    ) -> None:
        leader = await Leader.of(store.open())
        written = [await leader.append(inline=inline) for _ in range(5)]
        read = await frames_of(leader.log)
        assert [frame.data for frame in read] == [frame.data for frame in written]
        chain = genesis_chain(store.shard, leader.log.log_id)
        for frame in read:
            chain = chain_of(chain, frame.data)
            assert frame.chain == chain
        assert leader.position == Position(15, chain)
        head = await leader.log.head()
        assert (head.position, head.time_ms, head.epoch) == (leader.position, written[-1].time_ms, leader.epoch)
        await leader.log.close()

    async def test_what_was_appended_is_there_after_a_crash(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        written = await leader.append_many(4)
        store.crash(leader.log)
        log = store.open()
        assert [frame.data for frame in await frames_of(log)] == [frame.data for frame in written]
        acquired = await log.acquire("second")
        assert acquired.position == leader.position
        assert (acquired.epoch, acquired.unproven, acquired.highest_known) == (leader.epoch + 1, None, 12)
        await log.close()

    async def test_reading_starts_and_ends_at_the_frames_that_hold_the_sequences(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append_many(4)  # 1..3, 4..6, 7..9, 10..12

        async def firsts(from_sequence: int, to_sequence: int | None = None) -> list[int]:
            return [frame.first for frame in await frames_of(leader.log, from_sequence, to_sequence)]

        assert await firsts(5) == [4, 7, 10]
        assert await firsts(6) == [4, 7, 10]
        assert await firsts(7) == [7, 10]
        assert await firsts(2, 4) == [1, 4]
        assert await firsts(1, 3) == [1]
        assert await firsts(12, 12) == [10]
        assert await firsts(13) == []
        assert await firsts(99) == []
        with pytest.raises(InvalidArgument):
            await firsts(0)
        await leader.log.close()

    async def test_a_reader_sees_a_checked_prefix_while_frames_are_appended(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append_many(20)
        seen = []
        async for frame in leader.log.read():
            seen.append(frame.first)
            await leader.append()
        # The end is the head when the reading began.
        assert seen == list(range(1, 61, 3))
        assert (await leader.log.head()).position.sequence == 120
        await leader.log.close()

    # ------------------------------------------------------------------- sequences and generations

    async def test_a_frame_that_leaves_a_gap_or_overlaps_is_refused(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append()
        for first in (2, 3, 5, 1 << 33):
            frame = leader.frame_of(make_events(first, 3))
            with pytest.raises(InvalidArgument) as refusal:
                await leader.log.append(frame, leader.position)
            assert refusal.value.details["field"] == "first"
        assert await leader.log.head() == await leader.log.head()
        assert [frame.first for frame in await frames_of(leader.log)] == [1]
        await leader.append()
        await leader.log.close()

    async def test_only_a_new_generation_may_jump(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append()
        start = await leader.append(leader.generation_start())
        await leader.append()
        assert start.first == 3 + (1 << 32)
        frames = await frames_of(leader.log)
        assert [frame.first for frame in frames] == [1, start.first, start.first + 1]
        assert [frame.generation for frame in frames] == [1, 2, 2]
        for frame in frames:
            decode_frame(frame, shard=store.shard, log_id=leader.log.log_id)
        assert [frame.first for frame in await frames_of(leader.log, 4)] == [start.first, start.first + 1]
        assert (await leader.log.head()).generation == 2
        assert (await leader.log.verify()).generation == 2
        await leader.log.close()

    async def test_a_generation_that_is_over_cannot_be_written_to(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append(leader.generation_start())
        leader.generation -= 1
        with pytest.raises(InvalidArgument) as refusal:
            await leader.append()
        assert refusal.value.details["field"] == "generation"
        await leader.log.close()

    async def test_a_frame_over_the_limit_is_refused_and_one_within_it_is_kept(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        body = b"x" * (FRAME_BYTES_MAX // 4 * 3)  # base64 makes it exactly the limit, the header goes beyond
        with pytest.raises(InvalidArgument) as refusal:
            await leader.append(leader.frame(2, body=body))
        assert refusal.value.details["field"] == "data"
        assert (await leader.log.head()).position.sequence == 0
        frame = await leader.append(leader.frame(2, body=body[: -3 * 1024]))
        assert [read.data for read in await frames_of(leader.log)] == [frame.data]
        await leader.log.close()

    # ------------------------------------------------------------------- fencing

    async def test_a_stale_writer_is_refused_from_the_moment_another_acquired(self, store: LogStore) -> None:
        old = await Leader.of(store.open(), "old")
        await old.append()
        new = await Leader.of(store.rival(), "new")
        assert new.epoch == old.epoch + 1
        with pytest.raises(LogFenced):
            await old.append()
        await new.append()
        with pytest.raises(LogFenced) as refusal:
            await old.append()
        assert refusal.value.details["found_epoch"] == new.epoch
        assert [frame.epoch for frame in await frames_of(new.log)] == [old.epoch, new.epoch]
        await old.log.close()
        await new.log.close()

    async def test_a_writer_with_another_idea_of_the_end_is_refused(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append_many(2)
        behind = Position(3, leader.position.chain)
        beside = Position(6, bytes(32))
        ahead = Position(9, leader.position.chain)
        for expected in (behind, beside, ahead):
            frame = leader.frame_of(make_events(expected.sequence + 1, 2))
            with pytest.raises(LogFenced):
                await leader.log.append(frame, expected)
        assert (await leader.log.verify()).frames == 2
        await leader.log.close()

    async def test_a_stale_writer_is_refused_after_its_place_was_trimmed(self, store: LogStore) -> None:
        old = await Leader.of(store.open(), "old")
        await old.append()
        new = await Leader.of(store.rival(), "new")
        for _ in range(2):
            await new.append_many(3)
            await new.snapshot()
        anchor = await new.log.trim(new.position.sequence - 9, new.epoch)
        assert anchor.sequence > old.position.sequence
        with pytest.raises(LogFenced):
            await old.append()
        for action in (old.log.trim(1, old.epoch), old.snapshot()):
            with pytest.raises(LogFenced):
                await action
        assert (await new.log.verify()).position == new.position
        await old.log.close()
        await new.log.close()

    async def test_of_eight_writers_at_one_place_exactly_one_wins(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append()
        logs = [leader.log, *(store.rival() for _ in range(7))]
        for _ in range(5):
            frames = [leader.frame(2, body=b"writer %d" % number) for number in range(8)]
            results = await asyncio.gather(
                *(log.append(frame, leader.position) for log, frame in zip(logs, frames, strict=True)),
                return_exceptions=True,
            )
            won = [result for result in results if isinstance(result, Position)]
            assert len(won) == 1
            assert sum(isinstance(result, LogFenced) for result in results) == 7
            leader.position = won[0]
        assert (await leader.log.verify()).frames == 6
        for log in logs:
            await log.close()

    # ------------------------------------------------------------------- failures

    @pytest.mark.parametrize("inline", [False, True])
    @pytest.mark.parametrize("point", APPEND_POINTS)
    async def test_a_crash_at_any_step_of_an_append_leaves_all_of_it_or_nothing(
        self, store: LogStore, point: str, inline: bool
    ) -> None:
        leader = await Leader.of(store.open())
        await leader.append()
        before = leader.position
        frame = leader.frame()

        def crash() -> None:
            raise SimulatedCrash(point)

        with armed(point, crash), pytest.raises(SimulatedCrash):
            await leader.append(frame, inline=inline)
        store.crash(leader.log)
        successor = await Leader.of(store.open())
        if point == "log.append.committed":
            assert successor.position == Position(frame.last, chain_of(before.chain, frame.data))
        else:
            assert successor.position == before
        await successor.append()
        report = await successor.log.verify()
        assert report.position == successor.position
        await successor.log.close()

    async def test_the_same_frame_again_is_answered_and_not_written_twice(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append()
        before = leader.position
        frame = await leader.append()
        assert await leader.log.append(frame, before) == leader.position
        assert await leader.log.append(frame, before, inline=True) == leader.position
        assert len(await frames_of(leader.log)) == 2
        other = leader.frame_of(make_events(before.sequence + 1, 3, body=b"other"))
        with pytest.raises(LogFenced):
            await leader.log.append(other, before)
        await leader.append()
        with pytest.raises(LogFenced):
            await leader.log.append(frame, before)
        await leader.log.close()

    async def test_without_room_nothing_is_written_and_the_same_frame_fits_later(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append()
        frame = leader.frame(20, body=b"x" * 4096)
        with store.out_of_room():
            for _ in range(2):
                with pytest.raises(LogUnavailable):
                    await leader.append(frame)
        assert (await leader.log.head()).position == leader.position
        await leader.append(frame)
        await leader.append()
        assert [read.first for read in await frames_of(leader.log)] == [1, 4, 24]
        store.crash(leader.log)
        log = store.open()
        assert (await log.verify()).position == leader.position
        await log.close()

    async def test_after_a_failed_flush_the_writer_gives_up_and_the_next_one_reads_back(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append()
        frame = leader.frame()
        with store.failing_flush(), pytest.raises(LogOutcomeUnknown):
            await leader.append(frame)
        with pytest.raises(LogOutcomeUnknown):
            await leader.append(frame)
        assert leader.log.statistics().given_up is not None
        await leader.log.close()
        successor = await Leader.of(store.open())
        kept = Position(frame.last, chain_of(leader.position.chain, frame.data))
        assert successor.position in (leader.position, kept)
        assert successor.unproven is None
        await successor.append()
        assert (await successor.log.verify()).position == successor.position
        await successor.log.close()

    @pytest.mark.parametrize("region", REGIONS)
    @pytest.mark.parametrize("last", [3, 9, 12], ids=["first frame", "middle frame", "last frame"])
    async def test_damage_in_any_region_of_a_frame_is_named(self, store: LogStore, last: int, region: Region) -> None:
        leader = await Leader.of(store.open())
        await leader.append_many(4)
        await leader.log.close()
        store.damage(last, region)
        log = await store.open_damaged()
        with pytest.raises(LogDamaged) as refusal:
            await log.verify()
        assert refusal.value.details["sequence"] == last - 2
        seen = []
        with pytest.raises(LogDamaged):
            async for frame in log.read():
                seen.append(frame.last)
        assert seen == list(range(3, last, 3))
        await log.close()

    async def test_damage_is_named_from_wherever_the_reading_starts(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append_many(4)
        await leader.log.close()
        store.damage(6, "chain")
        log = await store.open_damaged()
        # The frame behind it links to it, so it is found even by a reader that starts there.
        with pytest.raises(LogDamaged):
            await frames_of(log, 7)
        assert [frame.first for frame in await frames_of(log, 10)] == [10]
        await log.close()

    # ------------------------------------------------------------------- snapshots and trimming

    async def test_snapshots_are_listed_newest_first_and_belong_to_this_history(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append()
        first = await leader.snapshot(highest_fence=2)
        await leader.append()
        second = await leader.snapshot(highest_fence=5)
        await leader.snapshot(highest_fence=5)
        assert await leader.log.snapshots() == [second, first]
        foreign = SnapshotRecord(3, bytes(32), "d", "p", 0, 0, 0, 0)
        inside = SnapshotRecord(2, first.chain, "d", "p", 0, 0, 0, 0)
        for record in (foreign, inside):
            with pytest.raises(InvalidArgument):
                await leader.log.add_snapshot(record, leader.epoch)
        with pytest.raises(LogFenced):
            await leader.log.add_snapshot(first, leader.epoch - 1)
        store.crash(leader.log)
        log = store.open()
        assert await log.snapshots() == [second, first]
        assert (await log.verify()).snapshots == 2
        await log.close()

    async def test_trimming_moves_the_anchor_and_keeps_the_rest_provable(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        fences = {}
        for fence in (5, 14, 20):
            await leader.append_many(3)  # 9 events each
            fences[leader.position.sequence] = await leader.snapshot(highest_fence=fence)
        written = await frames_of(leader.log)
        anchor = await leader.log.trim(14, leader.epoch)
        dropped = written[3]  # 10..12, the last one below 14
        assert (anchor.sequence, anchor.chain) == (12, dropped.chain)
        assert (anchor.time_ms, anchor.generation) == (dropped.time_ms, dropped.generation)
        # No fence up to 12 is above what the next snapshot, at 18, knows.
        assert anchor.highest_fence == 14
        assert await leader.log.anchor() == anchor
        assert [record.sequence for record in await leader.log.snapshots()] == [27, 18]
        for gone in (1, 12):
            with pytest.raises(LogTrimmed) as refusal:
                await frames_of(leader.log, gone)
            assert refusal.value.details["anchor"] == 12
        assert await frames_of(leader.log, 13) == written[4:]
        report = await leader.log.verify()
        assert (report.anchor, report.frames, report.position) == (anchor, 5, leader.position)
        await leader.append()
        store.crash(leader.log)
        successor = await Leader.of(store.open())
        assert successor.position == leader.position
        assert await successor.log.anchor() == anchor
        await successor.append()
        await successor.log.close()

    async def test_trimming_beyond_the_second_newest_snapshot_changes_nothing(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append_many(2)
        before = await frames_of(leader.log)

        async def refused(below: int) -> None:
            with pytest.raises(InvalidArgument) as refusal:
                await leader.log.trim(below, leader.epoch)
            assert refusal.value.details["field"] == "below"
            assert await frames_of(leader.log) == before

        await refused(1)
        await leader.snapshot()
        await refused(1)
        await leader.append()
        await leader.snapshot()
        before = await frames_of(leader.log)
        await refused(7)
        with pytest.raises(LogFenced):
            await leader.log.trim(6, leader.epoch - 1)
        assert await frames_of(leader.log) == before
        assert (await leader.log.trim(6, leader.epoch)).sequence == 3
        assert (await leader.log.trim(6, leader.epoch)).sequence == 3
        await leader.log.close()

    async def test_a_crash_between_the_slices_of_a_trim_leaves_a_log_that_can_be_led(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        for _ in range(2):
            await leader.append_many(60)
            await leader.snapshot()

        def crash() -> None:
            raise SimulatedCrash("log.trim.slice")

        with armed("log.trim.slice", crash), pytest.raises(SimulatedCrash):
            await leader.log.trim(180, leader.epoch)
        store.crash(leader.log)
        successor = await Leader.of(store.open())
        assert successor.position == leader.position
        assert (await successor.log.anchor()).sequence < 180
        assert (await successor.log.verify()).position == leader.position
        assert (await successor.log.trim(180, successor.epoch)).sequence == 177
        await successor.append()
        await successor.log.close()

    # ------------------------------------------------------------------- backups and unproven histories

    async def test_a_backup_taken_while_appending_is_a_prefix_and_starts_a_generation(
        self, store: LogStore, tmp_path: Path
    ) -> None:
        leader = await Leader.of(store.open())
        await leader.append_many(30)
        destination = tmp_path / "backups" / "copy"
        backup = asyncio.create_task(leader.log.backup(destination))
        while not backup.done():
            await leader.append()
            await asyncio.sleep(0)
        await backup
        await leader.append_many(3)
        written = [frame.data for frame in await frames_of(leader.log)]
        await leader.log.close()

        copy = await Leader.of(store.open_backup(destination))
        copied = [frame.data for frame in await frames_of(copy.log)]
        assert 30 <= len(copied) < len(written)
        assert copied == written[: len(copied)]
        assert copy.unproven is not None
        assert copy.highest_known == copy.position.sequence
        with pytest.raises(InvalidArgument) as refusal:
            await copy.append()
        assert refusal.value.details["field"] == "generation"
        await copy.append(copy.generation_start())
        await copy.append()
        assert (await copy.log.verify()).generation == FIRST_GENERATION + 1
        await copy.log.close()

    async def test_an_unproven_history_stays_so_until_a_generation_was_started(
        self, store: LogStore, tmp_path: Path
    ) -> None:
        leader = await Leader.of(store.open())
        await leader.append_many(2)
        await leader.log.backup(tmp_path / "copy")
        await leader.log.close()
        log = store.open_backup(tmp_path / "copy")
        first = await log.acquire("first")
        again = await log.acquire("again")
        assert first.unproven is not None
        assert again.unproven == first.unproven
        leader = Leader(log, again)
        await leader.append(leader.generation_start())
        assert (await log.acquire("third")).unproven is None
        await log.close()

    async def test_a_backup_never_overwrites(self, store: LogStore, tmp_path: Path) -> None:
        leader = await Leader.of(store.open())
        (tmp_path / "taken").write_text("mine")
        with pytest.raises(InvalidArgument):
            await leader.log.backup(tmp_path / "taken")
        assert (tmp_path / "taken").read_text() == "mine"
        await leader.log.close()

    # ------------------------------------------------------------------- life cycle

    async def test_a_closed_log_refuses_and_closing_twice_is_fine(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        frame = leader.frame()
        await leader.log.close()
        await leader.log.close()
        for action in (
            leader.log.acquire("late"),
            leader.log.append(frame, leader.position),
            leader.log.append(frame, leader.position, inline=True),
            leader.log.head(),
            frames_of(leader.log),
        ):
            with pytest.raises(LogUnavailable):
                await action

    async def test_statistics_count_what_was_appended(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        written = [await leader.append(), await leader.append(inline=True)]
        counts = leader.log.statistics()
        assert (counts.frames, counts.events) == (2, 6)
        assert counts.bytes == sum(len(frame.data) for frame in written)
        assert counts.commits == 3
        assert counts.append_ns_total >= counts.append_ns_last > 0
        assert counts.given_up is None
        await leader.log.close()

    async def test_progress_of_a_verification_ends_at_its_total(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append_many(7)
        steps: list[tuple[int, int]] = []
        report = await leader.log.verify(lambda done, total: steps.append((done, total)))
        assert steps[-1] == (7, 7)
        assert report.events == 21
        assert report.bytes == sum([len(frame.data) async for frame in leader.log.read()])
        await leader.log.close()
