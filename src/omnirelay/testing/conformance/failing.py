"""Crashes, full disks, failed flushes and damaged bytes: all of a frame or nothing, and the place is named."""

from __future__ import annotations

from typing import Final

import pytest

from omnirelay.errors import LogDamaged, LogFenced, LogOutcomeUnknown, LogUnavailable
from omnirelay.log import (
    Position,
    chain_of,
)
from omnirelay.log.failpoints import armed
from omnirelay.testing.conformance.leader import Leader, SimulatedCrash, frames_of, make_events
from omnirelay.testing.conformance.store import REGIONS, LogStore, Region

APPEND_POINTS: Final = ("log.append.begin", "log.append.before_commit", "log.append.committed")


@pytest.mark.asyncio
class FailingConformance:
    """Part of `EventLogConformance`."""

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
        assert leader.log.append_now(frame, before) in (leader.position, None)
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
        log = store.open_damaged()
        with pytest.raises(LogDamaged) as refusal:
            await log.verify()
        assert refusal.value.details["sequence"] == last - 2
        # What lies before the damage is still handed out.
        reading = aiter(log.read())
        assert [(await anext(reading)).last for _ in range(3, last, 3)] == list(range(3, last, 3))
        with pytest.raises(LogDamaged):
            await anext(reading)
        await log.close()

    async def test_damage_is_named_from_wherever_the_reading_starts(self, store: LogStore) -> None:
        leader = await Leader.of(store.open())
        await leader.append_many(4)
        await leader.log.close()
        store.damage(6, "chain")
        log = store.open_damaged()
        # The frame behind it links to it, so it is found even by a reader that starts there.
        with pytest.raises(LogDamaged):
            await frames_of(log, 7)
        assert [frame.first for frame in await frames_of(log, 10)] == [10]
        await log.close()
