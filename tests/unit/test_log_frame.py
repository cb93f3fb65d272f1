"""The stored form of a frame: what goes in comes out, and whatever does not fit is named."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirelay.core.events import SCHEMA_VERSION, Event, GenerationStarted, TimeAdvanced
from omnirelay.errors import InvalidArgument, LogDamaged, LogSchemaTooNew, UnknownEvent
from omnirelay.log import Frame, chain_of, decode_frame, decode_header, encode_frame, genesis_chain
from omnirelay.log.chain import Link, follow
from omnirelay.log.frame import check_header, header_prefix
from omnirelay.testing.conformance import make_events

SHARD, LOG_ID = "orders", "0123abcd"


def encode(events: list[Event], *, generation: int = 1) -> Frame:
    return encode_frame(SHARD, LOG_ID, generation, 7, 1_700_000_000_000, events)


def decode(frame: Frame) -> list[Event]:
    return decode_frame(frame, shard=SHARD, log_id=LOG_ID)


def generation_started(sequence: int) -> GenerationStarted:
    return GenerationStarted(
        sequence_number=sequence, timestamp=0, generation=2, reason="test", next_sequence_id=sequence
    )


def test_the_bytes_are_json_with_the_header_first_and_the_events_last() -> None:
    frame = encode([TimeAdvanced(sequence_number=5, timestamp=9)])
    assert frame.data == (
        b'{"shard":"orders","logId":"0123abcd","generation":1,"epoch":7,"first":5,"last":5,'
        b'"time":1700000000000,"schema":1,"events":[{"eventType":"TimeAdvanced","sequenceNumber":5,"timestamp":9}]}'
    )
    assert (frame.first, frame.last, frame.count, frame.epoch, frame.generation) == (5, 5, 1, 7, 1)
    assert frame.chain == b""


def test_events_come_out_as_they_went_in() -> None:
    events = make_events(100, 5, body=b"\x00\xff")
    frame = encode(events)
    assert decode(frame) == events
    header = decode_header(frame.data)
    assert (header.shard, header.log_id, header.first, header.last) == (SHARD, LOG_ID, 100, 104)
    assert [msgspec.json.decode(raw)["sequenceNumber"] for raw in header.events] == [100, 101, 102, 103, 104]


def test_a_frame_without_events_cannot_be_made() -> None:
    with pytest.raises(InvalidArgument):
        encode([])


@given(shard=st.text(), log_id=st.text(), numbers=st.tuples(*[st.integers(0, 2**63 - 1)] * 4))
def test_the_header_of_any_frame_can_be_compared_without_decoding(
    shard: str, log_id: str, numbers: tuple[int, int, int, int]
) -> None:
    sequence, generation, epoch, time_ms = numbers
    events: list[Event] = [TimeAdvanced(sequence_number=sequence, timestamp=0)]
    frame = encode_frame(shard, log_id, generation, epoch, time_ms, events)
    assert frame.data.startswith(header_prefix(frame, shard, log_id))
    check_header(frame, shard=shard, log_id=log_id)


def test_the_chain_hashes_what_came_before_and_the_bytes() -> None:
    genesis = genesis_chain(SHARD, LOG_ID)
    assert len(genesis) == 32
    assert chain_of(genesis, b"data") == hashlib.sha256(genesis + b"data").digest()
    others = {genesis_chain("orders", "0123abce"), genesis_chain("order", "s0123abcd"), genesis_chain("", "")}
    assert len(others | {genesis}) == 4


# ----------------------------------------------------------------------- sequences


@pytest.mark.parametrize("sequences", [[1, 3], [1, 1], [2, 1], [1, 2, 2], [1, 2, 4]])
def test_sequences_that_are_not_contiguous_are_refused(sequences: list[int]) -> None:
    frame = encode([TimeAdvanced(sequence_number=sequence, timestamp=0) for sequence in sequences])
    with pytest.raises(LogDamaged) as refusal:
        decode(frame)
    assert refusal.value.details["shard"] == SHARD


def test_only_a_generation_may_jump_and_only_upward() -> None:
    assert len(decode(encode([generation_started(1 << 33), *make_events((1 << 33) + 1, 2)]))) == 3
    assert len(decode(encode([*make_events(1, 2), generation_started(1 << 33)]))) == 3
    with pytest.raises(LogDamaged) as refusal:
        decode(encode([*make_events(10, 2), generation_started(11)]))
    assert refusal.value.details["sequence"] == 12


# ----------------------------------------------------------------------- what does not agree


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda frame: {"first": frame.first + 1}, "first"),
        (lambda frame: {"last": frame.last + 1}, "last"),
        (lambda frame: {"epoch": 8}, "epoch"),
        (lambda frame: {"generation": 2}, "generation"),
        (lambda frame: {"time_ms": 0}, "time"),
        (lambda frame: {"count": 4}, "count"),
        (lambda frame: {"data": frame.data.replace(b"0123abcd", b"0123abce")}, "logId"),
        (lambda frame: {"data": frame.data.replace(b'"shard":"orders"', b'"shard":"others"')}, "shard"),
        (lambda frame: {"data": frame.data[:-1]}, "decoded"),
        (lambda frame: {"data": frame.data.replace(b"orders-1", b"orders-\xff")}, "decoded"),
        (lambda frame: {"data": frame.data.replace(b'"payload"', b'"payl0ad"', 1)}, "decoded"),
        (lambda frame: {"data": b"[]"}, "decoded"),
        (lambda frame: {"data": b""}, "decoded"),
    ],
)
def test_a_frame_that_contradicts_itself_is_refused(change: Callable[[Frame], dict[str, object]], named: str) -> None:
    frame = encode(make_events(1, 3))
    with pytest.raises(LogDamaged, match=named) as refusal:
        decode(msgspec.structs.replace(frame, **change(frame)))
    assert refusal.value.details["shard"] == SHARD
    assert "sequence" in refusal.value.details


def test_a_frame_without_events_is_refused() -> None:
    frame = encode(make_events(1, 1))
    empty = frame.data[: frame.data.index(b'"events":[')] + b'"events":[]}'
    with pytest.raises(LogDamaged, match="no events"):
        decode(msgspec.structs.replace(frame, data=empty, count=0))


def test_an_event_of_a_newer_version_is_told_from_damage() -> None:
    frame = encode(make_events(1, 3))
    newer = msgspec.structs.replace(frame, data=frame.data.replace(b'"TimeAdvanced"', b'"TimeTravelled"'))
    with pytest.raises(UnknownEvent) as refusal:
        decode(newer)
    assert (refusal.value.details["sequence"], refusal.value.details["found"]) == (3, "TimeTravelled")
    # Tools and followers still read and pass it on.
    assert len(decode_header(newer.data).events) == 3
    check_header(newer, shard=SHARD, log_id=LOG_ID)


def test_a_newer_event_schema_is_refused_but_can_be_passed_on() -> None:
    frame = encode(make_events(1, 3))
    newer = msgspec.structs.replace(
        frame, data=frame.data.replace(b'"schema":%d' % SCHEMA_VERSION, b'"schema":%d' % (SCHEMA_VERSION + 1))
    )
    with pytest.raises(LogSchemaTooNew):
        decode(newer)
    check_header(newer, shard=SHARD, log_id=LOG_ID)


def test_what_is_no_frame_has_no_header() -> None:
    with pytest.raises(LogDamaged):
        decode_header(b'{"shard":"orders"}')


# ----------------------------------------------------------------------- one history


def linked(frame: Frame, link: Link) -> Frame:
    return msgspec.structs.replace(frame, chain=chain_of(link.chain, frame.data))


def test_every_flipped_bit_of_a_frame_breaks_the_chain() -> None:
    link = Link(0, genesis_chain(SHARD, LOG_ID), 1)
    frame = linked(encode(make_events(1, 2)), link)
    assert follow(link, frame, shard=SHARD, log_id=LOG_ID) == Link(2, frame.chain, 1)
    for offset in range(len(frame.data)):
        data = bytearray(frame.data)
        data[offset] ^= 1 << (offset % 8)
        with pytest.raises(LogDamaged):
            follow(link, msgspec.structs.replace(frame, data=bytes(data)), shard=SHARD, log_id=LOG_ID)


def test_frames_of_another_order_or_another_log_do_not_link() -> None:
    start = Link(0, genesis_chain(SHARD, LOG_ID), 1)
    first = linked(encode(make_events(1, 2)), start)
    middle = follow(start, first, shard=SHARD, log_id=LOG_ID)
    second = linked(encode(make_events(3, 2)), middle)
    for link, frame in ((start, second), (middle, first), (Link(0, bytes(32), 1), first)):
        with pytest.raises(LogDamaged):
            follow(link, frame, shard=SHARD, log_id=LOG_ID)
    with pytest.raises(LogDamaged):
        follow(start, first, shard=SHARD, log_id="another")
    with pytest.raises(LogDamaged, match="generation 1 after generation 2"):
        follow(Link(2, middle.chain, 2), second, shard=SHARD, log_id=LOG_ID)


def test_a_scratch_that_is_used_again_leaves_nothing_in_later_frames() -> None:
    scratch = bytearray()
    arguments = (SHARD, LOG_ID, 1, 7, 1_700_000_000_000)
    for count in (100, 1, 300, 2):
        events = [TimeAdvanced(sequence_number=at, timestamp=5) for at in range(1, count + 1)]
        frame = encode_frame(*arguments, events, (1, 2), scratch)
        assert frame == encode_frame(*arguments, events, (1, 2))
        assert type(frame.data) is bytes
