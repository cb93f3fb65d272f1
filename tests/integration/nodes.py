"""A node in this process, listening on a real port, for tests that speak HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from omnirelay.core.options import QueueOptions
from omnirelay.node.node import Node
from omnirelay.node.settings import LogSection, NodeSection, NodeSettings, ShardSettings
from tests.patience import PATIENCE_S


def settings_for(data: Path | None, *namespaces: str, options: QueueOptions | None = None) -> NodeSettings:
    """A node on a free port of loopback; None for `data` keeps everything in memory."""
    shards = tuple(
        ShardSettings(name=each, namespace=each, options=options or QueueOptions())
        for each in namespaces or ("resourcelease",)
    )
    return NodeSettings(
        node=NodeSection(port=0, data=data or Path("unused")),
        log=LogSection(url="sqlite:" if data is not None else "memory:"),
        shards=shards,
    )


@asynccontextmanager
async def running_node(
    data: Path | None = None, *namespaces: str, options: QueueOptions | None = None
) -> AsyncIterator[Node]:
    node = Node(settings_for(data, *namespaces, options=options))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


class Http:
    """Calls of a node as any HTTP client would make them."""

    def __init__(self, node: Node, namespace: str = "resourcelease") -> None:
        self.client = httpx.AsyncClient(base_url=node.url, timeout=PATIENCE_S)
        self.namespace = namespace

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()

    async def post(self, verb: str, body: Any = None, **headers: str) -> httpx.Response:
        """The raw response; header names are written with _ for -."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(f"/v1/{self.namespace}/{verb}", json={} if body is None else body, headers=named)

    async def call(self, verb: str, body: Any = None, **headers: str) -> Any:
        """The answer; fails the test when it is a refusal."""
        response = await self.post(verb, body, **headers)
        assert response.status_code == 200, (response.status_code, response.text)
        return response.json()
