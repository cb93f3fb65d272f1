"""Coroutines that run without a task."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omnirelay.rpc.driving import Driven


def loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_work_that_need_not_wait_is_done_at_once() -> None:
    said: list[str] = []

    async def work() -> None:
        said.append("done")

    driven = Driven(work(), loop())
    assert (said, driven.done) == (["done"], True)


async def test_work_goes_on_when_what_it_waits_for_is_there() -> None:
    said: list[str] = []
    first: asyncio.Future[str] = loop().create_future()
    second: asyncio.Future[str] = loop().create_future()

    async def inner() -> str:
        return await first + await second

    async def work() -> None:
        said.append("begun")
        said.append(await inner())

    driven = Driven(work(), loop())
    assert said == ["begun"]
    first.set_result("a")
    await turns()
    assert not driven.done
    second.set_result("b")
    await turns()
    assert (said, driven.done) == (["begun", "ab"], True)


async def test_an_error_of_what_is_waited_for_reaches_the_work() -> None:
    caught: list[str] = []
    waiting: asyncio.Future[None] = loop().create_future()

    async def work() -> None:
        try:
            await waiting
        except OSError as error:
            caught.append(str(error))

    Driven(work(), loop())
    waiting.set_exception(OSError("the disk"))
    await turns()
    assert caught == ["the disk"]


async def test_others_have_their_turn_when_work_lets_them() -> None:
    said: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0)
        said.append("work")

    driven = Driven(work(), loop())
    loop().call_soon(said.append, "other")
    await turns()
    assert (said, driven.done) == (["work", "other"], True) or (said, driven.done) == (["other", "work"], True)


@pytest.mark.parametrize("answered", [False, True])
async def test_an_interruption_is_raised_where_the_work_waits(answered: bool) -> None:
    """Also when what it waits for has come, but the work has not gone on yet."""
    ended: list[str] = []
    waiting: asyncio.Future[None] = loop().create_future()

    async def work() -> None:
        try:
            await waiting
        except asyncio.CancelledError:
            ended.append("cancelled" if waiting.cancelled() else "answered")
            raise

    driven = Driven(work(), loop())
    if answered:
        waiting.set_result(None)
    driven.interrupt(asyncio.CancelledError())
    assert (ended, driven.done) == (["answered" if answered else "cancelled"], True)
    await turns()
    driven.interrupt(asyncio.CancelledError())
    assert ended == ["answered" if answered else "cancelled"]


async def test_work_may_go_on_after_an_interruption() -> None:
    said: list[str] = []
    after: asyncio.Future[str] = loop().create_future()

    async def work() -> None:
        try:
            await loop().create_future()
        except TimeoutError:
            said.append(await after)

    driven = Driven(work(), loop())
    driven.interrupt(TimeoutError())
    assert not driven.done
    after.set_result("cleaned up")
    await turns()
    assert (said, driven.done) == (["cleaned up"], True)


async def test_an_interruption_between_two_turns_does_not_run_the_work_twice() -> None:
    steps: list[str] = []
    after: asyncio.Future[None] = loop().create_future()

    async def work() -> None:
        try:
            await asyncio.sleep(0)
        except TimeoutError:
            steps.append("interrupted")
            await after
            steps.append("ended")

    driven = Driven(work(), loop())
    driven.interrupt(TimeoutError())
    await turns()
    assert steps == ["interrupted"]
    after.set_result(None)
    await turns()
    assert (steps, driven.done) == (["interrupted", "ended"], True)


async def test_an_error_that_gets_out_goes_to_the_loop() -> None:
    reported: list[dict[str, Any]] = []
    loop().set_exception_handler(lambda _, context: reported.append(context))

    async def work() -> None:
        raise RuntimeError("unexpected")

    driven = Driven(work(), loop())
    assert driven.done
    assert str(reported[0]["exception"]) == "unexpected"
