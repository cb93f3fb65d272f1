"""Whether the node lives, and whether it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from omnirelay.core import views
from omnirelay.errors import OmniRelayError
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.service.component import ResourceLeaseComponent

JSON = "application/json"


class Health:
    """Answers for all components of a process."""

    def __init__(self, dispatcher: Dispatcher, components: Sequence[ResourceLeaseComponent]) -> None:
        self._dispatcher = dispatcher
        self._components = components

    async def live(self) -> tuple[int, str, bytes]:
        """The process answers: that is all a restart could improve."""
        return 200, JSON, msgspec.json.encode(self._report("live", [], "ok"))

    async def ready(self) -> tuple[int, str, bytes]:
        shards = [shard_status(component) for component in self._components]
        issues = [f"{shard['shard']}: {shard['reason']}" for shard in shards if not shard["ready"]]
        if self._dispatcher.draining:
            issues.insert(0, "draining")
        status = "unavailable" if issues else "ok"
        report = self._report("ready", issues, status) | {"shards": shards}
        return (503 if issues else 200), JSON, msgspec.json.encode(report)

    def _report(self, mode: str, issues: list[str], status: str) -> dict[str, Any]:
        return {
            "status": status,
            "mode": mode,
            "issues": issues,
            "activeRequests": self._dispatcher.active,
            "draining": self._dispatcher.draining,
        }


def shard_status(component: ResourceLeaseComponent) -> dict[str, Any]:
    """One line about a shard: its counts, and why it does not serve when it does not."""
    try:
        shard = component.shard()
    except OmniRelayError:
        return {"shard": component.namespace, "ready": False, "reason": component.starting}
    failure = shard.failure
    state = shard.state
    return {
        "shard": component.namespace,
        "ready": failure is None,
        **({} if failure is None else {"reason": failure.message, "code": failure.code}),
        "pending": state.pending_count,
        "active": state.leased.live,
        "deadLetters": len(state.dead),
        "backpressure": views.backpressure(state).active,
        "lastSequence": shard.last_sequence,
    }
