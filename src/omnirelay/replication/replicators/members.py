"""Members of a replicator as a follower sees them: as sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.owners import Newest
from omnirelay.replication.replicators.base import Replicator, labelled
from omnirelay.replication.sinks import ReplicationSink, SinkUnusable


class SinkOfMember:
    """A sink, given events as of the shard they are from."""

    def __init__(self, sink: ReplicationSink) -> None:
        self._sink = sink
        self.rebuilds_state = sink.rebuilds_state

    @property
    def newest(self) -> Newest | None:
        return getattr(self._sink, "newest", None)

    def of_log(self, log_id: str) -> None:
        of_log = getattr(self._sink, "of_log", None)
        if of_log is not None:
            of_log(log_id)

    async def open(self, shard: str) -> int | None:
        return await self._sink.open(shard)

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        await self._sink.apply([labelled(event) for event in events])

    async def close(self) -> None:
        await self._sink.close()


class ReplicatorAsSink:
    """A replicator that takes over the numbers of another one, or of the log of a shard."""

    rebuilds_state = True
    """It never leaves an event out: what it keeps is a history."""

    def __init__(self, replicator: Replicator) -> None:
        self._replicator = replicator

    async def open(self, shard: str) -> int | None:
        if self._replicator.shard != shard:
            raise SinkUnusable(
                f"the replicator has numbers of {self._replicator.shard!r} and cannot take over those of {shard!r};"
                " give both the same shard"
            )
        await self._replicator.start()
        return self._replicator.last

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        await self._replicator.publish(events)

    async def close(self) -> None:
        await self._replicator.stop()


def sink_of(member: ReplicationSink | Replicator) -> ReplicationSink:
    """Told apart by what they do: a sink applies events, a replicator publishes them."""
    if hasattr(member, "apply"):
        return SinkOfMember(cast(ReplicationSink, member))
    return ReplicatorAsSink(member)
