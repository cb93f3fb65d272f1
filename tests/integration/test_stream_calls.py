"""Calls on a stream: by their deadline, alike with and without a task, and read leniently in every form."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from omnirelay.client.client import Client
from omnirelay.errors import DeadlineExceeded
from omnirelay.log import MemoryLog
from omnirelay.log.base import Frame, Position
from omnirelay.node.node import Node
from omnirelay.rpc.calls import Call, Reply
from omnirelay.rpc.procedures import Proceed
from tests.integration.nodes import running_node
from tests.integration.shards import events_of
from tests.integration.stream_peers import ITEM, peer_of
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("stream_form")


class HungDisk:
    """Has the appends of a node wait until `goes_on` is set."""

    def __init__(self, node: Node) -> None:
        log = node.components[0].shard().log
        assert isinstance(log, MemoryLog)
        self.goes_on = asyncio.Event()
        self.tried = asyncio.Event()
        self._append = log.append
        log.append = self._wait_and_append  # type: ignore[method-assign]
        log.append_now = lambda frame, expected: None  # type: ignore[method-assign]

    async def _wait_and_append(self, frame: Frame, expected: Position) -> Position:
        self.tried.set()
        await self.goes_on.wait()
        return await self._append(frame, expected)


async def test_a_call_is_answered_by_its_deadline_while_the_log_hangs() -> None:
    async with running_node() as node, peer_of(node.url) as peer:
        await peer.call("enqueue", ITEM)
        disk = HungDisk(node)
        late = await peer.refused(call={"verb": "enqueue", "request": ITEM, "ttlMs": 200})
        assert late["status"] == "DEADLINE_EXCEEDED"
        # A lease call gets what there is, and that is nothing; what the log still grants is released at once.
        assert await peer.call("lease", {"maxItems": 1}, ttlMs=200) == {"leases": []}
        assert await peer.call("lease", {}, ttlMs=200) == {}
        assert {
            named: count for named, count in node.calls.calls.items() if named[0].endswith(("enqueue", "lease"))
        } == {
            ("resourcelease::enqueue", "websocket", "Ok"): 1,
            ("resourcelease::enqueue", "websocket", "DeadlineExceeded"): 1,
            ("resourcelease::lease", "websocket", "Ok"): 2,
        }
        disk.goes_on.set()
        answer = await peer.call("lease", {"maxItems": 10}, ttlMs=10_000)
        assert [lease["attempt"] for lease in answer["leases"]].count(1) >= 1


async def test_a_client_stops_waiting_when_its_time_is_over() -> None:
    async with running_node() as node, Client(node.url, mode="stream", request_ids=False) as client:
        await client.enqueue("table", "orders")
        disk = HungDisk(node)
        short, long = (
            asyncio.ensure_future(client.enqueue("table", name, timeout_ms=ms))
            for name, ms in (("a", 200), ("b", 60_000))
        )
        with pytest.raises(DeadlineExceeded):
            await short
        assert not long.done()
        disk.goes_on.set()
        assert (await long).sequence_id > 1


async def untold(call: Call, proceed: Proceed) -> Reply:
    """A layer that may do anything: calls behind it get a task each."""
    async with asyncio.timeout(PATIENCE_S):
        assert isinstance(json.loads(call.body), dict)
        return await proceed(call)


@pytest.mark.parametrize("with_tasks", [False, True])
async def test_every_verb_of_the_cycle_is_served_with_and_without_a_task(with_tasks: bool) -> None:
    async with running_node() as node, Client(node.url, mode="stream") as client:
        if with_tasks:
            node.dispatcher.use(untold)
        steps = node.dispatcher.steps_of(node.dispatcher.find("resourcelease::enqueue"))
        assert (steps is None) is with_tasks
        for _ in range(3):
            await client.enqueue("table", "orders", body=b"x")
        first, second, third = await client.lease(max_items=3)
        assert (await client.heartbeat(first)).success
        await client.complete(first, result=b"done")
        await client.fail(second, reason="no")
        await client.release(third)
        outcome = await client.call("complete", {"acks": [{"ownershipToken": first.ownership_token}]}, dict[str, Any])
        assert outcome["results"] == [{"success": True}]
        stats = await client.stats()
        assert (stats.completed_count, stats.pending_count) == (1, 2)


@pytest.mark.parametrize(
    "text",
    [
        '{"id":1,"call":{"verb":"enqueue","request":{"payload":{"resourceType":"t","resourceId":"r"}},"ttlMs":5000}}',
        '{"id":1,"call":{"verb":"enqueue","request":{"payload":{"resourceType":"t","resourceId":"r"}},"extra":1}}',
        '{"id":1,"call":{"verb":"enqueue","request":{"Payload":{"RESOURCETYPE":"t","resourceid":"r"},"news":{}}}}',
        '{"call":{"request":{"payload":{"resourceType":"t","resourceId":"r"}},"verb":"enqueue"},"id":1}',
        ' [{"Id":1,"Call":{"Verb":"enqueue","Request":{"payload":{"resourceType":"t","resourceId":"r"}}}}]',
    ],
)
async def test_a_call_is_understood_however_it_is_written(text: str) -> None:
    async with running_node() as node, peer_of(node.url) as peer:
        await peer.socket.send(text)
        answer = await peer.answered(1)
        assert answer["answer"]["sequenceId"] == 1


@pytest.mark.parametrize(
    ("request_text", "field"),
    [
        ('{"payload":{"resourceType":"t"}}', "resourceId"),
        ('{"payload":{"resourceType":"t","resourceId":"r","body":"***"}}', "body"),
        ('{"payload":{"resourceType":"t","resourceId":"r"},"priority":10}', "priority"),
    ],
)
async def test_what_is_wrong_with_a_request_is_named(request_text: str, field: str) -> None:
    async with running_node() as node, peer_of(node.url) as peer:
        await peer.socket.send(f'{{"id":1,"call":{{"verb":"enqueue","request":{request_text},"ttlMs":5000}}}}')
        error = (await peer.answered(1))["error"]
        assert (error["status"], error["metadata"]["field"]) == ("INVALID_ARGUMENT", field)


async def test_answers_of_many_calls_of_one_connection_come_to_the_right_callers() -> None:
    async with running_node() as node, Client(node.url, mode="stream") as client:
        enqueued = await asyncio.gather(*(client.enqueue("table", f"r{number}") for number in range(200)))
        items = await asyncio.gather(*(client.get(each.sequence_id) for each in enqueued))
        assert [item.payload.resource_id for item in items] == [f"r{number}" for number in range(200)]


async def test_a_drop_gives_back_what_a_call_was_granted_too_late() -> None:
    async with running_node() as node, Client(node.url) as client:
        await client.enqueue("table", "orders")
        disk = HungDisk(node)
        async with peer_of(node.url) as peer:
            await peer.send({"id": 1, "call": {"verb": "lease", "request": {"maxItems": 1}}})
            await disk.tried.wait()
        disk.goes_on.set()
        [lease] = await client.lease(wait_ms=10_000)
        assert lease.attempt == 1


async def kinds_of(node: Node) -> list[str]:
    return [type(event).__name__ for event in await events_of(node.components[0].shard().log)]


async def test_a_lease_call_that_was_abandoned_gets_nothing() -> None:
    waiting = {"id": "w", "call": {"verb": "lease", "request": {"maxItems": 1, "waitMs": 60_000}}}
    async with running_node() as node, peer_of(node.url) as peer:
        await peer.send(waiting)
        await peer.send({"abandon": ["w", "never-heard-of"]})
        assert (await peer.answered("w"))["error"]["code"] == "error.resourcelease.abandoned"
        assert node.calls.calls["resourcelease::lease", "websocket", "Cancelled"] == 1
        assert node.dispatcher.active == 0
        await peer.call("enqueue", ITEM)
        [lease] = (await peer.call("lease", {"maxItems": 1}, ttlMs=10_000))["leases"]
        assert lease["attempt"] == 1
        await peer.send({"abandon": ["w"]})
        assert len((await peer.call("peek", {"state": "leased"}))["items"]) == 1
        assert (await kinds_of(node))[-2:] == ["Enqueue", "LeaseGranted"]


async def test_a_client_that_cancels_a_lease_call_leaves_no_waiter_behind() -> None:
    async with running_node() as node, Client(node.url, mode="stream") as client:
        await client.stats()
        for _ in range(20):
            waiting = asyncio.ensure_future(client.lease(wait_ms=60_000))
            await client.stats()  # Behind it on the same connection: it has arrived.
            waiting.cancel()
            await asyncio.wait((waiting,))
        await client.enqueue("table", "orders")
        assert len(await client.lease(wait_ms=10_000)) == 1
        assert (await kinds_of(node))[-2:] == ["Enqueue", "LeaseGranted"]


async def test_what_was_granted_as_its_call_was_abandoned_is_given_back() -> None:
    """Item and abandonment arrive together: whichever comes first, nothing stays with a caller that is gone."""
    async with running_node() as node, peer_of(node.url) as peer:
        await peer.send({"id": "w", "call": {"verb": "lease", "request": {"maxItems": 1, "waitMs": 60_000}}})
        await peer.call("stats", {})
        await peer.send({"id": "e", "call": {"verb": "enqueue", "request": ITEM}}, {"abandon": ["w"]})
        abandoned = await peer.answered("w")
        assert "error" in abandoned, abandoned
        [lease] = (await peer.call("lease", {"maxItems": 1, "waitMs": 10_000}))["leases"]
        assert lease["attempt"] == 1
