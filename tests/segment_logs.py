"""Frames as a log would hold them, stores that fail when told to, and a real S3 server."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
import msgspec
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from omnirelay.core.events import Completed, Enqueue, Event, Failed, GenerationStarted, Heartbeat, LeaseGranted
from omnirelay.core.payload import ErrorInfo, OwnershipToken, Payload
from omnirelay.errors import Unavailable
from omnirelay.log.base import Frame
from omnirelay.log.chain import Link
from omnirelay.log.frame import chain_of, encode_frame, genesis_chain, header_prefix
from omnirelay.segments.store import ObjectStore, StoredObject
from tests.patience import PATIENCE_S

SHARD = "jobs"
LOG_ID = "log-1"
START_MS = 1_700_000_000_000


class FrameLog:
    """A log that exists only as its frames."""

    def __init__(self, log_id: str = LOG_ID, *, epoch: int = 1) -> None:
        self.log_id = log_id
        self.epoch = epoch
        self.frames: list[Frame] = []
        self._end = Link(0, genesis_chain(SHARD, log_id), 1)

    @property
    def last(self) -> int:
        return self._end.sequence

    @property
    def end(self) -> Link:
        return self._end

    def commit(self, count: int = 3, *, time_ms: int | None = None, jump: int = 0) -> Frame:
        """A frame of `count` events; `jump` begins a new generation that many numbers ahead."""
        first = self._end.sequence + 1 + jump
        generation = self._end.generation + bool(jump)
        at = START_MS + first % (1 << 32) if time_ms is None else time_ms
        events = [some_event(first + each, at) for each in range(count)]
        if jump:
            events[0] = GenerationStarted(
                sequence_number=first, timestamp=at, generation=generation, reason="restored", next_sequence_id=first
            )
        frame = encode_frame(SHARD, self.log_id, generation, self.epoch, at, events, (first % 100, count))
        return self._add(frame)

    def commit_raw(self, *events: bytes, schema: int = 1, time_ms: int = START_MS) -> Frame:
        """A frame of events as somebody else wrote them; they must have the sequences that follow."""
        first = self._end.sequence + 1
        last = first + len(events) - 1
        frame = Frame(first, last, len(events), self.epoch, self._end.generation, time_ms, b"")
        data = header_prefix(frame, SHARD, self.log_id, schema) + b",".join(events) + b"]}"
        return self._add(msgspec.structs.replace(frame, data=data))

    def _add(self, frame: Frame) -> Frame:
        frame = msgspec.structs.replace(frame, chain=chain_of(self._end.chain, frame.data))
        self._end = Link(frame.last, frame.chain, frame.generation)
        self.frames.append(frame)
        return frame

    def fork(self) -> FrameLog:
        """The same log with the same history up to here, and another future."""
        other = FrameLog(self.log_id, epoch=self.epoch)
        other.frames = list(self.frames)
        other._end = self._end
        return other


def log_of(*counts: int, **more: Any) -> FrameLog:
    log = FrameLog()
    for count in counts:
        log.commit(count, **more)
    return log


def some_event(sequence: int, at: int) -> Event:
    token = OwnershipToken(sequence, 1, f"lease-{sequence}", sequence)
    match sequence % 5:
        case 0:
            return Heartbeat(
                sequence_number=sequence, timestamp=at, ownership=token, expires_at=at + 5, progress=msgspec.Raw(b"0.5")
            )
        case 1:
            work = Payload(
                resource_type="table", resource_id=f"orders-{sequence}", body=b"\x00\xff", attributes={"a": "ü"}
            )
            return Enqueue(sequence_number=sequence, timestamp=at, sequence_id=sequence, payload=work, peer_id="p")
        case 2:
            return LeaseGranted(sequence_number=sequence, timestamp=at, ownership=token, expires_at=at + 9, peer_id="w")
        case 3:
            return Failed(
                sequence_number=sequence,
                timestamp=at,
                ownership=token,
                error=ErrorInfo("no", "E1"),
                mode="retry",
                metadata={"k": "v"},
            )
        case _:
            return Completed(sequence_number=sequence, timestamp=at, ownership=token, result=b"done")


@contextmanager
def quick_directory() -> Iterator[Path]:
    """A directory in memory where there is one: thousands of synced puts are no test of the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


Fault = Callable[[str, str], str | None]
"""Given what is done and the key: None, "before" (it fails and nothing happened) or "after" (it happened, and yet)."""


class FailingStore:
    """A real store behind a connection that breaks when told to, and that others can be let in on."""

    def __init__(self, inner: ObjectStore, fault: Fault = lambda what, key: None) -> None:
        self.inner = inner
        self.fault = fault
        self.before: Callable[[str, str], Any] | None = None
        """Awaited before everything that is done."""

    @property
    def address(self) -> str:
        return self.inner.address

    async def _do(self, what: str, key: str, work: Callable[[], Any]) -> Any:
        if self.before is not None:
            outcome = self.before(what, key)
            if outcome is not None:
                await outcome
        fault = self.fault(what, key)
        if fault == "before":
            raise Unavailable(f"{what} {key} failed")
        outcome = await work()
        if fault == "after":
            raise Unavailable(f"{what} {key} failed, perhaps")
        return outcome

    async def list(self, prefix: str, after: str | None = None) -> Sequence[StoredObject]:
        found: Sequence[StoredObject] = await self._do("list", prefix, lambda: self.inner.list(prefix, after))
        return found

    async def folders(self, prefix: str) -> Sequence[str]:
        found: Sequence[str] = await self._do("folders", prefix, lambda: self.inner.folders(prefix))
        return found

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        data: bytes = await self._do("get", key, lambda: self.inner.get(key, start, end))
        return data

    async def put_if_absent(self, key: str, data: bytes) -> bool:
        won: bool = await self._do("put", key, lambda: self.inner.put_if_absent(key, data))
        return won

    async def compare_and_swap(self, key: str, data: bytes, expected: str) -> str | None:
        version: str | None = await self._do("swap", key, lambda: self.inner.compare_and_swap(key, data, expected))
        return version

    async def delete(self, key: str) -> None:
        await self._do("delete", key, lambda: self.inner.delete(key))


class S3Server:
    """An S3 server in this process, with one bucket.

    It serves one request after the other. moto looks whether an object is there before it puts it, in two steps: with
    threads two of them can win, and then our own proof refuses the store, as it should.
    """

    BUCKET = "lake"

    def __init__(self) -> None:
        app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, app, threaded=False)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=self.BUCKET)
        client.close()

    def stop(self) -> None:
        # What it holds belongs to the process and not to the server: the next one would begin with it.
        urlopen(Request(f"{self.endpoint}/moto-api/reset", method="POST"), timeout=PATIENCE_S).close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def address(self, prefix: str) -> str:
        return f"s3://{self.BUCKET}/{prefix}"

    @property
    def options(self) -> dict[str, Any]:
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": "key",
            "secret_access_key": "secret",
            "allow_http": True,
        }


def run(work: Callable[[], Any]) -> Any:
    """Run a coroutine function to its end, for tests that Hypothesis calls."""
    return asyncio.run(work())
