"""The client against a node: every verb, typed errors, batches, deadlines, and what it does not send."""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from omnirelay.client import stream_connection
from omnirelay.client.client import Client, ItemSpec
from omnirelay.client.linking import ClientClosed
from omnirelay.client.stream_connection import StreamConnection
from omnirelay.client.sync import SyncClient
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import OwnershipToken
from omnirelay.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    RequestIdsFull,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from omnirelay.service import stream_calls
from omnirelay.transport import websocket
from tests.integration.http_sockets import until
from tests.integration.node_process import NodeProcess
from tests.integration.nodes import running_node
from tests.patience import PATIENCE_MS, PATIENCE_S

both_ways = pytest.mark.parametrize("mode", ["stream", "http"])
SMALL = QueueOptions(capacity=1, high_watermark=10)


def items(count: int, **fields: Any) -> list[ItemSpec]:
    return [ItemSpec(resource_type="table", resource_id=str(number), **fields) for number in range(count)]


@both_ways
async def test_every_verb_has_a_method(mode: Any) -> None:
    async with running_node() as node, Client(node.url, mode=mode, caller="tests") as client:
        first = await client.enqueue("table", "orders", body=b"x", attributes={"a": "b"}, priority=1)
        assert (first.sequence_id, first.duplicate) == (1, False)
        await client.enqueue_many(items(5))
        leases = await client.lease(peer_id="w", max_items=4)
        assert leases[0].payload.body == b"x"
        beat = await client.heartbeat(leases[0], fraction=0.5, message="half", data={"at": 3})
        assert beat.remaining_ms is not None
        done = await client.complete(leases[0], result=b"ok", follow_ups=items(1))
        assert done.follow_up_ids == [7]
        assert (await client.release(leases[1])).state == "ready"
        assert (await client.fail(leases[2], reason="no", mode="dead")).state == "dead"
        assert (await client.fail(leases[3], delay_ms=60_000)).state == "delayed"
        assert (await client.get(1)).result == b"ok"
        assert (await client.dead_letters()).total == 1
        [dead] = (await client.dead_letters()).items
        assert (await client.edit(dead.sequence_id, "table", "edited")).payload.resource_id == "edited"
        assert await client.redrive([dead.sequence_id]) == 1
        assert "delay" in [each.gate for each in (await client.why(4)).gates]
        assert (await client.cancel(4)).state == "cancelled"
        assert len((await client.peek()).items) == 5
        assert [each.intake for each in await client.pause(intake=True, reason="test")] == [True]
        assert await client.resume() == []
        drained = await client.drain(max_items=2)
        assert (await client.restore(drained.items)).restored_count == 2
        assert (await client.stats()).completed_count >= 1
        events = [event async for event in client.watch(1, until_caught_up=True)]
        assert len(events) > 10


async def test_what_unicode_calls_the_end_of_a_line_does_not_end_an_event() -> None:
    reason = "no\u2028room\u2029left"
    async with running_node() as node, Client(node.url) as client:
        await client.enqueue("table", "orders")
        [lease] = await client.lease()
        await client.fail(lease, reason=reason)
        events = [event async for event in client.watch(1, types=["Failed"], until_caught_up=True)]
        assert [event["error"]["message"] for event in events] == [reason]


@both_ways
async def test_refusals_are_the_errors_they_were(mode: Any) -> None:
    async with running_node() as node, Client(node.url, mode=mode) as client:
        with pytest.raises(InvalidArgument) as bad:
            await client.enqueue("", "orders")
        assert bad.value.code == "resourcelease.payload.resource_type_required"
        with pytest.raises(NotFound):
            await client.get(99)
        await client.enqueue("table", "a", request_id="r")
        with pytest.raises(AlreadyExists):
            await client.enqueue("table", "b", request_id="r")
        with pytest.raises(FailedPrecondition) as unknown:
            await client.complete(OwnershipToken(1, 1, "00000000-0000-0000-0000-000000000000"))
        assert unknown.value.code == "error.resourcelease.unknown_token"
        [lease] = await client.lease(peer_id="owner")
        with pytest.raises(PermissionDenied):
            await client.complete(lease, peer_id="other")
        with pytest.raises(InvalidArgument):
            await client.fail(lease, delay_ms=-5)
        with pytest.raises(InvalidArgument) as follow_up:
            await client.complete(lease, follow_ups=items(1, priority=99))
        assert follow_up.value.code == "resourcelease.priority.invalid"
        async with Client(node.url, namespace="elsewhere", mode=mode) as lost:
            with pytest.raises(Unimplemented):
                await lost.stats()
        assert (await client.complete(lease)).success


