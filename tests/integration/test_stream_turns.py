"""What one read of a stream brings, and what becomes of it in that very step."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from omnirelay.core.payload import NewItem, Payload
from omnirelay.rpc.calls import RequestMeta
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.rpc.sessions import NORMAL
from omnirelay.service.component import ResourceLeaseComponent
from omnirelay.testing.clock import settle

LEASE = json.dumps({"id": 1, "call": {"verb": "lease", "request": {"waitMs": 0, "peerId": "peer"}}}).encode()
ENQUEUE = {"verb": "enqueue", "request": {"payload": {"resourceType": "table", "resourceId": "orders"}}}


class Written:
    """An outlet that keeps what is sent, until it is closed."""

    congested = False

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.open = True

    def send(self, data: bytes, *, binary: bool = False) -> None:
        if self.open:
            self.messages.append(json.loads(data))

    def close(self, code: int = NORMAL, reason: str = "") -> None:
        self.open = False


def stream(dispatcher: Dispatcher, outlet: Written) -> Any:
    return dispatcher.open_session(RequestMeta(procedure="resourcelease::stream", caller="peer"), outlet)


async def test_a_call_that_comes_alone_is_answered_before_the_loop_goes_on() -> None:
    dispatcher, outlet = Dispatcher("test"), Written()
    async with ResourceLeaseComponent(dispatcher):
        session = stream(dispatcher, outlet)
        await settle()
        session.receive(json.dumps({"id": 7, "call": ENQUEUE}).encode())
        assert outlet.messages == []
        session.received()
        [answer] = outlet.messages
        assert answer["id"] == 7
        assert answer["answer"]["stats"]["pendingCount"] == 1
        session.closed()


async def test_calls_that_come_together_share_a_frame() -> None:
    dispatcher, outlet = Dispatcher("test"), Written()
    async with ResourceLeaseComponent(dispatcher) as component:
        session = stream(dispatcher, outlet)
        await settle()
        frames = component.shard().log.statistics().frames
        for number in range(2):
            session.receive(json.dumps({"id": number, "call": ENQUEUE}).encode())
        session.received()
        assert outlet.messages == []
        await settle()
        assert component.shard().log.statistics().frames == frames + 1
        session.closed()


async def test_a_lease_granted_in_the_step_in_which_the_stream_ends_is_given_back() -> None:
    dispatcher, outlet = Dispatcher("test"), Written()
    async with ResourceLeaseComponent(dispatcher) as component:
        shard = component.shard()
        await shard.enqueue(NewItem(payload=Payload(resource_type="table", resource_id="orders")))
        await settle()
        session = stream(dispatcher, outlet)
        session.receive(LEASE)
        session.receive(b"}{")
        session.receive(LEASE)
        session.received()
        await settle()
        session.closed()
        await settle()
        assert [message.keys() for message in outlet.messages] == [{"error"}]
        [item] = shard.state.items.values()
        assert item.lease is None


async def test_an_observer_that_fails_is_no_reason_to_end_the_stream() -> None:
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    def fail(*_: object) -> None:
        raise RuntimeError("of an observer")

    dispatcher, outlet = Dispatcher("test"), Written()
    async with ResourceLeaseComponent(dispatcher):
        session = stream(dispatcher, outlet)
        dispatcher.observe("failing", fail)
        await settle()
        session.receive(LEASE)
        session.received()
        await settle()
        assert [str(context["exception"]) for context in failures] == ["of an observer"]
        session.closed()
