"""The stream as MessagePack: how both ends come to speak it, its compact forms, and what they refuse."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from websockets.typing import Subprotocol

from omnirelay.client.client import Client, ItemSpec
from omnirelay.client.stream_connection import StreamConnection
from omnirelay.core.payload import OwnershipToken
from omnirelay.errors import InvalidArgument
from omnirelay.wire.forms import SUBPROTOCOL
from tests.integration.node_process import network_before
from tests.integration.nodes import running_node
from tests.integration.stream_peers import ITEM, Peer, ack, connected, peer_of, token_of

pack = msgspec.msgpack.encode
BODY = bytes(range(256))


# -- which form it is ------------------------------------------------------------------------------


async def test_a_node_speaks_what_it_is_asked_for_and_json_to_all_others() -> None:
    for offered, spoken in (
        (None, None),
        ([SUBPROTOCOL], SUBPROTOCOL),
        (["chat", SUBPROTOCOL], SUBPROTOCOL),
        (["chat"], None),
        ([SUBPROTOCOL + "2"], None),
    ):
        subprotocols = None if offered is None else [Subprotocol(each) for each in offered]
        async with running_node() as node:
            peer = await connected(node.url, subprotocols=subprotocols)
            assert peer.socket.subprotocol == spoken
            await peer.send({"id": 1, "call": {"verb": "enqueue", "request": ITEM}})
            data = await peer.socket.recv()
            assert isinstance(data, bytes if spoken else str)
            assert Peer._read(data)[0]["answer"]["sequenceId"] == 1
            await peer.close()


async def test_a_peer_that_never_heard_the_subprotocol_confirmed_is_answered_in_json() -> None:
    async with running_node() as node, peer_of(node.url, form="msgpack") as peer:
        peer.packs = False
        await peer.call("enqueue", ITEM)
        await peer.send({"id": 9, "call": {"verb": "stats"}})
        assert isinstance(await peer.socket.recv(), str)


async def test_messagepack_that_nobody_asked_for_ends_the_stream() -> None:
    async with running_node() as node, peer_of(node.url, form="json") as peer, peer_of(node.url) as other:
        await peer.socket.send(pack({"id": 1, "call": {"verb": "stats"}}))
        assert await peer.closed() == (1008, "invalid-argument")
        await other.round_trip()


@pytest.mark.parametrize("hidden", [None, "asked", "confirmed"])
@pytest.mark.parametrize("mode", ["auto", "stream"])
async def test_a_client_does_the_same_over_either_form(mode: Any, hidden: str | None) -> None:
    async with running_node() as node, network_before(node.url) as network:
        network.hides_subprotocols = hidden
        async with Client(network.url, mode=mode) as client:
            assert await cycle(client) == ["completed", "completed", "completed", "ready"]
            stream = client._linking.live
            assert isinstance(stream, StreamConnection)
            assert stream.packs == (hidden is None)


async def test_a_client_does_the_same_over_http() -> None:
    async with running_node() as node, Client(node.url, mode="http") as client:
        assert await cycle(client) == ["completed", "completed", "completed", "ready"]


async def cycle(client: Client) -> list[str]:
    """Everything a client does with batches; the states of the items at the end."""
    specs = [
        ItemSpec(resource_type="table", resource_id="a", body=BODY, attributes={"tenant": "t"}, request_id="r-1"),
        ItemSpec(resource_type="table", resource_id="b", body=bytearray(b"b"), priority=9),
        ItemSpec(resource_type="view", resource_id="ä", not_before_ms=1, partition_key="p", encoding="text/plain"),
        ItemSpec(resource_type="view", resource_id="d", max_attempts=2, weight=3, delay_ms=0),
    ]
    results = await client.enqueue_many(specs)
    assert [(each.sequence_id, each.duplicate) for each in results] == [(1, False), (2, False), (3, False), (4, False)]
    again = await client.enqueue_many([specs[0], ItemSpec(resource_type="table", resource_id="e")])
    assert [(each.sequence_id, each.duplicate) for each in again] == [(1, True), (5, False)]
    assert (await client.cancel(5)).success
    leases = {lease.sequence_id: lease for lease in await client.lease(peer_id="w", max_items=10)}
    assert sorted(leases) == [1, 2, 3, 4]
    payload = leases[1].payload
    assert (payload.body, payload.attributes, payload.request_id) == (BODY, {"tenant": "t"}, "r-1")
    assert (payload.partition_key, payload.payload_encoding) == ("a", "application/octet-stream")
    assert (leases[2].payload.body, leases[2].priority) == (b"b", 9)
    assert (leases[3].payload.resource_id, leases[3].payload.partition_key) == ("ä", "p")
    assert leases[3].payload.payload_encoding == "text/plain"
    assert leases[1].owner_peer_id == "w"
    assert leases[1].expires_at > leases[1].enqueued_at > "2020"
    await client.heartbeat(leases[4], fraction=0.5, data={"list": [1, None, "x"]})
    await client.fail(leases[4], reason="no", delay_ms=0)
    [retried] = await client.lease(peer_id="w", max_items=2)
    assert retried.progress is not None
    assert (retried.progress.fraction, retried.progress.data) == (0.5, {"list": [1, None, "x"]})
    assert retried.last_error is not None
    assert (retried.attempt, retried.last_error.message) == (2, "no")
    await client.release(retried)
    await client.complete(leases[2], result=BODY, result_encoding="raw")
    assert (await client.get(2)).result == BODY
    outcomes = await client.complete_many([leases[1], leases[3].ownership_token, retried])
    assert [each.success for each in outcomes] == [True, True, False]
    assert outcomes[2].error_code == "error.taskqueue.lease_inactive"
    assert [each.success for each in await client.complete_many([leases[1], leases[3]])] == [True, True]
    assert await client.complete_many([]) == []
    with pytest.raises(InvalidArgument) as refused:
        await client.enqueue_many([specs[1], ItemSpec(resource_type=" ", resource_id="x")])
    assert refused.value.code == "resourcelease.payload.resource_type_required"
    assert str(refused.value.details["index"]) == "1"
    listed: dict[str, Any] = await client.call("peek", {"state": "ready"}, dict)
    assert listed["items"][0]["payload"]["resourceId"] == "d"
    return [(await client.get(number)).state for number in range(1, 5)]


@pytest.mark.parametrize("number", [1 << 64, -(1 << 63) - 1, 10**400])
async def test_a_number_that_messagepack_does_not_have_comes_as_text(number: int) -> None:
    """JSON has it, so it may be in the progress of any item: no answer may fail for it, least of all a drain."""
    async with running_node() as node:
        async with peer_of(node.url, form="json") as peer:
            await peer.call("enqueue", ITEM)
            [lease] = (await peer.call("lease", {"maxItems": 1}))["leases"]
            await peer.acknowledge(ack("heartbeat", lease, progress={"data": {"list": [number, 7]}}))
            await peer.acknowledge(ack("release", lease))
        expected = {"data": {"list": [str(number), 7]}}
        async with peer_of(node.url, form="msgpack") as peer:
            assert (await peer.call("get", {"sequenceId": 1}))["item"]["progress"] == expected
            [lease] = (await peer.call("lease", {"maxItems": 1}))["leases"]
            assert lease["progress"] == expected
            await peer.acknowledge(ack("release", lease))
            await peer.open(credit=1)
            [lease] = await peer.leases(1)
            assert lease["progress"] == expected
            await peer.acknowledge(ack("release", lease))
            [drained] = (await peer.call("drain"))["items"]
            assert drained["progress"] == expected
            assert drained["payload"]["body"] == ""


async def test_a_call_with_an_id_that_messagepack_does_not_have_is_answered() -> None:
    number = 1 << 64
    async with running_node() as node, peer_of(node.url, form="msgpack") as peer:
        await peer.call("enqueue", ITEM)
        for call in ('{"verb":"stats"}', '{"verb":"lease","request":{"maxItems":1}}'):
            await peer.socket.send(f'{{"id":{number},"call":{call}}}')
            assert "answer" in await peer.answered(str(number))
        await peer.socket.send(f'{{"id":{number},"acks":[{{}}]}}')
        assert "results" in await peer.answered(str(number))


# -- the compact forms -------------------------------------------------------------------------------


async def test_the_compact_forms_are_as_the_protocol_says() -> None:
    async with running_node() as node, peer_of(node.url, form="msgpack") as peer:
        rows = [["table", "orders", BODY], ["table", "lines", b"", None, "key", {"tenant": "t"}, "r-1", 7, 2]]
        answer = await peer.call("enqueue", {"items": rows}, compact=True)
        assert answer == {"stats": {"pendingCount": 2, "activeLeaseCount": 0}, "first": 1, "count": 2}
        answer = await peer.call("enqueue", {"items": [rows[1], ["view", "c"]]}, compact=True)
        assert [each["sequenceId"] for each in answer["results"]] == [2, 3]
        assert answer["results"][0]["duplicate"]
        [orders, lines, view] = sorted(
            (await peer.call("lease", {"maxItems": 3, "peerId": "w"}, compact=True))["leases"],
            key=lambda lease: lease[1]["sequenceId"],
        )
        payload, token, owner, expires_at, remaining_ms, heartbeat_after_ms, enqueued_at, *more = lines
        assert payload == {
            "resourceType": "table",
            "resourceId": "lines",
            "partitionKey": "key",
            "attributes": {"tenant": "t"},
            "requestId": "r-1",
        }
        assert (owner, token["attempt"], *more) == ("w", 1, 7, None, None)
        assert expires_at - enqueued_at >= remaining_ms > heartbeat_after_ms > 0
        tokens = [list(each[1].values()) for each in (orders, lines, view)]
        assert await peer.call("complete", {"acks": tokens[:2]}, compact=True) == {"done": 2}
        answer = await peer.call("complete", {"acks": [tokens[2], [1, 1, "no", None]]}, compact=True)
        assert [each["success"] for each in answer["results"]] == [True, False]
        assert await peer.call("complete", {"acks": tokens}) == {"results": [{"success": True}] * 3}


async def test_a_call_that_does_not_ask_for_compact_answers_gets_those_of_json() -> None:
    async with running_node() as node, peer_of(node.url, form="msgpack") as peer:
        answer = await peer.call("enqueue", {"items": [["table", "orders"]]})
        assert answer["results"] == [{"sequenceId": 1, "duplicate": False}]
        [lease] = (await peer.call("lease", {"maxItems": 1}))["leases"]
        assert lease["payload"]["payloadEncoding"] == "application/octet-stream"
        assert (await peer.acknowledge(ack("complete", lease)))[0]["success"]


async def test_pushed_leases_are_compact_for_who_wants_them_so() -> None:
    async with running_node() as node, peer_of(node.url, form="msgpack") as peer:
        await peer.call("enqueue", {"items": [["table", "a"], ["table", "b"]]})
        await peer.open(credit=2, compact=True)
        leases: list[Any] = await peer.leases(2)
        assert [payload["resourceId"] for payload, *_ in leases] == ["a", "b"]
        async with peer_of(node.url, form="json") as other:
            await other.open(credit=1, compact=True)
            await other.call("enqueue", ITEM)
            [lease] = await other.leases(1)
            assert token_of(lease)["sequenceId"] == 3, "JSON has no compact form"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 5),
        (0, ""),
        (0, None),
        (1, " "),
        (1, "x" * 1_025),
        (2, 7),
        (2, b"x" * 2_000_000),
        (3, ""),
        (4, ["p"]),
        (5, {"a": 1}),
        (5, {"": "x"}),
        (6, 1.5),
        (7, 10),
        (7, -1),
        (7, True),
        (8, 0),
        (9, -1),
        (9, "soon"),
        (10, -5),
        (10, 1 << 62),
        (11, 0),
        (11, 1 << 63),
    ],
)
async def test_a_wrong_value_is_refused_as_in_json_and_nothing_comes_in(place: int, value: Any) -> None:
    names = ("resourceType", "resourceId", "body", "payloadEncoding", "partitionKey", "attributes", "requestId")
    more = ("priority", "weight", "delayMs", "notBefore", "maxAttempts")
    row: list[Any] = ["table", "orders", b"x", None, None, None, None, 5, 1, None, None, None]
    row[place] = value
    payload: dict[str, Any] = {"resourceType": "table", "resourceId": "orders"}
    item: dict[str, Any] = {"payload": payload}
    (payload if place < len(names) else item)[(*names, *more)[place]] = value
    async with running_node() as node, peer_of(node.url, form="msgpack") as peer:
        good = ["table", "good"]
        refusal = await peer.refused(call={"verb": "enqueue", "request": {"items": [good, row]}, "compact": True})
        by_name = await peer.refused(call={"verb": "enqueue", "request": {"items": [ITEM, item]}})
        assert (refusal["code"], refusal["status"]) == (by_name["code"], by_name["status"])
        assert refusal["metadata"]["index"] == by_name["metadata"]["index"] == "1"
        assert refusal["metadata"]["field"] == by_name["metadata"]["field"]
        assert (await peer.call("stats"))["stats"]["pendingCount"] == 0


async def test_wrong_batches_are_refused_and_the_stream_goes_on() -> None:
    async with running_node() as node, peer_of(node.url, form="msgpack") as peer:
        for request, code in (
            ({"items": []}, "resourcelease.items.invalid"),
            ({"items": [["table", "a"]] * 10_001}, "resourcelease.payload.too_large"),
            ({"items": [["table", "a"], None]}, "resourcelease.payload.required"),
            ({"items": [["table", "a"], []]}, "resourcelease.payload.resource_type_required"),
            ({"items": [["table", "a"]], "priority": 4}, "resourcelease.items.invalid"),
            ({"items": [["table", "a"]], "waitMs": -1}, "resourcelease.waitMs.invalid"),
            ({"items": 7}, "resourcelease.items.invalid"),
        ):
            error = await peer.refused(call={"verb": "enqueue", "request": request, "compact": True})
            assert error["code"] == code, request
        for acks, code in (
            ([], "resourcelease.acks.invalid"),
            ([[1, 1, "a", 1]] * 10_001, "resourcelease.payload.too_large"),
            ([[1, 1, "a", 1], [1, "one", "a", 1]], "resourcelease.attempt.invalid"),
            ([[1]], "resourcelease.attempt.invalid"),
        ):
            error = await peer.refused(call={"verb": "complete", "request": {"acks": acks}, "compact": True})
            assert error["code"] == code, acks[:2]
        assert (await peer.call("stats"))["stats"]["pendingCount"] == 0


async def test_compact_batches_are_understood_however_their_message_is_written() -> None:
    """A field of a later version, or a name in another case, has the whole message read as JSON."""
    async with running_node() as node, peer_of(node.url, form="msgpack") as peer:
        rows = [["table", "orders", BODY], ["table", "lines", b"", None, "key", None, None, 7]]
        enqueued = await peer.call("enqueue", {"items": rows}, later={"field": 1})
        assert [each["sequenceId"] for each in enqueued["results"]] == [1, 2]
        await peer.send({"ID": "b", "Call": {"VERB": "enqueue", "Request": {"Items": [["view", "c"]]}}, "later": 1})
        assert [each["sequenceId"] for each in (await peer.answered("b"))["answer"]["results"]] == [3]
        leases = (await peer.call("lease", {"maxItems": 3}))["leases"]
        assert sorted(lease["payload"]["resourceId"] for lease in leases) == ["c", "lines", "orders"]
        tokens = [[token_of(lease)[name] for name in ("sequenceId", "attempt", "leaseId", "fence")] for lease in leases]
        ended = await peer.call("complete", {"acks": tokens}, later=1, compact=True)
        assert ended == {"done": 3}


async def test_broken_messagepack_ends_the_stream_of_its_peer_alone() -> None:
    async with running_node() as node, peer_of(node.url) as other:
        for data in (b"\x81", b"\xdd\xff\xff\xff\xff", b"\xc1", b"\x91\x91\x01", b"\x81\x80\x01", b"\x80\x80"):
            peer = await connected(node.url, form="msgpack")
            await peer.socket.send(data)
            assert (await peer.closed())[0] == 1008, data
            assert peer.inbox[0]["error"]["status"] == "INVALID_ARGUMENT"
            await other.round_trip()


async def test_a_service_that_leases_for_its_workers_acknowledges_in_batches_too() -> None:
    async with (
        running_node() as node,
        Client(node.url, caller="service") as service,
        Client(node.url, caller="other") as other,
    ):
        await service.enqueue_many([ItemSpec(resource_type="table", resource_id=str(each)) for each in range(4)])
        leases = await service.lease(peer_id="worker-1", max_items=4)
        refused = await other.complete_many(leases)
        assert {each.error_code for each in refused} == {"error.resourcelease.not_owner"}
        assert all(each.success for each in await service.complete_many(leases))


async def test_wrong_fences_are_refused_in_the_compact_form() -> None:
    async with running_node() as node, Client(node.url) as client:
        await client.enqueue("table", "a")
        [lease] = await client.lease()
        token = lease.ownership_token
        assert token.fence is not None
        wrong = OwnershipToken(token.sequence_id, token.attempt, token.lease_id, token.fence + 1)
        [outcome, second] = await client.complete_many([wrong, token])
        assert (outcome.success, outcome.error_code) == (False, "error.resourcelease.fence_mismatch")
        assert second.success


async def test_what_is_no_lease_is_refused_before_anything_is_sent() -> None:
    client = Client("http://127.0.0.1:9")
    with pytest.raises(InvalidArgument):
        await client.complete_many(["x"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument):
        await client.complete_many(None)  # type: ignore[arg-type]
    await client.close()
