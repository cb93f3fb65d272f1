"""The stream means the same as JSON and as MessagePack: every message, every request, every refusal."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from omnirelay.errors import InvalidArgument, OmniRelayError
from omnirelay.wire import requests as asked
from omnirelay.wire.instants import read_instant
from omnirelay.wire.packed import CompactAcks, CompactEnqueue, PackedReader, check_elements
from omnirelay.wire.packed_streams import read_packed_messages
from omnirelay.wire.reading import OBJECTS_MAX, Reader
from omnirelay.wire.streams import Received, read_messages

pack = msgspec.msgpack.encode

# -- what peers send -------------------------------------------------------------------------------

texts = st.text(max_size=8)
numbers = st.integers(-(1 << 63), (1 << 64) - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
anything: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | numbers
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def spelled(name: str) -> st.SearchStrategy[str]:
    return st.sampled_from([name, name, name, name.capitalize(), name.upper(), name + "x"])


def some_of(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with some of these fields, of which a few have another spelling or any value at all."""
    pairs = [st.tuples(spelled(name), st.one_of(values, values, values, anything)) for name, values in fields.items()]
    return st.lists(st.one_of(pairs), max_size=len(pairs) + 1).map(dict)


instants = st.sampled_from(["2026-01-31T08:00:00+00:00", "2026-01-31", "now", ""])
small = st.integers(-2, 12)
names = st.sampled_from(["table", "sales.orders", "", " "]) | texts
payloads = some_of(
    resourceType=names,
    resourceId=names,
    partitionKey=names,
    payloadEncoding=names,
    body=st.binary(max_size=12),
    attributes=st.dictionaries(texts, texts, max_size=2),
    requestId=names,
)
items = some_of(payload=payloads, priority=small, weight=small, notBefore=instants, delayMs=small, maxAttempts=small)
tokens = some_of(sequenceId=small, attempt=small, leaseId=texts, fence=small)
progress = some_of(fraction=st.floats(-1, 2), message=texts, data=anything)
ack_fields: dict[str, st.SearchStrategy[Any]] = {
    "ownershipToken": tokens,
    "peerId": texts,
    "progress": progress,
    "metadata": st.dictionaries(texts, texts, max_size=2),
    "result": st.binary(max_size=12),
    "resultEncoding": texts,
    "followUps": st.lists(items, max_size=2),
    "reason": texts,
    "errorCode": texts,
    "requeue": st.booleans(),
    "mode": texts,
    "delayMs": small,
}
requests = some_of(
    items=st.lists(items | st.none(), max_size=3),
    acks=st.lists(some_of(**ack_fields), max_size=3),
    waitMs=small,
    maxItems=small,
    resourceTypes=st.lists(texts, max_size=2),
    tenants=st.lists(texts, max_size=2),
    sequenceId=small,
    sequenceIds=st.lists(small, max_size=2),
    state=texts,
    after=small,
    all=st.booleans(),
    ratePerSecond=st.floats(-1, 9),
    until=instants,
    intake=st.booleans(),
    **{name: values for name, values in ack_fields.items() if name != "delayMs"},
    payload=payloads,
    priority=small,
    weight=small,
    notBefore=instants,
    delayMs=small,
)
messages = some_of(
    id=small | texts,
    open=some_of(
        peerId=texts, credit=small, filters=some_of(tenants=st.lists(texts, max_size=2)), compact=st.booleans()
    ),
    withdraw=st.booleans(),
    credit=small,
    begin=st.lists(tokens, max_size=2),
    acks=st.lists(some_of(verb=st.sampled_from(["complete", "Heartbeat", "no"]), **ack_fields), max_size=3),
    call=some_of(verb=st.sampled_from(["stats", "lease"]), request=anything, ttlMs=small, compact=st.booleans()),
    abandon=st.lists(small | texts, max_size=2),
    clock=st.floats(0, 9),
)


