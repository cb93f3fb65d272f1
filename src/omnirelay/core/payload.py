"""What a caller hands in: the payload of an item and the wish to enqueue it.

These are values. They are not frozen, because replacing interned strings in a frozen struct would cost a copy on the
hot path. Whoever hands one in gives it away: it must not be changed afterwards, and the shard does not change it. Nor
must the payload of a lease be changed by who gets it; that of a view is a copy.
"""

from __future__ import annotations

import msgspec

DEFAULT_ENCODING = "application/octet-stream"
DEFAULT_PRIORITY = 5
DEFAULT_WEIGHT = 1


class Payload(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """The work itself. `partition_key` defaults to `resource_id` when it is left out."""

    resource_type: str
    resource_id: str
    partition_key: str | None = None
    payload_encoding: str | None = None
    body: bytes = b""
    attributes: dict[str, str] | None = None
    request_id: str | None = None

    @property
    def partition(self) -> str:
        return self.resource_id if self.partition_key is None else self.partition_key

    @property
    def encoding(self) -> str:
        return DEFAULT_ENCODING if self.payload_encoding is None else self.payload_encoding


class NewItem(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """One item to enqueue. `not_before_ms` is an instant, `delay_ms` counts from acceptance."""

    payload: Payload
    priority: int = DEFAULT_PRIORITY
    weight: int = DEFAULT_WEIGHT
    not_before_ms: int | None = None
    delay_ms: int | None = None
    max_attempts: int | None = None


class OwnershipToken(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """Proof of a lease. `fence` is the number that downstream stores compare."""

    sequence_id: int
    attempt: int
    lease_id: str
    fence: int | None = None


class ErrorInfo(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """Why an attempt ended badly, as its owner (or the expiry) put it."""

    message: str
    code: str | None = None


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who is asking. `principal` is authenticated, `peer_id` is only what the caller says."""

    principal: str | None = None
    peer_id: str | None = None


ANONYMOUS = Caller()
