"""What a client makes of many calls: few messages, and no storm of retries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omnirelay.client.client import Client, ItemSpec
from omnirelay.client.retrying import BUDGET_MAX
from omnirelay.client.stream_connection import StreamConnection
from omnirelay.errors import Unavailable
from tests.integration.nodes import running_node


@pytest.mark.parametrize("mode", ["stream", "http"])
async def test_a_node_that_refuses_everybody_is_not_asked_twice_as_often_by_each_of_them(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All callers of a client share one budget: without it each of them asks until its time is over."""
    tries = 0

    def pause_ms(attempt: int, asked_ms: int | None) -> float:
        nonlocal tries
        tries += 1
        return 1.0

    async with running_node() as node, Client(node.url, mode=mode) as client:
        await client.pause(intake=True)
        monkeypatch.setattr("omnirelay.client.client.pause_ms", pause_ms)
        calls = [client.enqueue("table", str(number)) for number in range(300)]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, Unavailable) for each in ended)
        assert tries == 300 + BUDGET_MAX
        # What works earns some of it again.
        await client.resume()
        await asyncio.gather(*(client.enqueue("table", str(number)) for number in range(300)))
        await client.pause(intake=True)
        tries = 0
        calls = [client.enqueue("table", str(number)) for number in range(300)]
        await asyncio.gather(*calls, return_exceptions=True)
        assert 300 + BUDGET_MAX / 2 < tries < 300 + BUDGET_MAX


async def test_calls_and_acknowledgements_of_one_turn_go_out_in_few_messages() -> None:
    async with running_node() as node, Client(node.url, mode="stream") as client:
        await client.enqueue_many([ItemSpec(resource_type="table", resource_id=str(each)) for each in range(200)])
        leases = await client.lease(max_items=200)
        connection = client._linking.live
        assert isinstance(connection, StreamConnection)
        sent = 0
        send = connection.send

        def counted(data: bytes, *, binary: bool = False) -> None:
            nonlocal sent
            sent += 1
            send(data, binary=binary)

        connection.send = counted  # type: ignore[method-assign]
        await asyncio.gather(*(client.complete(lease) for lease in leases))
        # The first goes out alone, as nothing else was under way.
        assert sent <= 2
        sent = 0
        await asyncio.gather(*(client.get(lease.sequence_id) for lease in leases))
        assert sent <= 2
