"""Room on a stream: never more than there is, nobody left outside for ever, and all of it free in the end."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.client.failures import NotConnected
from omnirelay.client.room import Room
from omnirelay.errors import ResourceExhausted
from tests.patience import PATIENCE_S

CALLS_MAX, BYTES_MAX = 3, 10

callers = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 5), st.none() | st.integers(0, 12)), max_size=12)
"""The size of each, for how many turns of the loop it stays, and in which it is cancelled."""


@given(callers)
def test_whoever_comes_and_goes_there_is_never_too_much_and_nothing_stays_taken(
    callers: list[tuple[int, int, int | None]],
) -> None:
    room = Room(calls_max=CALLS_MAX, bytes_max=BYTES_MAX)
    inside: list[int] = []
    served: list[int] = []

    async def come(number: int, size: int, turns: int) -> None:
        if not room.enter(size):
            await room.wait(size, PATIENCE_S)
        inside.append(min(size, BYTES_MAX // 2))
        assert len(inside) <= CALLS_MAX
        assert sum(inside) <= BYTES_MAX
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
            served.append(number)
        finally:
            inside.remove(min(size, BYTES_MAX // 2))
            room.leave(size)

    async def all_of_them() -> None:
        tasks = [asyncio.create_task(come(number, *caller[:2])) for number, caller in enumerate(callers)]
        for turn in range(13):
            for task, caller in zip(tasks, callers, strict=True):
                if caller[2] == turn:
                    task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
        for number, task in enumerate(tasks):
            assert task.cancelled() or (task.exception() is None and number in served)
        assert all(room.enter(BYTES_MAX // 2) for _ in range(2)), "all of it is free"
        assert not room.enter(1)

    asyncio.run(all_of_them())


async def test_who_finds_no_room_in_time_hears_why() -> None:
    room = Room(calls_max=1, bytes_max=10)
    assert room.enter(4)
    with pytest.raises(ResourceExhausted, match="1 calls of this client with 4 bytes are under way"):
        await room.wait(1, 0.001)
    room.leave(4)
    assert room.enter(1)


async def test_who_waits_when_the_connection_ends_is_told() -> None:
    room = Room(calls_max=1, bytes_max=10)
    assert room.enter(4)
    waiting = asyncio.create_task(room.wait(1, PATIENCE_S))
    await asyncio.sleep(0)
    room.end(NotConnected("gone"))
    with pytest.raises(NotConnected):
        await waiting
    room.leave(4)
    assert room.enter(1)
