"""A small HTTP/1.1 client for load: one request at a time per connection, no more parsing than a length.

A general client library costs several times what the server does, and would be all that is measured.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, cast


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def open(cls, port: int) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0 or self._answer is None:
            return
        at = self._buffer.find(b"content-length: ", 0, head) + 16
        length = int(self._buffer[at : self._buffer.find(b"\r", at)])
        if len(self._buffer) >= head + 4 + length:
            status = self._buffer[9:12]
            body = bytes(self._buffer[head + 4 : head + 4 + length])
            del self._buffer[: head + 4 + length]
            answer, self._answer = self._answer, None
            if status == b"200":
                answer.set_result(body)
            else:
                answer.set_exception(RuntimeError(f"{status.decode()}: {body.decode()}"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the server closed the connection"))

    async def call(self, verb: str, body: bytes) -> bytes:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(
            b"POST /v1/resourcelease/%s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
            % (verb.encode(), len(body), body)
        )
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


BODY = "A" * 344
"""256 bytes in base64."""


def enqueue_body(number: int) -> bytes:
    return b'{"payload":{"resourceType":"table","resourceId":"sales.orders-%d","body":"%s"}}' % (number, BODY.encode())


def batch_body(first: int, count: int) -> bytes:
    return b'{"items":[' + b",".join(enqueue_body(first + each) for each in range(count)) + b"]}"


async def single_calls(port: int, connections: int, seconds: float) -> dict[str, float]:
    """Enqueues one by one; rate and latency."""
    opened = [await Connection.open(port) for _ in range(connections)]
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def one(connection: Connection, number: int) -> None:
        while (started := time.perf_counter()) < end:
            await connection.call("enqueue", enqueue_body(number))
            times.append(time.perf_counter() - started)

    began = time.perf_counter()
    await asyncio.gather(*(one(connection, number) for number, connection in enumerate(opened)))
    elapsed = time.perf_counter() - began
    for connection in opened:
        connection.close()
    return {
        "rate": len(times) / elapsed,
        "p50_us": percentile(times, 0.5) * 1e6,
        "p99_us": percentile(times, 0.99) * 1e6,
    }


async def cycles(port: int, connections: int, batch: int, seconds: float) -> dict[str, float]:
    """Enqueue, lease, complete; `batch` items a call, 1 by single calls."""
    opened = [await Connection.open(port) for _ in range(connections)]
    done = 0
    end = time.perf_counter() + seconds

    async def one(connection: Connection, number: int) -> None:
        nonlocal done
        body = enqueue_body(number) if batch == 1 else batch_body(number * batch, batch)
        lease_body = b'{"waitMs":5000}' if batch == 1 else b'{"waitMs":5000,"maxItems":%d}' % batch
        while time.perf_counter() < end:
            await connection.call("enqueue", body)
            answer = json.loads(await connection.call("lease", lease_body))
            leases = [answer] if batch == 1 else answer["leases"]
            tokens = [{"ownershipToken": lease["ownershipToken"]} for lease in leases]
            acks: Any = tokens[0] if batch == 1 else {"acks": tokens}
            await connection.call("complete", json.dumps(acks).encode())
            done += len(leases)

    began = time.perf_counter()
    await asyncio.gather(*(one(connection, number) for number, connection in enumerate(opened)))
    elapsed = time.perf_counter() - began
    for connection in opened:
        connection.close()
    return {"rate": done / elapsed}


async def hand_off(port: int, count: int) -> dict[str, float]:
    """From sending an enqueue to the answer of a lease call that was waiting for it."""
    producer, worker = await Connection.open(port), await Connection.open(port)
    times: list[float] = []
    for number in range(count):
        waiting = asyncio.ensure_future(worker.call("lease", b'{"waitMs":10000}'))
        await asyncio.sleep(0.001)  # The lease call has to be in line before the enqueue comes.
        started = time.perf_counter()
        enqueued = asyncio.ensure_future(producer.call("enqueue", enqueue_body(number)))
        lease = json.loads(await waiting)
        times.append(time.perf_counter() - started)
        await enqueued
        token = json.dumps({"ownershipToken": lease["ownershipToken"]}).encode()
        await worker.call("complete", token)
    producer.close()
    worker.close()
    return {"p50_us": percentile(times, 0.5) * 1e6, "p99_us": percentile(times, 0.99) * 1e6}