@both_ways
async def test_progress_is_kept_as_json_has_it(mode: Any) -> None:
    async with running_node() as node, Client(node.url, mode=mode) as client:
        await client.enqueue("table", "a")
        [lease] = await client.lease()
        await client.heartbeat(lease, data={1: math.nan, "b": b"\x00", "when": datetime(2026, 1, 31, 8, tzinfo=UTC)})
        progress = (await client.get(1)).progress
        assert progress is not None
        assert progress.data == {"1": None, "b": "AA==", "when": "2026-01-31T08:00:00Z"}


@both_ways
async def test_what_is_not_json_is_refused_here_and_the_connection_goes_on(mode: Any) -> None:
    async with running_node() as node, Client(node.url, mode=mode) as client:
        await client.enqueue("table", "a")
        [lease] = await client.lease()
        for wrong in (object(), {(1, 2): 3}, [{None: 1}], {"x": {True: 1}}):
            with pytest.raises(InvalidArgument) as refused:
                await client.heartbeat(lease, data=wrong)
            assert refused.value.details == {"field": "body"}
        with pytest.raises(InvalidArgument):
            await client.fail(lease, reason="\ud800")
        with pytest.raises(InvalidArgument):
            await client.enqueue("table", "\ud800")
        assert (await client.complete(lease)).success


@both_ways
async def test_text_is_no_body_and_no_result_and_every_kind_of_bytes_is(mode: Any) -> None:
    """As JSON a text would be read as base64, and stored as other bytes."""
    text: Any = "compact1"
    async with running_node() as node, Client(node.url, mode=mode) as client:
        with pytest.raises(InvalidArgument, match="body must be bytes, not str") as refused:
            await client.enqueue("table", "a", body=text)
        assert (refused.value.code, refused.value.details) == ("resourcelease.body.invalid", {"field": "body"})
        with pytest.raises(InvalidArgument) as among_many:
            await client.enqueue_many([*items(2), *items(1, body=text)])
        assert among_many.value.details["index"] == 2
        assert (await client.stats()).pending_count == 0
        for body in (b"1", bytearray(b"2"), memoryview(b"3")):
            await client.enqueue("table", "a", body=body)
        leases = await client.lease(max_items=3)
        assert [lease.payload.body for lease in leases] == [b"1", b"2", b"3"]
        with pytest.raises(InvalidArgument, match="result must be bytes"):
            await client.complete(leases[0], result=text)
        with pytest.raises(InvalidArgument, match="body must be bytes"):
            await client.complete(leases[0], follow_ups=items(1, body=text))
        with pytest.raises(InvalidArgument, match="body must be bytes"):
            await client.edit(1, "table", "a", body=text)
        assert (await client.complete(leases[0], result=bytearray(b"done"))).success
        assert (await client.get(1)).result == b"done"


async def test_a_single_text_is_not_taken_for_a_list_of_its_letters() -> None:
    async with running_node() as node, Client(node.url) as client:
        await client.enqueue("table", "a", attributes={"tenant": "acme"})
        for wrong in (
            client.lease(resource_types="table"),
            client.lease(tenants="acme"),
            client.lease(tenants=7),  # type: ignore[arg-type]
            client.redrive("12"),  # type: ignore[arg-type]
            client.purge("12"),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidArgument, match="must be a list"):
                await wrong
        with pytest.raises(InvalidArgument, match="must be a list"):
            client.watch(types="Enqueue")
        [lease] = await client.lease(resource_types=("table",), tenants={"acme"})  # type: ignore[arg-type]
        assert (await client.complete(lease)).success


async def test_what_is_too_large_for_a_message_disturbs_no_other_call() -> None:
    async with running_node() as node, Client(node.url) as client:
        waiting = asyncio.ensure_future(client.lease(wait_ms=20_000))
        await client.stats()
        with pytest.raises(InvalidArgument) as large:
            await client.enqueue("table", "a", body=b"x" * 17_000_000)
        assert large.value.code == "resourcelease.payload.too_large"
        await client.enqueue("table", "b")
        [lease] = await waiting
        with pytest.raises(InvalidArgument):
            await client.complete(lease, result=b"x" * 17_000_000)
        assert (await client.complete(lease)).success


async def test_acknowledgements_that_are_large_together_go_out_in_several_messages() -> None:
    async with running_node() as node, Client(node.url) as client:
        await client.enqueue_many(items(60))
        leases = await client.lease(max_items=60)
        done = await asyncio.gather(*(client.complete(lease, result=b"x" * 900_000) for lease in leases))
        assert all(outcome.success for outcome in done)


async def test_an_answer_may_be_larger_than_a_message_of_a_caller() -> None:
    async with running_node() as node, Client(node.url) as client:
        # Bounds count characters, and each of these takes four bytes.
        for each in items(25, attributes={str(number): "\N{GRINNING FACE}" * 4_096 for number in range(64)}):
            await client.enqueue_many([each])
        page = await client.peek(max_items=100)
        values = [value for item in page.items for value in (item.payload.attributes or {}).values()]
        assert sum(len(value.encode()) for value in values) > websocket.MESSAGE_MAX


