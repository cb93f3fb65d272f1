"""`ShardedReplicator`: says of every event which shard it is from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from omnirelay.errors import InvalidArgument
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.replicators.base import SHARD_ID, Publishable, Replicator


class ShardedReplicator:
    """A `Replicator` in front of another one, which gives the numbers.

    Several of them, one per shard, may share one replicator; whoever starts and stops that one is up to you, as
    `start` and `stop` are passed on. Readers find the shard in the metadata, as `shard.id`.
    """

    def __init__(self, inner: Replicator, shard_id: str) -> None:
        if not isinstance(shard_id, str) or not shard_id.strip():
            raise InvalidArgument(
                f"a shard needs a name, got {shard_id!r}",
                code="error.resourcelease.replication.shard_id_missing",
                field="shard_id",
            )
        self.shard_id = shard_id.strip()
        self._inner = inner

    @property
    def shard(self) -> str:
        return self._inner.shard

    @property
    def last(self) -> int:
        return self._inner.last

    async def start(self) -> None:
        await self._inner.start()

    async def publish(self, events: Sequence[Publishable]) -> list[ReplicatedEvent]:
        """An event of a log says itself where it is from; it has to be from this shard."""
        return await self._inner.publish([self._labelled(event, index) for index, event in enumerate(events)])

    def _labelled(self, event: Publishable, index: int) -> Publishable:
        if isinstance(event, Mapping):
            return {**event, SHARD_ID: self.shard_id}
        if isinstance(event, ReplicatedEvent) and event.shard != self.shard_id:
            raise InvalidArgument(
                f"event {index} is from {event.shard!r}, not from {self.shard_id!r}", field="events", index=index
            )
        return event

    async def stop(self) -> None:
        await self._inner.stop()
