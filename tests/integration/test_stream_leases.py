"""Leases over a stream: pushed up to the credit, begun, acknowledged, adopted, lost, and released on a drop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omnirelay.core.options import QueueOptions
from tests.integration.http_sockets import until
from tests.integration.nodes import Http, running_node
from tests.integration.stream_peers import ITEM, ack, connected, peer_of, token_of
from tests.patience import PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.usefixtures("stream_form")

SHORT = QueueOptions(lease_duration_ms=300, heartbeat_interval_ms=100, requeue_delay_ms=0)


async def leased_now(http: Http, **request: Any) -> dict[str, Any]:
    """What the next client gets: it must come long before a lost lease would run out."""
    lease: dict[str, Any] = await asyncio.wait_for(http.call("lease", {"waitMs": PATIENCE_MS, **request}), PATIENCE_S)
    assert lease, "the item stayed with a peer that is gone"
    return lease


# -- credit --------------------------------------------------------------------------------------


async def test_leases_are_pushed_up_to_the_credit_and_never_beyond() -> None:
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer:
        await peer.open(credit=3)
        await http.call("enqueue", {"items": [ITEM] * 10})
        held = await peer.leases(3)
        await peer.round_trip()
        assert peer.waiting("leases") == []
        assert (await http.call("stats"))["stats"]["activeLeaseCount"] == 3
        for more in (1, 2, 4):
            await peer.send({"credit": more})
            held += await peer.leases(more)
            await peer.round_trip()
            assert peer.waiting("leases") == []
        assert [lease["sequenceId"] for lease in held] == sorted(lease["sequenceId"] for lease in held)
        assert {lease["ownerPeerId"] for lease in held} == {"peer"}


async def test_an_acknowledgement_gives_no_credit_by_itself() -> None:
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer:
        await http.call("enqueue", {"items": [ITEM] * 3})
        await peer.open(credit=1)
        [lease] = await peer.leases(1)
        assert await peer.acknowledge(ack("complete", lease)) == [{"success": True}]
        await peer.round_trip()
        assert peer.waiting("leases") == []
        await peer.send({"credit": 2})
        assert len(await peer.leases(2)) == 2


async def test_credit_that_comes_while_the_node_waits_for_items_counts() -> None:
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer:
        await peer.open(credit=1)
        await peer.round_trip()
        await peer.send({"credit": 4})
        await peer.round_trip()
        await http.call("enqueue", {"items": [ITEM] * 9})
        assert len(await peer.leases(5)) == 5


async def test_a_stream_without_credit_gets_nothing() -> None:
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer:
        await http.call("enqueue", ITEM)
        await peer.open(credit=0)
        await peer.round_trip()
        assert peer.waiting("leases") == []


async def test_withdrawn_credit_counts_no_more_and_what_is_released_goes_to_others() -> None:
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer:
        await http.call("enqueue", {"items": [ITEM] * 3})
        await peer.open(credit=100)
        held = await peer.leases(3)
        await peer.send({"withdraw": True}, {"id": "r", "acks": [ack("release", lease) for lease in held]})
        assert [result["state"] for result in (await peer.answered("r"))["results"]] == ["ready"] * 3
        await http.call("enqueue", ITEM)
        await peer.round_trip()
        assert peer.waiting("leases") == []
        assert len([await leased_now(http) for _ in range(4)]) == 4


async def test_credit_counts_again_after_it_was_withdrawn() -> None:
    """In the same message, in the same frame, and in a later one: nobody else waits in the node for what comes."""
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer:
        await peer.open(credit=100)
        await peer.round_trip()
        await peer.send({"withdraw": True, "credit": 1})
        await http.call("enqueue", {"items": [ITEM] * 6})
        await peer.leases(1)
        await peer.send({"withdraw": True}, {"credit": 5}, {"withdraw": True}, {"credit": 2})
        await peer.leases(2)
        await peer.send({"withdraw": True})
        await peer.round_trip()
        await peer.send({"credit": 1})
        await peer.leases(1)
        await peer.round_trip()
        assert peer.waiting("leases") == []
        assert (await http.call("stats"))["stats"]["activeLeaseCount"] == 4


async def test_withdrawing_before_the_opening_takes_back_what_was_given_before_it() -> None:
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer:
        await http.call("enqueue", {"items": [ITEM] * 3})
        await peer.send({"credit": 2}, {"withdraw": True})
        await peer.open(credit=1)
        await peer.leases(1)
        await peer.round_trip()
        assert peer.waiting("leases") == []


async def test_filters_and_lease_duration_hold_for_what_is_pushed() -> None:
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer:
        await peer.open(credit=5, filters={"resourceTypes": ["job.*"], "tenants": ["acme"]}, leaseDurationMs=77_000)
        for kind, tenant in (("job.a", "acme"), ("job.b", "other"), ("table", "acme")):
            payload = {"resourceType": kind, "resourceId": "x", "attributes": {"tenant": tenant}}
            await http.call("enqueue", {"payload": payload})
        [lease] = await peer.leases(1)
        assert lease["payload"]["resourceType"] == "job.a"
        assert 70_000 < lease["remainingMs"] <= 77_000
        await peer.round_trip()
        assert peer.waiting("leases") == []


async def test_the_clock_of_the_peer_comes_back_with_leases() -> None:
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer:
        await peer.send({"open": {"credit": 1}, "clock": 17.25})
        await peer.round_trip()
        await peer.send({"clock": 18.5})
        await peer.round_trip()
        await http.call("enqueue", ITEM)
        message = await peer.first(lambda each: "leases" in each)
        assert message["clock"] == 18.5


# -- drops ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("politely", [True, False], ids=["closed", "aborted"])
async def test_a_drop_releases_what_was_not_begun_and_nothing_else(politely: bool) -> None:
    async with running_node() as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 3})
        peer = await connected(node.url)
        await peer.open(credit=3)
        begun, *unbegun = await peer.leases(3)
        await peer.send({"begin": [token_of(begun)]})
        await peer.round_trip()
        if politely:
            await peer.close()
        else:
            peer.drop()
        again = [await leased_now(http) for _ in unbegun]
        assert [(each["sequenceId"], each["attempt"]) for each in again] == [
            (each["sequenceId"], 1) for each in unbegun
        ]
        assert await http.call("lease", {"waitMs": 0}) == {}
        assert (await http.call("complete", {"ownershipToken": token_of(begun)}))["success"]


async def test_a_drop_releases_what_was_only_kept_by_heartbeats() -> None:
    """In any spelling of the verb: a heartbeat keeps a lease that waits its turn, it is no `begin`."""
    async with running_node() as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 2})
        peer = await connected(node.url)
        await peer.open(credit=2)
        first, second = await peer.leases(2)
        results = await peer.acknowledge(ack("heartbeat", first), ack("HeartBeat", second))
        assert [result["success"] for result in results] == [True, True]
        peer.drop()
        again = [await leased_now(http) for _ in range(2)]
        assert {each["attempt"] for each in again} == {1}


async def test_an_item_that_is_pushed_while_the_connection_ends_goes_to_the_next() -> None:
    async with running_node() as node, Http(node) as http:
        for number in range(30):
            peer = await connected(node.url)
            await peer.open(credit=1)
            await peer.round_trip()
            enqueue = asyncio.ensure_future(http.call("enqueue", ITEM))
            for _ in range(number % 10):
                await asyncio.sleep(0)
            peer.drop()
            await enqueue
            lease = await leased_now(http)
            assert lease["attempt"] == 1
            await http.call("complete", {"ownershipToken": token_of(lease)})


async def test_calls_that_wait_end_with_their_stream() -> None:
    async with running_node() as node, Http(node) as http:
        peer = await connected(node.url)
        await peer.send({"id": 1, "call": {"verb": "lease", "request": {"waitMs": 20_000}}})
        await peer.round_trip()
        peer.drop()
        await until(lambda: node.dispatcher.active == 0)
        await http.call("enqueue", ITEM)
        assert (await leased_now(http))["attempt"] == 1


async def test_an_acknowledgement_that_was_refused_leaves_the_lease_to_the_stream() -> None:
    """The completion does not fit, so the lease lives on: it is told of a cancellation, and released on a drop."""
    async with running_node(options=QueueOptions(body_limit=1_000)) as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 2})
        peer = await connected(node.url)
        await peer.open(credit=2)
        first, second = await peer.leases(2)
        large = {"payload": {**ITEM["payload"], "body": "A" * 10_000}}
        results = await peer.acknowledge(
            ack("complete", first, followUps=[large]), ack("complete", second, followUps=[large])
        )
        assert {result["errorCode"] for result in results} == {"resourcelease.payload.too_large"}
        await http.call("cancel", {"sequenceId": first["sequenceId"]})
        assert await peer.told("cancel") == [token_of(first)]
        peer.drop()
        again = await leased_now(http)
        assert (again["sequenceId"], again["attempt"]) == (second["sequenceId"], 1)


# -- what the node tells -------------------------------------------------------------------------


async def test_a_cancellation_reaches_the_stream_that_holds_the_lease() -> None:
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer, peer_of(node.url) as other:
        sequence_id = (await http.call("enqueue", ITEM))["sequenceId"]
        await peer.open(credit=1)
        [lease] = await peer.leases(1)
        await other.open(credit=1)
        assert (await http.call("cancel", {"sequenceId": sequence_id}))["cancelRequested"]
        assert await peer.told("cancel") == [token_of(lease)]
        await other.round_trip()
        assert other.inbox == []
        [result] = await peer.acknowledge(ack("release", lease))
        assert result["state"] == "cancelled"
        await peer.round_trip()
        assert peer.inbox == [], "who ended the lease itself has not lost it"


async def test_a_lease_that_ran_out_or_was_taken_away_is_told_as_lost() -> None:
    async with running_node(options=SHORT) as node, Http(node) as http, peer_of(node.url) as peer:
        await peer.open(credit=1)
        await http.call("enqueue", ITEM)
        [lease] = await peer.leases(1)
        assert await peer.told("lost") == [token_of(lease)]
        [refused] = await peer.acknowledge(ack("complete", lease))
        assert refused["errorCode"] == "error.taskqueue.lease_inactive"
        await peer.send({"credit": 1})
        [again] = await peer.leases(1)
        await peer.send({"begin": [token_of(again)]})
        await http.call("cancel", {"sequenceId": again["sequenceId"], "force": True})
        assert await peer.told("lost") == [token_of(again)]


async def test_after_a_reconnect_leases_are_adopted_or_told_as_lost() -> None:
    async with running_node() as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 3})
        first = await connected(node.url)
        await first.open(credit=3)
        kept, asked_to_stop, completed = await first.leases(3)
        await first.send({"begin": [token_of(each) for each in (kept, asked_to_stop, completed)]})
        await first.round_trip()
        first.drop()
        await http.call("complete", {"ownershipToken": token_of(completed)})
        await http.call("cancel", {"sequenceId": asked_to_stop["sequenceId"]})
        async with peer_of(node.url) as second:
            stranger = {**token_of(kept), "leaseId": "00000000-0000-0000-0000-000000000000"}
            tokens = [token_of(each) for each in (kept, asked_to_stop, completed)]
            await second.open()
            await second.send({"begin": [*tokens, stranger]})
            assert await second.told("cancel") == [token_of(asked_to_stop)]
            assert await second.told("lost") == [token_of(completed)]
            assert await second.told("lost") == [stranger]
            await http.call("cancel", {"sequenceId": kept["sequenceId"]})
            assert await second.told("cancel") == [token_of(kept)]


async def test_a_lease_adopted_by_another_stream_is_not_released_when_the_first_one_ends() -> None:
    """The first connection is dead but the node does not know yet, and never heard that the work had begun."""
    async with running_node() as node, Http(node) as http, peer_of(node.url) as second:
        await http.call("enqueue", ITEM)
        first = await connected(node.url)
        await first.open(credit=1)
        [lease] = await first.leases(1)
        await second.open()
        await second.send({"begin": [token_of(lease)]})
        await second.round_trip()
        await first.close()
        assert await http.call("lease", {"waitMs": 0}) == {}
        await http.call("cancel", {"sequenceId": lease["sequenceId"]})
        assert await second.told("cancel") == [token_of(lease)]
        assert (await second.acknowledge(ack("complete", lease)))[0]["success"]


async def test_what_was_acknowledged_by_another_way_is_not_kept_in_mind() -> None:
    async with running_node() as node, Http(node) as http:
        await http.call("enqueue", {"items": [ITEM] * 5})
        peer = await connected(node.url)
        await peer.open(credit=5)
        leases = await peer.leases(5)
        acks = [{"ownershipToken": token_of(lease)} for lease in leases[:4]]
        await http.call("complete", {"acks": acks[:2]})
        await http.call("release", {"acks": acks[2:]})
        taken = [await leased_now(http) for _ in range(2)]
        peer.drop()
        assert (await leased_now(http))["sequenceId"] == leases[4]["sequenceId"]
        for lease in taken:
            assert (await http.call("complete", {"ownershipToken": token_of(lease)}))["success"]


async def test_a_caller_that_names_its_service_may_acknowledge_what_its_worker_leased() -> None:
    headers = {"rpc-caller": "catalog"}
    async with running_node() as node, peer_of(node.url, additional_headers=headers) as peer:
        await peer.call("enqueue", ITEM)
        lease = await peer.call("lease", {"peerId": "worker-1", "waitMs": 0})
        [result] = await peer.acknowledge(ack("complete", lease))
        assert result == {"success": True}


async def test_a_token_of_another_peer_is_refused() -> None:
    async with running_node() as node, peer_of(node.url) as owner, peer_of(node.url) as other:
        await owner.call("enqueue", {"items": [ITEM]})
        await owner.open(credit=1, peer_id="owner")
        [lease] = await owner.leases(1)
        await other.open(peer_id="other")
        [refused] = await other.acknowledge(ack("complete", lease))
        assert refused["errorCode"] == "error.resourcelease.not_owner"
        assert (await owner.acknowledge(ack("complete", lease)))[0]["success"]


async def test_nobody_begins_what_another_peer_has_leased() -> None:
    async with running_node() as node, Http(node) as http, peer_of(node.url) as thief:
        await http.call("enqueue", ITEM)
        owner = await connected(node.url)
        await owner.open(credit=1, peer_id="owner")
        [lease] = await owner.leases(1)
        await thief.open(peer_id="other")
        await thief.send({"begin": [token_of(lease)]})
        assert await thief.told("lost") == [token_of(lease)]
        owner.drop()
        assert (await leased_now(http))["sequenceId"] == lease["sequenceId"], "not begun, so released at once"


async def test_credit_before_the_opening_counts() -> None:
    async with running_node() as node, Http(node) as http, peer_of(node.url) as peer:
        await http.call("enqueue", {"items": [ITEM] * 3})
        await peer.send({"credit": 2})
        await peer.open(credit=1)
        assert len(await peer.leases(3)) == 3


async def test_pushed_leases_larger_than_a_message_come_in_several() -> None:
    """A peer takes 16 MiB in one message; thirty bodies of a megabyte are far more."""
    async with running_node() as node, Http(node) as http:
        body = {"payload": {**ITEM["payload"], "body": "A" * 1_000_000}}
        for _ in range(30):
            await http.call("enqueue", body)
        async with peer_of(node.url) as peer:
            peer.socket.protocol.max_message_size = 16 * 1024 * 1024
            await peer.open(credit=30)
            leases = await peer.leases(30)
            assert len({lease["sequenceId"] for lease in leases}) == 30
