"""`Job`: what a handler gets: the item, its lease, and a way to report and to go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from omnirelay.client.arguments import as_kind
from omnirelay.client.asking import json_of
from omnirelay.client.client import ItemSpec
from omnirelay.core.commands import Progress
from omnirelay.core.payload import ErrorInfo, OwnershipToken
from omnirelay.errors import FailedPrecondition
from omnirelay.wire.answers import Lease
from omnirelay.wire.answers import Progress as LastProgress


class JobStopped(FailedPrecondition):
    """The lease is gone or the job was cancelled: whatever the handler still does, nobody will take it."""

    default_code = "error.worker.job_stopped"


class Job:
    """One lease in the hands of a handler. Safe to use from any thread."""

    def __init__(self, lease: Lease, report: Callable[[Progress], None], remaining_ms: Callable[[], float]) -> None:
        self.lease = lease
        self._report = report
        self._remaining_ms = remaining_ms
        self._stopped = threading.Event()
        self.stop_reason: str | None = None
        """Why the job is to stop: `cancelled`, `lost`, `stopping` when the worker is, or `withdrawn` when the
        connection dropped before the node heard of its beginning: somebody else may have the item now.
        """
        self.follow_ups: list[ItemSpec] = []

    @property
    def resource_type(self) -> str:
        return self.lease.payload.resource_type

    @property
    def resource_id(self) -> str:
        return self.lease.payload.resource_id

    @property
    def attributes(self) -> dict[str, str]:
        return self.lease.payload.attributes

    @property
    def body(self) -> bytes:
        return self.lease.payload.body

    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.body)

    @property
    def sequence_id(self) -> int:
        return self.lease.sequence_id

    @property
    def attempt(self) -> int:
        return self.lease.attempt

    @property
    def token(self) -> OwnershipToken:
        return self.lease.ownership_token

    @property
    def fence(self) -> int:
        """The number that downstream stores compare: a later owner has a higher one."""
        fence = self.token.fence
        assert fence is not None, "a granted token always bears its fence"
        return fence

    @property
    def last_error(self) -> ErrorInfo | None:
        """Why the attempt before this one ended badly."""
        return self.lease.last_error

    @property
    def progress(self) -> LastProgress | None:
        """How far an earlier attempt had come."""
        return self.lease.progress

    def report(self, fraction: float | None = None, message: str | None = None, data: Any = None) -> None:
        """Say how far it is; a later attempt finds it in `progress`. Returns at once, and never fails. Of `data` counts
        what it is now, whatever the handler makes of it before it is sent.
        """
        self._report(Progress(fraction=fraction, message=message, data=_as_it_is_now(data)))

    def follow_up(self, *items: ItemSpec) -> None:
        """Items that come in when this one is completed, in the same step."""
        self.follow_ups.extend(as_kind("items", item, ItemSpec) for item in items)

    def remaining_ms(self) -> float:
        """How long the lease is certain to live if no further heartbeat gets through."""
        return self._remaining_ms()

    @property
    def stopped(self) -> bool:
        """Whether to stop: the lease is lost, the item was cancelled, or the worker is stopping."""
        return self._stopped.is_set()

    def check(self) -> None:
        """Raise JobStopped when the job is to stop. For handlers in threads, between two steps."""
        if self.stopped:
            raise JobStopped(f"the job is to stop: {self.stop_reason}")

    def wait_stopped(self, seconds: float) -> bool:
        """Wait in a thread; true when the job is to stop."""
        return self._stopped.wait(seconds)

    def stop(self, reason: str) -> None:
        """The worker's to call."""
        if not self._stopped.is_set():
            self.stop_reason = reason
            self._stopped.set()


def _as_it_is_now(data: Any) -> Any:
    """A copy, as JSON has it. What JSON does not have is left as it is, for whoever sends it to refuse."""
    try:
        return msgspec.json.decode(json_of(data))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return data
