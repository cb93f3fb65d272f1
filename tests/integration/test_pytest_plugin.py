"""The plugin for users' tests, used as they would use it."""

from __future__ import annotations

from omnirelay import SyncClient
from omnirelay.testing.node import TestNode


async def test_a_test_moves_the_clock_of_its_node(omnirelay_node: TestNode) -> None:
    async with omnirelay_node.client() as client:
        item = await client.enqueue("table", "sales.orders", delay_ms=60_000)
        assert await client.lease() == []
        await omnirelay_node.clock.advance(60_000)
        [lease] = await client.lease()
        assert lease.sequence_id == item.sequence_id
        await omnirelay_node.clock.advance(30_000)
        assert (await client.get(item.sequence_id)).state == "ready"


def test_code_without_an_event_loop_has_a_node_too(omnirelay_url: str) -> None:
    with SyncClient(omnirelay_url) as client:
        item = client.enqueue("table", "sales.orders", body=b"x")
        [lease] = client.lease(peer_id="me")
        client.complete(lease, peer_id="me", result=b"done")
        assert client.get(item.sequence_id).result == b"done"
        assert [event["eventType"] for event in client.watch(1, until_caught_up=True)][-1] == "Completed"
