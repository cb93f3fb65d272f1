"""A node with a log that is not in segments yet, for the reader of the tail."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from omnirelay.client.threads import LoopThread
from omnirelay.core.commands import CompleteItem
from omnirelay.core.payload import NewItem, Payload
from omnirelay.engine.shard import Shard
from omnirelay.node.node import Node
from omnirelay.node.settings import NodeSection, NodeSettings

TAIL_EVENTS: Final = 60_000
_BATCH: Final = 1_000


class TailNode(msgspec.Struct, frozen=True):
    url: str


@contextmanager
def tail_node() -> Iterator[TailNode]:
    """A node in a thread of this process with so many events; the reader is in processes of its own."""
    thread = LoopThread("node")
    thread.start()
    try:
        with tempfile.TemporaryDirectory(prefix="omnirelay-tail-") as directory:
            node = Node(NodeSettings(node=NodeSection(data=Path(directory), port=0)))
            thread.run(node.start())
            try:
                [component] = node.components
                thread.run(_fill(component.shard()))
                yield TailNode(node.url)
            finally:
                thread.run(node.stop())
    finally:
        thread.stop()


async def _fill(shard: Shard) -> None:
    """Items that came in, were leased and completed: three events each."""
    items = [NewItem(payload=Payload(resource_type="table", resource_id=f"t{number}")) for number in range(_BATCH)]
    while shard.last_sequence < TAIL_EVENTS:
        await shard.enqueue(items)
        leases = await shard.lease(max_items=_BATCH)
        await shard.acknowledge([CompleteItem(lease.token) for lease in leases])
