"""What a shard can be asked to do. Imperative; each becomes events or is refused.

Callers' commands come first, the engine's own (time, caps, leadership) at the end.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from omnirelay.core.events import FailMode, RestoredItem
from omnirelay.core.options import QueueOptions
from omnirelay.core.payload import ANONYMOUS, Caller, NewItem, OwnershipToken, Payload


class Progress(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, frozen=True):
    """How far an owner has come; handed to the next attempt. `data` is any JSON value."""

    fraction: float | None = None
    message: str | None = None
    data: object = None


class EnqueueItems(msgspec.Struct, gc=False):
    """All or nothing."""

    items: list[NewItem]
    caller: Caller = ANONYMOUS


class GrantLeases(msgspec.Struct, gc=False):
    """Up to `items_max` leases for one peer. With a `request_id` a repeat gets the same live grants."""

    caller: Caller = ANONYMOUS
    items_max: int = 1
    lease_duration_ms: int | None = None
    request_id: str | None = None
    resource_types: tuple[str, ...] | None = None
    """Globs; only items of these types. None: any."""
    tenants: tuple[str, ...] | None = None


class ExtendLease(msgspec.Struct, gc=False):
    token: OwnershipToken
    caller: Caller = ANONYMOUS
    progress: Progress | None = None


class CompleteItem(msgspec.Struct, gc=False):
    token: OwnershipToken
    caller: Caller = ANONYMOUS
    result: bytes | None = None
    result_encoding: str | None = None
    follow_ups: list[NewItem] | None = None

    @property
    def plain(self) -> bool:
        """Whether the item just ends: no result, no follow-ups."""
        return self.result is None and self.follow_ups is None and self.result_encoding is None


class FailItem(msgspec.Struct, gc=False):
    token: OwnershipToken
    caller: Caller = ANONYMOUS
    mode: FailMode = "retry"
    reason: str | None = None
    error_code: str | None = None
    delay_ms: int | None = None
    metadata: dict[str, str] | None = None


class ReleaseItem(msgspec.Struct, gc=False):
    token: OwnershipToken
    caller: Caller = ANONYMOUS
    delay_ms: int | None = None


class ReturnUndelivered(msgspec.Struct, gc=False):
    """The answer that carried these grants could not be written; those still live are released."""

    tokens: list[OwnershipToken]


class CancelItem(msgspec.Struct, gc=False):
    sequence_id: int
    caller: Caller = ANONYMOUS
    reason: str | None = None
    force: bool = False


class DrainItems(msgspec.Struct, gc=False):
    items_max: int = 10_000
    caller: Caller = ANONYMOUS
    pause_intake: bool = False
    """Pause the whole shard first, intake too, so that nothing comes after what is drained."""


class PauseScope(msgspec.Struct, gc=False):
    """Stop granting from a resource type, a tenant, or with neither the whole shard. Replaces a pause of that scope."""

    resource_type: str | None = None
    tenant: str | None = None
    intake: bool = False
    reason: str | None = None
    until_ms: int | None = None
    caller: Caller = ANONYMOUS


class ResumeScope(msgspec.Struct, gc=False):
    resource_type: str | None = None
    tenant: str | None = None
    caller: Caller = ANONYMOUS


class RestoreItems(msgspec.Struct, gc=False):
    items: list[RestoredItem]
    caller: Caller = ANONYMOUS


class EditDeadLetter(msgspec.Struct, gc=False):
    sequence_id: int
    payload: Payload
    caller: Caller = ANONYMOUS


class DeadLetterSelection(msgspec.Struct, kw_only=True):
    """Exactly one of the first four says which dead letters are meant.

    One step takes at most `items_max` of them; `after` is where an earlier step stopped looking.
    """

    sequence_ids: list[int] | None = None
    resource_type: str | None = None
    error_code: str | None = None
    everything: bool = False
    items_max: int = 1_000
    after: int = 0


class RedriveItems(msgspec.Struct, gc=False):
    selection: DeadLetterSelection
    caller: Caller = ANONYMOUS
    rate_per_second: float | None = None
    already: int = 0
    """How many the same call redrove in earlier steps: the rate goes on from there."""


class PurgeItems(msgspec.Struct, gc=False):
    selection: DeadLetterSelection
    caller: Caller = ANONYMOUS


class ChangeOptions(msgspec.Struct, gc=False):
    options: QueueOptions
    caller: Caller = ANONYMOUS


class ExpireLeases(msgspec.Struct, gc=False):
    """End up to `items_max` leases whose time is up."""

    items_max: int = 1_000


class AdvanceTime(msgspec.Struct, gc=False):
    """Write down that time went by: delays end, memories run out, and a restart knows we lived."""


class SignalBackpressure(msgspec.Struct, gc=False):
    """Write down that backpressure begins or ends, when it is time."""


class CloseIntake(msgspec.Struct, gc=False):
    """Something outside of the shard wants no new items; only its own OpenIntake ends that."""

    cause: str
    reason: str


class OpenIntake(msgspec.Struct, gc=False):
    """What a cause closed, it opens again."""

    cause: str
    reason: str | None = None


class EnforceCaps(msgspec.Struct, gc=False):
    """Forget the oldest results and dead letters beyond their caps."""


class ElectLeader(msgspec.Struct, gc=False):
    epoch: int
    owner: str
    down_from: int | None = None
    """The last proof of life before this leadership; None: the last event."""


class StartGeneration(msgspec.Struct, gc=False):
    reason: str
    highest_known: int


Command: TypeAlias = (
    EnqueueItems
    | GrantLeases
    | ExtendLease
    | CompleteItem
    | FailItem
    | ReleaseItem
    | ReturnUndelivered
    | CancelItem
    | DrainItems
    | RestoreItems
    | EditDeadLetter
    | RedriveItems
    | PurgeItems
    | ChangeOptions
    | PauseScope
    | ResumeScope
    | ExpireLeases
    | AdvanceTime
    | SignalBackpressure
    | CloseIntake
    | OpenIntake
    | EnforceCaps
    | ElectLeader
    | StartGeneration
)
