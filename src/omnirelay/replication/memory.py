"""Events in a list, for tests and for whoever embeds a node."""

from __future__ import annotations

from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.sinks import CheckpointingSink


class MemorySink(CheckpointingSink):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[ReplicatedEvent] = []

    def apply_one(self, event: ReplicatedEvent) -> None:
        self.events.append(event)
