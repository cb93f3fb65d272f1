"""What is written is read back, in order, by anybody, at any time."""

from __future__ import annotations

import asyncio

import pytest

from omnirelay.errors import InvalidArgument, LogUnavailable
from omnirelay.log import (
    FIRST_GENERATION,
    FRAME_BYTES_MAX,
    Acquired,
    Position,
    chain_of,
    decode_frame,
    genesis_chain,
)
from omnirelay.testing.conformance.leader import Leader, frames_of, make_events
from omnirelay.testing.conformance.store import LogStore


@pytest.mark.asyncio
class WritingConformance:
    """Part of `EventLogConformance`."""

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

    # ------------------------------------------------------------------- life cycle

    async def test_a_closed_log_refuses_and_closing_twice_is_fine(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        frame = leader.frame()
        await leader.log.close()
        await leader.log.close()
        for action in (
            leader.log.acquire("late"),
            leader.log.append(frame, leader.position),
            leader.log.head(),
            frames_of(leader.log),
        ):
            with pytest.raises(LogUnavailable):
                await action
        with pytest.raises(LogUnavailable):
            leader.log.append_now(frame, leader.position)

    async def test_an_append_under_way_is_made_way_for(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        leader.log.make_way()  # There is none, and nothing to wait for.
        appending = asyncio.ensure_future(leader.log.append(leader.frame(), leader.position))
        leader.log.make_way()
        leader.log.make_way()
        position = await appending
        assert (await leader.log.head()).position == position
        await leader.log.close()

    async def test_statistics_count_what_was_appended(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        written = [await leader.append(), await leader.append(inline=True)]
        counts = leader.log.statistics()
        assert (counts.frames, counts.events) == (2, 6)
        assert counts.bytes == sum(len(frame.data) for frame in written)
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
