"""Streams that strain a node: peers that do not read, and thousands that say nothing."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from omnirelay.transport import websocket
from tests.integration.node_process import NodeProcess
from tests.integration.nodes import Http, running_node
from tests.integration.stream_peers import ITEM, connected, peer_of, stream_url
from tests.patience import PATIENCE_S

BODY = "A" * 1_000_000
LARGE = {"payload": {**ITEM["payload"], "body": BODY}}


def memory_kib(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        [line] = [line for line in status if line.startswith("VmRSS:")]
    return int(line.split()[1])


class Deaf:
    """A peer that sends and never reads, with a small buffer for what it does not read."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.socket.connect((address.hostname, address.port))
        self._engine = ClientProtocol(parse_uri(stream_url(url)))
        self._engine.send_request(self._engine.connect())
        self._write()
        while self._engine.handshake_exc is None and not self._engine.events_received():
            self._engine.receive_data(self.socket.recv(1_000))

    def send(self, message: Any) -> bool:
        """False when the node has gone."""
        self._engine.send_text(json.dumps(message).encode())
        try:
            self._write()
        except OSError:
            return False
        return True

    def _write(self) -> None:
        for data in self._engine.data_to_send():
            self.socket.sendall(data)


async def test_a_peer_that_does_not_read_is_dropped_while_others_are_served(tmp_path: Any) -> None:
    with NodeProcess(tmp_path) as node, ExitStack() as closing:
        async with peer_of(node.url) as other:
            for _ in range(10):
                await other.call("enqueue", LARGE)
            before = memory_kib(node.pid)
            deaf = await asyncio.to_thread(Deaf, node.url)
            closing.callback(deaf.socket.close)
            peaks = []
            async with asyncio.timeout(PATIENCE_S):
                for number in range(10_000):
                    if not deaf.send({"id": number, "call": {"verb": "peek", "request": {}}}):
                        break
                    await other.round_trip()
                    peaks.append(memory_kib(node.pid))
            assert not deaf.send({}), "it left 64 MiB unread"
            assert max(peaks) - before < 400_000, "what nobody reads must not pile up"
            await other.round_trip()


async def test_a_peer_that_pings_and_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "UNREAD_MAX", 1024 * 1024)
    async with running_node() as node, Http(node) as http:
        deaf = await asyncio.to_thread(Deaf, node.url)
        pings = Frame(Opcode.PING, b"x" * 125).serialize(mask=True) * 500

        def ping() -> None:
            with suppress(OSError):
                for _ in range(2_000):
                    deaf.socket.sendall(pings)

        await asyncio.to_thread(ping)
        assert not deaf.send({}), "it left 1 MiB unread"
        await http.call("stats")
        deaf.socket.close()


async def test_a_peer_that_does_not_read_gets_no_more_leases_than_it_takes() -> None:
    """Far more is ready than may wait unread: what was granted waits in the node and is released when the peer goes."""
    async with running_node() as node, Http(node) as http:
        for _ in range(100):
            await http.call("enqueue", LARGE)
        deaf = await asyncio.to_thread(Deaf, node.url)
        deaf.send({"open": {"peerId": "deaf", "credit": 100}})
        async with asyncio.timeout(PATIENCE_S):
            while not (await http.call("stats"))["stats"]["activeLeaseCount"]:
                pass
        seen = [(await http.call("stats"))["stats"]["activeLeaseCount"] for _ in range(20)]
        assert seen[-1] < 100, "what nobody reads is left to others"
        assert deaf.send({}), "it has done nothing wrong yet"
        deaf.socket.close()
        got: list[Any] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(got) < 100:
                got += (await http.call("lease", {"waitMs": 15_000, "maxItems": 20}))["leases"]
        assert {lease["attempt"] for lease in got} == {1}


async def test_what_waits_for_a_peer_that_does_not_read_goes_to_others_when_it_withdraws_its_credit() -> None:
    async with running_node() as node, Http(node) as http:
        for _ in range(100):
            await http.call("enqueue", LARGE)
        deaf = await asyncio.to_thread(Deaf, node.url)
        deaf.send({"open": {"peerId": "deaf", "credit": 100}})

        async def active() -> int:
            count: int = (await http.call("stats"))["stats"]["activeLeaseCount"]
            return count

        async with asyncio.timeout(PATIENCE_S):
            while not await active():
                pass
            granted = [await active() for _ in range(20)][-1]
            deaf.send({"withdraw": True})
            while await active() >= granted:
                pass
        got: list[Any] = []
        left = 100 - await active()
        while len(got) < left:
            got += (await http.call("lease", {"waitMs": 15_000, "maxItems": 20}))["leases"]
        assert {lease["attempt"] for lease in got} == {1}
        deaf.socket.close()


async def test_a_peer_that_reads_slowly_gets_everything_in_the_end() -> None:
    async with running_node() as node, Http(node) as http:
        for _ in range(80):
            await http.call("enqueue", LARGE)
        async with peer_of(node.url) as peer:
            await peer.open(credit=100)
            for _ in range(50):
                await http.call("stats")
            leases = await peer.leases(80)
            assert len({lease["sequenceId"] for lease in leases}) == 80


async def test_thousands_of_idle_streams_cost_little_and_are_all_served(tmp_path: Any) -> None:
    count = 2_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 500:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 500), hard))
    with NodeProcess(tmp_path) as node:
        before = memory_kib(node.pid)
        peers = [await connected(node.url, ping_interval=None) for _ in range(count)]
        for number, peer in enumerate(peers):
            await peer.open(credit=1, peer_id=f"p{number}")
        await peers[-1].round_trip()
        assert (memory_kib(node.pid) - before) / count < 60, "KiB for each stream"
        await peers[0].call("enqueue", {"items": [ITEM] * count})
        owners = {(await peer.leases(1))[0]["ownerPeerId"] for peer in peers}
        assert len(owners) == count
        for peer in peers:
            peer.drop()
