"""Every error a caller can get over HTTP now: status, code, headers, body."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from omnirelay.core.options import QueueOptions
from omnirelay.errors import LogDamaged, LogFenced, LogRegressed, OmniRelayError
from omnirelay.log import MemoryLog
from omnirelay.node.node import Node
from omnirelay.node.settings import LogSection
from omnirelay.rpc.calls import RequestMeta
from tests.integration.http_sockets import until
from tests.integration.nodes import Http, running_node, settings_for

ITEM = {"payload": {"resourceType": "table", "resourceId": "orders"}}
UNKNOWN = {"sequenceId": 99, "attempt": 1, "leaseId": "3f2504e0-4f89-41d3-9a0c-0305e82c3301"}


pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS = QueueOptions(body_limit=100)
NAMESPACES = [f"shard{number}" for number in range(150)]


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


@pytest_asyncio.fixture(loop_scope="module")
async def node() -> AsyncIterator[Node]:
    """A node of its own, for tests that break something."""
    async with running_node(options=OPTIONS) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="module")
async def own(node: Node) -> AsyncIterator[Http]:
    async with Http(node) as http:
        yield http


def refused(response: httpx.Response, http_status: int, status: str, code: str) -> dict[str, Any]:
    """The response is this refusal in every place a caller may look; returns the body."""
    body: dict[str, Any] = response.json()
    assert (response.status_code, body["code"]) == (http_status, code), body
    assert {"message", "status", "code"} <= set(body) <= {"message", "status", "code", "metadata", "retryAfterMs"}
    assert body["status"] == status
    assert response.headers["rpc-status"] == "".join(part.capitalize() for part in status.split("_"))
    assert response.headers["rpc-error-code"] == code
    assert response.headers["rpc-error-message"].isascii()
    assert response.headers["rpc-transport"] == "http"
    assert response.headers["rpc-protocol"] == "HTTP/1.1"
    assert response.headers["content-type"] == "application/json"
    assert all(isinstance(value, str) for value in body.get("metadata", {}).values())
    assert "Traceback" not in response.text
    assert '.py"' not in response.text
    return body


async def lease_of(http: Http, **request: Any) -> dict[str, Any]:
    await http.call("enqueue", ITEM)
    lease: dict[str, Any] = await http.call("lease", {"waitMs": 0, **request})
    return lease


# -- no room -------------------------------------------------------------------------------------


async def test_a_redrive_that_fits_in_part_is_answered_and_one_that_does_not_is_refused() -> None:
    options = QueueOptions(capacity=2, reserve=0, high_watermark=2, low_watermark=1)
    async with running_node(options=options) as node, Http(node) as http:
        for _ in range(3):
            lease = await lease_of(http)
            await http.call("fail", {"ownershipToken": lease["ownershipToken"], "mode": "dead"})
        assert await http.call("redrive", {"all": True}) == {"redrivenCount": 2, "leftCount": 1}
        response = await http.post("redrive", {"all": True})
        refused(response, 429, "RESOURCE_EXHAUSTED", "error.resourcelease.backpressure")
        assert (await http.call("stats"))["stats"]["deadLetterCount"] == 1


# -- validation ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "body", "code"),
    [
        ("enqueue", {}, "resourcelease.payload.required"),
        ("enqueue", {"payload": None}, "resourcelease.payload.required"),
        ("enqueue", {"payload": {}}, "resourcelease.payload.resource_type_required"),
        (
            "enqueue",
            {"payload": {"resourceType": " ", "resourceId": "r"}},
            "resourcelease.payload.resource_type_required",
        ),
        ("enqueue", {"payload": {"resourceType": "t", "resourceId": ""}}, "resourcelease.payload.resource_id_required"),
        (
            "enqueue",
            {"payload": {"resourceType": "t", "resourceId": "r", "payloadEncoding": " "}},
            "resourcelease.payload.encoding_required",
        ),
        (
            "enqueue",
            {"payload": {"resourceType": "t", "resourceId": "r", "partitionKey": " "}},
            "resourcelease.partitionKey.invalid",
        ),
        ("enqueue", {**ITEM, "priority": 10}, "resourcelease.priority.invalid"),
        ("enqueue", {**ITEM, "weight": 0}, "resourcelease.weight.invalid"),
        ("enqueue", {**ITEM, "maxAttempts": 0}, "resourcelease.maxAttempts.invalid"),
        ("enqueue", {**ITEM, "delayMs": 1, "notBefore": "2030-01-01T00:00:00Z"}, "resourcelease.delayMs.invalid"),
        ("enqueue", {**ITEM, "notBefore": "soon"}, "resourcelease.notBefore.invalid"),
        ("enqueue", {**ITEM, "waitMs": -1}, "resourcelease.waitMs.invalid"),
        ("enqueue", {**ITEM, "items": [ITEM]}, "resourcelease.items.invalid"),
        ("enqueue", {"items": []}, "resourcelease.items.invalid"),
        ("complete", {"acks": []}, "resourcelease.acks.invalid"),
        ("lease", {"maxItems": 1001}, "resourcelease.maxItems.invalid"),
        ("lease", {"leaseDurationMs": 10**9}, "resourcelease.leaseDurationMs.invalid"),
        ("lease", {"peerId": "x" * 300}, "resourcelease.peerId.invalid"),
        ("lease", {"requestId": " "}, "resourcelease.requestId.invalid"),
        ("heartbeat", {}, "resourcelease.ownershipToken.invalid"),
        ("complete", {"ownershipToken": {}}, "resourcelease.sequenceId.invalid"),
        ("fail", {"ownershipToken": UNKNOWN, "mode": "maybe"}, "resourcelease.mode.invalid"),
        ("release", {"ownershipToken": None}, "resourcelease.ownershipToken.invalid"),
        ("get", {}, "resourcelease.sequenceId.invalid"),
        ("get", {"sequenceId": 1, "requestId": "r"}, "resourcelease.sequenceId.invalid"),
        ("drain", {"maxItems": 0}, "resourcelease.maxItems.invalid"),
        ("restore", {"items": [None]}, "resourcelease.restore.pending_item_required"),
        ("restore", {"items": [{"sequenceId": 1}]}, "resourcelease.payload.required"),
        ("cancel", {}, "resourcelease.sequenceId.invalid"),
        ("pause", {"resourceType": "t", "tenant": "a"}, "resourcelease.scope.invalid"),
        ("pause", {"until": "1999-01-01T00:00:00Z"}, "resourcelease.until.invalid"),
        ("deadletters", {"maxItems": 1001}, "resourcelease.maxItems.invalid"),
        ("edit", {"sequenceId": 1}, "resourcelease.payload.required"),
        ("redrive", {}, "resourcelease.selection.invalid"),
        ("redrive", {"all": True, "ratePerSecond": 1e-9}, "resourcelease.ratePerSecond.invalid"),
        ("purge", {"all": True, "errorCode": "x"}, "resourcelease.selection.invalid"),
        ("peek", {"state": "gone"}, "resourcelease.state.invalid"),
        ("why", {"sequenceId": -1}, "resourcelease.sequenceId.invalid"),
    ],
)
async def test_what_is_wrong_with_a_request_has_a_code_of_its_own(
    http: Http, verb: str, body: dict[str, Any], code: str
) -> None:
    refused(await http.post(verb, body), 400, "INVALID_ARGUMENT", code)


@pytest.mark.parametrize(
    ("verb", "body", "beside"),
    [
        ("enqueue", {"items": [ITEM], **ITEM}, "payload"),
        ("enqueue", {"items": [ITEM], "delayMs": 3_600_000}, "delayMs"),
        ("enqueue", {"items": [ITEM], "notBefore": "2030-01-01T00:00:00Z"}, "notBefore"),
        ("enqueue", {"items": [], "Priority": 1}, "priority"),
        ("heartbeat", {"acks": [{"ownershipToken": UNKNOWN}], "progress": {"fraction": 1}}, "progress"),
        ("complete", {"acks": [{"ownershipToken": UNKNOWN}], "result": "QUFB"}, "result"),
        ("complete", {"acks": [], "ownershipToken": UNKNOWN}, "ownershipToken"),
        ("fail", {"acks": [{"ownershipToken": UNKNOWN}], "requeue": False}, "requeue"),
        ("release", {"acks": [{"ownershipToken": UNKNOWN}], "peerId": "w"}, "peerId"),
    ],
)
async def test_what_stands_beside_a_batch_is_refused_and_not_dropped(
    http: Http, verb: str, body: dict[str, Any], beside: str
) -> None:
    batch = "items" if verb == "enqueue" else "acks"
    found = refused(await http.post(verb, body), 400, "INVALID_ARGUMENT", f"resourcelease.{batch}.invalid")
    assert found["message"] == f"{batch} and {beside} exclude each other: each element of {batch} has its own"
    assert found["metadata"] == {"field": batch, "beside": beside}
    assert (await http.call("stats"))["stats"]["pendingCount"] == 0


async def test_a_batch_may_wait_and_have_fields_that_nobody_knows(http: Http) -> None:
    answer = await http.call("enqueue", {"items": [ITEM, ITEM], "waitMs": 0, "delayMs": None, "colour": "blue"})
    assert len(answer["results"]) == 2


@pytest.mark.parametrize("content", [b"{", b"[]", b"null", b"\xff", b'{"a":}', b"[" * 50_000])
async def test_a_body_that_is_no_json_object_is_an_invalid_argument(http: Http, content: bytes) -> None:
    response = await http.client.post(f"/v1/{http.namespace}/stats", content=content)
    refused(response, 400, "INVALID_ARGUMENT", "invalid-argument")


@pytest.mark.parametrize(
    ("verb", "body", "index"),
    [
        ("enqueue", {"items": [ITEM, None]}, "1"),
        ("enqueue", {"items": [ITEM, ITEM, {**ITEM, "priority": 77}]}, "2"),
        ("enqueue", {"items": [ITEM, {**ITEM, "notBefore": "soon"}]}, "1"),
        ("enqueue", {"items": [ITEM, {"payload": {"resourceType": "t", "resourceId": " "}}]}, "1"),
        ("enqueue", {"items": [{"payload": {"resourceType": " ", "resourceId": "r"}}]}, "0"),
        ("restore", {"items": [{"sequenceId": 1, **ITEM}, None]}, "1"),
        ("restore", {"items": [{"sequenceId": 1, **ITEM}, {"sequenceId": 2}]}, "1"),
        ("restore", {"items": [{"sequenceId": 1, **ITEM}, {"sequenceId": 2, **ITEM, "priority": 77}]}, "1"),
        ("complete", {"acks": [{"ownershipToken": UNKNOWN}, {}]}, "1"),
        ("fail", {"acks": [{"ownershipToken": UNKNOWN}, {"ownershipToken": UNKNOWN, "mode": "maybe"}]}, "1"),
        ("heartbeat", {"acks": [None]}, "0"),
        ("release", {"acks": [{"ownershipToken": UNKNOWN}, {"ownershipToken": UNKNOWN, "delayMs": -1}]}, "1"),
    ],
)
async def test_a_batch_names_its_bad_element_and_does_nothing(
    http: Http, verb: str, body: dict[str, Any], index: str
) -> None:
    response = await http.post(verb, body)
    assert response.status_code == 400
    assert response.json()["metadata"]["index"] == index
    assert (await http.call("stats"))["stats"]["pendingCount"] == 0


# -- too large -----------------------------------------------------------------------------------


async def test_a_payload_beyond_the_limit_is_too_large(http: Http) -> None:
    item = {"payload": {"resourceType": "t", "resourceId": "r", "body": "QUFB" * 34}}
    body = refused(await http.post("enqueue", item), 413, "INVALID_ARGUMENT", "resourcelease.payload.too_large")
    assert body["metadata"]["limit"] == "100"
    last = await http.post("enqueue", {"items": [ITEM, item]})
    assert refused(last, 413, "INVALID_ARGUMENT", "resourcelease.payload.too_large")["metadata"]["index"] == "1"


async def test_a_result_beyond_the_limit_is_too_large(http: Http) -> None:
    token = (await lease_of(http))["ownershipToken"]
    response = await http.post("complete", {"ownershipToken": token, "result": "QUFB" * 34})
    refused(response, 413, "INVALID_ARGUMENT", "resourcelease.payload.too_large")


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("enqueue", {"items": [ITEM] * 10_001}),
        ("complete", {"acks": [{"ownershipToken": UNKNOWN}] * 10_001}),
        ("restore", {"items": [{"sequenceId": 1, **ITEM}] * 10_001}),
    ],
)
async def test_a_batch_of_too_many_is_too_large(http: Http, verb: str, body: dict[str, Any]) -> None:
    refused(await http.post(verb, body), 413, "INVALID_ARGUMENT", "resourcelease.payload.too_large")


async def test_a_request_over_the_limit_of_http_is_too_large(http: Http) -> None:
    huge = b" " * (16 * 1024 * 1024 + 1)
    declared = await http.client.post(f"/v1/{http.namespace}/stats", content=huge)
    refused(declared, 413, "INVALID_ARGUMENT", "resourcelease.payload.too_large")

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(huge), 1 << 20):
            yield huge[start : start + (1 << 20)]

    chunked = await http.client.post(f"/v1/{http.namespace}/stats", content=chunks())
    refused(chunked, 413, "INVALID_ARGUMENT", "resourcelease.payload.too_large")
    just = await http.client.post(f"/v1/{http.namespace}/stats", content=b"{}" + huge[: 16 * 1024 * 1024 - 2])
    assert just.status_code == 200


# -- what does not fit the state -----------------------------------------------------------------


async def test_another_payload_under_the_same_request_id_is_a_conflict(http: Http) -> None:
    one = {"payload": {"resourceType": "t", "resourceId": "r", "requestId": "x"}}
    await http.call("enqueue", one)
    other = {"payload": {**one["payload"], "resourceId": "q"}}
    for body, index in ((other, None), ({"items": [other]}, "0"), ({"items": [ITEM, other]}, "1")):
        found = refused(await http.post("enqueue", body), 409, "ALREADY_EXISTS", "resourcelease.request_id.conflict")
        assert found["metadata"].get("index") == index, "only batches have one"


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail", "release"])
async def test_a_token_nobody_issued_is_unknown(http: Http, verb: str) -> None:
    response = await http.post(verb, {"ownershipToken": UNKNOWN})
    refused(response, 412, "FAILED_PRECONDITION", "error.resourcelease.unknown_token")


@pytest.mark.parametrize("verb", ["heartbeat", "fail", "release"])
async def test_a_token_whose_lease_ended_is_inactive(http: Http, verb: str) -> None:
    token = (await lease_of(http))["ownershipToken"]
    await http.call("complete", {"ownershipToken": token})
    response = await http.post(verb, {"ownershipToken": token})
    refused(response, 412, "FAILED_PRECONDITION", "error.taskqueue.lease_inactive")


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail", "release"])
async def test_a_token_whose_lease_ran_out_is_inactive(http: Http, verb: str) -> None:
    outlived = (await lease_of(http, leaseDurationMs=1))["ownershipToken"]
    again = await http.call("lease", {"waitMs": 15_000})
    assert again["sequenceId"] == outlived["sequenceId"]
    response = await http.post(verb, {"ownershipToken": outlived})
    refused(response, 412, "FAILED_PRECONDITION", "error.taskqueue.lease_inactive")
    assert (await http.call(verb, {"ownershipToken": again["ownershipToken"]}))["success"] is True


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail", "release"])
@pytest.mark.parametrize("name", ["fence", "Fence"])
async def test_a_token_with_another_fence_is_refused(http: Http, verb: str, name: str) -> None:
    token = (await lease_of(http))["ownershipToken"]
    fence = token.pop("fence")
    response = await http.post(verb, {"ownershipToken": {**token, name: fence + 1}})
    refused(response, 412, "FAILED_PRECONDITION", "error.resourcelease.fence_mismatch")
    assert (await http.call(verb, {"ownershipToken": {**token, name: fence}}))["success"] is True


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail", "release"])
async def test_a_peer_that_is_not_the_owner_is_refused(http: Http, verb: str) -> None:
    token = (await lease_of(http, peerId="owner"))["ownershipToken"]
    by_body = await http.post(verb, {"ownershipToken": token, "peerId": "thief"})
    refused(by_body, 403, "PERMISSION_DENIED", "error.resourcelease.not_owner")
    by_header = await http.post(verb, {"ownershipToken": token}, X_Peer_Id="thief")
    refused(by_header, 403, "PERMISSION_DENIED", "error.resourcelease.not_owner")
    [outcome] = (await http.call(verb, {"acks": [{"ownershipToken": token, "peerId": "thief"}]}))["results"]
    assert outcome["errorCode"] == "error.resourcelease.not_owner"
    assert (await http.call(verb, {"ownershipToken": token, "peerId": "owner"}))["success"] is True


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("get", {"sequenceId": 99}),
        ("get", {"requestId": "nobody's"}),
        ("cancel", {"sequenceId": 99}),
        ("why", {"sequenceId": 99}),
        ("deadletters", {"sequenceId": 99}),
        ("edit", {"sequenceId": 99, "payload": ITEM["payload"]}),
        ("redrive", {"sequenceIds": [99]}),
        ("purge", {"sequenceIds": [99]}),
    ],
)
async def test_an_item_nobody_knows_is_not_found(http: Http, verb: str, body: dict[str, Any]) -> None:
    refused(await http.post(verb, body), 404, "NOT_FOUND", "error.resourcelease.unknown_item")


# -- not now -------------------------------------------------------------------------------------


async def test_a_full_shard_says_when_to_come_back() -> None:
    for options in (QueueOptions(capacity=1), QueueOptions(high_watermark=1, low_watermark=0)):
        async with running_node(options=options) as node, Http(node) as http:
            await http.call("enqueue", ITEM)
            response = await http.post("enqueue", ITEM)
            refused(response, 429, "RESOURCE_EXHAUSTED", "error.resourcelease.backpressure")
            assert int(response.headers["retry-after"]) >= 1


async def test_more_waiting_lease_calls_than_allowed_are_told_to_come_back() -> None:
    settings = settings_for(None)
    node = Node(msgspec.structs.replace(settings, log=LogSection(url="memory:", waiting_leases_max=1)))
    await node.start()
    try:
        async with Http(node) as http:
            waiting = asyncio.ensure_future(http.post("lease", {}))
            await until(lambda: node.dispatcher.active == 1)
            response = await http.post("lease", {})
            refused(response, 429, "RESOURCE_EXHAUSTED", "resource-exhausted")
            assert response.headers["retry-after"] == "1"
            await http.call("enqueue", ITEM)
            assert (await waiting).json()["attempt"] == 1
    finally:
        await node.stop()


async def test_an_intake_that_is_paused_says_so(http: Http) -> None:
    await http.call("pause", {"intake": True, "reason": "repair"})
    response = await http.post("enqueue", ITEM)
    body = refused(response, 503, "UNAVAILABLE", "error.resourcelease.paused")
    assert "index" not in body.get("metadata", {})
    assert int(response.headers["retry-after"]) >= 1
    batch = await http.post("enqueue", {"items": [ITEM, ITEM]})
    assert refused(batch, 503, "UNAVAILABLE", "error.resourcelease.paused")["metadata"]["index"] == "0"


async def test_a_node_that_drains_takes_no_call_but_still_shows_its_pages(node: Node, own: Http) -> None:
    node.dispatcher.draining = True
    response = await own.post("stats")
    refused(response, 503, "UNAVAILABLE", "error.resourcelease.draining")
    assert response.headers["retry-after"] == "1"
    watching = await own.client.get("/v1/resourcelease/watch")
    refused(watching, 503, "UNAVAILABLE", "error.resourcelease.draining")
    assert (await own.client.get("/healthz")).status_code == 200


async def test_a_component_that_has_not_started_has_no_leader() -> None:
    async with running_node() as node, Http(node) as http:
        await node.components[0].stop()
        stopped = await http.post("stats")
        refused(stopped, 503, "UNAVAILABLE", "error.resourcelease.draining")
        assert stopped.headers["retry-after"] == "1"


async def test_a_log_that_refuses_writes_for_now_is_unavailable_and_comes_back(node: Node, own: Http) -> None:
    log = node.components[0].shard().log
    assert isinstance(log, MemoryLog)
    for _ in range(5):
        log.fail_next_append("definite")
    stuck = asyncio.ensure_future(own.post("enqueue", ITEM))
    response = await own.client.get("/readyz")
    while response.status_code == 200:
        response = await own.client.get("/readyz")
    response = await own.post("enqueue", ITEM)
    refused(response, 503, "UNAVAILABLE", "error.resourcelease.log_unavailable")
    assert response.headers["retry-after"] == "1"
    assert (await stuck).status_code == 200


@pytest.mark.parametrize("fault", ["unknown-lost", "unknown-kept"])
async def test_a_log_whose_outcome_is_unknown_is_unavailable_with_advice_to_retry(
    node: Node, own: Http, fault: Any
) -> None:
    log = node.components[0].shard().log
    assert isinstance(log, MemoryLog)
    log.fail_next_append(fault)
    for _ in range(3):
        response = await own.post("enqueue", ITEM)
        refused(response, 503, "UNAVAILABLE", "error.resourcelease.log_outcome_unknown")
        assert response.headers["retry-after"] == "1"
    reading = await own.post("stats")
    refused(reading, 503, "UNAVAILABLE", "error.resourcelease.log_outcome_unknown")


async def test_refusing_many_calls_for_one_reason_keeps_nothing_of_them(node: Node, own: Http) -> None:
    log = node.components[0].shard().log
    assert isinstance(log, MemoryLog)
    log.fail_next_append("unknown-lost")
    for _ in range(20):
        assert (await own.post("enqueue", ITEM)).status_code == 503
    failure = node.components[0].failure
    assert failure is not None
    assert len(traceback.extract_tb(failure.__traceback__)) < 20


async def test_another_writer_that_took_the_log_over_is_seen(node: Node, own: Http) -> None:
    log = node.components[0].shard().log
    assert isinstance(log, MemoryLog)
    await log.reopen().acquire("another")
    refused(await own.post("enqueue", ITEM), 503, "UNAVAILABLE", "error.log.fenced")


@pytest.mark.parametrize(
    ("error", "http_status", "status"),
    [
        (LogDamaged("torn"), 500, "DATA_LOSS"),
        (LogRegressed("older than the witness"), 500, "DATA_LOSS"),
        (LogFenced("newer writer"), 503, "UNAVAILABLE"),
    ],
)
async def test_errors_of_the_log_keep_their_code(
    node: Node, own: Http, error: OmniRelayError, http_status: int, status: str
) -> None:
    async def fail(meta: RequestMeta, request: dict[str, Any]) -> None:
        raise error

    node.dispatcher.unary("test::fail", fail, request=dict[str, Any])
    refused(await own.client.post("/v1/test/fail", content=b"{}"), http_status, status, error.code)


async def test_a_stream_that_is_posted_to_says_how_it_is_asked_for(http: Http) -> None:
    for verb, advice in (("stream", "connect with a WebSocket"), ("watch", "GET it as text/event-stream")):
        body = refused(await http.post(verb), 501, "UNIMPLEMENTED", "unimplemented")
        assert body["message"] == f"{http.namespace}::{verb} is a stream; {advice}"


async def test_an_unknown_procedure_is_unimplemented(http: Http) -> None:
    for path in (f"/v1/{http.namespace}/nothing", "/v1/nobody/enqueue", f"/v1/{http.namespace}/Enqueue"):
        refused(await http.client.post(path, json={}), 501, "UNIMPLEMENTED", "unimplemented")
    named = await http.client.post("/", json={}, headers={"Rpc-Procedure": "no such"})
    refused(named, 501, "UNIMPLEMENTED", "unimplemented")


async def test_a_post_that_names_no_procedure_is_an_invalid_argument(http: Http) -> None:
    refused(await http.client.post("/yarpc/v1", json={}), 400, "INVALID_ARGUMENT", "invalid-argument")


# -- what nobody expected ------------------------------------------------------------------------


async def test_a_handler_that_breaks_tells_the_caller_nothing_but_that(
    node: Node, own: Http, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(meta: RequestMeta, request: dict[str, Any]) -> None:
        raise RuntimeError("the password is swordfish")

    async def unwritable(meta: RequestMeta, request: dict[str, Any]) -> Any:
        return object()

    node.dispatcher.unary("test::broken", broken, request=dict[str, Any])
    node.dispatcher.unary("test::unwritable", unwritable, request=dict[str, Any])
    for verb in ("broken", "unwritable"):
        with caplog.at_level(logging.CRITICAL):
            response = await own.client.post(f"/v1/test/{verb}", content=b"{}")
        body = refused(response, 500, "INTERNAL", "internal")
        assert "metadata" not in body
        assert "swordfish" not in response.text + str(response.headers)
        assert "RuntimeError" not in response.text


async def test_a_message_with_newlines_and_umlauts_does_not_break_the_headers(node: Node, own: Http) -> None:
    message = "first line\r\nSet-Cookie: a=b\nzweite Zeile: Größe ✓ \x00 \U0001f600"

    async def fail(meta: RequestMeta, request: dict[str, Any]) -> None:
        raise OmniRelayError(message, code="test.cöde\n")

    node.dispatcher.unary("test::fail", fail, request=dict[str, Any])
    response = await own.client.post("/v1/test/fail", content=b"{}")
    assert response.status_code == 500
    assert "set-cookie" not in response.headers
    assert response.headers["rpc-error-message"].startswith("first line\\r\\nSet-Cookie")
    assert response.headers["rpc-error-message"].isascii()
    assert response.headers["rpc-error-code"] == "test.c\\xf6de\\n"
    assert response.json()["message"] == message


async def test_what_a_browser_sends_for_another_site_is_refused(http: Http) -> None:
    for origin in ("http://evil.example", "null", "http://[", "http://[::1"):
        response = await http.post("stats", Origin=origin)
        refused(response, 403, "PERMISSION_DENIED", "permission-denied")
    own = str(http.client.base_url).rstrip("/")
    assert (await http.post("stats", Origin=own)).status_code == 200


async def test_a_body_that_is_compressed_is_refused_as_that(http: Http) -> None:
    response = await http.post("stats", Content_Encoding="gzip")
    assert response.status_code == 400
    assert response.json()["message"] == "Content-Encoding 'gzip' is not served here, send the body as it is"
    assert response.json()["metadata"] == {"field": "Content-Encoding"}
    assert (await http.post("stats", Content_Encoding="Identity")).status_code == 200


async def test_an_encoding_that_is_not_served_is_refused(http: Http) -> None:
    refused(await http.post("stats", Rpc_Encoding="protobuf"), 400, "INVALID_ARGUMENT", "invalid-argument")
    for encoding in ("json", "JSON", "application/json; charset=utf-8"):
        assert (await http.post("stats", Rpc_Encoding=encoding)).status_code == 200
