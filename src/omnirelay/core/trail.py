"""What few items need, beside the item. Not compiled: a struct that is decoded needs its annotations as they are."""

from __future__ import annotations

import msgspec

from omnirelay.core.payload import ErrorInfo, OwnershipToken


class Trail(msgspec.Struct, array_like=True, eq=False, gc=False):
    """What happened to an item beyond its plain life."""

    last_error: ErrorInfo | None = None
    last_token: OwnershipToken | None = None
    progress: bytes | None = None
    result: bytes | None = None
    result_encoding: str | None = None
    parent: int | None = None
    cancel_requested: bool = False
    cancel_reason: str | None = None
    undelivered: int = 0
    attempt_floor: int = 0
    """Attempts made before the last redrive: they no longer count against the limit."""