def as_json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def outcome(read: Any) -> Any:
    """What was read, or the refusal as far as a program can see it."""
    try:
        return read()
    except OmniRelayError as error:
        return type(error), error.code, {name: value for name, value in error.details.items() if name != "limit"}


# -- the same by name ----------------------------------------------------------------------------------


def has_arrays_for_objects(request: Any) -> bool:
    """Whether it may be the compact form that only MessagePack has."""
    batches = request.values() if isinstance(request, dict) else ()
    return any(isinstance(each, list) for batch in batches if isinstance(batch, list) for each in batch)


@pytest.mark.parametrize("verb", sorted(asked.REQUESTS))
@given(requests | anything)
def test_a_request_is_read_the_same_in_both_forms(verb: str, request: Any) -> None:
    reader: Reader[Any] = Reader(asked.REQUESTS[verb])
    packed = PackedReader(asked.REQUESTS[verb], reader)
    assume(not has_arrays_for_objects(request))
    expected = outcome(lambda: reader.read(as_json(request)))
    assert outcome(lambda: packed.read(pack(request))) == expected


def plain(received: list[Received]) -> list[Any]:
    """Messages with their requests as values: those are still encoded, each in its own form."""
    found = []
    for each in received:
        request: Any = None
        if each.message.call is not None:
            raw = bytes(each.message.call.request)
            decoded = (msgspec.msgpack.decode(raw) if each.packed else msgspec.json.decode(raw)) if raw else {}
            request = msgspec.to_builtins(decoded, str_keys=True)
            each.message.call.request = msgspec.Raw()
        acks = (
            None
            if each.acks is None
            else [
                outcome(lambda ack=ack: ack) if not isinstance(ack, InvalidArgument) else (ack.code, ack.details)
                for ack in each.acks
            ]
        )
        error = None if each.error is None else (each.error.code, each.error.details)
        each.message.acks = None
        found.append((each.message, acks, request, error))
    return found


@given(messages | st.lists(messages, max_size=3))
def test_messages_are_read_the_same_in_both_forms(message: Any) -> None:
    expected = outcome(lambda: plain(read_messages(as_json(message))))
    assert outcome(lambda: plain(read_packed_messages(pack(message)))) == expected


# -- the compact forms ---------------------------------------------------------------------------------

rows = st.tuples(
    names,
    names,
    st.binary(max_size=12),
    st.none() | names,
    st.none() | names,
    st.none() | st.dictionaries(texts, texts, max_size=2),
    st.none() | names,
    st.integers(0, 9),
    st.integers(1, 9),
    st.none() | st.integers(0, 9),
    st.none() | st.sampled_from([0, 1_769_846_400_000]),
    st.none() | st.integers(1, 9),
)
NAMES = ("resourceType", "resourceId", "body", "payloadEncoding", "partitionKey", "attributes", "requestId")
MORE = ("priority", "weight", "delayMs", "notBefore", "maxAttempts")
ENQUEUE: PackedReader[Any] = PackedReader(asked.EnqueueRequest, Reader(asked.EnqueueRequest))


def named(row: Any) -> dict[str, Any]:
    """A compact item as JSON says it."""
    item = {name: value for name, value in zip(MORE, row[len(NAMES) :], strict=False) if value is not None}
    if "notBefore" in item:
        item["notBefore"] = {0: "1970-01-01T00:00:00Z"}.get(item["notBefore"], "2026-01-31T08:00:00Z")
    payload = {name: value for name, value in zip(NAMES, row, strict=False) if value is not None}
    return {**item, "payload": {**payload, "body": base64.b64encode(payload.get("body", b"")).decode()}}


@given(st.lists(rows, min_size=1, max_size=4), st.integers(2, 14), st.none() | st.integers(0, 9))
def test_compact_items_are_those_of_json(batch: list[Any], length: int, wait_ms: int | None) -> None:
    batch = [[*row, "of a later version", 7][:length] for row in batch]
    compact = ENQUEUE.read(pack({"items": batch, "waitMs": wait_ms}))
    assert isinstance(compact, CompactEnqueue)
    expected = asked.item_values(
        Reader(asked.EnqueueRequest).read(as_json({"items": [named(row[:12]) for row in batch]})).items or []
    )
    assert (compact.values(), compact.wait_ms) == (expected, wait_ms)


