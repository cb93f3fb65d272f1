"""Of all who would write, one may; who may is decided by comparison."""

from __future__ import annotations

import asyncio

import pytest

from omnirelay.errors import LogFenced
from omnirelay.log import (
    Position,
)
from omnirelay.testing.conformance.leader import Leader, frames_of, make_events
from omnirelay.testing.conformance.store import LogStore


@pytest.mark.asyncio
class FencingConformance:
    """Part of `EventLogConformance`: one writer, and what it must not write."""

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


@pytest.mark.asyncio
class RivalConformance:
    """Part of `EventLogConformance`: several that write at the same time, for stores that can have them."""

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
