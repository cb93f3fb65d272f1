"""`TestNode`: a whole node in the test's own process, that keeps everything in memory."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from omnirelay.client.client import Client
from omnirelay.core.options import QueueOptions
from omnirelay.node.node import Node
from omnirelay.node.settings import DEFAULT_SHARD, LogSection, NodeSection, NodeSettings, ShardSettings
from omnirelay.testing.clock import FakeClock


class TestNode:
    """Listens on a free port of loopback. Its shards go by `clock`, which only the test moves."""

    __test__ = False  # Not a test, whatever its name looks like to pytest.

    def __init__(self, *namespaces: str, options: QueueOptions | None = None, real_time: bool = False) -> None:
        """`real_time`: go by the clock of the machine, for tests that cannot move another."""
        self.clock = FakeClock()
        shards = tuple(
            ShardSettings(name=each, namespace=each, options=options or QueueOptions())
            for each in namespaces or (DEFAULT_SHARD,)
        )
        settings = NodeSettings(
            node=NodeSection(port=0, data=Path("unused")), log=LogSection(url="memory:"), shards=shards
        )
        self._node = Node(settings, clock=None if real_time else self.clock)

    @property
    def url(self) -> str:
        return self._node.url

    def client(self, **options: Any) -> Client:
        """A client of this node; takes what `Client` takes besides the address."""
        return Client(self.url, **options)

    async def start(self) -> None:
        await self._node.start()

    async def stop(self) -> None:
        await self._node.stop()

    async def __aenter__(self) -> TestNode:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
