"""The client over a network that breaks: nothing is enqueued twice, nothing is lost, and nobody needs a hand."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from omnirelay.client.client import Client, ItemSpec
from omnirelay.client.connections import HttpConnection
from omnirelay.client.failures import ConnectionLost, NotConnected
from omnirelay.client.stream_connection import StreamConnection
from omnirelay.errors import DeadlineExceeded, InvalidArgument, LogOutcomeUnknown, LogRegressed, Unavailable
from omnirelay.log.memory import MemoryLog
from tests.integration.http_sockets import until
from tests.integration.node_process import NodeProcess, network_before
from tests.integration.nodes import running_node
from tests.patience import PATIENCE_MS, PATIENCE_S
from tests.property.strategies import LONG


@pytest.mark.parametrize("mode", ["stream", "http"])
async def test_cut_at_any_moment_nothing_is_enqueued_twice_or_lost(mode: Any) -> None:
    count = 2_000 if LONG else 300
    random = Random(11)
    async with running_node() as node, network_before(node.url) as network:
        async with Client(network.url, mode=mode) as client:
            taken: list[int] = []

            async def enqueue(number: int) -> None:
                if number % 3:
                    taken.append((await client.enqueue("table", f"{number}")).sequence_id)
                    return
                pair = [ItemSpec(resource_type="table", resource_id=f"{number}-{each}") for each in "ab"]
                taken.extend(each.sequence_id for each in await client.enqueue_many(pair))

            for start in range(0, count, 20):
                calls = [asyncio.ensure_future(enqueue(number)) for number in range(start, start + 20)]
                for _ in range(random.choice((1, 1, 2, 3))):
                    await asyncio.sleep(random.choice((0, 0.001, 0.003, 0.01, 0.1)))
                    for _ in range(random.randrange(12)):
                        await asyncio.sleep(0)
                    network.cut()
                await asyncio.gather(*calls)
            assert network.connections > count // 40
        async with Client(node.url) as direct:
            stats = await direct.stats()
            expected = sum(1 if number % 3 else 2 for number in range(count))
            assert stats.pending_count == expected
            assert sorted(taken) == sorted(set(taken))
            assert len(taken) == expected


async def test_acknowledgements_are_repeated_until_they_are_answered() -> None:
    random = Random(5)
    async with running_node() as node, network_before(node.url) as network, Client(network.url) as client:
        await client.enqueue_many([ItemSpec(resource_type="table", resource_id=str(each)) for each in range(200)])
        done = 0
        while done < 200:
            leases = await client.lease(peer_id="w", max_items=20, wait_ms=1_000)
            ends = [asyncio.ensure_future(client.complete(lease, peer_id="w")) for lease in leases]
            for _ in range(random.randrange(6)):
                await asyncio.sleep(0)
            network.cut()
            assert [(await end).success for end in ends] == [True] * len(ends)
            done += len(ends)
        stats = await client.stats()
        assert (stats.completed_count, stats.active_lease_count, stats.pending_count) == (200, 0, 0)


async def test_without_request_ids_a_lost_answer_is_an_error_and_not_a_second_item() -> None:
    async with (
        running_node() as node,
        network_before(node.url) as network,
        Client(network.url, request_ids=False) as client,
    ):
        await client.stats()
        network.swallow()
        call = asyncio.ensure_future(client.enqueue("table", "a"))
        await asyncio.sleep(0)
        network.cut()
        network.heal()
        with pytest.raises(ConnectionLost):
            await call
        await client.enqueue("table", "b", request_id="mine")


@pytest.mark.parametrize("mode", ["stream", "http"])
@pytest.mark.parametrize("fault", ["unknown-lost", "unknown-kept"])
async def test_what_must_not_be_repeated_is_not_when_nobody_knows_what_the_disk_holds(mode: Any, fault: Any) -> None:
    async def enqueue(client: Client) -> None:
        await client.enqueue("table", "b")

    for call in (enqueue, Client.drain):
        async with running_node() as node, Client(node.url, mode=mode, request_ids=False) as client:
            await client.enqueue("table", "a")
            log = node.components[0].shard().log
            assert isinstance(log, MemoryLog)
            log.fail_next_append(fault)
            with pytest.raises(LogOutcomeUnknown) as refused:
                await call(client)
            assert refused.value.code == "error.resourcelease.log_outcome_unknown"


@pytest.mark.parametrize("request_ids", [True, False])
@pytest.mark.parametrize("status", [b"502 Bad Gateway", b"200 OK"])
async def test_a_proxy_that_answers_in_place_of_the_node_may_have_handed_the_call_on(
    status: bytes, request_ids: bool
) -> None:
    async with running_node() as node, network_before(node.url) as network, Client(node.url) as direct:
        network.away_status = status
        network.bad_gateway = 1
        async with Client(network.url, mode="http", request_ids=request_ids) as client:
            if request_ids:
                assert (await client.enqueue("table", "a")).duplicate
            else:
                with pytest.raises(ConnectionLost):
                    await client.enqueue("table", "a")
        assert network.bad_gateway == 0
        assert (await direct.stats()).pending_count == 1


@pytest.mark.usefixtures("impatient_streams")
async def test_a_connection_that_swallows_everything_is_noticed_within_the_time_of_a_call() -> None:
    async with running_node() as node, network_before(node.url) as network, Client(network.url) as client:
        await client.stats()
        network.swallow()
        call = asyncio.ensure_future(client.enqueue("table", "a", timeout_ms=PATIENCE_MS))
        await until(lambda: network.connections > 1)
        network.heal()
        assert (await call).sequence_id == 1
        assert (await client.stats()).pending_count == 1


async def test_callers_share_one_attempt_to_connect_and_what_comes_of_it() -> None:
    async with running_node() as node, network_before(node.url) as network, Client(network.url) as client:
        network.swallow()
        calls = [asyncio.ensure_future(client.stats()) for _ in range(50)]
        await until(lambda: network.connections == 1)
        network.heal()
        await asyncio.gather(*calls)
        assert network.connections == 1


async def test_a_node_that_cannot_be_reached_is_waited_for_within_the_time_of_the_call(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        async with Client(node.url, timeout_ms=PATIENCE_MS) as client:
            await client.enqueue("table", "a")
            node.kill()
            calls = [asyncio.ensure_future(client.enqueue("table", str(number))) for number in range(300)]
            with pytest.raises((NotConnected, DeadlineExceeded)):
                await client.enqueue("table", "late", timeout_ms=300)
            await asyncio.to_thread(node.start)
            assert len({each.sequence_id for each in await asyncio.gather(*calls)}) == 300
            assert 301 <= (await client.stats()).pending_count <= 302


async def test_a_node_that_takes_long_to_start_is_waited_for_by_any_number_of_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It answers before it can serve, and refuses streams with a 503. That is one refusal, for however many callers."""
    asked: list[int | None] = []

    def pause_ms(attempt: int, asked_ms: int | None) -> float:
        asked.append(asked_ms)
        return 1.0

    async with running_node() as node, Client(node.url, timeout_ms=PATIENCE_MS) as client:
        node.dispatcher.draining = True
        monkeypatch.setattr("omnirelay.client.client.pause_ms", pause_ms)
        calls = [asyncio.ensure_future(client.enqueue("table", str(number))) for number in range(300)]
        await until(lambda: asked.count(1_000) > 600)
        node.dispatcher.draining = False
        assert len({each.sequence_id for each in await asyncio.gather(*calls)}) == 300


