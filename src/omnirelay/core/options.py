"""Options of a shard. They take effect through an OptionsChanged event, never by themselves.

That way an edit of a configuration file cannot change what a replay of the log gives.
"""

from __future__ import annotations

from typing import Literal, get_args

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

TENANT_WEIGHT_MAX = 1_000
"""No tenant may count more than so many times another."""

UNDELIVERED_MAX = 1_000_000
"""No configuration may let more leases in a row run out without any sign of life."""

COMMAND_BYTES_MAX = 6 * MIB
"""Most bytes the events of one command may take in the log, so that they always fit one 8 MiB frame."""


Ordering = Literal["none", "exclusive", "fifo"]
KeyKind = Literal["resource", "partition"]
FifoHead = Literal["hold", "pass"]
LimitKind = Literal["type", "tenant", "key"]


class Limit(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Most weight that may be leased at a time from each resource type, tenant or key whose name fits the glob.

    The first limit of a kind that fits a name is the one that holds. An item heavier than `max` runs alone.
    """

    by: LimitKind
    match: str = "*"
    max: int


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

    ordering: Ordering = "none"
    """`exclusive`: one lease per key at a time. `fifo`: that, in the order of arrival. `none`: keys hold nothing."""
    key: KeyKind = "resource"
    """What a key is: the resource (type and id), or the partition key."""
    fifo_head: FifoHead = "hold"
    """Whether a delayed or retrying item holds its key, or lets those behind it pass."""
    tenant_attribute: str = "tenant"
    tenant_weights: dict[str, int] = {}
    """Shares of tenants within a resource type; one that is not named here weighs 1."""
    limits: list[Limit] = []

    starvation_every: int = 32
    """One grant in so many goes to a class that has waited for longer than `starvation_after_ms`. 0: none does."""
    starvation_after_ms: int = MINUTE

    high_watermark: int | None = None
    """With this many pending items backpressure begins: enqueues wait or are refused. None: 80 % of capacity."""
    low_watermark: int | None = None
    """At this many it ends. None: half of the high watermark."""
    backpressure_cooldown_ms: int = 5 * SECOND
    """Least time between two changes. A change that is due meanwhile is made when it is over."""

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
        for field, values in _CHOICES:
            if getattr(self, field) not in values:
                _refuse(field, getattr(self, field), f"one of {', '.join(values)}")
        if type(self.tenant_attribute) is not str or not self.tenant_attribute.strip():
            _refuse("tenant_attribute", self.tenant_attribute, "the name of an attribute")
        if not isinstance(self.tenant_weights, dict):
            _refuse("tenant_weights", self.tenant_weights, "a table of tenants and whole numbers")
        if not isinstance(self.limits, list):
            _refuse("limits", self.limits, "a list of limits")
        for tenant, weight in self.tenant_weights.items():
            if type(tenant) is not str or type(weight) is not int or not 1 <= weight <= TENANT_WEIGHT_MAX:
                _refuse("tenant_weights", {tenant: weight}, f"whole numbers between 1 and {TENANT_WEIGHT_MAX}")
        for limit in self.limits:
            if type(limit) is not Limit or limit.by not in get_args(LimitKind) or type(limit.match) is not str:
                _refuse("limits", limit, "limits with by = type, tenant or key, and a glob")
            if type(limit.max) is not int or not 1 <= limit.max <= _COUNT:
                _refuse("limits", limit, f"limits with a max between 1 and {_COUNT}")
        if self.low_mark >= self.high_mark:
            _refuse("low_watermark", self.low_watermark, f"below the high watermark, which is {self.high_mark}")

    @property
    def high_mark(self) -> int:
        """The high watermark in force."""
        return max(self.capacity * 4 // 5, 1) if self.high_watermark is None else self.high_watermark

    @property
    def low_mark(self) -> int:
        return self.high_mark // 2 if self.low_watermark is None else self.low_watermark

    def gates(self) -> tuple[object, ...]:
        """What decides who is next: when it changes, the schedule is made anew."""
        return (
            self.ordering,
            self.key,
            self.fifo_head,
            self.tenant_attribute,
            self.tenant_weights,
            self.limits,
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


_CHOICES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ordering", get_args(Ordering)),
    ("key", get_args(KeyKind)),
    ("fifo_head", get_args(FifoHead)),
)
_OPTIONAL = ("reserve", "reserve_bytes", "high_watermark", "low_watermark")
_FOREVER = 365 * 24 * HOUR
_COUNT = 1 << 40

_RANGES: tuple[tuple[str, int, int], ...] = (
    ("lease_duration_ms", 1, 24 * HOUR),
    ("max_lease_duration_ms", 1, 24 * HOUR),
    ("heartbeat_interval_ms", 0, HOUR),
    ("max_delivery_attempts", 1, 1_000_000),
    ("max_undelivered", 0, UNDELIVERED_MAX),
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
    ("starvation_every", 0, _COUNT),
    ("starvation_after_ms", 0, _FOREVER),
    ("high_watermark", 1, _COUNT),
    ("low_watermark", 0, _COUNT),
    ("backpressure_cooldown_ms", 0, HOUR),
)


def _refuse(field: str, value: object, allowed: str) -> None:
    camel = "".join(part.title() if i else part for i, part in enumerate(field.split("_")))
    raise InvalidArgument(
        f"option {field} is {value!r}, must be {allowed}", code=f"resourcelease.{camel}.invalid", field=camel
    )
