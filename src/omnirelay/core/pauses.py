"""Pauses: a shard, a resource type or a tenant that grants nothing for a while."""

from __future__ import annotations

import msgspec


class Pause(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """One pause. Neither `resource_type` nor `tenant`: the whole shard. Part of snapshots."""

    resource_type: str | None = None
    tenant: str | None = None
    intake: bool = False
    """Enqueues are refused too."""
    reason: str | None = None
    principal: str | None = None
    since: int = 0
    until: int | None = None

    @property
    def scope(self) -> str:
        """What is paused, in words that are its key and its name in messages."""
        return scope_name(self.resource_type, self.tenant)


def scope_name(resource_type: str | None, tenant: str | None) -> str:
    if resource_type is not None:
        return f"resource type {resource_type}"
    if tenant is not None:
        return f"tenant {tenant}"
    return "the shard"
