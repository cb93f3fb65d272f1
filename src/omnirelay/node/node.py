"""`Node`: from settings to a process that serves.

    start ─▶ listen ─▶ recover every shard ─▶ ready ─▶ stop: refuse new calls, finish those under way, close the logs

Sinks follow a shard from when it has recovered until before its log closes.

It listens before it has recovered, so that probes get an answer: alive, not ready, and why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from omnirelay.control.pages import control_pages
from omnirelay.engine.clock import Clock
from omnirelay.errors import InvalidArgument, Unavailable
from omnirelay.node.settings import NodeSettings, is_loopback
from omnirelay.replication.confirmed import check_confirmed
from omnirelay.replication.procedures import serve_replication
from omnirelay.replication.replication import Replication
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.service.component import ResourceLeaseComponent, ResourceLeaseOptions
from omnirelay.telemetry.meters import CallMeter
from omnirelay.transport.http import HttpInbound
from omnirelay.transport.http_heads import BoundedHttpProtocol
from omnirelay.transport.origins import Origins
from omnirelay.transport.websocket import websocket_inbound

_log = logging.getLogger("omnirelay.node")

CONNECTIONS_MAX = 20_000
"""Beyond this many a new connection is turned away, so that idle ones cannot take all memory."""
KEEP_ALIVE_SECONDS = 75
NODE_FILE = "node.json"


class _Server(uvicorn.Server):
    """Signals are the node's business: it has more to stop than connections."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def hang_up(self) -> None:
        """End what is still being answered. Whoever serves it notices that nobody is there, and ends in order."""
        for connection in self.server_state.connections:
            if isinstance(connection, BoundedHttpProtocol):
                connection.transport.abort()


class Node:
    """One process. Use `start`, then `stop`; or `run` for both."""

    def __init__(self, settings: NodeSettings, *, clock: Clock | None = None, owns_process: bool = False) -> None:
        """`clock` is what the shards go by; None for that of the machine. `owns_process`: nothing else runs here."""
        self.settings = settings
        self.dispatcher = Dispatcher(settings.node.name)
        self.calls = CallMeter()
        self.dispatcher.observe("metered", self.calls.take)
        self.started_at = datetime.now(UTC)
        in_memory = settings.log.url == "memory:"
        self.data: Path | None = None if in_memory else settings.node.data
        engine = msgspec.structs.replace(settings.engine_settings(), freeze_after_recovery=owns_process)
        self.components = [
            ResourceLeaseComponent(
                self.dispatcher,
                ResourceLeaseOptions(
                    namespace=shard.namespace,
                    data=self.data,
                    queue=shard.queue_options(),
                    engine=engine,
                    owner=settings.node.name,
                    clock=clock,
                ),
            )
            for shard in settings.shards
        ]
        self.replication = Replication(
            settings.sinks, settings.node.data, durable=not in_memory, region=settings.node.region
        )
        serve_replication(self.dispatcher, self.replication)
        node = settings.node
        # Other nodes are asked under names that nobody has told them.
        named = is_loopback(node.host) or bool(node.allowed_hosts)
        self._origins = Origins((node.host, *node.allowed_hosts) if named else None)
        self.application = HttpInbound(
            self.dispatcher,
            pages=control_pages(self.dispatcher, self.components, self.calls, self._about, self.replication),
            origins=self._origins,
        )
        self.port = 0
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        host = self.settings.node.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    # -- life ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen and recover. Raises when the port is taken or a log cannot be opened; then nothing is left running."""
        listener = self._listen()
        grpc_port = self.settings.node.grpc_port
        if grpc_port is not None:
            # The key is there to stay, so it is no error; but nobody should wait for an answer on that port.
            _log.warning(
                "grpc_not_served",
                extra={"grpc_port": grpc_port, "reason": "this version serves HTTP only; nothing listens on grpc_port"},
            )
        config = uvicorn.Config(
            self.application,
            http=BoundedHttpProtocol,
            ws=websocket_inbound(self.dispatcher, origins=self._origins),  # type: ignore[arg-type]
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            # Comes behind the end of the connections, and is for what does not end with them.
            timeout_graceful_shutdown=1 + math.ceil(self.settings.node.drain_timeout_ms / 1000),
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        try:
            await self._recover()
            self._write_node_file()
        except BaseException:
            await self.stop()
            raise

    def _listen(self) -> socket.socket:
        node = self.settings.node
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {node.host}:{node.port}: {error.strerror or error}; choose another with --port",
                code="node.port_taken",
            ) from None
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        return listener

    async def _recover(self) -> None:
        if self.data is not None:
            try:
                self.data.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InvalidArgument(f"cannot use the data directory {self.data}: {error.strerror}") from None
        async with asyncio.TaskGroup() as group:
            for component in self.components:
                group.create_task(self._start(component))

    async def _start(self, component: ResourceLeaseComponent) -> None:
        if self.data is not None:
            await asyncio.to_thread(check_confirmed, self.data, component.namespace)
        await component.start()
        # Nothing may come between: a trim could drop what a required sink has not got.
        self.replication.follow(component.shard())

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then stop in order. Call after `start`."""
        assert self._serving is not None
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((self._serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await self.stop()

    async def stop(self) -> None:
        """Refuse new calls, finish those under way, close the logs. Safe to call twice."""
        self.dispatcher.draining = True
        self.application.drain()
        _log.info("node_stopping", extra={"active": self.dispatcher.active})
        # First: what they have not begun can go elsewhere, and a sink that hangs takes its time.
        for component in self.components:
            component.end_streams()
        await self.replication.stop()
        # Closing a shard answers everybody who waits in it, so no connection is held up by a long poll.
        await asyncio.gather(*(component.stop() for component in self.components), return_exceptions=True)
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            patience = self.settings.node.drain_timeout_ms / 1000
            hanging_up = asyncio.get_running_loop().call_later(patience, self._server.hang_up)
            await asyncio.gather(self._serving, return_exceptions=True)
            hanging_up.cancel()
        self._remove_node_file()

    # -- what others know of it ----------------------------------------------------------------

    def _about(self) -> dict[str, Any]:
        node = self.settings.node
        return {
            "mode": "node",
            "node": {
                "name": node.name,
                "region": node.region,
                "url": self.url,
                "data": None if self.data is None else str(self.data),
                "pid": os.getpid(),
                "startedAt": self.started_at.isoformat(timespec="milliseconds"),
            },
        }

    def _write_node_file(self) -> None:
        """Address and pid, for scripts and the command line. Written whole or not at all."""
        if self.data is None:
            return
        about = {
            "url": self.url,
            "host": self.settings.node.host,
            "port": self.port,
            "pid": os.getpid(),
            "namespaces": [component.namespace for component in self.components],
            "startedAt": self.started_at.isoformat(timespec="milliseconds"),
        }
        draft = self.data / f"{NODE_FILE}.{os.getpid()}"
        try:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(about), indent=2) + b"\n")
            draft.replace(self.data / NODE_FILE)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise InvalidArgument(
                f"cannot use the data directory {self.data}: cannot write {NODE_FILE}: {error.strerror}"
            ) from None

    def _remove_node_file(self) -> None:
        if self.data is None:
            return
        path = self.data / NODE_FILE
        with contextlib.suppress(OSError, msgspec.DecodeError, AttributeError):
            if msgspec.json.decode(path.read_bytes()).get("pid") == os.getpid():
                path.unlink()
