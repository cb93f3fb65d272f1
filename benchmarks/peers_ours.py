"""A node in a process of its own, used through `omnirelay.Client` over its stream."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from pathlib import Path
from typing import Any

from benchmarks.peers_load import LEASE_SECONDS, Peer, bodies
from benchmarks.peers_processes import Server
from omnirelay import Client, ItemSpec, OwnershipToken, QueueOptions
from omnirelay.client.stream_connection import StreamConnection
from omnirelay.core import schedule
from omnirelay.node.running import run_node
from omnirelay.node.settings import NodeSection, NodeSettings, ShardSettings
from omnirelay.wire.answers import Lease
from omnirelay.wire.requests import IncomingToken
from omnirelay.wire.streams import StreamAck

ROOT = Path(__file__).parent.parent
OPTIONS = QueueOptions(capacity=3_000_000, lease_duration_ms=LEASE_SECONDS * 1_000)


def serve(directory: Path, compiled: bool) -> None:
    assert compiled == (not str(schedule.__file__).endswith(".py")), "this would compare the wrong things"
    settings = NodeSettings(
        node=NodeSection(data=directory, port=0, log_level="warning"),
        shards=(ShardSettings(name="resourcelease", namespace="resourcelease", options=OPTIONS),),
    )
    run_node(settings, lambda node: print(node.port, flush=True))


class Ours:
    hands_off = True
    batches = True

    def __init__(self, directory: Path, name: str, *, request_ids: bool = False, library: Path | None = None) -> None:
        """`library`: where core lies compiled."""
        directory.mkdir(parents=True)
        self.name = name
        self._directory = directory
        self._request_ids = request_ids
        self._library = library
        self.server = Server(directory / "output")
        self.url = ""

    def start(self) -> None:
        python_path = f"{self._library or ROOT / 'src'}{os.pathsep}{ROOT}"
        compiled = "plain" if self._library is None else "compiled"
        port = self.server.start(
            [sys.executable, "-m", "benchmarks.peers", "--serve", self._directory / "data", compiled],
            environment={**os.environ, "PYTHONPATH": python_path},
            cwd=ROOT,
            says_port=True,
        )
        self.url = f"http://127.0.0.1:{port}"

    async def prepare(self) -> None:
        async with Client(self.url) as client:
            await client.stats()

    async def connect(self) -> Peer:
        return OurPeer(Client(self.url, mode="stream", request_ids=self._request_ids))

    async def connect_pushed(self) -> Peer:
        """A peer for which waiting means that leases come by themselves."""
        peer = PushedPeer(Client(self.url, mode="stream", request_ids=self._request_ids))
        await peer.open(self.url)
        return peer

    async def fill(self, count: int) -> None:
        peer = OurPeer(Client(self.url, request_ids=self._request_ids))
        for first in range(0, count, 4_000):
            await peer.enqueue(bodies(first, min(4_000, count - first)))
        await peer.close()


class OurPeer:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def enqueue(self, bodies: list[bytes]) -> None:
        if len(bodies) == 1:
            await self._client.enqueue("table", "sales.orders", body=bodies[0])
        else:
            items = [ItemSpec(resource_type="table", resource_id="sales.orders", body=body) for body in bodies]
            await self._client.enqueue_many(items)

    async def lease(self, count: int) -> list[Any]:
        return await self._client.lease(max_items=count)

    async def complete(self, leases: list[Any]) -> None:
        if len(leases) == 1:
            await self._client.complete(leases[0])
            return
        outcomes = await self._client.complete_many(leases)
        assert all(outcome.success for outcome in outcomes)

    async def wait(self) -> Any:
        [lease] = await self._client.lease(wait_ms=10_000)
        return lease

    async def close(self) -> None:
        await self._client.close()


class PushedPeer(OurPeer):
    """Has leases pushed, one at a time, as a worker does with its credit."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._stream: StreamConnection | None = None
        self._opened = False
        self._arrived: deque[Lease] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def open(self, url: str) -> None:
        self._stream = await StreamConnection.open(url, "resourcelease", {}, pushed=self)

    def leases(self, leases: list[Lease], not_before: float) -> None:
        self._arrived += leases
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def cancel(self, tokens: list[OwnershipToken]) -> None: ...

    def lost(self, tokens: list[OwnershipToken]) -> None: ...

    def taken_in(self, mark: int) -> None: ...

    async def wait(self) -> Any:
        assert self._stream is not None
        if self._opened:
            self._stream.say(credit=1)
        else:
            self._opened = True
            self._stream.say(open={"peerId": "bench", "credit": 1})
        if not self._arrived:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._arrived.popleft()

    async def complete(self, leases: list[Any]) -> None:
        assert self._stream is not None
        for lease in leases:
            token = lease.ownership_token
            named = IncomingToken(
                sequence_id=token.sequence_id, attempt=token.attempt, lease_id=token.lease_id, fence=token.fence
            )
            await self._stream.acknowledge(StreamAck(verb="complete", ownership_token=named), 30_000)

    async def close(self) -> None:
        assert self._stream is not None
        await self._stream.aclose()
        await super().close()
