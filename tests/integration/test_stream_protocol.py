"""The stream as strangers speak it: any spelling, broken messages, too large ones, and what ends a connection."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
import uvloop
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from omnirelay.core.options import QueueOptions
from tests.integration.http_sockets import Wire, call_bytes, request_bytes
from tests.integration.nodes import Http, running_node
from tests.integration.stream_peers import ITEM, ack, connected, peer_of, stream_url, token_of
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("stream_form")

MIB = 1024 * 1024


# -- calls ---------------------------------------------------------------------------------------


async def test_any_unary_verb_can_be_called_and_ids_may_be_text() -> None:
    async with running_node() as node, peer_of(node.url) as peer:
        assert (await peer.call("enqueue", ITEM))["sequenceId"] == 1
        await peer.send({"id": "mine", "call": {"verb": "stats"}})
        assert (await peer.answered("mine"))["answer"]["stats"]["pendingCount"] == 1
        lease = await peer.call("lease", {"waitMs": 0})
        assert await peer.call("complete", {"ownershipToken": token_of(lease)}) == {"success": True}


async def test_an_array_is_as_many_messages() -> None:
    async with running_node() as node, peer_of(node.url) as peer:
        await peer.send(*({"id": number, "call": {"verb": "enqueue", "request": ITEM}} for number in range(100)))
        ids = [(await peer.answered(number))["answer"]["sequenceId"] for number in range(100)]
        assert ids == list(range(1, 101))
        await peer.socket.send(" \n[]")
        await peer.round_trip()


async def test_names_are_read_in_any_case_and_what_is_unknown_is_ignored() -> None:
    async with running_node() as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 2})
        peer = await connected(node.url)
        await peer.send({"Open": {"PeerId": "p", "CREDIT": "2", "Filters": None, "colour": 1}, "Weather": [1]})
        first, second = await peer.leases(2)
        assert first["ownerPeerId"] == "p"
        pascal = {name[0].upper() + name[1:]: value for name, value in token_of(first).items()}
        await peer.send({"Begin": [pascal]})
        await peer.send({"Id": 7, "Acks": [{"Verb": "Heartbeat", "OwnershipToken": pascal, "Mood": "good"}]})
        assert (await peer.answered(7))["results"][0]["success"]
        peer.drop()
        again = await http.call("lease", {"waitMs": 15_000})
        assert again["sequenceId"] == second["sequenceId"], "the first one was begun"


async def test_calls_that_cannot_be_served_are_refused_under_their_id() -> None:
    async with running_node() as node, peer_of(node.url) as peer:
        for verb in ("nonsense", "watch", "stream", "", "a::b"):
            error = await peer.refused(call={"verb": verb})
            assert (error["status"], error["code"]) == ("UNIMPLEMENTED", "unimplemented"), verb
        error = await peer.refused(call={"verb": "enqueue", "request": {}})
        assert error["code"] == "resourcelease.payload.required"
        error = await peer.refused(call={"verb": "enqueue", "request": 5})
        assert error["status"] == "INVALID_ARGUMENT"
        error = await peer.refused(call={"verb": "enqueue", "request": {"items": [ITEM, {}]}})
        assert (error["code"], error["metadata"]["index"]) == ("resourcelease.payload.required", "1")
        error = await peer.refused(call={})
        assert error["code"] == "resourcelease.verb.invalid"
        error = await peer.refused(credit=-1)
        assert error["code"] == "resourcelease.credit.invalid"
        await peer.round_trip()


async def test_what_is_too_large_is_refused_and_the_stream_goes_on() -> None:
    async with running_node() as node, peer_of(node.url) as peer:
        large = {"payload": {**ITEM["payload"], "body": "A" * (2 * MIB)}}
        error = await peer.refused(call={"verb": "enqueue", "request": large})
        assert error["code"] == "resourcelease.payload.too_large"
        error = await peer.refused(acks=[{"verb": "heartbeat"}] * 10_001)
        assert error["code"] == "resourcelease.payload.too_large"
        await peer.round_trip()


async def test_deadlines_of_calls_hold() -> None:
    async with running_node() as node, peer_of(node.url) as peer:
        assert await peer.call("lease", {}, ttlMs=50) == {}
        error = await peer.refused(call={"verb": "stats", "ttlMs": 0})
        assert (error["status"], error["code"]) == ("DEADLINE_EXCEEDED", "deadline-exceeded")
        assert await peer.call("stats", {}, ttlMs=1e300)


async def test_a_call_that_waits_holds_up_nothing_behind_it() -> None:
    async with running_node(options=QueueOptions(capacity=1, high_watermark=10)) as node, peer_of(node.url) as peer:
        await peer.call("enqueue", ITEM)
        await peer.open(credit=1)
        [lease] = await peer.leases(1)
        waiting = [
            {"id": f"w{n}", "call": {"verb": "enqueue", "request": {**ITEM, "waitMs": 15_000}}} for n in range(50)
        ]
        await peer.send(*waiting, {"id": "beat", "acks": [ack("heartbeat", lease)]})
        assert (await peer.answered("beat"))["results"][0]["success"]
        assert (await peer.acknowledge(ack("complete", lease)))[0]["success"]
        assert (await peer.first(lambda message: str(message.get("id")).startswith("w")))["answer"]["sequenceId"]


async def test_more_calls_than_a_stream_may_have_waiting_are_refused() -> None:
    async with running_node() as node, peer_of(node.url) as peer:
        call = {"verb": "lease", "request": {"waitMs": 60_000}}
        for start in range(0, 10_000, 1_000):
            await peer.send(*({"id": number, "call": call} for number in range(start, start + 1_000)))
        error = await peer.refused(call=call)
        assert (error["status"], error["code"]) == ("RESOURCE_EXHAUSTED", "resource-exhausted")
        [result] = await peer.acknowledge({"verb": "heartbeat"})
        assert result["errorCode"] == "resourcelease.ownershipToken.invalid", "acknowledgements are still taken"


async def test_requests_that_wait_are_bounded_in_bytes() -> None:
    async with running_node(options=QueueOptions(capacity=1, high_watermark=10)) as node, peer_of(node.url) as peer:
        await peer.call("enqueue", ITEM)
        large = {"payload": {**ITEM["payload"], "body": "A" * 1_000_000}, "waitMs": 60_000}
        for number in range(70):
            await peer.send({"id": number, "call": {"verb": "enqueue", "request": large}})
        refused = await peer.first(lambda message: "error" in message)
        assert refused["error"]["code"] == "resource-exhausted"
        assert refused["id"] >= 50


# -- acknowledgements ----------------------------------------------------------------------------


async def test_one_bad_acknowledgement_leaves_the_others_of_its_message_alone() -> None:
    """They are those of other jobs. Whatever is wrong with one has its place among the results."""
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer:
        await http.call("enqueue", {"items": [ITEM] * 2})
        await peer.open(credit=2)
        first, second = await peer.leases(2)
        acks: list[Any] = [
            ack("complete", first),
            ack("fail", second, delayMs=-1),
            ack("complete", second, followUps=[{**ITEM, "priority": 99}]),
            ack("complete", second, followUps=[{}]),
            ack("nonsense", second),
            {"verb": "complete"},
            "nonsense",
            None,
            ack("heartbeat", second, progress={"fraction": "a lot"}),
            ack("heartbeat", second),
        ]
        results = await peer.acknowledge(*acks)
        assert [result["success"] for result in results] == [True, *[False] * 8, True]
        codes = [result["errorCode"].split(".")[1] for result in results[1:6]]
        assert codes == ["delayMs", "priority", "payload", "verb", "ownershipToken"]


async def test_acknowledgements_without_an_id_are_taken_too() -> None:
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer:
        await http.call("enqueue", ITEM)
        await peer.open(credit=1)
        [lease] = await peer.leases(1)
        await peer.send({"acks": [ack("complete", lease)]})
        assert await peer.told("results") == [{"success": True}]


async def test_results_and_follow_ups_travel_with_a_completion() -> None:
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer:
        sequence_id = (await http.call("enqueue", ITEM))["sequenceId"]
        await peer.open(credit=1)
        [lease] = await peer.leases(1)
        [result] = await peer.acknowledge(ack("complete", lease, result="aGk=", followUps=[ITEM]))
        item = (await http.call("get", {"sequenceId": sequence_id}))["item"]
        assert (item["state"], item["result"]) == ("completed", "aGk=")
        child = (await http.call("get", {"sequenceId": result["followUpIds"][0]}))["item"]
        assert child["parentSequenceId"] == sequence_id


# -- what ends a stream --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "invalid-argument"),
        ("nonsense", "invalid-argument"),
        ("5", "invalid-argument"),
        ("[5]", "invalid-argument"),
        ("[" * 2_000, "invalid-argument"),
        ('{"open": {"credit": 100001}}', "resourcelease.credit.invalid"),
        ('{"credit": "many"}', "resourcelease.credit.invalid"),
        ('{"begin": [{"sequenceId": 1}]}', "resourcelease.attempt.invalid"),
        ('{"open": {"credit": 1, "leaseDurationMs": 100000000000}}', "resourcelease.leaseDurationMs.invalid"),
        ('[{"open": {}}, {"open": {}}]', "resourcelease.open.invalid"),
    ],
)
async def test_who_breaks_a_rule_hears_which_and_is_closed(text: str, code: str) -> None:
    async with running_node() as node, peer_of(node.url) as peer, peer_of(node.url) as other:
        await peer.socket.send(text)
        assert await peer.closed() == (1008, code)
        [error] = peer.waiting("error")
        assert (error["status"], error["code"]) == ("INVALID_ARGUMENT", code)
        await other.round_trip()


async def test_a_message_over_16_mib_ends_the_stream_with_1009() -> None:
    async with running_node() as node, Http(node) as http:
        await http.call("enqueue", ITEM)
        peer = await connected(node.url)
        await peer.open(credit=1)
        await peer.leases(1)
        with suppress(ConnectionClosed):  # The node need not read it to its end.
            await peer.socket.send('{"id": 1, "call": {"verb": "stats", "request": {"x": "' + "y" * 17 * MIB + '"}}}')
        assert (await peer.closed())[0] == 1009
        assert (await http.call("lease", {"waitMs": 15_000}))["attempt"] == 1


async def test_messages_may_come_in_fragments_and_as_bytes() -> None:
    async with running_node() as node, peer_of(node.url) as peer:
        text = json.dumps({"id": 1, "call": {"verb": "enqueue", "request": ITEM}})
        await peer.socket.send([text[:1], text[1:7], "", text[7:]])
        assert (await peer.answered(1))["answer"]["sequenceId"] == 1
        await peer.socket.send(json.dumps({"id": 2, "call": {"verb": "stats"}}).encode())
        assert (await peer.answered(2))["answer"]["stats"]["pendingCount"] == 1
        big = json.dumps({"id": 3, "call": {"verb": "stats", "request": {"x": "y" * 17 * MIB}}})
        with suppress(ConnectionClosed):
            await peer.socket.send([big[start : start + MIB] for start in range(0, len(big), MIB)])
        assert (await peer.closed())[0] == 1009


async def test_pings_are_answered() -> None:
    async with running_node() as node, peer_of(node.url) as peer:
        pong = await peer.socket.ping(b"still there?")
        await asyncio.wait_for(pong, PATIENCE_S)


# -- upgrades ------------------------------------------------------------------------------------


async def refused_upgrade(url: str, **options: Any) -> tuple[int, Any]:
    with pytest.raises(InvalidStatus) as refused:
        async with connect(url, proxy=None, open_timeout=PATIENCE_S, **options):
            pass
    response = refused.value.response
    assert response.headers.get_all("content-type") == ["application/json"]
    return response.status_code, json.loads(bytes(response.body or b""))


async def test_an_upgrade_that_leads_nowhere_is_refused_in_json() -> None:
    async with running_node() as node:
        status, error = await refused_upgrade(stream_url(node.url, "elsewhere"))
        assert (status, error["code"]) == (501, "unimplemented")
        for path in ("/v1/resourcelease/enqueue", "/v1/resourcelease/watch", "/v1/resourcelease", "/"):
            status, error = await refused_upgrade(node.url.replace("http", "ws") + path)
            assert (status, error["status"]) == (501, "UNIMPLEMENTED"), path
            named = "::".join(path.split("/")[2:]) if path.count("/") == 3 else path
            assert named in error["message"]


@pytest.mark.parametrize("lacking", [{"Sec-WebSocket-Key": ""}, {"Sec-WebSocket-Version": "12"}])
async def test_an_upgrade_that_is_no_handshake_is_refused_in_json(lacking: dict[str, str]) -> None:
    whole = {"Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==", "Sec-WebSocket-Version": "13"}
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", **whole, **lacking}
    [about] = lacking
    async with running_node() as node:
        wire = await Wire.connect(node)
        await wire.send(request_bytes("/v1/resourcelease/stream", method="GET", headers=headers))
        response = await wire.response()
        wire.close()
    error = response.json()
    assert (response.status, error["status"], error["code"]) == (400, "INVALID_ARGUMENT", "invalid-argument")
    assert about in error["message"]
    assert (response.headers["rpc-error-code"], response.headers["content-type"]) == (error["code"], "application/json")


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
async def test_a_call_that_asks_for_an_upgrade_is_answered_as_the_call_it_is(upgrade: str) -> None:
    async with running_node() as node:
        call = call_bytes("enqueue", {"items": [ITEM] * 2_000}, Connection="Upgrade", Upgrade=upgrade)
        wire = await Wire.connect(node)
        for request in (call, call_bytes("stats", Connection="Upgrade", Upgrade=upgrade) + call + call):
            await wire.send(request)
        for pending in (2_000, 2_000, 4_000, 6_000):
            response = await wire.response()
            assert (response.status, response.json()["stats"]["pendingCount"]) == (200, pending)
        await wire.send(call_bytes("stats", Connection="Upgrade", Upgrade=upgrade) * 1_500)
        for _ in range(1_500):
            assert (await wire.response()).status == 200
        wire.close()


async def test_pages_of_other_sites_get_no_stream() -> None:
    """A browser lets every page open a WebSocket to every host; only the origin tells them apart."""
    async with running_node() as node:
        for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "http://[::1"):
            status, error = await refused_upgrade(stream_url(node.url), additional_headers={"Origin": origin})
            assert (status, error["code"]) == (403, "permission-denied"), origin
        async with peer_of(node.url, additional_headers={"Origin": node.url}) as peer:
            await peer.round_trip()


# -- the node stops ------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_node_that_stops_says_so_to_every_stream(run: Any) -> None:
    async def main() -> None:
        async with running_node() as node:
            with_credit, idle = await connected(node.url), await connected(node.url)
            await with_credit.open(credit=1)
            await with_credit.round_trip()
            await idle.round_trip()
            codes = [asyncio.ensure_future(peer.closed()) for peer in (with_credit, idle)]
            async with asyncio.timeout(PATIENCE_S):
                await node.stop()
            assert [(await code)[0] for code in codes] == [1012, 1012]

    run(main())


async def test_an_item_cancelled_in_the_frame_of_its_grant_is_told_as_lost() -> None:
    async with running_node() as node, peer_of(node.url) as peer:
        for number in range(1, 11):
            await peer.open(credit=1) if number == 1 else await peer.send({"credit": 1})
            await peer.round_trip()
            await peer.send(
                {"id": f"e{number}", "call": {"verb": "enqueue", "request": ITEM}},
                {"id": f"c{number}", "call": {"verb": "cancel", "request": {"sequenceId": number, "force": True}}},
            )
            assert (await peer.answered(f"c{number}"))["answer"]["state"] == "cancelled"
            await peer.round_trip()
            pushed = peer.waiting("leases")
            assert len(pushed) == len(peer.waiting("lost")), "what was pushed is over, and its peer must know"
            if not pushed:  # Cancelled before it was granted: the credit is still there.
                await peer.call("enqueue", ITEM)
                [lease] = await peer.leases(1)
                await peer.acknowledge(ack("complete", lease))
                return
            peer.inbox.clear()
