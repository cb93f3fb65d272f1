"""A node as a process of its own, that can be killed and started again in its place, and the network before it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.patience import PATIENCE_S

_NODE = """
import json, sys
from pathlib import Path
from omnirelay.core.options import QueueOptions
from omnirelay.node.running import run_node
from omnirelay.node.settings import LogSection, NodeSection, NodeSettings, ShardSettings
data, port, options = sys.argv[1], int(sys.argv[2]), QueueOptions(**json.loads(sys.argv[3]))
run_node(
    NodeSettings(
        node=NodeSection(port=port, data=Path(data)),
        log=LogSection(url="sqlite:"),
        shards=(ShardSettings(name="resourcelease", namespace="resourcelease", options=options),),
    ),
    lambda node: print(node.url, flush=True),
)
"""


class NodeProcess:
    """Runs from construction to `kill`, `stop` or the end of the block; `start` runs it again at the same address."""

    def __init__(self, data: Path, **options: Any) -> None:
        """`options` are those of the queue."""
        self._data = data
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        self.start()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it serves."""
        port = urlsplit(self.url).port or 0
        command = [sys.executable, "-c", _NODE, str(self._data), str(port), json.dumps(self._options)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        url = self._process.stdout.readline().strip()
        if not url:
            raise AssertionError(f"the node did not start: {self._process.stderr.read()}")
        self.url = url

    def kill(self) -> None:
        """As a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """As an operator would; the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


def _without_subprotocol(head: bytes) -> bytes:
    return re.sub(rb"(?i)sec-websocket-protocol:[^\r]*\r\n", b"", head)


class Network:
    """A way to a node that can be cut, or swallow what is sent, without either end being told."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.url = ""
        self.connections = 0
        """Made so far."""
        self.refuses_upgrades = False
        """Answers upgrades as a proxy that knows no WebSocket does."""
        self.upgrade_refusal = b"426 Upgrade Required"
        self.drops_upgrades = False
        """Hands upgrades on as ordinary requests, as a proxy does that was not told of them."""
        self.hides_subprotocols: str | None = None
        """Leaves out of upgrades what the peer has `asked` for, as an older node does, or what the node `confirmed`."""
        self.is_away = False
        """Answers everything with a 502, as a proxy does whose node restarts."""
        self.away_status = b"502 Bad Gateway"
        """Or with this, as one does that has a page of its own."""
        self.bad_gateway = 0
        """So many answers of the node are replaced by a 502 or that, as by a proxy that lost them."""
        self.breaks_after: int | None = None
        """The connection ends when so many more bytes have come from the node; later ones are whole again."""
        self.swallows_after: int | None = None
        """When so many more bytes have come from the node nothing gets through, as after `swallow`."""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self._open.set()
        self.cut()
        await self._server.wait_closed()

    def swallow(self) -> None:
        """From now on nothing gets through, in either direction, and no connection is closed."""
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    def lead_to(self, target: str) -> None:
        """From now on another node answers."""
        self._target = urlsplit(target)
        self.cut()

    def cut(self) -> None:
        """End every connection without a word."""
        for writer in list(self._writers):
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
                )
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            if self.hides_subprotocols == "asked":
                await self._join(reader, writer, _without_subprotocol(await reader.readuntil(b"\r\n\r\n")))
            elif self.refuses_upgrades or self.drops_upgrades or self.is_away:
                head = await reader.readuntil(b"\r\n\r\n")
                upgrades = b"upgrade: websocket" in head.lower()
                if self.is_away or (upgrades and self.refuses_upgrades):
                    status = self.away_status if self.is_away else self.upgrade_refusal
                    writer.write(b"HTTP/1.1 %b\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno" % status)
                    await writer.drain()
                    return
                if upgrades:
                    head = head.replace(b"Upgrade: websocket\r\n", b"").replace(b"Connection: Upgrade\r\n", b"")
                await self._join(reader, writer, head)
            else:
                await self._join(reader, writer, b"")
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await self._open.wait()
        onward_reader, onward = await asyncio.open_connection(self._target.hostname, self._target.port, limit=2**20)
        self._writers.add(onward)
        onward.write(head)
        if self.hides_subprotocols == "confirmed":
            onward.write(await reader.readuntil(b"\r\n\r\n"))
            writer.write(_without_subprotocol(await onward_reader.readuntil(b"\r\n\r\n")))
        ways = [
            asyncio.ensure_future(self._forward(reader, onward)),
            asyncio.ensure_future(self._forward(onward_reader, writer, from_node=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            self._writers.discard(onward)
            onward.close()

    async def _forward(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, from_node: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                await self._open.wait()
                if from_node and self.bad_gateway:
                    self.bad_gateway -= 1
                    sink.write(b"HTTP/1.1 %b\r\ncontent-length: 4\r\nconnection: close\r\n\r\nlost" % self.away_status)
                    return
                if from_node and self.swallows_after is not None:
                    self.swallows_after -= len(data)
                    if self.swallows_after <= 0:
                        self.swallows_after = None
                        self.swallow()
                left = self.breaks_after if from_node else None
                sink.write(data[:left])
                await sink.drain()
                if left is not None:
                    self.breaks_after = left - len(data) if left > len(data) else None
                    if self.breaks_after is None:
                        return


@asynccontextmanager
async def network_before(url: str) -> AsyncIterator[Network]:
    network = Network(url)
    await network.start()
    try:
        yield network
    finally:
        await network.stop()
