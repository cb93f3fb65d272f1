"""`Done`: what a delivery brought to its end, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter

import msgspec

from omnirelay.replication.commits import Commits
from omnirelay.replication.events import ReplicatedEvent

_TYPE = attrgetter("event_type")


class Done(msgspec.Struct, frozen=True, gc=False):
    last: int
    """The last event."""
    first_ms: int
    last_ms: int
    """When the first and the last one happened."""
    types: Counter[str]
    """How many of each type."""

    @classmethod
    def of(cls, batch: Sequence[ReplicatedEvent]) -> Done:
        if isinstance(batch, Commits):
            frames = batch.frames
            return cls(batch.last, frames[0].time_ms, frames[-1].time_ms, batch.types())
        return cls(batch[-1].sequence, batch[0].timestamp, batch[-1].timestamp, Counter(map(_TYPE, batch)))

    @property
    def count(self) -> int:
        return self.types.total()
