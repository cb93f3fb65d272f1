"""beanstalkd with a flush after every write to its log. It does not log leases: two flushes a cycle.

Its clients for asyncio are no longer kept, so this speaks its text protocol itself. There are no batches: several
commands are written together, and each is flushed for itself.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from pathlib import Path
from typing import Any, cast

from benchmarks.peers_load import LEASE_SECONDS, Peer, bodies
from benchmarks.peers_processes import Server, free_port, until_up

LATER_MS = 1_000


class Connection(asyncio.Protocol):
    """Commands are answered in order; the answer is its first line in words, with the body behind it where one is."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answers: deque[asyncio.Future[list[bytes]]] = deque()
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        buffer, at = self._buffer, 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            words = bytes(buffer[at:end]).split()
            end += 2
            if words[0] == b"RESERVED":
                size = int(words[2])
                if len(buffer) < end + size + 2:
                    break
                words[2] = bytes(buffer[end : end + size])
                end += size + 2
            at = end
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_result(words)
        del buffer[:at]

    def connection_lost(self, error: Exception | None) -> None:
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(error or ConnectionError("the server closed the connection"))

    def ask(self, commands: list[bytes]) -> list[asyncio.Future[list[bytes]]]:
        assert self._transport is not None
        answers = [self._loop.create_future() for _ in commands]
        self._answers += answers
        self._transport.write(b"".join(commands))
        return answers

    async def call(self, commands: list[bytes], expected: bytes) -> list[list[bytes]]:
        answers = [await answer for answer in self.ask(commands)]
        for words in answers:
            if words[0] != expected:
                raise RuntimeError(f"expected {expected.decode()}, got {b' '.join(words[:2]).decode()}")
        return answers

    async def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


class Beanstalkd:
    name = "beanstalkd"
    hands_off = True
    batches = False

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self._directory = directory
        self.server = Server(directory / "output")
        self._port = free_port()

    def start(self, flush_ms: int = 0) -> None:
        log = self._directory / "log"
        log.mkdir(exist_ok=True)
        self.server.start(["beanstalkd", "-l", "127.0.0.1", "-p", str(self._port), "-b", log, f"-f{flush_ms}"])

    async def prepare(self) -> None:
        peer = await self.connect()
        await peer.close()

    async def connect(self) -> Peer:
        async def connect() -> Connection:
            _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self._port)
            return connection

        return BeanstalkPeer(await until_up(connect, (OSError,)))

    async def fill(self, count: int) -> None:
        """A million flushes would take minutes: while it is filled, it flushes once a second."""
        self.server.end(signal.SIGKILL)
        self.start(LATER_MS)
        peer = await self.connect()
        for first in range(0, count, 1_000):
            await peer.enqueue(bodies(first, 1_000))
        await peer.close()
        await asyncio.sleep(2 * LATER_MS / 1_000)


class BeanstalkPeer:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def enqueue(self, bodies: list[bytes]) -> None:
        puts = [b"put 100 0 %d %d\r\n%s\r\n" % (LEASE_SECONDS, len(body), body) for body in bodies]
        await self._connection.call(puts, b"INSERTED")

    async def lease(self, count: int) -> list[Any]:
        return [words[1] for words in await self._connection.call([b"reserve\r\n"] * count, b"RESERVED")]

    async def complete(self, leases: list[Any]) -> None:
        await self._connection.call([b"delete %s\r\n" % lease for lease in leases], b"DELETED")

    async def wait(self) -> Any:
        return (await self.lease(1))[0]

    async def close(self) -> None:
        await self._connection.close()
