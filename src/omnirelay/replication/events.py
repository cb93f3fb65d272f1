"""Events as sinks get them: the stored bytes, with what a frame knows of them. Nothing is left out or understood on the
way, so an event type or a field of a newer version passes through unharmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec

from omnirelay.log.base import Frame
from omnirelay.log.frame import decode_header
from omnirelay.wire.event_text import texts_of
from omnirelay.wire.events import document_of


class ReplicatedEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of one shard. `data` is the JSON it is stored as; `document` is what readers outside get."""

    shard: str
    sequence: int
    previous: int
    """The event before it in the log. They are neighbours, except where a new generation jumps ahead."""
    event_type: str
    timestamp: int
    data: bytes
    region: str
    pending: int | None = None
    active: int | None = None
    frame: Frame | None = None
    """The commit it is part of, for sinks that keep whole frames; the same object for all events of one."""

    def document(self) -> dict[str, Any]:
        """The event with instants as text, and `metadata` about the queue, the shard and the node."""
        return document_of(self.data, shard=self.shard, region=self.region, pending=self.pending, active=self.active)

    def json(self) -> bytes:
        """The document as text. For many events `json_of` is several times as quick."""
        return msgspec.json.encode(self.document())

    def protobuf(self) -> bytes:
        """The document as a protobuf message. Raises FailedPrecondition when the extra `protobuf` is not installed."""
        # Few want it, and to set it up takes a tenth of the start of a helper process.
        from omnirelay.wire.event_protobuf import to_protobuf

        return to_protobuf(self.json())


def json_of(events: Sequence[ReplicatedEvent]) -> list[bytes]:
    """The document of each as text."""
    texts: list[bytes] = []
    for (shard, region, pending, active), group in groupby(events, _surroundings):
        stored = [event.data for event in group]
        texts += texts_of(stored, shard=shard, region=region, pending=pending, active=active)
    return texts


_surroundings = attrgetter("shard", "region", "pending", "active")


class _Tag(msgspec.Struct, rename="camel", gc=False):
    event_type: str
    sequence_number: int
    timestamp: int


_read_tags = msgspec.json.Decoder(list[_Tag]).decode


def events_of_frame(frame: Frame, region: str, after: int = 0) -> list[ReplicatedEvent]:
    """The events of a frame behind the event `after`, in order. When it is not in the frame, the frame follows it."""
    return FrameEvents(frame, region, after).take()


class FrameEvents:
    """The same piece by piece: a large frame takes tens of milliseconds, and an event loop has other things to do."""

    def __init__(self, frame: Frame, region: str, after: int) -> None:
        self._frame = frame
        self._header = decode_header(frame.data)
        self._region = region
        self._after = after
        self._previous = after
        self._at = 0

    @property
    def done(self) -> bool:
        return self._at == len(self._header.events)

    def take(self, most: int | None = None) -> list[ReplicatedEvent]:
        """The next events: of `most` stored ones those that are wanted. None may be, and yet there are more."""
        header, after, previous = self._header, self._after, self._previous
        end = len(header.events) if most is None else min(self._at + most, len(header.events))
        stored = [bytes(raw) for raw in header.events[self._at : end]]
        shard, region, pending, active, frame = header.shard, self._region, header.pending, header.active, self._frame
        events = []
        # All in one call instead of one for each.
        for data, tag in zip(stored, _read_tags(b"[%b]" % b",".join(stored)), strict=True):
            sequence = tag.sequence_number
            if sequence > after:
                events.append(
                    ReplicatedEvent(
                        shard, sequence, previous, tag.event_type, tag.timestamp, data, region, pending, active, frame
                    )
                )
            if sequence > previous:
                previous = sequence
        self._previous = previous
        self._at = end
        return events
