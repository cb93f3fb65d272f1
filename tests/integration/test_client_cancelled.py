"""Calls whose caller was cancelled: the node no longer waits for them either."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from omnirelay.client.client import Client
from omnirelay.client.linking import ClientClosed
from omnirelay.client.stream_connection import StreamConnection
from omnirelay.core.options import QueueOptions
from omnirelay.service import stream_calls
from tests.integration.node_process import network_before
from tests.integration.nodes import running_node
from tests.patience import PATIENCE_MS


async def _cancelled(call: asyncio.Task[Any]) -> None:
    call.cancel()
    await asyncio.wait((call,))
    assert call.cancelled()


async def test_calls_that_nobody_waits_for_take_no_place_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_calls, "CALLS_MAX", 3)
    async with running_node() as node, Client(node.url) as client:
        item = await client.enqueue("table", "orders")
        for _ in range(4):
            waiting = asyncio.create_task(client.get(item.sequence_id, wait_ms=3_600_000))
            await client.stats()  # Said behind it, so the node has that one, too.
            await _cancelled(waiting)
        assert (await client.get(item.sequence_id)).state == "ready"


async def test_an_item_that_waits_for_room_does_not_come_in_when_its_caller_has_gone() -> None:
    async with (
        running_node(options=QueueOptions(capacity=1, backpressure_cooldown_ms=0)) as node,
        Client(node.url) as client,
    ):
        await client.enqueue("table", "first")
        waiting = asyncio.create_task(client.enqueue("table", "second", wait_ms=3_600_000))
        await client.stats()
        await _cancelled(waiting)
        [lease] = await client.lease()
        await client.complete(lease)
        third = await client.enqueue("table", "third", wait_ms=PATIENCE_MS)
        assert [item.sequence_id for item in (await client.peek()).items] == [third.sequence_id]


async def test_a_client_that_is_closed_in_any_turn_of_connecting_leaves_no_connection_behind() -> None:
    async with running_node() as node:
        connected = turns = 0
        while connected < 10:
            client = Client(node.url, mode="stream")
            call = asyncio.create_task(client.stats())
            for _ in range(turns):
                await asyncio.sleep(0)
            await client.close()
            await asyncio.wait((call,))
            connected += call.exception() is None
            with pytest.raises(ClientClosed):
                await client.stats()
            turns += 1
        # Not with isinstance, which asks proxies of what is gone for their class.
        assert [each for each in gc.get_objects() if type(each) is StreamConnection and each.alive] == []


async def test_a_client_that_is_closed_while_the_node_is_silent_leaves_no_connection_behind() -> None:
    async with running_node() as node, network_before(node.url) as network:
        client = Client(network.url, mode="stream")
        await client.stats()
        connection = client._linking.live
        assert isinstance(connection, StreamConnection)
        network.swallow()
        await client.close()
        assert connection._transport is not None
        assert connection._transport.is_closing()