@given(rows, st.integers(0, 11), anything)
def test_a_wrong_value_in_a_compact_item_is_refused_as_in_json(row: Any, place: int, value: Any) -> None:
    wrong = [*row]
    wrong[place] = value
    by_name = named(row)
    by_name["payload"]["body"] = row[2]
    holder = by_name["payload"] if place < len(NAMES) else by_name
    name = (*NAMES, *MORE)[place]
    holder[name] = value
    is_instant = name == "notBefore" and type(value) is int
    assume(not is_instant)

    def read(body: bytes) -> Any:
        request = ENQUEUE.read(body)
        return request.values() if isinstance(request, CompactEnqueue) else asked.item_values(request.items)

    compact = outcome(lambda: read(pack({"items": [row, wrong]})))
    expected = outcome(lambda: read(pack({"items": [named_bytes(row), by_name]})))
    if isinstance(compact, list):
        # Ranges are the shard's to check in the compact form.
        assert compact == expected or name in ("priority", "weight", "delayMs", "maxAttempts", "notBefore")
    else:
        assert compact == expected


def named_bytes(row: Any) -> dict[str, Any]:
    item = named(row)
    item["payload"]["body"] = row[2]
    return item


acks = st.tuples(st.integers(0, 99), st.integers(1, 9), texts, st.none() | st.integers(0, 99))


@pytest.mark.parametrize("verb", ["heartbeat", "complete", "fail", "release"])
@given(st.lists(acks, min_size=1, max_size=4))
def test_compact_acknowledgements_are_those_of_json(verb: str, batch: list[Any]) -> None:
    reader: Reader[Any] = Reader(asked.REQUESTS[verb])
    compact = PackedReader(asked.REQUESTS[verb], reader).read(pack({"acks": batch}))
    assert isinstance(compact, CompactAcks)
    by_name = [
        {"ownershipToken": dict(zip(("sequenceId", "attempt", "leaseId", "fence"), each, strict=True))}
        for each in batch
    ]
    expected = reader.read(as_json({"acks": by_name})).acks
    assert compact.tokens() == [ack.token() for ack in expected]
    assert compact.spelled_out(type(expected[0])) == expected


# -- what is meant to be a burden ------------------------------------------------------------------------


@given(st.binary(max_size=64))
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x81\x80\x01")
@example(b"\xc1")
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (read_packed_messages, ENQUEUE.read):
        result = outcome(lambda read=read: read(data))
        assert isinstance(result, list | msgspec.Struct) or result[0] is InvalidArgument


@given(anything)
def test_values_within_bounds_pass(value: Any) -> None:
    check_elements(pack([value, b"\x80" * OBJECTS_MAX]))


@pytest.mark.parametrize("unit", [b"\x80", b"\x90", b"\xc0", b"\x01", b"\xa0", b"\xc4\x00", b"\x81\xa0\x90", b"\x91"])
def test_too_many_elements_are_refused_before_they_are_made(unit: bytes) -> None:
    many = b"\xdd" + (OBJECTS_MAX + 1).to_bytes(4, "big") + unit * (OBJECTS_MAX + 1)
    for value in (
        b"\x82\xa2id\x01\xa4acks" + many,
        b"\x91\x82\xa2id\x01\xa5begin" + many,
        b"\x81\xa4nope" + many,
        many,
    ):
        with pytest.raises(InvalidArgument) as refused:
            read_packed_messages(value)
        assert refused.value.code == "resourcelease.payload.too_large"
    with pytest.raises(InvalidArgument) as refused:
        ENQUEUE.read(b"\x81\xa5items" + many)
    assert refused.value.code == "resourcelease.payload.too_large"


