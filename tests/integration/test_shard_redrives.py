"""Redriving many dead letters, in several frames: what fits is redriven, and a refusal means that nothing was."""

from __future__ import annotations

import pytest

from omnirelay.core.answers import RedriveAnswer
from omnirelay.core.commands import DeadLetterSelection
from omnirelay.core.options import QueueOptions
from omnirelay.engine.shard import Shard
from omnirelay.errors import ResourceExhausted
from omnirelay.log import MemoryLog
from tests.integration.shards import WORKER, item

ROOM = QueueOptions(capacity=12, reserve=0, high_watermark=12, low_watermark=6)
ALL = DeadLetterSelection(everything=True)


async def shard_with_dead_letters(count: int) -> Shard:
    shard = await Shard.open(MemoryLog("jobs"), options=ROOM)
    for number in range(count):
        await shard.enqueue(item(str(number)))
        [lease] = await shard.lease(WORKER)
        code = "even" if number % 2 == 0 else "odd"
        await shard.fail(lease.token, caller=WORKER, mode="dead", error_code=code)
    return shard


async def counted(shard: Shard) -> tuple[int, int]:
    stats = await shard.stats()
    return stats.dead_letter_count, stats.pending_count


async def test_as_many_dead_letters_as_fit_are_redriven_and_the_rest_is_counted() -> None:
    async with await shard_with_dead_letters(30) as shard:
        assert await shard.redrive_fitting(ALL) == RedriveAnswer(12, 18)
        assert await counted(shard) == (18, 12)
        assert [view.sequence_id for view in (await shard.peek()).items] == list(range(1, 13)), "the oldest first"


async def test_only_those_that_were_meant_are_counted() -> None:
    async with await shard_with_dead_letters(30) as shard:
        assert await shard.redrive_fitting(DeadLetterSelection(error_code="odd")) == RedriveAnswer(12, 3)
        assert await counted(shard) == (18, 12)


async def test_a_redrive_without_room_for_any_is_refused_and_changes_nothing() -> None:
    async with await shard_with_dead_letters(14) as shard:
        assert await shard.redrive(everything=True) == 12
        before = await counted(shard)
        with pytest.raises(ResourceExhausted):
            await shard.redrive(everything=True)
        assert await counted(shard) == before == (2, 12)


async def test_named_dead_letters_are_redriven_all_or_not_at_all() -> None:
    async with await shard_with_dead_letters(13) as shard:
        with pytest.raises(ResourceExhausted):
            await shard.redrive(sequence_ids=list(range(1, 14)))
        assert await counted(shard) == (13, 0)
        assert await shard.redrive(sequence_ids=list(range(1, 13))) == 12


async def test_what_was_asked_for_stays_as_it_was() -> None:
    async with await shard_with_dead_letters(14) as shard:
        await shard.redrive_fitting(ALL)
        assert DeadLetterSelection(everything=True) == ALL
