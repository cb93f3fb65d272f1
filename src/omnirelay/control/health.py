"""Whether the node lives, and whether it serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from omnirelay.core import views
from omnirelay.errors import OmniRelayError
from omnirelay.replication.replication import Replication
from omnirelay.replication.status import FollowStatus
from omnirelay.rpc.dispatcher import Dispatcher
from omnirelay.service.component import ResourceLeaseComponent

JSON = "application/json"


class Health:
    """Answers for all components of a process."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        components: Sequence[ResourceLeaseComponent],
        replication: Replication | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._components = components
        self._replication = replication

    async def live(self) -> tuple[int, str, bytes]:
        """Whether a restart would improve anything: it brings back a shard that was given up, and nothing else does.

        A full disk, a recovery and a drain are no reasons: they pass, or a restart would only begin them anew.
        """
        given_up = [(component.namespace, component.given_up) for component in self._components]
        issues = [
            f"{shard}: given up until a restart: {error.message}" for shard, error in given_up if error is not None
        ]
        status = "unavailable" if issues else "ok"
        return (503 if issues else 200), JSON, msgspec.json.encode(self._report("live", issues, status))

    async def ready(self) -> tuple[int, str, bytes]:
        shards = [shard_status(component) for component in self._components]
        issues = [f"{shard['shard']}: {shard['reason']}" for shard in shards if not shard["ready"]]
        if self._dispatcher.draining:
            issues.insert(0, "draining")
        status = "unavailable" if issues else "ok"
        # A sink that is behind is reported and no issue: callers are served as well as ever.
        sinks = [] if self._replication is None else [sink_status(each) for each in self._replication.status()]
        report = self._report("ready", issues, status) | {"shards": shards, "sinks": sinks}
        return (503 if issues else 200), JSON, msgspec.json.encode(report)

    def _report(self, mode: str, issues: list[str], status: str) -> dict[str, Any]:
        return {
            "status": status,
            "mode": mode,
            "issues": issues,
            "activeRequests": self._dispatcher.active,
            "draining": self._dispatcher.draining,
        }


def sink_status(status: FollowStatus) -> dict[str, Any]:
    """One line about a sink: how far it has come, and why it does not go on when it does not."""
    return {
        "sink": status.sink,
        "shard": status.shard,
        "state": status.state,
        "required": status.required,
        "checkpoint": status.checkpoint,
        "lagEvents": status.lag_events,
        **({} if status.lag_ms is None else {"lagMs": status.lag_ms}),
        **({"requirementDropped": True} if status.requirement_dropped else {}),
        **({} if status.closes_intake is None else {"closesIntake": status.closes_intake}),
        **({} if status.last_error is None else {"reason": status.last_error}),
    }


def shard_status(component: ResourceLeaseComponent) -> dict[str, Any]:
    """One line about a shard: its counts, and why it does not serve when it does not."""
    try:
        shard = component.shard()
    except OmniRelayError:
        return {"shard": component.namespace, "ready": False, "reason": component.starting}
    failure = shard.failure
    state = shard.state
    pressure = views.backpressure(state)
    return {
        "shard": component.namespace,
        "ready": failure is None,
        **({} if failure is None else {"reason": failure.message, "code": failure.code}),
        "pending": state.pending_count,
        "active": state.leased.live,
        "deadLetters": len(state.dead),
        "backpressure": pressure.active,
        **({"intake": pressure.reason} if pressure.active else {}),
        "lastSequence": shard.last_sequence,
        "logId": shard.log.log_id,
        "generation": state.generation,
    }
