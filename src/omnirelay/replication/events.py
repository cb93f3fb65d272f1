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
    event_type: str
    timestamp: int
    data: bytes
    region: str
    pending: int | None = None
    active: int | None = None

    def document(self) -> dict[str, Any]:
        """The event with instants as text, and `metadata` about the queue, the shard and the node."""
        document = readable(self.data)
        metadata: dict[str, str] = {}
        if "metadata" in document:
            metadata |= msgspec.json.decode(document["metadata"], type=dict[str, str])
        metadata["shard.id"] = self.shard
        metadata["region"] = self.region
        if self.pending is not None:
            metadata["queue.pending"] = str(self.pending)
        if self.active is not None:
            metadata["queue.active"] = str(self.active)
        if "principal" in document:
            metadata["rpc.principal"] = msgspec.json.decode(document["principal"], type=str)
        document.setdefault("schemaVersion", 1)
        document["metadata"] = metadata
        return document

    def json(self) -> bytes:
        return msgspec.json.encode(self.document())


class _Tag(msgspec.Struct, rename="camel"):
    event_type: str
    sequence_number: int
    timestamp: int


_read_tag = msgspec.json.Decoder(_Tag).decode


def events_of_frame(frame: Frame, region: str, after: int = 0) -> list[ReplicatedEvent]:
    """The events of a frame behind a sequence, in order."""
    header = decode_header(frame.data)
    events = []
    for raw in header.events:
        tag = _read_tag(raw)
        if tag.sequence_number > after:
            events.append(
                ReplicatedEvent(
                    header.shard,
                    tag.sequence_number,
                    tag.event_type,
                    tag.timestamp,
                    bytes(raw),
                    region,
                    header.pending,
                    header.active,
                )
            )
    return events
