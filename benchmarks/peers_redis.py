"""Redis with every write flushed before it is answered: as a stream with a consumer group, and as a list.

A list has no lease: an item moves to the list of its client and is removed from there; what a client leaves behind
somebody has to find. Items of a stream are acknowledged and not deleted, which is what costs Redis least.
"""

from __future__ import annotations

from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.peers_load import Peer, bodies
from benchmarks.peers_processes import Server, free_port, until_up

QUEUE = b"queue"
GROUP = b"workers"
_numbers = count()


class _Redis:
    hands_off = True
    batches = True
    name = ""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self.server = Server(directory / "output")
        self._library: Any = import_module("redis.asyncio")
        self._errors: tuple[type[Exception], ...] = (
            import_module("redis.exceptions").ConnectionError,
            import_module("redis.exceptions").BusyLoadingError,
        )
        self._port = free_port()

    def start(self) -> None:
        options = {
            "port": self._port,
            "bind": "127.0.0.1",
            "dir": self._directory,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "auto-aof-rewrite-percentage": 0,
        }
        self.server.start(["redis-server", *(str(part) for name in options for part in (f"--{name}", options[name]))])

    def _connection(self) -> Any:
        return self._library.Redis(host="127.0.0.1", port=self._port, single_connection_client=True)

    async def _connected(self) -> Any:
        async def ping() -> Any:
            connection = self._connection()
            try:
                await connection.ping()
            except BaseException:
                await connection.aclose()
                raise
            return connection

        return await until_up(ping, self._errors)

    async def prepare(self) -> None:
        connection = await self._connected()
        await connection.flushall()
        await self.make(connection)
        await connection.aclose()

    async def make(self, connection: Any) -> None:
        """What has to be there before the first item."""

    async def connect(self) -> Peer:
        return self.peer(await self._connected())

    def peer(self, connection: Any) -> Peer:
        raise NotImplementedError

    async def fill(self, count: int) -> None:
        peer = await self.connect()
        for first in range(0, count, 1_000):
            await peer.enqueue(bodies(first, 1_000))
        await peer.close()


class RedisStreams(_Redis):
    name = "Redis streams"

    async def make(self, connection: Any) -> None:
        await connection.xgroup_create(QUEUE, GROUP, id="0", mkstream=True)

    def peer(self, connection: Any) -> Peer:
        return StreamPeer(connection)


class StreamPeer:
    def __init__(self, connection: Any) -> None:
        self._redis = connection
        self._name = b"client-%d" % next(_numbers)

    async def enqueue(self, bodies: list[bytes]) -> None:
        if len(bodies) == 1:
            await self._redis.xadd(QUEUE, {b"b": bodies[0]})
            return
        async with self._redis.pipeline(transaction=False) as pipeline:
            for body in bodies:
                pipeline.xadd(QUEUE, {b"b": body})
            await pipeline.execute()

    async def lease(self, count: int) -> list[Any]:
        return await self._read(count, None)

    async def _read(self, count: int, block: int | None) -> list[Any]:
        answer = await self._redis.xreadgroup(GROUP, self._name, {QUEUE: b">"}, count=count, block=block)
        if not answer:
            return []
        entries = next(iter(answer.values()))[0] if isinstance(answer, dict) else answer[0][1]
        return [entry[0] for entry in entries]

    async def complete(self, leases: list[Any]) -> None:
        await self._redis.xack(QUEUE, GROUP, *leases)

    async def wait(self) -> Any:
        [lease] = await self._read(1, 10_000)
        return lease

    async def close(self) -> None:
        await self._redis.aclose()


class RedisList(_Redis):
    name = "Redis list (no lease)"

    def peer(self, connection: Any) -> Peer:
        return ListPeer(connection)


class ListPeer:
    def __init__(self, connection: Any) -> None:
        self._redis = connection
        self._mine = b"taken-%d" % next(_numbers)

    async def enqueue(self, bodies: list[bytes]) -> None:
        await self._redis.rpush(QUEUE, *bodies)

    async def lease(self, count: int) -> list[Any]:
        if count == 1:
            body = await self._redis.lmove(QUEUE, self._mine, "LEFT", "RIGHT")
            return [] if body is None else [body]
        async with self._redis.pipeline(transaction=False) as pipeline:
            for _ in range(count):
                pipeline.lmove(QUEUE, self._mine, "LEFT", "RIGHT")
            return [body for body in await pipeline.execute() if body is not None]

    async def complete(self, leases: list[Any]) -> None:
        if len(leases) == 1:
            await self._redis.lrem(self._mine, 1, leases[0])
            return
        async with self._redis.pipeline(transaction=False) as pipeline:
            for body in leases:
                pipeline.lrem(self._mine, 1, body)
            await pipeline.execute()

    async def wait(self) -> Any:
        return await self._redis.blmove(QUEUE, self._mine, 10, "LEFT", "RIGHT")

    async def close(self) -> None:
        await self._redis.aclose()
