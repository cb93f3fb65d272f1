"""Calls that wait for the end of an item cost the frames of others nothing."""

from __future__ import annotations

import asyncio

from omnirelay.core import commands as cmd
from omnirelay.engine.requests import Batch
from omnirelay.engine.waiting import ItemWaiters
from tests.builders import Kernel, new_item


async def test_a_frame_looks_only_at_items_that_it_may_have_ended() -> None:
    kernel, waiters = Kernel(), ItemWaiters()
    ids = kernel.enqueue(*[new_item(str(number)) for number in range(1_000)])
    calls = {sequence_id: asyncio.get_running_loop().create_future() for sequence_id in ids}
    for sequence_id, call in calls.items():
        waiters.add(sequence_id, call)
    granted = kernel.lease_one()
    before = len(kernel.events)
    kernel.complete(granted.token)
    kernel.do(cmd.CancelItem(ids[7]))
    kernel.lease(10)
    batch = Batch()
    batch.events = kernel.events[before:]
    # Whoever looks for another finds that it is gone, and says so.
    kernel.state.items = {each: kernel.state.items[each] for each in (granted.sequence_id, ids[7])}
    waiters.answer(kernel.state, batch)
    assert [future for future, *_ in batch.answers] == [calls[granted.sequence_id], calls[ids[7]]]
