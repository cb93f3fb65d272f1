"""What a process is made of: procedures, components, middleware."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from omnirelay._version import __version__
from omnirelay.control.health import JSON, shard_status
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.service.component import ResourceLeaseComponent


class Introspection:
    def __init__(
        self,
        dispatcher: Dispatcher,
        components: Sequence[ResourceLeaseComponent],
        about: Callable[[], dict[str, Any]],
    ) -> None:
        """`about` says what is to be known of the process itself."""
        self._dispatcher = dispatcher
        self._components = components
        self._about = about

    async def page(self) -> tuple[int, str, bytes]:
        dispatcher = self._dispatcher
        shapes: dict[str, list[dict[str, str]]] = {"unary": [], "oneway": [], "stream": [], "duplex": []}
        for procedure in dispatcher.procedures.values():
            shape = "stream" if procedure.shape == "server-stream" else procedure.shape
            shapes[shape].append({"name": procedure.name, "encoding": procedure.encoding})
        report = {
            "service": dispatcher.service,
            "status": "Stopping" if dispatcher.draining else "Running",
            "version": __version__,
            **self._about(),
            "procedures": shapes,
            "components": [
                {
                    "name": component.namespace,
                    "componentType": type(component).__name__,
                    "log": "memory" if component.options.data is None else "sqlite",
                    **shard_status(component),
                }
                for component in self._components
            ],
            "middleware": {
                "inboundUnary": [*dispatcher.observers, *(layer.__name__ for layer in dispatcher.middleware)]
            },
        }
        return 200, JSON, msgspec.json.encode(report)