async def test_pages_and_leases_have_a_bound_in_bytes_too() -> None:
    async with running_node() as node, Client(node.url) as client:
        for each in items(20, body=b"x" * 1_000_000):
            await client.enqueue_many([each])
        seen: list[int] = []
        after: int | None = 0
        while after is not None:
            page = await client.peek(after=after, max_items=100)
            assert len(page.items) <= 7
            seen += [item.sequence_id for item in page.items]
            after = page.next
        assert seen == list(range(1, 21))
        leased = 0
        while leases := await client.lease(max_items=100):
            assert len(leases) <= 7
            leased += len(leases)
        assert leased == 20


async def test_many_items_come_in_whole_batches_in_order() -> None:
    async with running_node() as node, Client(node.url) as client:
        results = await client.enqueue_many(items(10_500))
        assert [each.sequence_id for each in results] == list(range(1, 10_501))
        large = await client.enqueue_many(items(12, body=b"x" * 900_000))
        assert len({each.sequence_id for each in large}) == 12
        wide = await client.enqueue_many(items(150, attributes={str(number): "x" * 4_000 for number in range(3)}))
        assert len({each.sequence_id for each in wide}) == 150


async def test_a_bad_item_among_many_raises_its_error_with_its_place() -> None:
    async with running_node() as node, Client(node.url) as client:
        batch = items(2_500)
        batch[2_100].resource_type = ""
        with pytest.raises(InvalidArgument) as bad:
            await client.enqueue_many(batch)
        assert bad.value.details["index"] == 2_100
        assert (await client.stats()).pending_count == 2_000


async def test_what_remains_of_many_when_one_batch_failed_can_be_sent_without_doubling_anything() -> None:
    specs = items(5_500)
    specs[1_500].priority = 99
    async with running_node() as node, Client(node.url) as client:
        with pytest.raises(InvalidArgument) as caught:
            await client.enqueue_many(specs)
        remaining = caught.value.remaining
        assert remaining is not None
        in_by_now = (await client.stats()).pending_count
        assert [each.resource_id for each in remaining[:1_000]] == [str(number) for number in range(1_000, 2_000)]
        assert in_by_now + len(remaining) == len(specs)
        assert all(spec.request_id is None for spec in specs), "the caller's own are left alone"
        remaining[500].priority = 5
        assert len(await client.enqueue_many(remaining)) == len(remaining)
        await client.enqueue_many(remaining[:1_000])
        assert (await client.stats()).pending_count == len(specs)


async def test_concurrent_single_calls_share_a_connection_and_frames() -> None:
    async with running_node() as node, Client(node.url) as client:
        results = await asyncio.gather(*(client.enqueue("table", str(number)) for number in range(500)))
        assert len({each.sequence_id for each in results}) == 500
        frames = node.components[0].shard().log.statistics().frames
        assert frames < 250, "calls that come together are written together"


@both_ways
async def test_a_deadline_ends_a_call(mode: Any) -> None:
    async with running_node(options=SMALL) as node, Client(node.url, mode=mode) as client:
        await client.enqueue("table", "a")
        with pytest.raises((ResourceExhausted, DeadlineExceeded)):
            await client.enqueue("table", "b", timeout_ms=200)

        async def refused() -> None:
            while True:
                with suppress(DeadlineExceeded):  # That is what comes when the machine stood still for so long.
                    await client.enqueue("table", "b", wait_ms=1, timeout_ms=300)

        with pytest.raises(ResourceExhausted):
            await refused()
        assert await client.lease(resource_types=["other"], wait_ms=50) == []
        assert (await client.stats()).pending_count == 1


@both_ways
async def test_enqueues_that_wait_hold_up_no_acknowledgement(mode: Any) -> None:
    async with running_node(options=SMALL) as node, Client(node.url, mode=mode) as client:
        await client.enqueue("table", "a")
        [lease] = await client.lease()
        waiting = [asyncio.ensure_future(client.enqueue("table", str(number))) for number in range(150)]
        await until(lambda: node.dispatcher.active == 150)
        await client.heartbeat(lease)
        await client.complete(lease)
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
        assert len(done) == 1
        for each in left:
            each.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@both_ways
