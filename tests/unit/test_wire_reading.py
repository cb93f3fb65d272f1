"""Requests are read as lenient as the callers of old write them, and refused with the name of the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from omnirelay.errors import InvalidArgument
from omnirelay.wire import requests as asked
from omnirelay.wire.reading import Reader
from omnirelay.wire.streams import read_messages

LEASE_ID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"


def read(kind: Any, body: Any) -> Any:
    return Reader(kind).read(body if isinstance(body, bytes) else msgspec.json.encode(body))


def refusal(kind: Any, body: Any) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        read(kind, body)
    return caught.value


def test_names_are_read_in_any_case_at_every_depth() -> None:
    plain = {"payload": {"resourceType": "table", "resourceId": "orders", "attributes": {"Tenant": "a"}}, "delayMs": 5}
    shouted = {
        "PAYLOAD": {"RESOURCETYPE": "table", "resourceid": "orders", "Attributes": {"Tenant": "a"}},
        "DelayMS": 5,
    }
    assert read(asked.EnqueueRequest, shouted) == read(asked.EnqueueRequest, plain)


@pytest.mark.parametrize("name", ["fence", "Fence", "FENCE"])
def test_a_fence_counts_whatever_the_case_of_its_name(name: str) -> None:
    token = {"sequenceId": 1, "attempt": 1, "leaseId": LEASE_ID, name: 7}
    assert read(asked.CompleteRequest, {"ownershipToken": token}).token().fence == 7


def test_progress_is_read_whatever_the_case_of_its_names() -> None:
    token = {"sequenceId": 1, "attempt": 1, "leaseId": LEASE_ID}
    progress = {"Fraction": 0.5, "Message": "half", "Data": {"Rows": 3}}
    request = read(asked.HeartbeatRequest, {"ownershipToken": token, "progress": progress})
    given = request.progress.value()
    assert (given.fraction, given.message, given.data) == (0.5, "half", {"Rows": 3})


def test_the_last_error_of_a_restored_item_keeps_its_code_in_any_case() -> None:
    item = {
        "sequenceId": 4,
        "payload": {"resourceType": "t", "resourceId": "r"},
        "lastError": {"message": "no", "Code": "io"},
        "lastOwnershipToken": {"sequenceId": 4, "attempt": 1, "leaseId": LEASE_ID, "FENCE": 9},
    }
    [value] = read(asked.RestoreRequest, {"items": [item]}).values()
    assert value.last_error.code == "io"
    assert value.last_ownership_token.fence == 9


def test_numbers_may_be_text_and_truths_too() -> None:
    request = read(asked.LeaseRequest, {"waitMs": "250", "maxItems": "3"})
    assert (request.wait_ms, request.max_items) == (250, 3)
    assert read(asked.FailRequest, {"requeue": "false"}).requeue is False


def test_unknown_fields_and_nulls_are_passed_over() -> None:
    request = read(asked.LeaseRequest, {"peerId": None, "waitMs": 1, "later": {"a": [1]}, "metadata": None})
    assert request == asked.LeaseRequest(wait_ms=1)


def test_a_null_takes_the_default() -> None:
    assert read(asked.EnqueueRequest, {"priority": None, "weight": None}).priority == 5
    assert read(asked.PeekRequest, {"state": None, "maxItems": None}) == asked.PeekRequest()


def test_an_empty_body_is_an_empty_request() -> None:
    assert read(asked.LeaseRequest, b"") == asked.LeaseRequest()
    assert refusal(asked.CancelRequest, b"").code == refusal(asked.CancelRequest, b"{}").code
    assert refusal(asked.CancelRequest, b"").code == "resourcelease.sequenceId.invalid"


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        (asked.EnqueueRequest, {"payload": {"resourceId": "r"}}, "resourcelease.payload.resource_type_required"),
        (asked.EnqueueRequest, {"payload": {"resourceType": "t"}}, "resourcelease.payload.resource_id_required"),
        (asked.EnqueueRequest, {"priority": 10}, "resourcelease.priority.invalid"),
        (asked.EnqueueRequest, {"priority": "x"}, "resourcelease.priority.invalid"),
        (asked.EnqueueRequest, {"weight": 0}, "resourcelease.weight.invalid"),
        (asked.EnqueueRequest, {"delayMs": -1}, "resourcelease.delayMs.invalid"),
        (asked.EnqueueRequest, {"payload": []}, "resourcelease.payload.invalid"),
        (asked.LeaseRequest, {"maxItems": 1001}, "resourcelease.maxItems.invalid"),
        (asked.LeaseRequest, {"maxItems": 0}, "resourcelease.maxItems.invalid"),
        (asked.LeaseRequest, {"waitMs": 86_400_001}, "resourcelease.waitMs.invalid"),
        (asked.LeaseRequest, {"tenants": "a"}, "resourcelease.tenants.invalid"),
        (asked.GetRequest, {"sequenceId": 10**30}, "resourcelease.sequenceId.invalid"),
        (asked.GetRequest, {"sequenceId": "9" * 5_000}, "resourcelease.sequenceId.invalid"),
        (asked.RedriveRequest, {"ratePerSecond": "nan"}, "resourcelease.ratePerSecond.invalid"),
        (asked.RedriveRequest, {"ratePerSecond": 0}, "resourcelease.ratePerSecond.invalid"),
    ],
)
def test_a_wrong_value_is_refused_with_the_code_of_its_field(kind: Any, body: Any, code: str) -> None:
    assert refusal(kind, body).code == code


@pytest.mark.parametrize(
    "body",
    [b"{", b"[1]", b"null", b'"x"', b"1", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b'{"peerId": "\\ud800"}', b"{}x"],
)
def test_what_is_no_json_object_is_refused_as_the_body(body: bytes) -> None:
    error = refusal(asked.LeaseRequest, body)
    assert error.code == "invalid-argument"
    assert error.details["field"] == "body"


def test_bad_base64_is_refused() -> None:
    body = {"payload": {"resourceType": "t", "resourceId": "r", "body": "not base64"}}
    assert refusal(asked.EnqueueRequest, body).code == "resourcelease.body.invalid"


@pytest.mark.parametrize(
    "bad",
    [
        {"payload": {"resourceType": "t"}},
        {"payload": {"resourceType": "t", "resourceId": "r"}, "priority": 11},
        None,
        {},
        {"payload": {"resourceType": "t", "resourceId": "r"}, "notBefore": "soon"},
    ],
)
def test_the_error_of_a_batch_names_the_bad_element(bad: Any) -> None:
    good = {"payload": {"resourceType": "t", "resourceId": "r"}}
    with pytest.raises(InvalidArgument) as caught:
        asked.item_values(read(asked.EnqueueRequest, {"items": [good, good, bad]}).items)
    assert caught.value.details["index"] == 2


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (None, "resourcelease.restore.pending_item_required"),
        ({"sequenceId": 2}, "resourcelease.payload.required"),
        ({"payload": {"resourceType": "t", "resourceId": "r"}}, "resourcelease.sequenceId.invalid"),
        (
            {"sequenceId": 2, "payload": {"resourceType": "t", "resourceId": "r"}, "enqueuedAt": "x"},
            "resourcelease.enqueuedAt.invalid",
        ),
    ],
)
def test_the_error_of_a_restore_names_the_bad_element(bad: Any, code: str) -> None:
    good = {"sequenceId": 1, "payload": {"resourceType": "t", "resourceId": "r"}}
    with pytest.raises(InvalidArgument) as caught:
        read(asked.RestoreRequest, {"items": [good, bad]}).values()
    assert caught.value.code == code
    assert caught.value.details["index"] == 1


EMPTY = b"{}," * 600_000 + b"{}"


@pytest.mark.parametrize(
    "body",
    [
        b'{"items":[' + EMPTY + b"]}",
        b'{"items":[' + b"{}," * 400_000 + b"1]}",
        b'{"items":[' + b'{"a":1,"b":2},' * 160_000 + b"{}]}",
    ],
    ids=["objects", "one-bad", "unknown-names"],
)
def test_a_body_that_is_only_a_burden_is_refused_before_it_is_taken_apart(body: bytes) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Reader(asked.EnqueueRequest).read(body)
    assert refused.value.code == "resourcelease.payload.too_large"


def test_the_largest_batch_may_have_names_that_nobody_knows() -> None:
    payload = b'{"resourceType":"t","ResourceId":"x","partitionKey":"p","hint":1}'
    item = b'{"payload":%b,"priority":5,"weight":1,"hint":2}' % payload
    request = Reader(asked.EnqueueRequest).read(b'{"items":[' + b",".join([item] * 10_000) + b"]}")
    assert request.items is not None
    assert len(request.items) == 10_000


@pytest.mark.parametrize(
    "data",
    [
        b"[" + EMPTY + b"]",
        b"[" + b"{}," * 20_000 + b"{}]",
        b"[" + b"{}," * 20_000 + b'{"id":1,"call":{"verb":1}}]',
        b'{"id":1,"acks":[' + b"{}," * 100_000 + b'{"verb":1}]}',
        b'[{"acks":[' + b"{}," * 100_000 + b'{"verb":1}]}]',
    ],
    ids=["objects", "messages", "messages-one-bad", "acks-one-bad", "array-of-acks"],
)
def test_so_is_a_message_of_a_stream(data: bytes) -> None:
    with pytest.raises(InvalidArgument) as refused:
        read_messages(data)
    assert refused.value.code == "resourcelease.payload.too_large"
