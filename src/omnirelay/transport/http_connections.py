"""What an answer over HTTP may ask the connection it goes out by, where the server offers that.

An answer that must reach somebody, or be taken back, needs to know more than ASGI tells. A server that knows puts a
`Connection` into the extensions of its scopes: `{CONNECTION: {"of": connection}}`. A node's does; with others only what
they report of a caller that hung up counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

CONNECTION = "omnirelay.connection"


class Connection(Protocol):
    @property
    def hung_up(self) -> bool:
        """Whether the client has closed its side by now."""
        ...

    async def went_out(self) -> bool:
        """Wait until what was written is on its way, but for a few KiB; false when the connection ended before."""
        ...


def connection_of(scope: Mapping[str, Any]) -> Connection | None:
    extensions = scope.get("extensions")
    offered = extensions.get(CONNECTION) if extensions else None
    connection: Connection | None = offered["of"] if offered else None
    return connection
