"""Clients where they end, or should never have been: closed under a call, after a fork, in another event loop."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omnirelay.client.client import Client
from omnirelay.client.linking import ClientClosed, ClientMisplaced
from omnirelay.client.sync import SyncClient
from tests.integration.http_sockets import until
from tests.integration.node_process import NodeProcess
from tests.integration.nodes import running_node
from tests.patience import PATIENCE_MS, PATIENCE_S

FORKING = """
import os, signal, sys
from omnirelay import SyncClient
from omnirelay.errors import OmniRelayError

with SyncClient(sys.argv[1]) as client:
    client.stats()
    events = client.watch(1)
    next(events)
    child = os.fork()
    if child == 0:
        signal.alarm(int(sys.argv[2]))
        for call in (client.stats, client.watch, lambda: next(events)):
            try:
                call()
            except OmniRelayError as error:
                print(error.code, flush=True)
        del events
        client.close()
        with SyncClient(sys.argv[1]) as own:
            print(own.stats().pending_count, flush=True)
        os._exit(0)
    print("ended with", os.waitpid(child, 0)[1], flush=True)
    events.close()
    print(client.stats().pending_count)
"""


def test_a_client_from_before_a_fork_is_refused_in_the_child_and_goes_on_in_the_parent(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        done = subprocess.run(
            [sys.executable, "-c", FORKING, node.url, str(int(PATIENCE_S))],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
    misplaced = ["error.client.misplaced"] * 3
    assert done.stdout.split("\n") == [*misplaced, "0", "ended with 0", "0", ""], done.stdout + done.stderr
    assert "Traceback" not in done.stderr


LEFT_OPEN = """
import atexit, threading
atexit.register(lambda: print([each.name for each in threading.enumerate()]))  # After whatever is registered later.
import sys
from omnirelay import SyncClient
client = SyncClient(sys.argv[1])
client.stats()
"""


def test_a_client_that_nobody_closed_ends_its_thread_with_the_process(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        done = subprocess.run(
            [sys.executable, "-W", "always", "-c", LEFT_OPEN, node.url],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "['MainThread']\n"), done.stderr
        assert f"ResourceWarning: unclosed client of {node.url}" in done.stderr
        assert "Traceback" not in done.stderr


async def test_a_client_that_nobody_has_any_more_ends_its_thread() -> None:
    def lose_one(url: str) -> None:
        # In one thread from beginning to end: another one may hold on to what it was given for a moment longer.
        client = SyncClient(url)
        client.stats()
        thread = client._thread._thread
        with pytest.warns(ResourceWarning, match="unclosed client"):
            del client
        thread.join(PATIENCE_S)
        assert not thread.is_alive()

    async with running_node() as node:
        await asyncio.to_thread(lose_one, node.url)


async def test_a_client_of_which_somebody_has_a_method_goes_on() -> None:
    async with running_node() as node:
        client = await asyncio.to_thread(SyncClient, node.url)
        stats, close = client.stats, client.close
        del client
        gc.collect()
        assert (await asyncio.to_thread(stats)).pending_count == 0
        await asyncio.to_thread(close)


async def test_a_call_in_flight_raises_that_the_client_was_closed() -> None:
    async with running_node() as node:
        client = await asyncio.to_thread(SyncClient, node.url)
        call = asyncio.ensure_future(asyncio.to_thread(client.lease, wait_ms=PATIENCE_MS))
        await until(lambda: node.dispatcher.active == 1)
        await asyncio.to_thread(client.close)
        with pytest.raises(ClientClosed):
            await call
        with pytest.raises(ClientClosed):
            await asyncio.to_thread(client.stats)


async def test_a_watch_that_waits_raises_that_the_client_was_closed() -> None:
    seen: list[dict[str, Any]] = []

    def watch() -> None:
        seen.extend(client.watch(1))

    async with running_node() as node:
        client = await asyncio.to_thread(SyncClient, node.url)
        watching = asyncio.ensure_future(asyncio.to_thread(watch))
        await until(lambda: node.dispatcher.active == 1)
        await asyncio.to_thread(client.close)
        with pytest.raises(ClientClosed):
            await watching
        with pytest.raises(ClientClosed):
            client.watch(1)


async def test_a_closed_client_watches_nothing() -> None:
    async with running_node() as node:
        client = Client(node.url)
        await client.stats()
        begun = client.watch(1)
        await client.close()
        with pytest.raises(ClientClosed):
            client.watch(1)
        with pytest.raises(ClientClosed):
            await anext(begun)


async def test_a_client_is_refused_in_another_event_loop_and_goes_on_in_its_own() -> None:
    async with running_node() as node, Client(node.url) as client:
        await client.stats()
        with pytest.raises(ClientMisplaced, match="another event loop"):
            await asyncio.to_thread(lambda: asyncio.run(client.enqueue("table", "a")))
        assert (await client.stats()).pending_count == 0
