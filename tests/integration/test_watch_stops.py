"""Whoever asks for all events there are gets them all, or hears that it did not: also when the node is stopped well."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnirelay import Client
from omnirelay.errors import Unavailable
from omnirelay.lakehouse import tail
from omnirelay.lakehouse.source_filters import Wanted
from omnirelay.node.node import Node
from tests.cli.processes import spawned
from tests.integration.http_sockets import until
from tests.integration.node_process import Network, network_before
from tests.integration.nodes import Http, running_node, settings_for
from tests.patience import PATIENCE_S

SHARD = "resourcelease"
_BODY = "A" * 200_000
_ITEMS = 80
"""More bytes than the sockets on the way take from a node that nobody reads from."""


async def _filled(node: Node) -> int:
    """The last event of a log that is long in bytes."""
    async with Http(node) as http:
        item = {"payload": {"resourceType": "t", "resourceId": "a", "body": _BODY}}
        for _ in range(_ITEMS // 8):
            await http.call("enqueue", {"items": [item] * 8})
    return node.components[0].shard().last_sequence


@asynccontextmanager
async def _held_half_way(node: Node) -> AsyncIterator[Network]:
    async with network_before(node.url) as network:
        network.swallows_after = 2_000_000
        yield network


async def _stop_half_way(node: Node, network: Network) -> asyncio.Task[None]:
    """Stop the node when a reader has a part of what it asked for, and let it have the rest of what was sent."""
    shard = node.components[0].shard()
    await until(lambda: not network._open.is_set())
    stopping = asyncio.create_task(node.stop())
    await until(lambda: shard._closed)
    await shard.log.close()
    network.heal()
    return stopping


async def test_a_watch_that_the_node_cuts_off_ends_with_an_error(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        last = await _filled(node)
        async with _held_half_way(node) as network, Http(node) as http:
            url = f"{network.url}/v1/{SHARD}/watch?from=1&untilCaughtUp=true"
            reading = asyncio.ensure_future(http.client.get(url))
            stopping = await _stop_half_way(node, network)
            blocks = (await asyncio.wait_for(reading, PATIENCE_S)).content.strip().split(b"\n\n")
            await stopping
    kind, said = blocks[-1].split(b"\n")
    assert len(blocks) < last
    assert kind == b"event: error"
    assert msgspec.json.decode(said.removeprefix(b"data: "))["code"] == "error.resourcelease.draining"


async def test_a_watch_that_came_to_the_last_event_says_so() -> None:
    async with running_node() as node, Http(node) as http:
        await http.call("enqueue", {"payload": {"resourceType": "t", "resourceId": "a"}})
        last = node.components[0].shard().last_sequence
        ends = {"from=1": last, "from=1&types=Completed": last, f"from={last + 5}": last, "": last}
        for query, at in ends.items():
            response = await http.client.get(f"/v1/{SHARD}/watch?untilCaughtUp=true&{query}")
            assert response.content.endswith(b"event: end\nid: %d\ndata: {}\n\n" % at), query


async def test_no_reader_takes_the_end_of_a_watch_for_an_event(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    async with running_node() as node, Client(node.url) as client:
        last = await _filled(node)
        numbers = list(range(1, last + 1))
        watched = [event["sequenceNumber"] async for event in client.watch(1, until_caught_up=True)]
        streamed = await asyncio.to_thread(lambda: list(tail._stream(node.url, SHARD, 1, None)))
        exporting = spawned("log", "export", "--url", node.url, "--to-file", file)
        _, said = await asyncio.to_thread(exporting.communicate, timeout=PATIENCE_S)
    assert watched == numbers
    assert [number for number, _ in streamed] == [*numbers, last]
    assert [document is None for _, document in streamed] == [False] * last + [True]
    assert exporting.returncode == 0, said
    assert [msgspec.json.decode(line)["sequenceNumber"] for line in file.read_bytes().splitlines()] == numbers


async def test_a_task_of_spark_may_look_for_a_type_that_does_not_exist() -> None:
    async with running_node() as node:
        last = await _filled(node)
        types = frozenset({"Enqueued"})
        batches = await asyncio.to_thread(lambda: list(tail.tail_batches(node.url, SHARD, 1, last, types)))
    assert Wanted(types=types).rows(batches[0]).num_rows == 0


async def test_a_client_that_reads_all_there_is_goes_on_when_the_node_is_back(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    async with running_node(tmp_path) as node:
        last = await _filled(node)
        async with _held_half_way(node) as network, Client(network.url) as client:

            async def read() -> list[Any]:
                return [event["sequenceNumber"] async for event in client.watch(1, until_caught_up=True)]

            reading = asyncio.ensure_future(read())
            await (await _stop_half_way(node, network))
            again = msgspec.structs.replace(settings.node, port=node.port)
            other = Node(msgspec.structs.replace(settings, node=again))
            await other.start()
            try:
                numbers = await asyncio.wait_for(reading, PATIENCE_S)
            finally:
                await other.stop()
    assert numbers[:last] == list(range(1, last + 1))


@pytest.mark.parametrize("types", [None, frozenset({"Enqueue", "Completed"})])
async def test_a_task_of_spark_fails_when_the_node_stops_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, types: frozenset[str] | None
) -> None:
    monkeypatch.setattr(tail, "BATCH_EVENTS", 4)
    async with running_node(tmp_path) as node:
        last = await _filled(node)
        whole = await asyncio.to_thread(lambda: list(tail.tail_batches(node.url, SHARD, 1, last, types)))
        assert sum(batch.num_rows for batch in whole) >= _ITEMS
        async with _held_half_way(node) as network:
            reading = asyncio.ensure_future(
                asyncio.to_thread(lambda: list(tail.tail_batches(network.url, SHARD, 1, last, types)))
            )
            stopping = await _stop_half_way(node, network)
            with pytest.raises(Unavailable):
                await asyncio.wait_for(reading, PATIENCE_S)
            await stopping


async def test_an_export_of_a_node_that_stops_leaves_no_file_and_fails(tmp_path: Path) -> None:
    file = tmp_path / "out" / "events.jsonl"
    file.parent.mkdir()
    async with running_node(tmp_path / "data") as node:
        await _filled(node)
        async with _held_half_way(node) as network:
            exporting = spawned("log", "export", "--url", network.url, "--to-file", file)
            try:
                stopping = await _stop_half_way(node, network)
                _, said = await asyncio.to_thread(exporting.communicate, timeout=PATIENCE_S)
            finally:
                exporting.kill()
            await stopping
    assert exporting.returncode == 1, said
    assert "error.resourcelease.draining" in said
    assert os.listdir(file.parent) == []


async def test_a_connection_that_is_closed_well_is_no_end(tmp_path: Path) -> None:
    """As by a proxy that speaks HTTP/1.0 to the node: it cannot tell an answer that is whole from one that is not."""
    head = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    cut = b'id: 1\ndata: {"eventType":"Enqueue"}\n\n'
    answers = iter([cut, cut, cut, b"event: end\nid: 1\n\n"])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + next(answers))
        await writer.drain()
        writer.close()

    proxy = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with proxy:
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match="before its last"):
            await asyncio.to_thread(lambda: list(tail._stream(url, SHARD, 1, None)))
        exporting = spawned("log", "export", "--url", url, "--to-file", tmp_path / "events.jsonl")
        _, said = await asyncio.to_thread(exporting.communicate, timeout=PATIENCE_S)
        async with Client(url) as client:
            events = [event async for event in client.watch(1, until_caught_up=True)]
    assert exporting.returncode == 3, said
    assert "ended the stream before the last event" in said
    assert os.listdir(tmp_path) == []
    assert [event["eventType"] for event in events] == ["Enqueue"]
    assert next(answers, None) is None
