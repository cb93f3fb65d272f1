"""A node on a thread of its own, spoken to over plain sockets: for tests that may block."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

from omnirelay.core.options import QueueOptions
from omnirelay.node.node import Node
from tests.integration.nodes import settings_for
from tests.patience import PATIENCE_S

Answer = tuple[int, bytes]


class Server:
    """A node on a thread of its own, so that a test may block."""

    def __init__(self) -> None:
        self.address: Future[tuple[str, int]] = Future()
        self._stop: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.port = self.address.result(30)[1]

    def _run(self) -> None:
        async def main() -> None:
            node = Node(settings_for(None, options=QueueOptions(lease_duration_ms=1_000, capacity=5_000)))
            await node.start()
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            self._stop = lambda: loop.call_soon_threadsafe(stop.set)
            self.address.set_result(("127.0.0.1", node.port))
            await node.run(stop)

        asyncio.run(main())

    def stop(self) -> None:
        self._stop()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def send(self, data: bytes, *, half_close: bool = True) -> bytes:
        """Everything that comes back until the node closes the connection; it must not keep us waiting."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as wire:
            try:
                wire.sendall(data)
                if half_close:
                    wire.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # It has heard enough and hung up.
            answer = b""
            try:
                while part := wire.recv(65_536):
                    answer += part
            except ConnectionResetError:
                pass
            return answer

    def request(self, path: bytes, body: bytes, *headers: tuple[bytes, bytes]) -> Answer:
        """One whole request on a connection that stays open until it is answered."""
        lines = [
            b"POST " + path + b" HTTP/1.1",
            b"Host: localhost",
            b"Content-Length: %d" % len(body),
            b"Connection: close",
        ]
        lines += [name + b": " + value for name, value in headers]
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as wire:
            wire.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
            answer = b""
            while part := wire.recv(65_536):
                answer += part
        head, _, content = answer.partition(b"\r\n\r\n")
        return int(head.split(b" ")[1]), content

    def check_alive(self) -> None:
        status, body = self.request(b"/v1/resourcelease/stats", b"{}")
        assert status == 200
        assert b"pendingCount" in body