async def test_a_node_that_can_remember_no_further_id_is_asked_once_more_without_at_once(mode: Any) -> None:
    options = QueueOptions(request_id_max=2, request_id_retention_ms=600_000)
    async with running_node(options=options) as node, Client(node.url, mode=mode, timeout_ms=600_000) as client:
        await client.enqueue_many(items(2))
        async with asyncio.timeout(PATIENCE_S):  # Much less than the time the call has.
            assert (await client.enqueue("table", "third")).sequence_id == 3
            assert [each.sequence_id for each in await client.enqueue_many(items(3))] == [4, 5, 6]
        with pytest.raises(RequestIdsFull):
            await client.enqueue("table", "mine", request_id="mine", timeout_ms=100)
        client.timeout_ms = 100
        [lease] = await client.lease()
        with pytest.raises(RequestIdsFull):
            await client.complete(lease, follow_ups=items(1, request_id="mine"))


async def test_a_lease_that_comes_when_its_caller_has_gone_is_given_back() -> None:
    async with running_node() as node, Client(node.url) as client:
        call = asyncio.ensure_future(client.lease(wait_ms=PATIENCE_MS, peer_id="impatient"))
        await client.stats()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await client.enqueue("table", "a")
        [lease] = await client.lease(wait_ms=PATIENCE_MS)
        assert lease.attempt == 1


async def test_a_closed_client_refuses_at_once() -> None:
    async with running_node() as node:
        client = Client(node.url)
        await client.stats()
        await client.close()
        await client.close()
        with pytest.raises(ClientClosed):
            await client.stats()
        nowhere = Client("http://127.0.0.1:1")
        waiting = asyncio.ensure_future(nowhere.stats())
        await asyncio.sleep(0)
        await nowhere.close()
        with pytest.raises((ClientClosed, Unavailable)):
            await waiting


@pytest.mark.parametrize("url", ["127.0.0.1:7070", "ftp://host", "http://", "http://host:port", "http://host:0"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument) as bad:
        Client(url)
    assert bad.value.details["field"] == "url"
    with pytest.raises(InvalidArgument):
        SyncClient(url)


def test_the_sync_client_is_the_same_client_for_threads(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node, SyncClient(node.url) as client:
        threads = [threading.Thread(target=client.enqueue, args=("table", str(number))) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        leases = client.lease(max_items=20)
        assert len(leases) == 20
        for lease in leases:
            client.complete(lease)
        with pytest.raises(NotFound):
            client.get(1_000)
        assert client.stats().completed_count == 20
        events = client.watch(1)
        first = next(events)
        assert first["sequenceNumber"] == 1
        events.close()  # type: ignore[attr-defined]
        assert len(list(client.watch(1, until_caught_up=True))) > 40
    client.close()
    with pytest.raises(ClientClosed):
        client.stats()


async def test_leases_that_come_in_the_turn_in_which_the_caller_is_cancelled_are_given_back() -> None:
    async with running_node() as node, Client(node.url, mode="stream") as client:
        await client.enqueue_many(items(3))
        stream = client._linking.live
        assert isinstance(stream, StreamConnection)
        take = stream.on_message

        def arrived(data: bytes) -> None:
            take(data)
            if b"leases" in data:
                call.cancel()

        stream.on_message = arrived  # type: ignore[method-assign]
        call = asyncio.ensure_future(client.lease(peer_id="w", max_items=3, lease_duration_ms=3_600_000))
        with pytest.raises(asyncio.CancelledError):
            await call
        stream.on_message = take  # type: ignore[method-assign]
        async with asyncio.timeout(PATIENCE_S):
            while (await client.stats()).active_lease_count:
                pass
        assert [item.attempt for item in (await client.peek()).items] == [1, 1, 1]


async def test_more_calls_than_a_stream_bears_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_calls, "CALLS_MAX", 20)
    monkeypatch.setattr(stream_connection, "CALLS_MAX", 20)
    async with running_node() as node, Client(node.url) as client:
        await asyncio.gather(*(client.enqueue("table", str(number)) for number in range(400)))
        leases = await asyncio.gather(*(client.lease() for _ in range(400)))
        await asyncio.gather(*(client.complete(lease) for [lease] in leases))
        assert (await client.stats()).completed_count == 400


async def test_more_bytes_than_a_stream_bears_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the connection is dropped for what waits to be sent on it, and with it every other call."""
    monkeypatch.setattr(websocket, "UNREAD_MAX", 12_000_000)
    monkeypatch.setattr(stream_calls, "CALL_BYTES_MAX", 4_000_000)
    monkeypatch.setattr(stream_connection, "BYTES_MAX", 4_000_000)
    async with running_node() as node, Client(node.url) as client:
        body = b"x" * 500_000
        await asyncio.gather(*(client.enqueue("table", str(number), body=body) for number in range(80)))
        leases = await client.lease(max_items=12)
        assert len(leases) == 12
        ends = await asyncio.gather(*(client.complete(lease, result=body) for lease in leases * 4))
        assert all(outcome.success for outcome in ends)
