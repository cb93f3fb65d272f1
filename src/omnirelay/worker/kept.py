"""A lease in the hands of a worker, and what its two halves say to each other about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from omnirelay.client.elapsed_time import elapsed_seconds
from omnirelay.core.commands import Progress
from omnirelay.core.payload import OwnershipToken
from omnirelay.wire.answers import Lease
from omnirelay.wire.requests import IncomingToken
from omnirelay.wire.streams import StreamAck


class Kept:
    """One lease of this worker."""

    __slots__ = ("begun", "certain", "heartbeat_at", "heartbeating", "lease", "mark", "progress", "until", "withdrawn")

    def __init__(self, lease: Lease, until: float, now: float) -> None:
        self.lease = lease
        self.until = until
        """In `elapsed_seconds`: until then the lease lives for certain."""
        self.certain = until
        self.heartbeat_at = now + min(lease.heartbeat_after_ms, lease.remaining_ms / 3) / 1000
        self.heartbeating = False
        self.begun = False
        self.mark: int | None = None
        """The node knows that the work has begun when it has taken in the stream up to here."""
        self.withdrawn = False
        """It was given back before its handler began, as far as is known here."""
        self.progress: Progress | None = None
        """To be told with the next heartbeat."""

    @property
    def lease_id(self) -> str:
        return self.lease.ownership_token.lease_id

    def remaining_ms(self) -> float:
        return max(0.0, (self.until - elapsed_seconds()) * 1000)


Told: TypeAlias = Callable[[str | None], None]
"""Called in the keeper's thread with what the node took as the end of a lease: `complete`, `fail`, `release`. None: it
took nothing, as the lease was over, or nobody knows. `DROPPED`: the worker ended before the node had answered.
"""
DROPPED = "dropped"


class Receiver(Protocol):
    """The handlers' half. Called in the keeper's thread."""

    def arrived(self, kept: Kept) -> None: ...

    def stop_job(self, lease_id: str, reason: str) -> None:
        """`lost`, `cancelled`, or `withdrawn`: given back before it was begun."""
        ...


def acknowledgement(verb: str, token: OwnershipToken, peer_id: str, **fields: object) -> StreamAck:
    named = IncomingToken(
        sequence_id=token.sequence_id, attempt=token.attempt, lease_id=token.lease_id, fence=token.fence
    )
    return StreamAck(verb=verb, ownership_token=named, peer_id=peer_id, **fields)  # type: ignore[arg-type]