def test_too_many_attributes_are_refused_before_they_are_made() -> None:
    count = OBJECTS_MAX // 2
    attributes = (
        b"\xdf" + count.to_bytes(4, "big") + b"".join(b"\xa5%05d\xa0" % (each % 100_000) for each in range(count))
    )
    with pytest.raises(InvalidArgument) as refused:
        ENQUEUE.read(b"\x81\xa5items\x91\x96\xa1t\xa1r\xc4\x00\xc0\xc0" + attributes)
    assert refused.value.code == "resourcelease.payload.too_large"


@pytest.mark.parametrize("name", [b"\x92\x01\x02", b"\x90", b"\xdc\x00\x01\x05", b"\xdd\x00\x00\x00\x00"])
@pytest.mark.parametrize(
    "before",
    [b"\x81", b"\x82\xa1a\x81\xa1b\x91\x01", b"\x82\xa1a\xc4\x01x", b"\x92\x01\x81", b"\x81\xa1a\x91\xde\x00\x01"],
)
def test_an_array_for_a_name_is_refused_before_it_is_looked_up(before: bytes, name: bytes) -> None:
    """Whoever sends arrays can choose them to have all the same hash."""
    wrong = before + name + b"\xc0"
    heartbeat = b"\x81\xa8progress\x81\xa4data" + wrong
    for value in (
        b"\x82\xa2id\x01\xa4acks\x91" + heartbeat,
        b"\x91\x82\xa2id\x01\xa4acks\x91" + heartbeat,
        b"\x82\xa4acks\x91" + heartbeat + b"\xa4nope\x01",
        b"\x82\xa2id\x01\xa4nope" + wrong,
    ):
        with pytest.raises(InvalidArgument, match="an array for a name"):
            read_packed_messages(value)
    for verb, request in (("heartbeat", heartbeat), ("restore", b"\x81\xa5items\x91" + heartbeat)):
        reader: Reader[Any] = Reader(asked.REQUESTS[verb])
        with pytest.raises(InvalidArgument, match="an array for a name"):
            PackedReader(asked.REQUESTS[verb], reader).read(request)
    with pytest.raises(InvalidArgument, match="an array for a name"):
        ENQUEUE.read(b"\x81\xa1x" + wrong)


@given(anything)
def test_values_with_names_that_are_text_pass(value: Any) -> None:
    check_elements(pack(value), names=True)


def test_a_body_may_look_like_any_number_of_elements() -> None:
    body = b"\x80" * (2 * OBJECTS_MAX)
    message = {"id": 1, "call": {"verb": "enqueue", "request": {"items": [["table", "orders", body]]}}}
    [received] = read_packed_messages(pack(message))
    assert received.message.call is not None
    request = ENQUEUE.read(bytes(received.message.call.request))
    assert request.values()[0].payload.body == body
    ack = {"verb": "complete", "ownershipToken": {"sequenceId": 1, "attempt": 1, "leaseId": "a"}, "result": body}
    [received] = read_packed_messages(pack({"id": 1, "acks": [ack]}))
    assert received.acks is not None
    assert isinstance(received.acks[0], msgspec.Struct)


def test_a_timestamp_is_an_instant() -> None:
    reader: Reader[Any] = Reader(asked.PauseRequest)
    request = PackedReader(asked.PauseRequest, reader).read(pack({"until": datetime(2026, 1, 31, 8, tzinfo=UTC)}))
    assert read_instant("until", request.until) == 1_769_846_400_000


def test_what_has_no_place_in_json_is_refused() -> None:
    for value in (msgspec.msgpack.Ext(5, b"x"), {"sequenceId": msgspec.msgpack.Ext(1, b"")}):
        reader: Reader[Any] = Reader(asked.WhyRequest)
        with pytest.raises(InvalidArgument):
            PackedReader(asked.WhyRequest, reader).read(pack(value))
