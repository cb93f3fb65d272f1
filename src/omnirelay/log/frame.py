"""The stored form of a frame: one JSON object, header first, events last.

    {"shard":…,"logId":…,"generation":…,"epoch":…,"first":…,"last":…,"time":…,"schema":…,"events":[…],
     "pending":…,"active":…}

The bytes are what the chain hashes, so they are written once and never re-encoded. The header repeats the columns a
store keeps beside them: a column that was altered no longer agrees with bytes that the chain covers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from omnirelay.core.events import EVENT_NUMBERS, SCHEMA_VERSION, Event, GenerationStarted
from omnirelay.errors import DataLoss, InvalidArgument, LogDamaged, LogSchemaTooNew, UnknownEvent
from omnirelay.log.base import Frame
from omnirelay.wire.event_upcasting import upcast


class FrameRecord(msgspec.Struct, rename="camel", omit_defaults=True):
    """The whole JSON object. The order of the fields is the order of the bytes."""

    shard: str
    log_id: str
    generation: int
    epoch: int
    first: int
    last: int
    time: int
    schema: int
    events: Sequence[Event]
    pending: int | None = None
    """Items ready or delayed after the last event. Behind the events, because readers compare what is before them."""
    active: int | None = None
    """Leases that lived after the last event."""


class FrameHeader(msgspec.Struct, rename="camel"):
    """The same object with the events left as they are, for tools and for versions that do not know them."""

    shard: str
    log_id: str
    generation: int
    epoch: int
    first: int
    last: int
    time: int
    schema: int
    events: list[msgspec.Raw]
    pending: int | None = None
    active: int | None = None


class _Tag(msgspec.Struct, rename="camel"):
    event_type: str
    sequence_number: int


_encoder: Final = msgspec.json.Encoder()
_record_decoder: Final = msgspec.json.Decoder(FrameRecord)
_header_decoder: Final = msgspec.json.Decoder(FrameHeader)
_tag_decoder: Final = msgspec.json.Decoder(_Tag)
_event_decoder: Final = msgspec.json.Decoder(Event)

_sha256 = hashlib.sha256


def genesis_chain(shard: str, log_id: str) -> bytes:
    """The chain before the first frame: no two logs share it, so frames cannot move between them."""
    return _sha256(b"omnirelay log\0" + msgspec.json.encode([shard, log_id])).digest()


def chain_of(previous: bytes, data: bytes) -> bytes:
    """The chain after a frame. Releases the GIL for all but the smallest frames."""
    digest = _sha256(previous)
    digest.update(data)
    return digest.digest()


def encode_frame(
    shard: str,
    log_id: str,
    generation: int,
    epoch: int,
    time_ms: int,
    events: Sequence[Event],
    depth: tuple[int, int] | None = None,
    scratch: bytearray | None = None,
) -> Frame:
    """One frame of these events, in order; `depth` is how many items were pending and leased after them.

    Whoever encodes one large frame after the other hands in the same `scratch` each time: an output that starts small
    is copied every time it grows. Raises InvalidArgument when there is no event.
    """
    if not events:
        raise InvalidArgument("a frame needs at least one event", field="events")
    first = events[0].sequence_number
    last = events[-1].sequence_number
    pending, active = depth or (None, None)
    record = FrameRecord(
        shard, log_id, generation, epoch, first, last, time_ms, SCHEMA_VERSION, events, pending, active
    )
    if scratch is None:
        data = _encoder.encode(record)
    else:
        _encoder.encode_into(record, scratch)
        data = bytes(scratch)
    return Frame(first, last, len(events), epoch, generation, time_ms, data)


def header_prefix(frame: Frame, shard: str, log_id: str, schema: int = SCHEMA_VERSION) -> bytes:
    """The bytes a frame with these columns begins with: a comparison is far cheaper than a decode."""
    return (
        b'{"shard":%b,"logId":%b,"generation":%d,"epoch":%d,"first":%d,"last":%d,"time":%d,'
        b'"schema":%d,"events":['
        % (
            _encoder.encode(shard),
            _encoder.encode(log_id),
            frame.generation,
            frame.epoch,
            frame.first,
            frame.last,
            frame.time_ms,
            schema,
        )
    )


def decode_header(data: bytes) -> FrameHeader:
    """The header, and the events undecoded. Raises LogDamaged when it is not a frame at all."""
    try:
        return _header_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogDamaged(f"the stored bytes are not a frame: {error}") from error


def check_header(frame: Frame, *, shard: str, log_id: str) -> None:
    """Compare what stands beside the bytes with what stands in them; raises LogDamaged naming the field."""
    if frame.data.startswith(header_prefix(frame, shard, log_id)):
        return
    try:
        header = decode_header(frame.data)
    except LogDamaged as error:
        raise LogDamaged(
            f"frame {frame.first}..{frame.last} of {shard!r}: {error.message}",
            shard=shard,
            sequence=frame.first,
            last=frame.last,
        ) from error
    _compare(frame, header, shard, log_id)


def decode_frame(frame: Frame, *, shard: str, log_id: str) -> list[Event]:
    """The events of a frame, cross-checked, those of older versions as events of today.

    Raises LogDamaged naming the sequence when header and columns differ, when the frame belongs to another log, or
    when sequences are not contiguous (they may jump upward at a GenerationStarted event); LogSchemaTooNew or
    UnknownEvent when a newer version wrote it.
    """
    try:
        record = _decode_record(frame.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _explain(frame, shard, log_id, error) from error
    _compare(frame, record, shard, log_id)
    _check_schema(frame, record.schema, shard)
    events = record.events
    if len(events) != frame.count:
        raise damaged_frame(frame, shard, frame.first, f"holds {len(events)} events, its count says {frame.count}")
    expected = frame.first
    for event in events:
        sequence = event.sequence_number
        if sequence != expected and not (sequence > expected and type(event) is GenerationStarted):
            raise damaged_frame(frame, shard, expected, f"has event {sequence} where {expected} belongs")
        expected = sequence + 1
    # The loop leaves the first event's jump unseen: it starts from the header, which the event must repeat.
    if events[0].sequence_number != frame.first or expected != frame.last + 1:
        raise damaged_frame(frame, shard, frame.first, "has other first and last events than its header says")
    return list(events)


def _decode_record(data: bytes) -> FrameRecord:
    """Frames of this version in one step; only older ones are read twice."""
    try:
        record = _record_decoder.decode(data)
    except msgspec.DecodeError:
        if _header_decoder.decode(data).schema >= SCHEMA_VERSION:
            raise
    else:
        if record.schema >= SCHEMA_VERSION:
            return record
    header = _header_decoder.decode(data)
    events = [_event_decoder.decode(upcast(raw)) for raw in header.events]
    return FrameRecord(**{**msgspec.structs.asdict(header), "events": events})


def _compare(frame: Frame, header: FrameRecord | FrameHeader, shard: str, log_id: str) -> None:
    for name, found, expected in (
        ("shard", header.shard, shard),
        ("logId", header.log_id, log_id),
        ("generation", header.generation, frame.generation),
        ("epoch", header.epoch, frame.epoch),
        ("first", header.first, frame.first),
        ("last", header.last, frame.last),
        ("time", header.time, frame.time_ms),
    ):
        if found != expected:
            raise damaged_frame(
                frame, shard, frame.first, f"says {name} {found!r} in its bytes, {expected!r} was expected"
            )
    if not header.events:
        raise damaged_frame(frame, shard, frame.first, "holds no events")


def _check_schema(frame: Frame, schema: int, shard: str) -> None:
    if schema > SCHEMA_VERSION:
        raise LogSchemaTooNew(
            f"frame {frame.first}..{frame.last} of {shard!r} has event schema {schema}, this version knows"
            f" {SCHEMA_VERSION}; upgrade omnirelay to read it",
            shard=shard,
            sequence=frame.first,
            found=schema,
            expected=SCHEMA_VERSION,
        )


def _explain(frame: Frame, shard: str, log_id: str, error: Exception) -> DataLoss:
    """Tell an event of a newer version from damage: both fail the typed decode."""
    try:
        header = _header_decoder.decode(frame.data)
        _compare(frame, header, shard, log_id)
        _check_schema(frame, header.schema, shard)
        for raw in header.events:
            tag = _tag_decoder.decode(raw)
            if tag.event_type not in EVENT_NUMBERS:
                return UnknownEvent(
                    f"event {tag.sequence_number} of {shard!r} has the type {tag.event_type!r}, unknown to"
                    " this version; upgrade omnirelay before it leads this shard",
                    shard=shard,
                    sequence=tag.sequence_number,
                    found=tag.event_type,
                )
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    except (LogDamaged, LogSchemaTooNew) as refusal:
        return refusal
    return damaged_frame(frame, shard, frame.first, f"cannot be decoded: {error}")


def damaged_frame(frame: Frame, shard: str, sequence: int, what: str) -> LogDamaged:
    """The refusal of a stored frame, with its place. `what` goes on after "frame 1..9 of 'shard'"."""
    return LogDamaged(
        f"frame {frame.first}..{frame.last} of {shard!r} {what}; restore a backup, or accept the loss from here on"
        " (omnirelay log recover)",
        shard=shard,
        sequence=sequence,
        first=frame.first,
        last=frame.last,
    )
