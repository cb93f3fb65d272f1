"""Handlers in two steps: the same answers as those of a coroutine, and nothing lost between the steps."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from omnirelay.errors import NotFound, OmniRelayError
from omnirelay.rpc.calls import Call, RequestMeta
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.rpc.procedures import Steps


class Asked(msgspec.Struct):
    number: int = 0


class Desk:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[int]] = []
        self.lost: list[int] = []
        self.dispatcher = Dispatcher()
        self.dispatcher.unary("ns::double", Steps(self._begin, self._finish, self.lost.append), request=Asked)

    def _begin(self, meta: RequestMeta, request: Asked) -> asyncio.Future[int]:
        if request.number < 0:
            raise NotFound("no such number")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return future

    def _finish(self, meta: RequestMeta, request: Asked, future: asyncio.Future[int]) -> dict[str, Any]:
        return {"asked": request.number, "answer": future.result()}

    def call(self, number: int) -> asyncio.Task[Any]:
        meta = RequestMeta(procedure="ns::double")
        return asyncio.ensure_future(self.dispatcher.call(Call(meta, b'{"number": %d}' % number)))


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_steps_answer_as_one_handler() -> None:
    desk = Desk()
    called = desk.call(4)
    await settle()
    desk.waiting[0].set_result(8)
    assert msgspec.json.decode((await called).body) == {"asked": 4, "answer": 8}
    assert desk.lost == []


async def test_an_error_of_either_step_is_the_callers() -> None:
    desk = Desk()
    with pytest.raises(NotFound, match="no such number"):
        await desk.call(-1)
    called = desk.call(1)
    await settle()
    desk.waiting[0].set_exception(NotFound("gone"))
    with pytest.raises(NotFound, match="gone"):
        await called
    called = desk.call(2)
    await settle()
    desk.waiting[1].set_exception(RuntimeError("secret"))
    with pytest.raises(OmniRelayError) as caught:
        await called
    assert "secret" not in caught.value.message


async def test_a_caller_that_leaves_calls_off_what_it_waits_for() -> None:
    desk = Desk()
    called = desk.call(1)
    await settle()
    called.cancel()
    await asyncio.wait((called,))
    assert desk.waiting[0].cancelled()
    assert desk.lost == []


async def test_a_result_that_comes_while_its_caller_leaves_is_given_back() -> None:
    desk = Desk()
    called = desk.call(1)
    await settle()
    desk.waiting[0].set_result(2)
    called.cancel()
    await asyncio.wait((called,))
    assert called.cancelled()
    assert desk.lost == [2]
