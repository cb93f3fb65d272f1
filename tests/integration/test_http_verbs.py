"""Every verb over HTTP: what is sent, and exactly what comes back."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from omnirelay.core.options import QueueOptions
from omnirelay.node.node import Node
from tests.integration.nodes import Http, running_node

INSTANT = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00$")
UUID = re.compile(r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS = QueueOptions(requeue_delay_ms=0, max_delivery_attempts=3)

LEASE_FIELDS = {
    "payload",
    "sequenceId",
    "attempt",
    "enqueuedAt",
    "ownershipToken",
    "ownerPeerId",
    "expiresAt",
    "remainingMs",
    "heartbeatAfterMs",
    "priority",
}
ITEM_FIELDS = {"sequenceId", "state", "payload", "attempt", "priority", "weight", "enqueuedAt"}
HEARTBEAT_FIELDS = {"success", "extended", "expiresAt", "remainingMs", "heartbeatAfterMs", "cancelRequested"}


NAMESPACES = [f"shard{number}" for number in range(80)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shards() -> AsyncIterator[Iterator[tuple[Node, str]]]:
    """One node for the whole module: starting and stopping takes longer than most tests."""
    async with running_node(None, *NAMESPACES, options=OPTIONS) as node:
        yield iter([(node, namespace) for namespace in NAMESPACES])


@pytest_asyncio.fixture(loop_scope="module")
async def http(shards: Iterator[tuple[Node, str]]) -> AsyncIterator[Http]:
    """A shard of its own for each test."""
    async with Http(*next(shards)) as http:
        yield http


def payload(resource_id: str = "sales.orders", **fields: Any) -> dict[str, Any]:
    return {"resourceType": "table", "resourceId": resource_id, **fields}


async def enqueued(http: Http, resource_id: str = "sales.orders", **fields: Any) -> int:
    inside = {name: fields.pop(name) for name in ("body", "attributes", "requestId") if name in fields}
    answer = await http.call("enqueue", {"payload": payload(resource_id, **inside), **fields})
    sequence_id: int = answer["sequenceId"]
    return sequence_id


async def leased(http: Http, **request: Any) -> dict[str, Any]:
    lease: dict[str, Any] = await http.call("lease", {"waitMs": 0, **request})
    assert lease, "nothing was there to lease"
    return lease


async def dead(http: Http, resource_id: str = "bad", code: str = "io") -> int:
    sequence_id = await enqueued(http, resource_id)
    lease = await leased(http)
    await http.call("fail", {"ownershipToken": lease["ownershipToken"], "mode": "dead", "errorCode": code})
    return sequence_id


# -- enqueue -------------------------------------------------------------------------------------


async def test_enqueue_answers_with_the_id_and_the_counts(http: Http) -> None:
    answer = await http.call("enqueue", {"payload": payload()})
    assert answer == {
        "sequenceId": answer["sequenceId"],
        "duplicate": False,
        "stats": {"pendingCount": 1, "activeLeaseCount": 0},
    }
    delayed = await http.call("enqueue", {"payload": payload("later"), "delayMs": 60_000})
    assert delayed["stats"] == {"pendingCount": 2, "activeLeaseCount": 0}
    await leased(http)
    third = await http.call("enqueue", {"payload": payload("third")})
    assert third["stats"] == {"pendingCount": 2, "activeLeaseCount": 1}


async def test_enqueue_of_a_batch_answers_in_order(http: Http) -> None:
    items = [{"payload": payload(f"t{number}", requestId=f"r{number % 2}" if number else None)} for number in range(3)]
    items[2]["payload"] = items[1]["payload"]
    answer = await http.call("enqueue", {"items": items})
    assert set(answer) == {"results", "stats"}
    first, second, third = answer["results"]
    assert first["sequenceId"] < second["sequenceId"]
    assert [first["duplicate"], second["duplicate"], third["duplicate"]] == [False, False, True]
    assert third["sequenceId"] == second["sequenceId"]
    assert answer["stats"] == {"pendingCount": 2, "activeLeaseCount": 0}


async def test_a_batch_with_one_bad_item_takes_nothing_in(http: Http) -> None:
    response = await http.post("enqueue", {"items": [{"payload": payload()}, {"payload": {"resourceType": "t"}}]})
    assert response.status_code == 400
    assert response.json()["metadata"]["index"] == "1"
    assert (await http.call("stats"))["stats"]["pendingCount"] == 0


async def test_a_repeated_request_id_is_answered_with_the_first_item(http: Http) -> None:
    request = {"payload": payload(requestId="r-1", body="eyJ9", attributes={"tenant": "a"})}
    first = await http.call("enqueue", request)
    again = await http.call("enqueue", request)
    assert again["sequenceId"] == first["sequenceId"]
    assert (first["duplicate"], again["duplicate"]) == (False, True)


async def test_what_is_left_out_of_a_payload_is_filled_in_and_comes_back(http: Http) -> None:
    await enqueued(http)
    assert (await leased(http))["payload"] == {
        "resourceType": "table",
        "resourceId": "sales.orders",
        "partitionKey": "sales.orders",
        "payloadEncoding": "application/octet-stream",
        "body": "",
        "attributes": {},
    }


async def test_a_whole_payload_comes_back_as_it_was_sent(http: Http) -> None:
    sent = {
        "resourceType": "table",
        "resourceId": "ünïcode ✓",
        "partitionKey": "p0",
        "payloadEncoding": "json",
        "body": b64encode(bytes(range(256))).decode(),
        "attributes": {"tenant": "a", "queue.pending": "é"},
        "requestId": "r-1",
    }
    await http.call("enqueue", {"payload": sent})
    assert (await leased(http))["payload"] == sent


async def test_every_field_of_an_item_has_its_effect(http: Http) -> None:
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="milliseconds")
    sequence_id = await enqueued(http, priority=9, weight=3, notBefore=at, maxAttempts=7)
    item = (await http.call("get", {"sequenceId": sequence_id}))["item"]
    assert (item["priority"], item["weight"], item["state"], item["notBefore"]) == (9, 3, "delayed", at)


async def test_a_full_shard_waits_as_long_as_the_enqueue_says(http: Http) -> None:
    options = QueueOptions(capacity=1, high_watermark=10, low_watermark=5)
    async with running_node(options=options) as node, Http(node) as full:
        await enqueued(full)
        refused = await full.post("enqueue", {"payload": payload("b"), "waitMs": 30})
        assert refused.status_code == 429


# -- lease ---------------------------------------------------------------------------------------


async def test_a_lease_has_every_field_and_no_null(http: Http) -> None:
    sequence_id = await enqueued(http, priority=7)
    lease = await leased(http, peerId="worker-a")
    assert set(lease) == LEASE_FIELDS
    token = lease["ownershipToken"]
    assert set(token) == {"sequenceId", "attempt", "leaseId", "fence"}
    assert token["sequenceId"] == lease["sequenceId"] == sequence_id
    assert token["attempt"] == lease["attempt"] == 1
    assert UUID.match(token["leaseId"])
    assert token["fence"] > sequence_id > 0
    assert lease["ownerPeerId"] == "worker-a"
    assert lease["priority"] == 7
    assert INSTANT.match(lease["enqueuedAt"])
    assert INSTANT.match(lease["expiresAt"])
    assert lease["remainingMs"] == 30_000
    assert 0 < lease["heartbeatAfterMs"] <= 10_000


async def test_nothing_to_lease_is_an_empty_object_and_with_a_number_an_empty_list(http: Http) -> None:
    assert await http.call("lease", {"waitMs": 0}) == {}
    assert await http.call("lease", {"waitMs": 0, "maxItems": 5}) == {"leases": []}


async def test_several_leases_come_in_a_list_also_when_one_was_asked_for(http: Http) -> None:
    ids = [await enqueued(http, f"t{number}") for number in range(3)]
    one = await http.call("lease", {"waitMs": 0, "maxItems": 1})
    rest = await http.call("lease", {"waitMs": 0, "maxItems": 1000})
    assert [lease["sequenceId"] for lease in one["leases"] + rest["leases"]] == ids
    assert all(set(lease) == LEASE_FIELDS for lease in rest["leases"])


async def test_the_owner_is_the_peer_of_the_body_then_the_caller_then_the_header(http: Http) -> None:
    for number in range(4):
        await enqueued(http, f"t{number}")
    both = {"Rpc_Caller": "svc", "X_Peer_Id": "header"}
    owners = [
        (await http.call("lease", {"waitMs": 0, "peerId": "body"}, **both))["ownerPeerId"],
        (await http.call("lease", {"waitMs": 0}, **both))["ownerPeerId"],
        (await http.call("lease", {"waitMs": 0}, X_Peer_Id="header"))["ownerPeerId"],
        (await http.call("lease", {"waitMs": 0}))["ownerPeerId"],
    ]
    assert owners == ["body", "svc", "header", ""]


async def test_a_caller_that_names_its_service_may_acknowledge_what_its_peer_leased(http: Http) -> None:
    await enqueued(http)
    lease = await http.call("lease", {"waitMs": 0, "peerId": "worker-a"}, Rpc_Caller="svc")
    token = {"ownershipToken": lease["ownershipToken"]}
    assert (await http.call("heartbeat", token, Rpc_Caller="svc"))["success"] is True
    assert (await http.call("heartbeat", {"acks": [token]}, Rpc_Caller="svc"))["results"][0]["success"] is True
    assert await http.call("complete", token, Rpc_Caller="svc") == {"success": True}


async def test_a_lease_may_ask_for_its_duration(http: Http) -> None:
    await enqueued(http)
    assert (await leased(http, leaseDurationMs=90_000))["remainingMs"] == 90_000


async def test_a_lease_may_be_limited_to_types_and_tenants(http: Http) -> None:
    await enqueued(http, "one", attributes={"tenant": "a"})
    await http.call("enqueue", {"payload": {"resourceType": "stream.x", "resourceId": "two"}})
    assert await http.call("lease", {"waitMs": 0, "resourceTypes": ["view*"]}) == {}
    assert await http.call("lease", {"waitMs": 0, "tenants": ["b"]}) == {}
    assert (await leased(http, resourceTypes=["view", "stream.*"]))["payload"]["resourceId"] == "two"
    assert (await leased(http, tenants=["a", "b"]))["payload"]["resourceId"] == "one"


async def test_a_repeated_lease_call_gets_the_same_leases(http: Http) -> None:
    for number in range(4):
        await enqueued(http, f"t{number}")
    first = await http.call("lease", {"waitMs": 0, "maxItems": 2, "requestId": "call-1", "peerId": "w"})
    again = await http.call("lease", {"waitMs": 0, "maxItems": 2, "requestId": "call-1", "peerId": "w"})
    other = await http.call("lease", {"waitMs": 0, "maxItems": 2, "requestId": "call-2", "peerId": "w"})
    tokens = [lease["ownershipToken"] for lease in first["leases"]]
    assert [lease["ownershipToken"] for lease in again["leases"]] == tokens
    assert all(lease["ownershipToken"] not in tokens for lease in other["leases"])


async def test_a_lease_after_a_failure_bears_its_error_and_the_progress(http: Http) -> None:
    await enqueued(http)
    first = await leased(http)
    progress = {"fraction": 0.25, "message": "a quarter", "data": {"rows": [1, 2]}}
    await http.call("heartbeat", {"ownershipToken": first["ownershipToken"], "progress": progress})
    await http.call("fail", {"ownershipToken": first["ownershipToken"], "reason": "disk full", "errorCode": "io.full"})
    second = await leased(http)
    assert set(second) == LEASE_FIELDS | {"lastError", "progress"}
    assert second["lastError"] == {"message": "disk full", "code": "io.full"}
    assert second["progress"] == progress
    assert second["attempt"] == 2
    assert second["ownershipToken"]["fence"] > first["ownershipToken"]["fence"]


# -- acknowledging -------------------------------------------------------------------------------


async def test_a_heartbeat_says_what_it_did(http: Http) -> None:
    await enqueued(http)
    lease = await leased(http)
    answer = await http.call("heartbeat", {"ownershipToken": lease["ownershipToken"], "metadata": {"a": "b"}})
    assert set(answer) == HEARTBEAT_FIELDS
    assert answer["success"] is True
    assert answer["extended"] is False
    assert answer["cancelRequested"] is False
    assert INSTANT.match(answer["expiresAt"])
    assert 0 < answer["remainingMs"] <= 30_000


async def test_a_heartbeat_when_it_is_time_extends_the_lease() -> None:
    options = QueueOptions(heartbeat_interval_ms=0)
    async with running_node(options=options) as node, Http(node) as http:
        await enqueued(http)
        token = (await leased(http))["ownershipToken"]
        answer = await http.call("heartbeat", {"ownershipToken": token})
        assert (answer["extended"], answer["remainingMs"]) == (True, 30_000)


async def test_a_heartbeat_hears_of_a_cancellation(http: Http) -> None:
    sequence_id = await enqueued(http)
    token = (await leased(http))["ownershipToken"]
    asked = await http.call("cancel", {"sequenceId": sequence_id, "reason": "no longer wanted"})
    assert asked == {"success": True, "state": "leased", "cancelRequested": True}
    assert (await http.call("heartbeat", {"ownershipToken": token}))["cancelRequested"] is True
    item = (await http.call("get", {"sequenceId": sequence_id}))["item"]
    assert item["cancelRequested"] is True


async def test_complete_keeps_the_result_and_takes_follow_ups_in(http: Http) -> None:
    sequence_id = await enqueued(http)
    token = (await leased(http))["ownershipToken"]
    answer = await http.call(
        "complete",
        {
            "ownershipToken": token,
            "result": b64encode(b"42").decode(),
            "resultEncoding": "text/plain",
            "followUps": [
                {"payload": payload("next"), "priority": 8},
                {"payload": payload("later"), "delayMs": 60_000},
            ],
        },
    )
    assert set(answer) == {"success", "followUpIds"}
    assert answer["success"] is True
    assert len(answer["followUpIds"]) == 2
    item = (await http.call("get", {"sequenceId": sequence_id}))["item"]
    assert (item["state"], item["result"], item["resultEncoding"]) == ("completed", "NDI=", "text/plain")
    assert INSTANT.match(item["endedAt"])
    child = (await http.call("get", {"sequenceId": answer["followUpIds"][0]}))["item"]
    assert (child["parentSequenceId"], child["priority"], child["state"]) == (sequence_id, 8, "ready")


async def test_complete_without_more_is_just_a_success(http: Http) -> None:
    await enqueued(http)
    token = (await leased(http))["ownershipToken"]
    assert await http.call("complete", {"ownershipToken": token}) == {"success": True}
    assert await http.call("complete", {"ownershipToken": token}) == {"success": True}


@pytest.mark.parametrize(
    ("request_", "state"),
    [
        ({}, "ready"),
        ({"requeue": True}, "ready"),
        ({"requeue": False}, "dead"),
        ({"mode": "retry", "requeue": False}, "ready"),
        ({"mode": "release"}, "ready"),
        ({"mode": "dead", "requeue": True}, "dead"),
        ({"mode": "DEAD"}, "dead"),
        ({"delayMs": 60_000}, "delayed"),
    ],
)
async def test_fail_says_where_the_item_went(http: Http, request_: dict[str, Any], state: str) -> None:
    await enqueued(http)
    token = (await leased(http))["ownershipToken"]
    answer = await http.call("fail", {"ownershipToken": token, "metadata": {"host": "n1"}, **request_})
    assert answer["success"] is True
    assert answer["state"] == state
    assert set(answer) == ({"success", "state", "notBefore"} if state == "delayed" else {"success", "state"})
    if state == "delayed":
        assert INSTANT.match(answer["notBefore"])


async def test_a_failure_without_words_gets_the_words_of_old(http: Http) -> None:
    sequence_id = await enqueued(http)
    token = (await leased(http))["ownershipToken"]
    await http.call("fail", {"ownershipToken": token})
    item = (await http.call("get", {"sequenceId": sequence_id}))["item"]
    assert item["lastError"] == {"message": "lease failed", "code": "error.resourcelease.failed"}


async def test_release_burns_no_attempt(http: Http) -> None:
    await enqueued(http)
    token = (await leased(http))["ownershipToken"]
    assert await http.call("release", {"ownershipToken": token}) == {"success": True, "state": "ready"}
    again = await leased(http)
    assert again["attempt"] == 1
    delayed = await http.call("release", {"ownershipToken": again["ownershipToken"], "delayMs": 60_000})
    assert delayed["state"] == "delayed"


async def test_metadata_stays_with_a_failure_and_nowhere_else(http: Http) -> None:
    await enqueued(http)
    lease = await http.call("lease", {"waitMs": 0, "metadata": {"of": "a lease"}})
    token = lease["ownershipToken"]
    beat = await http.call("heartbeat", {"ownershipToken": token, "metadata": {"of": "a heartbeat"}})
    await http.call("fail", {"ownershipToken": token, "metadata": {"of": "a failure"}})
    history = await http.client.get(f"/v1/{http.namespace}/watch?from=1&untilCaughtUp=true")
    assert '"metadata":{"of":"a failure"}' in history.text
    assert not [each for each in ("a lease", "a heartbeat") if each in f"{history.text}{lease}{beat}"]


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail", "release"])
async def test_acknowledgements_come_in_batches_with_an_outcome_each(http: Http, verb: str) -> None:
    for number in range(2):
        await enqueued(http, f"t{number}")
    leases = (await http.call("lease", {"waitMs": 0, "maxItems": 2}))["leases"]
    unknown = {"sequenceId": 99, "attempt": 1, "leaseId": "3f2504e0-4f89-41d3-9a0c-0305e82c3301"}
    tokens = [leases[0]["ownershipToken"], unknown, leases[1]["ownershipToken"]]
    answer = await http.call(verb, {"acks": [{"ownershipToken": token} for token in tokens]})
    assert set(answer) == {"results"}
    good, bad, also_good = answer["results"]
    assert bad == {
        "success": False,
        "errorCode": "error.resourcelease.unknown_token",
        "errorMessage": bad["errorMessage"],
    }
    single = {
        "heartbeat": HEARTBEAT_FIELDS,
        "complete": {"success"},
        "fail": {"success", "state"},
        "release": {"success", "state"},
    }[verb]
    assert set(good) == set(also_good) == single


async def test_a_batch_of_completions_may_bring_follow_ups(http: Http) -> None:
    await enqueued(http)
    token = (await leased(http))["ownershipToken"]
    ack = {"ownershipToken": token, "followUps": [{"payload": payload("next")}]}
    [outcome] = (await http.call("complete", {"acks": [ack]}))["results"]
    assert set(outcome) == {"success", "followUpIds"}


# -- single items --------------------------------------------------------------------------------


async def test_get_shows_an_item_through_its_life(http: Http) -> None:
    sequence_id = await enqueued(http, requestId="r-1")
    ready = (await http.call("get", {"requestId": "r-1"}))["item"]
    assert set(ready) == ITEM_FIELDS
    assert (ready["sequenceId"], ready["state"], ready["attempt"], ready["weight"]) == (sequence_id, "ready", 1, 1)
    lease = await leased(http, peerId="w")
    held = (await http.call("get", {"sequenceId": sequence_id}))["item"]
    assert held["state"] == "leased"
    assert held["ownershipToken"] == lease["ownershipToken"]
    assert (held["ownerPeerId"], held["expiresAt"]) == ("w", lease["expiresAt"])
    await http.call("complete", {"ownershipToken": lease["ownershipToken"]})
    done = (await http.call("get", {"sequenceId": sequence_id}))["item"]
    assert (done["state"], "ownershipToken" in done, "expiresAt" in done) == ("completed", False, False)


async def test_get_waits_for_the_end_of_an_item(http: Http) -> None:
    sequence_id = await enqueued(http)
    early = await http.call("get", {"sequenceId": sequence_id, "waitMs": 20})
    assert early["item"]["state"] == "ready"


async def test_cancel_ends_what_is_pending_and_by_force_what_is_leased(http: Http) -> None:
    first = await enqueued(http, "a")
    assert await http.call("cancel", {"sequenceId": first}) == {
        "success": True,
        "state": "cancelled",
        "cancelRequested": False,
    }
    assert (await http.call("cancel", {"sequenceId": first}))["success"] is False
    second = await enqueued(http, "b")
    await leased(http)
    forced = await http.call("cancel", {"sequenceId": second, "force": True, "reason": "now"})
    assert forced == {"success": True, "state": "cancelled", "cancelRequested": False}
    assert (await http.call("get", {"sequenceId": second}))["item"]["state"] == "cancelled"


# -- drain and restore ---------------------------------------------------------------------------


async def test_what_is_drained_can_be_restored_as_it_is(http: Http) -> None:
    for number in range(3):
        await enqueued(http, f"t{number}", requestId=f"r{number}", priority=number)
    lease = await leased(http)
    await http.call("heartbeat", {"ownershipToken": lease["ownershipToken"], "progress": {"fraction": 0.5}})
    await http.call("fail", {"ownershipToken": lease["ownershipToken"], "errorCode": "io", "delayMs": 60_000})
    page = await http.call("drain", {"maxItems": 2})
    assert set(page) == {"items", "remainingCount"}
    assert page["remainingCount"] == 1
    rest = await http.call("drain", {})
    assert rest["remainingCount"] == 0
    items = page["items"] + rest["items"]
    assert len(items) == 3
    for item in items:
        assert {"payload", "attempt", "enqueuedAt", "sequenceId", "priority", "weight"} <= set(item)
        assert INSTANT.match(item["enqueuedAt"])
        assert None not in item.values()
    failed = next(item for item in items if "lastError" in item)
    assert failed["lastOwnershipToken"] == lease["ownershipToken"]
    assert INSTANT.match(failed["notBefore"])
    assert (await http.call("stats"))["stats"]["pendingCount"] == 0
    assert await http.call("restore", {"items": items}) == {"restoredCount": 3, "duplicateCount": 0}
    assert await http.call("restore", {"items": items}) == {"restoredCount": 0, "duplicateCount": 3}
    again = (await http.call("drain"))["items"]
    assert sorted(again, key=lambda item: item["sequenceId"]) == sorted(items, key=lambda item: item["sequenceId"])


async def test_items_of_the_reference_system_can_be_restored(http: Http) -> None:
    item = {
        "payload": payload("old", partitionKey="p0", payloadEncoding="json", body="e30=", attributes={}),
        "attempt": 2,
        "enqueuedAt": "2025-11-24T10:00:00.1234567+00:00",
        "lastError": {"message": "disk full", "code": "io.full"},
        "sequenceId": 77,
        "lastOwnershipToken": {"sequenceId": 77, "attempt": 1, "leaseId": "3F2504E0-4F89-41D3-9A0C-0305E82C3301"},
    }
    assert await http.call("restore", {"items": [item]}) == {"restoredCount": 1, "duplicateCount": 0}
    lease = await leased(http)
    assert (lease["sequenceId"], lease["attempt"]) == (77, 2)
    assert lease["enqueuedAt"] == "2025-11-24T10:00:00.123+00:00"
    assert lease["lastError"] == {"message": "disk full", "code": "io.full"}


async def test_an_item_whose_id_is_taken_gets_another_and_the_answer_says_which(http: Http) -> None:
    await enqueued(http)
    item = {"payload": payload("foreign"), "attempt": 2, "enqueuedAt": "2025-11-24T10:00:00+00:00", "sequenceId": 1}
    assert await http.call("restore", {"items": [item]}) == {
        "restoredCount": 1,
        "duplicateCount": 0,
        "renumbered": [{"sequenceId": 1, "newSequenceId": 2}],
    }
    assert (await http.call("get", {"sequenceId": 2}))["item"]["payload"]["resourceId"] == "foreign"


async def test_restoring_nothing_is_no_mistake_and_not_saying_what_to_restore_is(http: Http) -> None:
    """What was drained exists nowhere else: a name that was misspelt would lose it without a word."""
    item = {"payload": payload("foreign"), "attempt": 2, "enqueuedAt": "2025-11-24T10:00:00+00:00", "sequenceId": 1}
    for body in ({}, {"item": [item]}, {"items": None}):
        refused = await http.post("restore", body)
        assert (refused.status_code, refused.json()["code"]) == (400, "resourcelease.items.invalid")
        assert "items must be given" in refused.json()["message"]
    assert await http.call("restore", {"items": []}) == {"restoredCount": 0, "duplicateCount": 0}


async def test_drain_may_close_the_intake(http: Http) -> None:
    await enqueued(http)
    page = await http.call("drain", {"pauseIntake": True})
    assert len(page["items"]) == 1
    refused = await http.post("enqueue", {"payload": payload()})
    assert (refused.status_code, refused.json()["code"]) == (503, "error.resourcelease.paused")


# -- pauses --------------------------------------------------------------------------------------


async def test_pauses_are_listed_with_what_was_said_and_end_when_resumed(http: Http) -> None:
    await enqueued(http)
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="milliseconds")
    one = await http.call("pause", {"resourceType": "table", "reason": "repair", "until": until})
    assert one["success"] is True
    [pause] = one["pauses"]
    assert pause == {
        "resourceType": "table",
        "intake": False,
        "reason": "repair",
        "until": until,
        "since": pause["since"],
    }
    assert INSTANT.match(pause["since"])
    assert await http.call("lease", {"waitMs": 0}) == {}
    two = await http.call("pause", {"tenant": "a", "intake": True})
    assert len(two["pauses"]) == 2
    assert len((await http.call("stats"))["stats"]["pauses"]) == 2
    assert len((await http.call("pause", {}))["pauses"]) == 3
    await http.call("resume", {"tenant": "a"})
    await http.call("resume", {})
    assert await http.call("resume", {"resourceType": "table"}) == {"success": True, "pauses": []}
    assert await leased(http)


# -- dead letters --------------------------------------------------------------------------------


async def test_dead_letters_are_listed_by_page_and_by_filter(http: Http) -> None:
    ids = [await dead(http, f"bad{number}", code="io" if number else "net") for number in range(3)]
    everything = await http.call("deadletters", {})
    assert set(everything) == {"items", "total"}
    assert [item["sequenceId"] for item in everything["items"]] == ids
    assert all(item["state"] == "dead" and INSTANT.match(item["endedAt"]) for item in everything["items"])
    first = await http.call("deadletters", {"maxItems": 2})
    assert set(first) == {"items", "total", "next"}
    second = await http.call("deadletters", {"maxItems": 2, "after": first["next"]})
    assert [item["sequenceId"] for item in first["items"] + second["items"]] == ids
    assert first["total"] == 3
    by_code = await http.call("deadletters", {"errorCode": "net"})
    assert [item["sequenceId"] for item in by_code["items"]] == ids[:1]
    assert (await http.call("deadletters", {"resourceType": "view"}))["items"] == []
    [named] = (await http.call("deadletters", {"sequenceId": ids[1]}))["items"]
    assert named["lastError"]["code"] == "io"


async def test_a_dead_letter_is_edited_redriven_and_leased_again(http: Http) -> None:
    sequence_id = await dead(http)
    answer = await http.call("edit", {"sequenceId": sequence_id, "payload": payload("good", body="QQ==")})
    assert set(answer) == {"item"}
    assert answer["item"]["payload"]["resourceId"] == "good"
    assert await http.call("redrive", {"sequenceIds": [sequence_id]}) == {"redrivenCount": 1}
    assert (await leased(http))["payload"]["body"] == "QQ=="


async def test_redrive_by_type_by_code_and_at_a_rate(http: Http) -> None:
    for number in range(4):
        await dead(http, f"bad{number}", code="io" if number % 2 else "net")
    assert await http.call("redrive", {"errorCode": "io"}) == {"redrivenCount": 2}
    assert await http.call("redrive", {"resourceType": "none"}) == {"redrivenCount": 0}
    assert await http.call("redrive", {"all": True, "ratePerSecond": 0.01}) == {"redrivenCount": 2}
    stats = (await http.call("stats"))["stats"]
    assert (stats["readyCount"], stats["delayedCount"], stats["deadLetterCount"]) == (3, 1, 0)


async def test_purge_forgets(http: Http) -> None:
    ids = [await dead(http, f"bad{number}") for number in range(3)]
    assert await http.call("purge", {"sequenceIds": ids[:1]}) == {"purgedCount": 1}
    assert await http.call("purge", {"resourceType": "table"}) == {"purgedCount": 2}
    assert await http.call("purge", {"all": True}) == {"purgedCount": 0}
    assert (await http.post("get", {"sequenceId": ids[0]})).status_code == 404


# -- looking -------------------------------------------------------------------------------------


async def test_stats_have_every_count(http: Http) -> None:
    await dead(http, "dead")
    await enqueued(http, "done")
    await http.call("complete", {"ownershipToken": (await leased(http))["ownershipToken"]})
    await enqueued(http, "held")
    await leased(http)
    await enqueued(http, "ready")
    await enqueued(http, "also ready")
    await enqueued(http, "delayed", delayMs=60_000)
    answer = await http.call("stats")
    assert set(answer) == {"stats"}
    stats = answer["stats"]
    assert {name: stats[name] for name in stats if name.endswith("Count")} == {
        "pendingCount": 3,
        "readyCount": 2,
        "delayedCount": 1,
        "activeLeaseCount": 1,
        "deadLetterCount": 1,
        "completedCount": 1,
    }
    assert stats["oldestReadyAgeMs"] >= 0
    assert stats["lastSequence"] > 0
    assert stats["pauses"] == []
    pressure = stats["backpressure"]
    assert {"isActive", "pendingCount", "highWatermark", "lowWatermark", "observedAt"} <= set(pressure)
    assert (pressure["isActive"], pressure["pendingCount"]) == (False, 3)
    assert INSTANT.match(pressure["observedAt"])


async def test_peek_lists_items_by_state(http: Http) -> None:
    ids = [await enqueued(http, f"t{number}", attributes={"tenant": "ab"[number % 2]}) for number in range(3)]
    page = await http.call("peek", {})
    assert set(page) == {"items"}
    assert [item["sequenceId"] for item in page["items"]] == ids
    first = await http.call("peek", {"state": "ready", "maxItems": 2})
    assert set(first) == {"items", "next"}
    rest = await http.call("peek", {"state": "Ready", "maxItems": 2, "after": first["next"]})
    assert [item["sequenceId"] for item in rest["items"]] == ids[2:]
    assert [item["sequenceId"] for item in (await http.call("peek", {"tenant": "b"}))["items"]] == [ids[1]]
    assert (await http.call("peek", {"resourceType": "view"}))["items"] == []
    for state in ("delayed", "leased", "completed", "dead", "cancelled"):
        assert await http.call("peek", {"state": state}) == {"items": []}


async def test_why_names_the_gates(http: Http) -> None:
    first = await enqueued(http, "a")
    second = await enqueued(http, "b")
    late = await enqueued(http, "c", delayMs=60_000)
    assert await http.call("why", {"sequenceId": first}) == {"sequenceId": first, "state": "ready", "gates": []}
    behind = await http.call("why", {"sequenceId": second})
    assert [gate["gate"] for gate in behind["gates"]] == ["position"]
    assert all(gate["message"] and None not in gate.values() for gate in behind["gates"])
    [delay] = (await http.call("why", {"sequenceId": late}))["gates"][:1]
    assert delay["gate"] == "delay"
    assert INSTANT.match(delay["until"])
    await http.call("pause", {"reason": "repair"})
    gates = (await http.call("why", {"sequenceId": first}))["gates"]
    assert [(gate["gate"], gate.get("reason")) for gate in gates][:1] == [("pause", "repair")]
    await http.call("resume", {})
    await leased(http, peerId="w")
    held = await http.call("why", {"sequenceId": first})
    assert (held["state"], held["gates"][0]["gate"], held["gates"][0]["ownerPeerId"]) == ("leased", "leased", "w")


# -- durability ----------------------------------------------------------------------------------


async def test_what_was_answered_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Http(node) as http:
        kept = await enqueued(http, "kept", requestId="r-1")
        done = await enqueued(http, "done")
        leases = (await http.call("lease", {"waitMs": 0, "maxItems": 2}))["leases"]
        await http.call("complete", {"ownershipToken": leases[1]["ownershipToken"], "result": "QQ=="})
    async with running_node(tmp_path) as node, Http(node) as http:
        held = (await http.call("get", {"requestId": "r-1"}))["item"]
        assert (held["sequenceId"], held["state"]) == (kept, "leased")
        assert (await http.call("get", {"sequenceId": done}))["item"]["result"] == "QQ=="
        assert await http.call("complete", {"ownershipToken": leases[0]["ownershipToken"]}) == {"success": True}
        fresh = await enqueued(http, "fresh")
        assert fresh > done
        assert (await leased(http))["ownershipToken"]["fence"] > leases[1]["ownershipToken"]["fence"]
