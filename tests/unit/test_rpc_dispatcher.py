"""Procedures by name, middleware around them, and what becomes of errors."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from omnirelay.errors import (
    AlreadyExists,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    OmniRelayError,
    Unimplemented,
)
from omnirelay.rpc.calls import Call, Message, Messages, Reply, RequestMeta
from omnirelay.rpc.dispatcher import Dispatcher, Middleware
from omnirelay.rpc.procedures import Proceed
from omnirelay.service.component import ResourceLeaseComponent, ResourceLeaseOptions
from omnirelay.telemetry.meters import CallMeter
from omnirelay.testing.clock import FakeClock, settle

ITEM = b'{"payload": {"resourceType": "t", "resourceId": "r"}}'


class Words(msgspec.Struct, forbid_unknown_fields=True):
    words: list[str] = []


async def echo(meta: RequestMeta, request: Words) -> Words:
    return request


def call(name: str, body: bytes = b"{}", **meta: Any) -> Call:
    return Call(RequestMeta(procedure=name, **meta), body)


def test_a_name_is_a_namespace_and_a_verb() -> None:
    dispatcher = Dispatcher()
    for name in ("", "verb", "ns::", "::verb", "ns:verb"):
        with pytest.raises(InvalidArgument):
            dispatcher.unary(name, echo, request=Words)
    dispatcher.unary("b::verb", echo, request=Words)
    dispatcher.unary("a::verb", echo, request=Words)
    assert dispatcher.namespaces == ["a", "b"]


def test_a_name_is_given_once() -> None:
    dispatcher = Dispatcher()
    dispatcher.unary("ns::verb", echo, request=Words)
    with pytest.raises(AlreadyExists) as caught:
        dispatcher.unary("ns::verb", echo, request=Words)
    assert caught.value.details["procedure"] == "ns::verb"


def test_two_components_of_one_namespace_are_a_mistake() -> None:
    dispatcher = Dispatcher()
    ResourceLeaseComponent(dispatcher, ResourceLeaseOptions(namespace="a"))
    ResourceLeaseComponent(dispatcher, ResourceLeaseOptions(namespace="b"))
    with pytest.raises(AlreadyExists):
        ResourceLeaseComponent(dispatcher, ResourceLeaseOptions(namespace=" a "))


async def test_middleware_is_passed_from_the_first_to_the_last_and_back() -> None:
    passed: list[str] = []

    def layer(name: str) -> Middleware:
        async def around(call: Call, proceed: Proceed) -> Reply:
            passed.append(f"{name} in")
            reply = await proceed(call)
            passed.append(f"{name} out")
            return reply

        return around

    dispatcher = Dispatcher()
    dispatcher.use(layer("first"))
    dispatcher.unary("ns::echo", echo, request=Words)
    dispatcher.use(layer("second"))
    await dispatcher.call(call("ns::echo"))
    assert passed == ["first in", "second in", "second out", "first out"]
    passed.clear()
    dispatcher.use(layer("third"))  # Also after the first call was served.
    await dispatcher.call(call("ns::echo"))
    assert passed[2] == "third in"


async def test_middleware_may_answer_itself_or_change_the_call() -> None:
    async def cached(call: Call, proceed: Proceed) -> Reply:
        return Reply(b"cached") if call.body == b"{}" else await proceed(Call(call.meta, b'{"words": ["changed"]}'))

    dispatcher = Dispatcher()
    dispatcher.use(cached)
    dispatcher.unary("ns::echo", echo, request=Words)
    assert (await dispatcher.call(call("ns::echo"))).body == b"cached"
    assert (await dispatcher.call(call("ns::echo", b"[]"))).body == b'{"words":["changed"]}'


async def test_what_a_handler_raises_comes_out_as_an_error_of_ours() -> None:
    async def broken(meta: RequestMeta, request: Words) -> Words:
        raise {"ours": NotFound("no"), "theirs": KeyError("secret"), "timeout": TimeoutError()}[request.words[0]]

    dispatcher = Dispatcher()
    dispatcher.unary("ns::broken", broken, request=Words)
    with pytest.raises(NotFound):
        await dispatcher.call(call("ns::broken", b'{"words": ["ours"]}'))
    for word in (b"theirs", b"timeout"):
        for deadline in (None, asyncio.get_running_loop().time() + 60):
            with pytest.raises(Internal) as caught:
                await dispatcher.call(call("ns::broken", b'{"words": ["%s"]}' % word, deadline=deadline))
            assert "secret" not in caught.value.message
            assert caught.value.code == "internal"
    assert dispatcher.active == 0


async def test_an_unknown_procedure_and_the_wrong_shape_are_unimplemented() -> None:
    async def stream(meta: RequestMeta, request: Words) -> Messages:
        yield Message(b"one")

    dispatcher = Dispatcher()
    dispatcher.unary("ns::echo", echo, request=Words)
    dispatcher.server_stream("ns::stream", stream, request=Words)
    for name in ("ns::none", "ns::stream"):
        with pytest.raises(Unimplemented):
            await dispatcher.call(call(name))
    with pytest.raises(Unimplemented):
        await anext(aiter(dispatcher.stream(call("ns::echo"))))
    assert [message.body async for message in dispatcher.stream(call("ns::stream"))] == [b"one"]


async def test_a_handler_is_stopped_at_the_deadline_and_one_that_is_late_already_is_not_started() -> None:
    started = 0

    async def slow(meta: RequestMeta, request: Words) -> Words:
        nonlocal started
        started += 1
        await asyncio.Event().wait()
        return request

    dispatcher = Dispatcher()
    dispatcher.unary("ns::slow", slow, request=Words)
    time = asyncio.get_running_loop().time
    with pytest.raises(DeadlineExceeded):
        await dispatcher.call(call("ns::slow", deadline=time() - 1))
    assert started == 0
    while not started:  # On a machine that stands still for a moment this one may be late as well.
        with pytest.raises(DeadlineExceeded):
            await dispatcher.call(call("ns::slow", deadline=time() + 0.02))
    assert (started, dispatcher.active) == (1, 0)


async def test_calls_are_counted_by_how_they_ended() -> None:
    async def work(meta: RequestMeta, request: Words) -> Words:
        if request.words == ["wait"]:
            await asyncio.Event().wait()
        if request.words:
            raise NotFound("no") if request.words == ["no"] else RuntimeError
        return request

    meter = CallMeter()
    dispatcher = Dispatcher()
    dispatcher.observe("metered", meter.take)
    dispatcher.unary("ns::work", work, request=Words)
    await dispatcher.call(call("ns::work", transport="http"))
    for word in (b"no", b"broken"):
        with pytest.raises(OmniRelayError):
            await dispatcher.call(call("ns::work", b'{"words": ["%s"]}' % word, transport="http"))
    waiting = asyncio.ensure_future(dispatcher.call(call("ns::work", b'{"words": ["wait"]}', transport="http")))
    await settle()
    assert dispatcher.active == 1
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert meter.calls == {
        ("ns::work", "http", "Ok"): 1,
        ("ns::work", "http", "NotFound"): 1,
        ("ns::work", "http", "Internal"): 1,
        ("ns::work", "http", "Cancelled"): 1,
    }
    assert sum(meter.durations["ns::work", "http"].counts) == 4


@pytest.mark.parametrize("has_late_answer", [False, True])
async def test_calls_that_their_deadline_ends_are_counted_as_what_they_are_answered_with(has_late_answer: bool) -> None:
    async def wait(meta: RequestMeta, request: Words) -> Words:
        await asyncio.Event().wait()
        return request

    async def slow_layer(call: Call, proceed: Proceed) -> Reply:
        raise AssertionError("a call that is late already is not worth its time")

    meter = CallMeter()
    dispatcher = Dispatcher()
    dispatcher.observe("metered", meter.take)
    late = (lambda meta, request: Reply(b"none")) if has_late_answer else None
    dispatcher.unary("ns::wait", wait, request=Words, late=late)
    time = asyncio.get_running_loop().time
    ended = "Ok" if has_late_answer else "DeadlineExceeded"
    while not meter.calls["ns::wait", "http", ended]:  # On a machine that stands still it may be late on arrival.
        with suppress(DeadlineExceeded):
            await dispatcher.call(call("ns::wait", transport="http", deadline=time() + 0.02))
    assert meter.calls["ns::wait", "http", "Cancelled"] == 0
    late_meter = CallMeter()
    dispatcher.observe("metered", late_meter.take)
    dispatcher.use(slow_layer)
    with pytest.raises(DeadlineExceeded):
        await dispatcher.call(call("ns::wait", transport="http", deadline=time() - 1))
    assert late_meter.calls == {("ns::wait", "http", "DeadlineExceeded"): 1}


async def test_a_reply_is_taken_at_its_word() -> None:
    async def raw(meta: RequestMeta, request: Words) -> Reply:
        return Reply(b"\x00", headers={"X": "y"}, encoding="raw")

    dispatcher = Dispatcher()
    dispatcher.unary("ns::raw", raw, request=Words)
    reply = await dispatcher.call(call("ns::raw"))
    assert (reply.body, reply.headers, reply.encoding) == (b"\x00", {"X": "y"}, "raw")


async def test_a_component_answers_under_its_namespace_without_any_transport() -> None:
    dispatcher = Dispatcher("catalog")
    async with ResourceLeaseComponent(dispatcher, ResourceLeaseOptions(namespace="tablelease")):
        reply = await dispatcher.call(call("tablelease::enqueue", ITEM))
        assert msgspec.json.decode(reply.body)["duplicate"] is False
        with pytest.raises(Unimplemented):
            await dispatcher.call(call("resourcelease::enqueue", ITEM))


async def test_a_lease_without_any_limit_waits_thirty_seconds() -> None:
    clock = FakeClock()
    dispatcher = Dispatcher()
    async with ResourceLeaseComponent(dispatcher, ResourceLeaseOptions(clock=clock)):
        single = asyncio.ensure_future(dispatcher.call(call("resourcelease::lease")))
        many = asyncio.ensure_future(dispatcher.call(call("resourcelease::lease", b'{"maxItems": 2}')))
        await settle()
        await clock.advance(29_999)
        assert not single.done()
        assert not many.done()
        await clock.advance(1)
        assert (await single).body == b"{}"
        assert (await many).body == b'{"leases":[]}'


async def test_how_long_a_call_waits_follows_from_what_it_asked_and_its_deadline() -> None:
    time = asyncio.get_running_loop().time

    def wait_ms(asked_ms: int | None, left_ms: float | None) -> int:
        deadline = None if left_ms is None else time() + left_ms / 1000
        return RequestMeta(procedure="a::b", deadline=deadline).wait_ms(asked_ms, without_deadline_ms=7)

    assert (wait_ms(None, None), wait_ms(0, None), wait_ms(99, None)) == (7, 0, 99)
    assert 40_000 < wait_ms(None, 60_000) <= 59_900
    assert wait_ms(50, 60_000) == 50
    assert 0 <= wait_ms(99_999, 900) <= 810
    assert wait_ms(None, 10**12) == 86_400_000
    assert wait_ms(None, -5) == 0


async def test_a_component_that_has_stopped_serves_nobody_and_stops_twice() -> None:
    dispatcher = Dispatcher()
    component = ResourceLeaseComponent(dispatcher)
    await component.start()
    await component.start()
    await component.stop()
    await component.stop()
    with pytest.raises(OmniRelayError) as caught:
        await dispatcher.call(call("resourcelease::stats"))
    assert caught.value.code == "error.resourcelease.draining"
