"""Events as sinks get them: the stored bytes, with what a frame knows of them. Nothing is left out or understood on the
way, so an event type or a field of a newer version passes through unharmed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from omnirelay.log.base import Frame
from omnirelay.log.frame import decode_header
from omnirelay.wire.events import readable


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
        document = readable(self.data)
        document.setdefault("schemaVersion", 1)
        metadata = _members(document.get("metadata"))
        if metadata is None:
            return document  # A newer version keeps something else there; that goes before what we would add.
        metadata["shard.id"] = self.shard
        metadata["region"] = self.region
        if self.pending is not None:
            metadata["queue.pending"] = str(self.pending)
        if self.active is not None:
            metadata["queue.active"] = str(self.active)
        if "principal" in document:
            metadata["rpc.principal"] = document["principal"]
        document["metadata"] = metadata
        return document

    def json(self) -> bytes:
        return msgspec.json.encode(self.document())


_read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _members(stored: msgspec.Raw | None) -> dict[str, Any] | None:
    """The members of an object, undecoded; none when it is missing. None when it is no object at all."""
    if stored is None or bytes(stored) == b"null":
        return {}
    try:
        return dict(_read_members(stored))
    except msgspec.ValidationError:
        return None


class _Tag(msgspec.Struct, rename="camel"):
    event_type: str
    sequence_number: int
    timestamp: int


_read_tag = msgspec.json.Decoder(_Tag).decode


def events_of_frame(frame: Frame, region: str, after: int = 0) -> list[ReplicatedEvent]:
    """The events of a frame behind the event `after`, in order. When it is not in the frame, the frame follows it."""
    header = decode_header(frame.data)
    events = []
    previous = after
    for raw in header.events:
        tag = _read_tag(raw)
        if tag.sequence_number > after:
            events.append(
                ReplicatedEvent(
                    header.shard,
                    tag.sequence_number,
                    previous,
                    tag.event_type,
                    tag.timestamp,
                    bytes(raw),
                    region,
                    header.pending,
                    header.active,
                    frame,
                )
            )
        previous = max(previous, tag.sequence_number)
    return events
