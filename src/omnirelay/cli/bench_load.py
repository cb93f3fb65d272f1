"""The load that `bench` puts on a node.

Every connection goes round: enqueue a batch, lease as many, complete them. It speaks HTTP by hand, because a general
client would take most of the time that is to be measured.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from omnirelay.cli.benching import RESOURCE_TYPE, VERBS


class Run:
    """What all connections together measured."""

    def __init__(self) -> None:
        self.cycles = 0
        self.errors = 0
        self.problem = ""
        self.elapsed = 0.0
        self.times: dict[str, list[float]] = {verb: [] for verb in VERBS}

    def report(self, connections: int, batch: int) -> dict[str, Any]:
        return {
            "cyclesPerSecond": round(self.cycles / self.elapsed, 1),
            "cycles": self.cycles,
            "seconds": round(self.elapsed, 3),
            "connections": connections,
            "batch": batch,
            "errors": self.errors,
            **{verb: _quantiles(times) for verb, times in self.times.items()},
        }


def _quantiles(times: list[float]) -> dict[str, Any]:
    if not times:
        return {"calls": 0, "p50Ms": None, "p99Ms": None}
    times = sorted(times)
    return {
        "calls": len(times),
        "p50Ms": round(times[len(times) // 2] * 1000, 3),
        "p99Ms": round(times[len(times) * 99 // 100] * 1000, 3),
    }


def measure(url: str, namespace: str, connections: int, batch: int, seconds: float, is_over: Callable[[], bool]) -> Run:
    """Until the time has passed, or `is_over` says so between two rounds."""
    return asyncio.run(_measure(url, namespace, connections, batch, seconds, is_over))


async def _measure(
    url: str, namespace: str, connections: int, batch: int, seconds: float, is_over: Callable[[], bool]
) -> Run:
    run = Run()
    started = time.perf_counter()

    def ends() -> bool:
        return is_over() or time.perf_counter() >= started + seconds

    async with asyncio.TaskGroup() as group:
        for number in range(connections):
            group.create_task(_work(run, url, namespace, number, batch, ends))
    run.elapsed = time.perf_counter() - started
    return run


async def _work(run: Run, url: str, namespace: str, number: int, batch: int, ends: Callable[[], bool]) -> None:
    try:
        connection = await _Connection.open(url, namespace)
    except OSError as error:
        run.errors += 1
        run.problem = str(error)
        return
    item = {"payload": {"resourceType": RESOURCE_TYPE, "resourceId": f"bench-{number}", "body": "e30="}}
    enqueue: dict[str, Any] = item if batch == 1 else {"items": [item] * batch}
    lease = {"resourceTypes": [RESOURCE_TYPE], "maxItems": batch, "waitMs": 0, "peerId": f"bench-{number}"}
    try:
        while True:
            await _timed(run, connection, "enqueue", enqueue)
            leases = (await _timed(run, connection, "lease", lease)).get("leases", [])
            if leases:
                acks = [{"ownershipToken": each["ownershipToken"]} for each in leases]
                results = (await _timed(run, connection, "complete", {"acks": acks})).get("results", [])
                run.cycles += sum(result["success"] for result in results)
            elif not run.problem:
                run.problem = "no item could be leased; is the shard paused, or does something else take them?"
            # Asked at the end: a round that a slow machine could not begin in time would leave nothing to tell.
            if ends():
                return
    except (OSError, EOFError, asyncio.IncompleteReadError, ValueError) as error:
        run.errors += 1
        run.problem = str(error) or type(error).__name__
    finally:
        connection.close()


async def _timed(run: Run, connection: _Connection, verb: str, request: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    status, answer = await connection.call(verb, request)
    run.times[verb].append(time.perf_counter() - started)
    if status != 200:
        run.errors += 1
        run.problem = str(answer.get("message", status))
        # A node that is full needs a moment; without one this would be a storm of refusals.
        await asyncio.sleep(0.05)
        return {}
    return answer


class _Connection:
    """HTTP/1.1 with one call at a time, as much of it as a node answers with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        self._reader = reader
        self._writer = writer
        self._head = head

    @classmethod
    async def open(cls, url: str, namespace: str) -> _Connection:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=1 << 26)
        head = f"/v1/{quote(namespace, safe='')}/%s HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        return cls(reader, writer, f"POST {parts.path.rstrip('/')}{head}")

    async def call(self, verb: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        body = json.dumps(request).encode()
        head = self._head % verb + f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        answer = json.loads(await self._reader.readexactly(length))
        return int(lines[0].split()[1]), answer

    def close(self) -> None:
        self._writer.close()
