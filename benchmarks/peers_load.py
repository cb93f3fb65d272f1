"""The load that every system gets: the same cycles, batches and hand-offs, over whatever its client offers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from benchmarks.http_load import percentile
from benchmarks.peers_processes import Server

BODY_BYTES = 256
LEASE_SECONDS = 60
WAIT_SECONDS = 10


class Peer(Protocol):
    """One connection of one client."""

    async def enqueue(self, bodies: list[bytes]) -> None: ...

    async def lease(self, count: int) -> list[Any]:
        """Up to so many; at least one is there."""
        ...

    async def complete(self, leases: list[Any]) -> None: ...

    async def wait(self) -> Any:
        """One lease, as soon as there is one."""
        ...

    async def close(self) -> None: ...


class System(Protocol):
    name: str
    server: Server
    hands_off: bool
    """A client can wait for the next item; the others have to ask again and again."""
    batches: bool
    """A batch is a call of its own, and flushed as one; if not, only a twentieth of the items is sent."""

    def start(self) -> None: ...

    async def prepare(self) -> None:
        """Wait until it serves; make it empty."""
        ...

    async def connect(self) -> Peer: ...

    async def fill(self, count: int) -> None:
        """That many pending items."""
        ...


def bodies(first: int, count: int) -> list[bytes]:
    return [(b"%012d" % number).ljust(BODY_BYTES, b"x") for number in range(first, first + count)]


class Cost:
    """What a run took: rate, and the CPU time of server and client per item."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._server = system.server.cpu
        self._client = time.process_time()
        self._started = time.perf_counter()

    def of(self, count: int) -> dict[str, float]:
        seconds = time.perf_counter() - self._started
        return {
            "rate": count / seconds,
            "client_us": (time.process_time() - self._client) / count * 1e6,
            "server_us": (self._system.server.cpu - self._server) / count * 1e6,
        }


async def cycles(system: System, clients: int, seconds: float) -> dict[str, float]:
    """Enqueue, lease, complete, one item at a time, each client on a connection of its own."""
    peers = [await system.connect() for _ in range(clients)]
    times: list[float] = []
    done = 0
    for peer in peers:  # What a client does only once is not measured.
        await peer.enqueue(bodies(0, 1))
        await peer.complete(await peer.lease(1))

    async def one(peer: Peer, number: int) -> None:
        nonlocal done
        while (started := time.perf_counter()) < end:
            await peer.enqueue(bodies(number, 1))
            times.append(time.perf_counter() - started)
            await peer.complete(await peer.lease(1))
            number += clients
            done += 1

    cost = Cost(system)
    end = time.perf_counter() + seconds
    await asyncio.gather(*(one(peer, number) for number, peer in enumerate(peers)))
    figures = cost.of(done)
    for peer in peers:
        await peer.close()
    return {**figures, "p50_us": percentile(times, 0.5) * 1e6, "p99_us": percentile(times, 0.99) * 1e6}


async def batches(system: System, connections: int, batch: int, count: int) -> dict[str, float]:
    """Batches through the whole cycle. The bodies are made before the clock starts."""
    if not system.batches:
        count //= 20
    peers = [await system.connect() for _ in range(connections)]
    rounds = math.ceil(count / (connections * batch))
    fresh = [[bodies((one * rounds + each) * batch, batch) for each in range(rounds)] for one in range(connections)]

    async def work(peer: Peer, mine: list[list[bytes]]) -> None:
        for each in mine:
            await peer.enqueue(each)
            wanted = batch
            while wanted:
                leases = await peer.lease(wanted)
                await peer.complete(leases)
                wanted -= len(leases)

    cost = Cost(system)
    await asyncio.gather(*map(work, peers, fresh))
    figures = cost.of(connections * rounds * batch)
    for peer in peers:
        await peer.close()
    return figures


async def hand_off(connect: Callable[[], Awaitable[Peer]], count: int) -> dict[str, float]:
    """From sending an enqueue to the lease in the hands of a peer that was waiting for it."""
    producer, worker = await connect(), await connect()
    times: list[float] = []
    for number in range(count + 20):
        waiting = asyncio.ensure_future(worker.wait())
        await asyncio.sleep(0.002)  # The peer has to be in line before the item comes.
        started = time.perf_counter()
        enqueued = asyncio.ensure_future(producer.enqueue(bodies(number, 1)))
        async with asyncio.timeout(WAIT_SECONDS):
            lease = await waiting
        times.append(time.perf_counter() - started)
        await enqueued
        await worker.complete([lease])
    await producer.close()
    await worker.close()
    del times[:20]
    return {"p50_us": percentile(times, 0.5) * 1e6, "p99_us": percentile(times, 0.99) * 1e6}


async def restart_lease(system: System, started: float) -> float:
    """Seconds from then to the first lease of a system that is just starting."""
    peer = await system.connect()
    leases = await peer.lease(1)
    assert len(leases) == 1
    seconds = time.perf_counter() - started
    await peer.close()
    return seconds
