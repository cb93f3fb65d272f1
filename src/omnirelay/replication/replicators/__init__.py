"""Replicators, for whoever embeds: events get a number, are kept, and are carried to sinks.

    replicator = SqliteReplicator("data", {"audit": FileSink(Path("audit"))})
    await replicator.start()
    [event] = await replicator.publish([{"eventType": "Enqueue", "sequenceId": 1}])
    await replicator.wait_delivered(event.sequence)
    await replicator.stop()

A node needs none of this: its shards number and keep their events themselves, and its sinks stand in the settings.
"""

from omnirelay.replication.replicators.base import Publishable, Replicator
from omnirelay.replication.replicators.composite import CompositeReplicator
from omnirelay.replication.replicators.sharded import ShardedReplicator
from omnirelay.replication.replicators.targets import (
    InMemoryReplicator,
    ObjectStorageReplicator,
    SqliteReplicator,
)

__all__ = [
    "CompositeReplicator",
    "InMemoryReplicator",
    "ObjectStorageReplicator",
    "Publishable",
    "Replicator",
    "ShardedReplicator",
    "SqliteReplicator",
]
