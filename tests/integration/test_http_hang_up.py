"""Callers that hang up: what was granted to them is released at once, and what they wanted to enqueue does not come."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
import uvloop

from omnirelay.core.options import QueueOptions
from omnirelay.node.node import Node
from tests.integration.http_sockets import Wire, call_bytes, until
from tests.integration.nodes import Http, running_node
from tests.patience import PATIENCE_MS, PATIENCE_S

ITEM: dict[str, Any] = {"payload": {"resourceType": "table", "resourceId": "orders"}}
HOUR_MS = 3_600_000
"""What is leased for so long comes back only because it was given back."""

Run = Callable[[Coroutine[Any, Any, None]], None]

# A node runs on uvloop; tests and embedding applications mostly run on the loop of Python.
on_every_loop = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


async def leased_at_once(http: Http) -> dict[str, Any]:
    """What the next client gets. Its lease must come long before the 30 s after which a lost one would expire."""
    lease: dict[str, Any] = await asyncio.wait_for(http.call("lease", {"waitMs": PATIENCE_MS}), PATIENCE_S)
    assert lease, "the item stayed with a caller that is gone"
    return lease


async def completed(http: Http, lease: dict[str, Any]) -> None:
    assert await http.call("complete", {"ownershipToken": lease["ownershipToken"]}) == {"success": True}


def hang_up_when_served(node: Node, gone: socket.socket) -> None:
    """Close a connection at the moment at which the next lease call on the node has its answer."""

    def observe(procedure: str, *_: object) -> None:
        if procedure == "resourcelease::lease":
            gone.close()

    node.dispatcher.observe("hang_up", observe)


async def active(node: Node, calls: int) -> None:
    await until(lambda: node.dispatcher.active == calls)


@on_every_loop
def test_a_caller_that_hung_up_while_waiting_leaves_the_item_to_the_next(run: Run) -> None:
    async def main() -> None:
        async with running_node() as node, Http(node) as http:
            for number in range(20):
                waiting = await Wire.connect(node)
                await waiting.send(call_bytes("lease", {"peerId": "gone"}))
                await active(node, 1)
                waiting.reset() if number % 2 else waiting.close()
                await http.call("enqueue", ITEM)
                lease = await leased_at_once(http)
                assert (lease["attempt"], lease["ownerPeerId"]) == (1, "")
                await completed(http, lease)
                await active(node, 0)

    run(main())


@on_every_loop
def test_hanging_up_at_any_moment_burns_no_attempt_and_loses_no_item(run: Run) -> None:
    """The end of the connection meets the call before its body is read, in line, being granted, being answered."""

    async def main() -> None:
        random = Random(7)
        async with running_node() as node, Http(node) as http:
            for number in range(120):
                waiting = await Wire.connect(node)
                request = call_bytes("lease", {"peerId": "gone", "waitMs": 20_000})
                enqueue = asyncio.ensure_future(http.call("enqueue", ITEM)) if number % 3 == 0 else None
                await waiting.send(request if number % 5 else request[: random.randrange(len(request))])
                for _ in range(random.choice((0, 0, 1, 2, 3, 5, 8, 13, 30))):
                    await asyncio.sleep(0)
                if number % 7 == 0:
                    await asyncio.sleep(random.random() * 0.003)
                enqueue = enqueue or asyncio.ensure_future(http.call("enqueue", ITEM))
                if number % 2:
                    await asyncio.sleep(0)
                # Closed before its answer is read: whether the node had written it by then is not to be seen from here.
                taken = waiting.reader._buffer  # type: ignore[attr-defined]
                waiting.reset()
                sequence_id = (await enqueue)["sequenceId"]
                await active(node, 0)
                if taken:
                    # The answer was here when it hung up; this lease is delivered, and lives.
                    await http.call("cancel", {"sequenceId": sequence_id, "force": True})
                    continue
                lease = await http.call("lease", {"waitMs": 500})
                if not lease:
                    # Written to a connection whose end was still on its way: no server can know.
                    await http.call("cancel", {"sequenceId": sequence_id, "force": True})
                    continue
                assert (lease["sequenceId"], lease["attempt"]) == (sequence_id, 1)
                await completed(http, lease)

    run(main())


@on_every_loop
def test_a_socket_closed_right_after_sending_leaves_nothing_behind(run: Run) -> None:
    async def main() -> None:
        async with running_node() as node, Http(node) as http:
            gone = [await Wire.connect(node) for _ in range(100)]
            for wire in gone:
                wire.writer.write(call_bytes("lease", {"waitMs": 20_000, "maxItems": 3}))
                wire.close()
            await http.call("stats")
            await active(node, 0)
            ids = [(await http.call("enqueue", ITEM))["sequenceId"] for _ in range(5)]
            got = [await leased_at_once(http) for _ in ids]
            assert [lease["sequenceId"] for lease in got] == ids
            assert {lease["attempt"] for lease in got} == {1}

    run(main())


async def test_a_grant_whose_caller_is_gone_when_it_is_decided_is_released_in_the_next_frame() -> None:
    async with running_node() as node, Http(node) as http:
        gone = [await Wire.connect(node) for _ in range(10)]
        for wire in gone:
            await wire.send(call_bytes("lease", {"waitMs": 20_000}))
        await active(node, 10)
        for wire in gone:
            wire.reset()
        answer = await http.call("enqueue", {"items": [ITEM] * 10})
        leases: list[dict[str, Any]] = []
        while len(leases) < 10:
            page = await asyncio.wait_for(http.call("lease", {"waitMs": PATIENCE_MS, "maxItems": 10}), PATIENCE_S)
            assert page["leases"]
            leases += page["leases"]
        assert sorted(lease["sequenceId"] for lease in leases) == [each["sequenceId"] for each in answer["results"]]
        assert {lease["attempt"] for lease in leases} == {1}


@on_every_loop
@pytest.mark.parametrize("wait_ms", [0, 20_000])
def test_a_caller_that_hangs_up_before_its_answer_is_written_leaves_the_item_to_the_next(
    run: Run, wait_ms: int
) -> None:
    """Its end is known to the kernel, and the event loop has not come round to it."""

    async def main() -> None:
        async with running_node() as node, Http(node) as http:
            await http.call("enqueue", ITEM)
            gone = socket.create_connection((node.settings.node.host, node.port))
            hang_up_when_served(node, gone)
            gone.sendall(call_bytes("lease", {"peerId": "gone", "leaseDurationMs": HOUR_MS, "waitMs": wait_ms}))
            await until(lambda: gone.fileno() == -1)
            lease = await leased_at_once(http)
            assert (lease["attempt"], lease["ownerPeerId"]) == (1, "")

    run(main())


@on_every_loop
def test_a_caller_that_hangs_up_behind_a_further_request_leaves_the_item_to_the_next(run: Run) -> None:
    """While a request waits for the answer before it, nothing more is read from the connection, not even its end."""

    async def main() -> None:
        async with running_node() as node, Http(node) as http:
            gone = await Wire.connect(node)
            await gone.send(call_bytes("lease", {"peerId": "gone", "leaseDurationMs": HOUR_MS}) + call_bytes("stats"))
            await active(node, 1)
            gone.close()
            await http.call("enqueue", ITEM)
            lease = await leased_at_once(http)
            assert (lease["attempt"], lease["ownerPeerId"]) == (1, "")

    run(main())


@on_every_loop
def test_leases_whose_answer_was_cut_off_go_to_the_next(run: Run) -> None:
    """The answer is larger than what the sockets hold between them; its client takes a little of it, and goes."""

    async def main() -> None:
        large = {"payload": {**ITEM["payload"], "body": "A" * 1_000_000}}
        async with running_node() as node, Http(node) as http:
            for _ in range(7):
                await http.call("enqueue", large)
            gone = await Wire.connect(node)
            gone.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            await gone.send(call_bytes("lease", {"maxItems": 7, "leaseDurationMs": HOUR_MS}))
            await gone.head()
            gone.reset()
            lease = await leased_at_once(http)
            assert (lease["sequenceId"], lease["attempt"]) == (1, 1)

    run(main())


async def test_a_large_answer_that_is_read_slowly_keeps_its_leases() -> None:
    large = {"payload": {**ITEM["payload"], "body": "A" * 1_000_000}}
    async with running_node() as node, Http(node) as http:
        for _ in range(7):
            await http.call("enqueue", large)
        slow = await Wire.connect(node)
        await slow.send(call_bytes("lease", {"maxItems": 7}))
        leases = (await slow.response()).json()["leases"]
        slow.close()
        acks = [{"ownershipToken": lease["ownershipToken"]} for lease in leases]
        outcomes = await http.call("complete", {"acks": acks})
        assert outcomes == {"results": [{"success": True}] * len(leases)}


async def test_who_asks_again_with_the_same_request_id_gets_what_the_lost_answer_held() -> None:
    async with running_node() as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 3})
        request = {"peerId": "w", "requestId": "call-1", "maxItems": 2, "waitMs": 0}
        first = await Wire.connect(node)
        tokens = [lease["ownershipToken"] for lease in (await first.call("lease", request)).json()["leases"]]
        first.reset()
        again = await http.call("lease", request)
        assert [lease["ownershipToken"] for lease in again["leases"]] == tokens


async def test_a_repeat_that_waits_beside_the_first_call_keeps_the_lease_when_the_first_hangs_up() -> None:
    async with running_node() as node, Http(node) as http:
        request = {"peerId": "w", "requestId": "call-1", "waitMs": 20_000}
        first, second = await Wire.connect(node), await Wire.connect(node)
        await first.send(call_bytes("lease", request))
        await active(node, 1)
        await second.send(call_bytes("lease", request))
        await active(node, 2)
        first.reset()
        await http.call("enqueue", ITEM)
        lease = (await second.response()).json()
        second.close()
        assert lease["attempt"] == 1
        await completed(http, lease)


async def test_an_enqueue_that_waits_and_hangs_up_does_not_come_in() -> None:
    async with running_node(options=QueueOptions(capacity=1, high_watermark=10)) as node, Http(node) as http:
        await http.call("enqueue", ITEM)
        lease = await leased_at_once(http)
        waiting = await Wire.connect(node)
        await waiting.send(call_bytes("enqueue", {**ITEM, "waitMs": 20_000}))
        await active(node, 1)
        waiting.reset()
        await active(node, 0)
        await completed(http, lease)
        stats = (await http.call("stats"))["stats"]
        assert (stats["pendingCount"], stats["activeLeaseCount"], stats["completedCount"]) == (0, 0, 1)


async def test_a_get_that_waits_and_hangs_up_is_forgotten() -> None:
    async with running_node() as node, Http(node) as http:
        sequence_id = (await http.call("enqueue", ITEM))["sequenceId"]
        waiting = await Wire.connect(node)
        await waiting.send(call_bytes("get", {"sequenceId": sequence_id, "waitMs": 20_000}))
        await active(node, 1)
        waiting.close()
        await active(node, 0)


async def test_a_connection_that_ends_in_the_middle_of_a_body_does_nothing() -> None:
    async with running_node() as node, Http(node) as http:
        request = call_bytes("enqueue", ITEM)
        for cut in range(1, len(request), 3):
            wire = await Wire.connect(node)
            await wire.send(request[:cut])
            wire.reset() if cut % 2 else wire.close()
        assert (await http.call("stats"))["stats"]["pendingCount"] == 0
