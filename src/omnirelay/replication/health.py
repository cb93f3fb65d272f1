"""`SinkHealth`: whether deliveries succeed, since when they do not, and why."""

from __future__ import annotations

import asyncio
import logging

from omnirelay.errors import OmniRelayError
from omnirelay.replication.status import SinkState

_log = logging.getLogger("omnirelay.replication")


class SinkHealth:
    """Starts as `starting`; how long a sink may fail before it is `stalled` is given in milliseconds."""

    def __init__(self, sink: str, shard: str, stalled_after_ms: int) -> None:
        self.state: SinkState = "starting"
        self.last_error: str | None = None
        self.failures = 0
        self._labels = {"sink": sink, "shard": shard}
        self._stalled_after_ms = stalled_after_ms
        self._failing_since: float | None = None

    def succeeded(self) -> None:
        if self.state != "failed":
            self.state = "running"
        self.last_error = None
        self._failing_since = None

    def failed(self, error: BaseException, *, for_good: bool = False) -> None:
        """`for_good`: trying again is of no use, until somebody resumes it."""
        now = asyncio.get_running_loop().time()
        self.failures += 1
        if self._failing_since is None:
            self._failing_since = now
        stalled = (now - self._failing_since) * 1000 >= self._stalled_after_ms
        self.state = "failed" if for_good else "stalled" if stalled else "retrying"
        text = reason_of(error)
        if text != self.last_error:
            _log.warning("sink_failed", extra={**self._labels, "reason": text})
        self.last_error = text

    def resumed(self) -> None:
        """Somebody has dealt with what made it fail."""
        if self.state == "failed":
            self.state = "starting"


def reason_of(error: BaseException) -> str:
    """What went wrong, for people."""
    if isinstance(error, OmniRelayError):
        return error.message
    return str(error) if isinstance(error, TimeoutError) and str(error) else f"{type(error).__name__}: {error}"
