"""What the columns of a table of events hold, whichever database it is in."""

from __future__ import annotations

from typing import Any

import msgspec

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.replication.events import ReplicatedEvent


class _Peer(msgspec.Struct, rename="camel"):
    peer_id: Any = None


_read_peer = msgspec.json.Decoder(_Peer).decode


def peer_of(event: ReplicatedEvent) -> str | None:
    peer = _read_peer(event.data).peer_id
    return peer if isinstance(peer, str) else None


def number_of(event: ReplicatedEvent) -> int:
    """The number of its type, 0 for one that this version does not know."""
    return EVENT_NUMBERS.get(event.event_type, 0)
