"""Options of a shard. They take effect through an OptionsChanged event, never by themselves.

That way an edit of a configuration file cannot change what a replay of the log gives.
"""

from __future__ import annotations

import msgspec

from omnirelay.errors import InvalidArgument

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

BODY_LIMIT_MAX = 4 * MIB
"""No configuration may allow larger bodies: in base64, with a result beside it, one must fit a frame."""

COMMAND_BYTES_MAX = 6 * MIB
"""Most bytes the events of one command may take in the log, so that they always fit one 8 MiB frame."""


class QueueOptions(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Validated when built; a wrong value is named with the allowed range (`resourcelease.{field}.invalid`)."""

    lease_duration_ms: int = 30 * SECOND
    max_lease_duration_ms: int = HOUR
    heartbeat_interval_ms: int = 5 * SECOND
    """In force is the smaller of this and a third of the lease, so heartbeats can always keep a lease."""

    max_delivery_attempts: int = 5
    max_undelivered: int = 5
    """Expiries without any sign of life burn no attempt; after this many the item is dead all the same."""

    requeue_delay_ms: int = 0
    """First retry delay; doubles per attempt up to `retry_delay_max_ms`, with 10 % jitter. 0 retries at once."""
    retry_delay_max_ms: int = 5 * MINUTE

    capacity: int = 1_000_000
    """Most live items (ready, delayed and leased). Enqueue stops here."""
    capacity_bytes: int = 4 * GIB
    reserve: int | None = None
    """Room above capacity for follow-ups, redrives and restores. None: a tenth of capacity, at least 1,000."""
    reserve_bytes: int | None = None
    """None: a tenth of `capacity_bytes`, at least 64 MiB."""
    body_limit: int = MIB

    dead_letter_max: int = 100_000
    dead_letter_bytes_max: int = GIB
    result_max: int = 100_000
    """Most completed and cancelled items that `get` still knows."""
    result_bytes_max: int = 256 * MIB
    result_retention_ms: int = HOUR

    ended_lease_max: int = 1_000_000
    ended_lease_retention_ms: int = 10 * MINUTE
    """How long a repeated acknowledgement gets the first answer again."""

    request_id_max: int = 2_000_000
    request_id_retention_ms: int = 10 * MINUTE
    """A request id is kept at least this long after its item ended …"""
    request_id_retention_max_ms: int = 24 * HOUR
    """… and at most this long; between the two it goes when the table needs the room."""

    def __post_init__(self) -> None:
        for field, low, high in _RANGES:
            value = getattr(self, field)
            if value is None and field in _OPTIONAL:
                continue
            if type(value) is not int or not low <= value <= high:
                _refuse(field, value, f"a whole number between {low} and {high}")
        if self.max_lease_duration_ms < self.lease_duration_ms:
            _refuse("max_lease_duration_ms", self.max_lease_duration_ms, "at least lease_duration_ms")
        if self.request_id_retention_max_ms < self.request_id_retention_ms:
            _refuse(
                "request_id_retention_max_ms",
                self.request_id_retention_max_ms,
                "at least request_id_retention_ms",
            )

    @property
    def items_max(self) -> int:
        """Capacity plus reserve: no event ever takes the shard beyond it."""
        reserve = max(self.capacity // 10, 1_000) if self.reserve is None else self.reserve
        return self.capacity + reserve

    @property
    def bytes_max(self) -> int:
        reserve = max(self.capacity_bytes // 10, 64 * MIB) if self.reserve_bytes is None else self.reserve_bytes
        return self.capacity_bytes + reserve


_OPTIONAL = ("reserve", "reserve_bytes")
_FOREVER = 365 * 24 * HOUR
_COUNT = 1 << 40

_RANGES: tuple[tuple[str, int, int], ...] = (
    ("lease_duration_ms", 1, 24 * HOUR),
    ("max_lease_duration_ms", 1, 24 * HOUR),
    ("heartbeat_interval_ms", 0, HOUR),
    ("max_delivery_attempts", 1, 1_000_000),
    ("max_undelivered", 0, 1_000_000),
    ("requeue_delay_ms", 0, 24 * HOUR),
    ("retry_delay_max_ms", 0, _FOREVER),
    ("capacity", 1, _COUNT),
    ("capacity_bytes", 1, 1 << 50),
    ("reserve", 0, _COUNT),
    ("reserve_bytes", 0, 1 << 50),
    ("body_limit", 1, BODY_LIMIT_MAX),
    ("dead_letter_max", 1, _COUNT),
    ("dead_letter_bytes_max", 1, 1 << 50),
    ("result_max", 0, _COUNT),
    ("result_bytes_max", 0, 1 << 50),
    ("result_retention_ms", 0, _FOREVER),
    ("ended_lease_max", 0, _COUNT),
    ("ended_lease_retention_ms", 0, _FOREVER),
    ("request_id_max", 0, _COUNT),
    ("request_id_retention_ms", 0, _FOREVER),
    ("request_id_retention_max_ms", 0, _FOREVER),
)


def _refuse(field: str, value: object, allowed: str) -> None:
    camel = "".join(part.title() if i else part for i, part in enumerate(field.split("_")))
    raise InvalidArgument(
        f"option {field} is {value!r}, must be {allowed}", code=f"resourcelease.{camel}.invalid", field=camel
    )
