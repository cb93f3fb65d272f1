"""The node that is killed.

python -m tests.crash.http_node DIRECTORY PORT
"""

from __future__ import annotations

import sys
from pathlib import Path

from omnirelay.core.options import QueueOptions
from omnirelay.node.node import Node
from omnirelay.node.running import run_node
from omnirelay.node.settings import NodeSection, NodeSettings, ShardSettings

OPTIONS = QueueOptions(
    lease_duration_ms=3_000, heartbeat_interval_ms=500, max_delivery_attempts=1_000, max_undelivered=1_000
)


def ready(node: Node) -> None:
    print(node.port, flush=True)  # noqa: T201


if __name__ == "__main__":
    directory, port = Path(sys.argv[1]), int(sys.argv[2])
    run_node(
        NodeSettings(
            node=NodeSection(data=directory, port=port, name="crash"),
            shards=(ShardSettings(name="resourcelease", namespace="resourcelease", options=OPTIONS),),
        ),
        ready,
    )