async def test_where_no_stream_gets_through_plain_http_does() -> None:
    async with running_node() as node, network_before(node.url) as network:
        network.refuses_upgrades = True
        async with Client(network.url) as client:
            await client.enqueue("table", "a")
            [lease] = await client.lease()
            assert (await client.complete(lease)).success
        async with Client(network.url, mode="stream", timeout_ms=300) as client:
            with pytest.raises((Unavailable, DeadlineExceeded)):
                await client.stats()


@pytest.mark.parametrize("refusal", [b"426 Upgrade Required", b"502 Bad Gateway", b"403 Forbidden", None])
async def test_a_client_on_plain_http_has_a_stream_as_soon_as_one_gets_through(
    refusal: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnirelay.client.linking.STREAM_AGAIN_SECONDS", 0.01)
    async with running_node() as node, network_before(node.url) as network, Client(network.url) as client:
        if refusal is None:
            network.drops_upgrades = True
        else:
            network.refuses_upgrades, network.upgrade_refusal = True, refusal
        waiting = asyncio.ensure_future(client.lease(wait_ms=PATIENCE_MS))
        for number in range(3):
            await client.stats()
            assert isinstance(client._linking.live, HttpConnection), number
        network.refuses_upgrades = network.drops_upgrades = False
        while not isinstance(client._linking.live, StreamConnection):
            await client.stats()
        await client.enqueue("table", "a")
        [lease] = await waiting  # It was under way by HTTP.
        await client.complete(lease)
        assert isinstance(client._linking.live, StreamConnection)


async def test_a_proxy_whose_node_restarts_does_not_turn_a_client_to_plain_http() -> None:
    async with running_node() as node, network_before(node.url) as network:
        network.is_away = True
        async with Client(network.url, timeout_ms=PATIENCE_MS, request_ids=False) as client:
            call = asyncio.ensure_future(client.enqueue("table", "a"))
            await until(lambda: network.connections >= 4)
            network.is_away = False
            assert (await call).sequence_id == 1
            assert isinstance(client._linking.live, StreamConnection)


@pytest.mark.parametrize("first", [None, 1])
async def test_a_watch_where_no_node_is_fails_as_any_call_does(first: int | None) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        async with Client(f"http://127.0.0.1:{nobody.getsockname()[1]}", timeout_ms=300) as client:
            for call in (client.stats, lambda: anext(client.watch(first))):
                with pytest.raises((NotConnected, DeadlineExceeded)):
                    await asyncio.wait_for(call(), PATIENCE_S)


async def test_a_deadline_tells_what_the_try_before_ran_into() -> None:
    tries = 0
    hung = asyncio.Event()

    async def close_then_hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        first = tries == 1
        if not first:
            await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        if not first:
            hung.set()

    async with await asyncio.start_server(close_then_hang, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Client(url, mode="http", timeout_ms=1_000) as client:
            with pytest.raises(DeadlineExceeded, match=r"within 1000 ms; the try before: the call to .* broke off"):
                await client.stats()
        await asyncio.wait_for(hung.wait(), PATIENCE_S)


async def test_a_watch_whose_first_connection_is_swallowed_fails_in_the_time_of_a_call() -> None:
    async with running_node() as node, network_before(node.url) as network:
        network.swallow()
        async with Client(network.url, timeout_ms=300) as client:
            with pytest.raises(DeadlineExceeded):
                await asyncio.wait_for(anext(client.watch(1)), PATIENCE_S)


async def test_a_page_of_somebody_else_is_no_log_to_watch() -> None:
    async with running_node() as node, network_before(node.url) as network:
        network.is_away = True
        network.away_status = b"200 OK"
        # Less than the node's page would be asked for again in, so that the first answer is the last.
        async with Client(network.url, timeout_ms=900) as client:
            for first in (None, 1):
                with pytest.raises((NotConnected, DeadlineExceeded), match="not that of a node"):
                    await asyncio.wait_for(anext(client.watch(first)), PATIENCE_S)


async def test_a_watch_waits_for_its_first_connection_within_the_time_of_a_call(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        node.kill()
        async with Client(node.url, timeout_ms=PATIENCE_MS) as client:
            first = asyncio.ensure_future(anext(client.watch(1)))
            await asyncio.to_thread(node.start)
            assert (await first)["sequenceNumber"] == 1


async def test_a_watch_goes_on_behind_the_last_event_after_the_node_was_killed(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        async with Client(node.url) as client:
            seen: list[int] = []
            enough = asyncio.Event()

            async def watch() -> None:
                async for event in client.watch(1):
                    seen.append(event["sequenceNumber"])
                    if len(seen) >= 30:
                        enough.set()

            watching = asyncio.ensure_future(watch())
            for number in range(10):
                await client.enqueue("table", str(number))
            await until(lambda: len(seen) >= 10)
            node.kill()
            await asyncio.to_thread(node.start)
            for number in range(10, 40):
                await client.enqueue("table", str(number))
            await asyncio.wait_for(enough.wait(), PATIENCE_S)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            assert seen == list(range(1, len(seen) + 1))


async def test_a_watch_comes_back_no_sooner_than_the_node_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []

    def pause(attempt: int, asked_ms: int | None) -> float:
        asked.append(asked_ms)
        return 1.0

    monkeypatch.setattr("omnirelay.client.watching.pause_ms", pause)
    async with running_node() as node, network_before(node.url) as network, Client(network.url) as client:
        watching = client.watch(1)
        assert (await anext(watching))["sequenceNumber"] == 1
        more = asyncio.ensure_future(anext(watching))
        node.dispatcher.draining = True
        network.cut()
        await until(lambda: 1_000 in asked)
        node.dispatcher.draining = False
        async with Client(node.url) as other:
            await other.enqueue("table", "a")
        assert (await asyncio.wait_for(more, PATIENCE_S))["sequenceNumber"] == 2
        await watching.aclose()
        assert asked[:2] == [None, 1_000]


@pytest.mark.parametrize("until_caught_up", [False, True])
async def test_a_watch_does_not_go_on_in_another_log(until_caught_up: bool, tmp_path: Path) -> None:
    """The node comes back with an empty one. What happens there before the last event seen would be missed."""
    with NodeProcess(tmp_path / "first") as node, NodeProcess(tmp_path / "second") as another:
        async with network_before(node.url) as network, Client(network.url) as client, Client(node.url) as direct:
            # More than the sockets on the way hold, so that it breaks off half way.
            await direct.enqueue_many([ItemSpec(resource_type="t", resource_id="a", body=b"x" * 100_000)] * 200)
            events = client.watch(1, until_caught_up=until_caught_up)
            await anext(events)
            last = (await anext(events))["sequenceNumber"]

            async def follow() -> None:
                nonlocal last
                async for event in events:
                    last = event["sequenceNumber"]

            network.lead_to(another.url)
            with pytest.raises(LogRegressed) as refused:
                await asyncio.wait_for(follow(), PATIENCE_S)
            assert refused.value.details == {"known": last, "last": 1}


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
async def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with running_node() as node, Client(node.url, mode="http") as client:
        await client.enqueue("table", "a")
        assert [event["eventType"] async for event in client.watch(2, until_caught_up=True)] == ["Enqueue"]


async def test_a_proxy_of_the_environment_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "nonsense://127.0.0.1:9")
    async with Client("http://node.invalid", mode="http") as client:
        with pytest.raises(InvalidArgument, match="proxy"):
            await client.stats()
        with pytest.raises(InvalidArgument, match="proxy"):
            await anext(client.watch(1))


async def test_a_watch_that_breaks_off_at_any_byte_misses_no_event_and_repeats_none() -> None:
    async with running_node() as node, Client(node.url) as direct:
        for number in range(4):
            await direct.enqueue("table", str(number), body=b"x" * 90)
        last = (await direct.stats()).last_sequence

        async def seen(broken_at: int) -> list[int]:
            async with network_before(node.url) as network, Client(network.url) as client:
                network.breaks_after = broken_at
                events = [event["sequenceNumber"] async for event in client.watch(1, until_caught_up=True)]
                assert network.connections == 2
                return events

        broken = await asyncio.gather(*(seen(at) for at in range(300, 1_500, 17)))
        assert broken == [list(range(1, last + 1))] * len(broken)


async def test_a_watch_from_now_on_misses_nothing_when_it_breaks_before_its_first_event() -> None:
    async with (
        running_node() as node,
        network_before(node.url) as network,
        Client(network.url) as client,
        Client(node.url) as direct,
    ):
        before = (await direct.stats()).last_sequence
        events = client.watch()
        first = asyncio.ensure_future(anext(events))
        await until(lambda: len(node.components[0].shard()._tails) == 1)
        network.swallow()
        network.cut()
        await direct.enqueue("table", "a")
        network.heal()
        event = await asyncio.wait_for(first, PATIENCE_S)
        await events.aclose()
        assert (event["sequenceNumber"], event["eventType"]) == (before + 1, "Enqueue")
