"""A pytest plugin for code that uses OmniRelay: a node in memory, and a clock that the test moves.

    async def test_my_handler(omnirelay_node):
        async with omnirelay_node.client() as client:
            item = await client.enqueue("table", "sales.orders", delay_ms=60_000)
            await omnirelay_node.clock.advance(60_000)
            assert (await client.get(item.sequence_id)).state == "ready"

It is found by itself where the package is installed. The fixture needs pytest-asyncio in auto mode, or a test that runs
in the event loop of its fixtures; without an event loop there is `omnirelay_url`, a node in a thread of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from omnirelay.testing.node import TestNode


@pytest.fixture
async def omnirelay_node() -> AsyncIterator[TestNode]:
    """A node of its own for this test, in memory, with a clock that stands still until it is moved."""
    from omnirelay.testing.node import TestNode  # Here, because every run of pytest imports this module.

    async with TestNode() as node:
        yield node


@pytest.fixture
def omnirelay_url() -> Iterator[str]:
    """The address of a node in memory that runs in a thread, on the time of the machine."""
    from omnirelay.client.threads import LoopThread
    from omnirelay.testing.node import TestNode

    thread = LoopThread("omnirelay-test-node")
    thread.start()
    try:
        node = TestNode(real_time=True)
        thread.run(node.start())
        try:
            yield node.url
        finally:
            thread.run(node.stop())
    finally:
        thread.stop()
