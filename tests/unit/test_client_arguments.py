"""Arguments of a client that no node would ever see: refused before anything is sent, and named."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from omnirelay.client.asking import encoded
from omnirelay.client.client import Client, ItemSpec, token_of
from omnirelay.client.items import in_batches
from omnirelay.core.payload import OwnershipToken
from omnirelay.errors import InvalidArgument
from omnirelay.worker.handlers import Handlers, Release, Retry
from omnirelay.worker.outcomes import encoded_result
from omnirelay.worker.worker import Worker


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"mode": "websocket"}, "mode"),
        ({"caller": "wörker"}, "caller"),
        ({"caller": "a\r\nx-evil: 1"}, "caller"),
        ({"caller": 5}, "caller"),
        ({"url": "node:7070"}, "url"),
        ({"url": 7070}, "url"),
        ({"namespace": ""}, "namespace"),
        ({"namespace": "a/b"}, "namespace"),
        ({"namespace": "a\ud800"}, "namespace"),
        ({"namespace": "x" * 99_999}, "namespace"),
        ({"namespace": None}, "namespace"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"timeout_ms": -1}, "timeout_ms"),
        ({"timeout_ms": float("nan")}, "timeout_ms"),
        ({"timeout_ms": float("inf")}, "timeout_ms"),
        ({"timeout_ms": "5s"}, "timeout_ms"),
        ({"timeout_ms": None}, "timeout_ms"),
    ],
)
def test_a_client_that_could_never_call_is_not_made(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Client(**arguments)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("at", [10**20, -1, 1.5, "now"])
def test_a_time_that_is_none_is_named(at: Any) -> None:
    item = ItemSpec(resource_type="table", resource_id="a", not_before_ms=at)
    with pytest.raises(InvalidArgument) as caught:
        item.wire()
    assert caught.value.details["field"] == "not_before_ms"


@pytest.mark.parametrize("at", [253_402_300_800_000, -1, 1.5, "now"])
async def test_a_pause_until_a_time_that_is_none_is_not_sent(at: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await Client().pause(until_ms=at)
    assert caught.value.details["field"] == "until_ms"


NAN = float("nan")


def item_of(**fields: Any) -> ItemSpec:
    return ItemSpec(resource_type="t", resource_id="a", **fields)


TOKEN = OwnershipToken(1, 1, "x", 1)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda client: client.enqueue("t", "a", delay_ms=NAN), "delay_ms"),
        (lambda client: client.enqueue("t", "a", priority=NAN), "priority"),
        (lambda client: client.enqueue("t", "a", weight=1.5), "weight"),
        (lambda client: client.enqueue("t", "a", max_attempts=float("inf")), "max_attempts"),
        (lambda client: client.enqueue("t", "a", wait_ms=NAN), "wait_ms"),
        (lambda client: client.enqueue("t", "a", timeout_ms=NAN), "timeout_ms"),
        (lambda client: client.enqueue("t", "a", timeout_ms=0), "timeout_ms"),
        (lambda client: client.enqueue(b"t", "a"), "resource_type"),
        (lambda client: client.enqueue("t", b"a"), "resource_id"),
        (lambda client: client.enqueue("t", "a", partition_key=bytearray(b"p")), "partition_key"),
        (lambda client: client.enqueue("t", "a", encoding=b"text/plain"), "encoding"),
        (lambda client: client.enqueue("t", "a", request_id=b"r"), "request_id"),
        (lambda client: client.enqueue("t", "a", attributes={"tenant": b"acme"}), "attributes"),
        (lambda client: client.enqueue("t", "a", attributes={b"tenant": "acme"}), "attributes"),
        (lambda client: client.enqueue_many([item_of(partition_key=b"a")]), "partition_key"),
        (lambda client: client.enqueue_many([item_of(attributes={"a": b"b"})]), "attributes"),
        (lambda client: client.enqueue_many([item_of(), item_of(attributes={b"a": "b"})]), "attributes"),
        (lambda client: client.edit(1, "t", b"a"), "resource_id"),
        (lambda client: client.lease(resource_types=[b"t"]), "resourceTypes"),
        (lambda client: client.lease(tenants=[b"acme"]), "tenants"),
        (lambda client: client.lease(peer_id=b"w"), "peer_id"),
        (lambda client: client.fail(TOKEN, reason=b"broken"), "reason"),
        (lambda client: client.get(request_id=b"r"), "request_id"),
        (lambda client: client.pause(tenant=b"acme"), "tenant"),
        (lambda client: client.resume(tenant=b"acme"), "tenant"),
        (lambda client: client.cancel(1, reason=b"why"), "reason"),
        (lambda client: client.peek(resource_type=b"t"), "resource_type"),
        (lambda client: client.dead_letters(error_code=b"e"), "error_code"),
        (lambda client: client.enqueue_many("abc"), "items"),
        (lambda client: client.enqueue_many(5), "items"),
        (lambda client: client.enqueue_many(None), "items"),
        (lambda client: client.lease(max_items=None), "max_items"),
        (lambda client: client.lease(max_items=NAN), "max_items"),
        (lambda client: client.lease(wait_ms=None), "wait_ms"),
        (lambda client: client.lease(wait_ms=-1), "wait_ms"),
        (lambda client: client.lease(lease_duration_ms=NAN), "lease_duration_ms"),
        (lambda client: client.complete(TOKEN, follow_ups=[{"resource_type": "t"}]), "follow_ups"),
        (lambda client: client.complete(TOKEN, follow_ups=ItemSpec(resource_type="t", resource_id="a")), "follow_ups"),
        (lambda client: client.fail(TOKEN, metadata=["a"]), "metadata"),
        (lambda client: client.heartbeat(TOKEN, fraction=NAN), "fraction"),
        (lambda client: client.fail(TOKEN, delay_ms=NAN), "delay_ms"),
        (lambda client: client.release(TOKEN, delay_ms=NAN), "delay_ms"),
        (lambda client: client.get(1, wait_ms="5"), "wait_ms"),
        (lambda client: client.get(1, wait_ms=10**18), "wait_ms"),
        (lambda client: client.drain(max_items=NAN), "max_items"),
        (lambda client: client.restore(5), "items"),
        (lambda client: client.restore(None), "items"),
        (lambda client: client.dead_letters(after=NAN), "after"),
        (lambda client: client.peek(max_items=NAN), "max_items"),
        (lambda client: client.redrive(rate_per_second=NAN), "rate_per_second"),
        (lambda client: client.redrive(rate_per_second="5"), "rate_per_second"),
    ],
)
async def test_an_argument_that_is_none_is_named_and_not_left_out(call: Any, field: str) -> None:
    """A number that is none would be null as JSON, and the node do as if nothing had been said; bytes in the place of
    a text would be their base64, and the item be about another resource.
    """
    with pytest.raises(InvalidArgument) as caught:
        await call(Client("http://127.0.0.1:9", timeout_ms=1))
    assert caught.value.details["field"] == field


def test_what_has_a_text_as_json_is_taken_for_it() -> None:
    number: Any = UUID(int=7)
    payload = ItemSpec(resource_type="t", resource_id=number, attributes={"by": number}).wire().payload
    assert json.loads(encoded(payload)) == {
        "resourceType": "t",
        "resourceId": str(number),
        "attributes": {"by": str(number)},
    }


def test_a_float_that_is_a_whole_number_is_one() -> None:
    given: Any = 1_500.0
    assert ItemSpec(resource_type="t", resource_id="a", delay_ms=given).wire().delay_ms == 1_500


@pytest.mark.parametrize("outcome", [Retry, Release])
def test_a_handler_that_gives_back_for_no_time_hears_of_it(outcome: Any) -> None:
    assert outcome("later", delay_ms=5_000.0).delay_ms == 5_000
    for delay in (NAN, 0.5, "5s"):
        with pytest.raises(InvalidArgument, match="delay_ms must be a whole number"):
            outcome("later", delay_ms=delay)


def test_types_to_watch_are_names() -> None:
    types: Any = ["Enqueue", 5]
    with pytest.raises(InvalidArgument, match="types must be str, not int"):
        Client().watch(types=types)


def test_no_type_to_watch_is_not_taken_for_all_of_them() -> None:
    with pytest.raises(InvalidArgument, match="types must have at least one name"):
        Client().watch(types=[])


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"handlers": None}, "handlers"),
        ({"handlers": {}}, "handlers"),
        ({"url": 5}, "url"),
        ({"namespace": ""}, "namespace"),
        ({"peer_id": "wörker"}, "peer_id"),
        ({"peer_id": " "}, "peer_id"),
        ({"peer_id": 5}, "peer_id"),
        ({"peer_id": "x" * 257}, "peer_id"),
        ({"tenants": "acme"}, "tenants"),
        ({"tenants": 5}, "tenants"),
        ({"tenants": [5]}, "tenants"),
        ({"stop_budget_ms": -1}, "stop_budget_ms"),
        ({"stop_budget_ms": NAN}, "stop_budget_ms"),
        ({"silent_ms_max": "1m"}, "silent_ms_max"),
    ],
)
def test_a_worker_that_could_never_work_is_not_made(arguments: dict[str, Any], field: str) -> None:
    handlers = Handlers()
    handlers.handle("table")(print)
    with pytest.raises(InvalidArgument) as caught:
        Worker(**{"handlers": handlers, **arguments})
    assert caught.value.details["field"] == field


def test_what_cannot_be_called_is_no_handler() -> None:
    nothing: Any = None
    with pytest.raises(InvalidArgument, match="a handler is a function, not None"):
        Handlers().handle("table")(nothing)


def test_what_is_no_item_is_named_with_its_place() -> None:
    good = ItemSpec(resource_type="table", resource_id="a")
    bad: Any = {}
    with pytest.raises(InvalidArgument, match="ItemSpec, not dict") as caught:
        in_batches([good, bad])
    assert caught.value.details["index"] == 1


def test_what_is_no_lease_is_named() -> None:
    token = OwnershipToken(1, 1, "x", 1)
    assert token_of(token) is token
    bad: Any = 5
    with pytest.raises(InvalidArgument, match="Lease, not int"):
        token_of(bad)


@pytest.mark.parametrize("result", [b"xy", bytearray(b"xy"), memoryview(b"xy")])
def test_bytes_of_any_sort_are_a_result_as_they_are(result: Any) -> None:
    assert encoded_result(result) == (b"xy", "application/octet-stream")
