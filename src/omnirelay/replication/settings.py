"""How a sink is fed, and what kinds there are: all that is known of sinks without making one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Literal

import msgspec

ENTRY_POINTS: Final = "omnirelay.sinks"
"""Where other packages name the kinds they bring."""

OWN_KINDS: Final = ("file", "sqlite", "webhook", "postgres", "nats", "kafka", "otel", "governance", "memory", "objects")

ROTATE_BYTES: Final = 64 * 1024 * 1024
SEGMENT_BYTES: Final = 64 * 1024 * 1024
TABLE: Final = "ResourceLeaseReplicationEvents"
OWNERS_TABLE: Final = "OmniRelayOwners"
"""Stands beside the table of an SQLite sink, and says whose that is."""

OnRefusal = Literal["park", "block"]
ObjectFormat = Literal["parquet", "jsonl", "json"]
OnRetentionExceeded = Literal["close_intake", "drop_requirement"]

_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class FollowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a sink is fed. Times in milliseconds."""

    batch_events: int = 1_000
    """Most events of one delivery."""
    batch_bytes: int = 8 * 1024 * 1024
    """Most bytes of one delivery; a single event may be more."""
    linger_ms: int = 50
    """How long a delivery that is not full waits for company."""
    timeout_ms: int = 30_000
    """A delivery that takes longer has failed."""
    retry_first_ms: int = 100
    retry_max_ms: int = 30_000
    stalled_after_ms: int = 60_000
    """When it has been failing for this long it is called stalled, which is worth waking somebody up for."""
    refusals_max: int = 3
    """An event that was refused so often is parked, and the sink goes on behind it."""
    on_refusal: OnRefusal = "park"
    required: bool = False
    """The log keeps what this sink has not confirmed, and intake is closed when it falls too far behind."""
    lag_events_max: int = 1_000_000
    """A required sink that is behind by more events closes the intake of its shard. 0: never."""
    lag_max_ms: int = 0
    """The same for one that has been behind for longer. 0: never."""
    max_retained_bytes: int = 0
    """A required sink that has not confirmed more bytes of the log than that has exceeded its retention. 0: never."""
    on_retention_exceeded: OnRetentionExceeded = "close_intake"
    """Whether intake is closed then, or the sink counts as optional until it is down to half of it."""


class SinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One sink, for every shard it follows."""

    name: str
    kind: str
    enabled: bool = True
    shards: tuple[str, ...] = ()
    """Namespaces; none: all."""
    path: str | None = None
    """None: `sinks/NAME`. Relative to the data directory."""
    rotate_bytes: int = ROTATE_BYTES
    table: str = TABLE
    url: str | None = None
    secret_file: str | None = None
    headers: dict[str, str] = {}
    password_file: str | None = None
    subject: str | None = None
    """Of NATS; None: the one of the kind."""
    stream: str | None = None
    create: bool = True
    """The stream is made when it is missing."""
    topic: str | None = None
    """Of Kafka; None: the one of the kind."""
    properties: dict[str, str] = {}
    """What a Kafka producer is told besides."""
    format: ObjectFormat = "parquet"
    """Of objects: segments as Parquet or lines of JSON, or one JSON object per event."""
    segment_bytes: int = SEGMENT_BYTES
    """Small segments are merged up to so many bytes."""
    compact_at: int = 16
    """So many small segments in a row are merged; 0: never."""
    retention_ms: int = 0
    """Segments that are older are dropped; 0: never."""
    options: dict[str, Any] = {}
    """What a kind of another package, or an object store, is given."""
    follow: FollowSettings = FollowSettings()

    def follows(self, namespace: str) -> bool:
        return self.enabled and (not self.shards or namespace in self.shards)


FOLLOWED_OTHERWISE: Final[Mapping[str, Mapping[str, Any]]] = {
    # Every delivery is flushed to the disk. With more of them at once a sink that is behind catches up faster.
    "file": {"batch_events": 20_000},
    "sqlite": {"batch_events": 20_000},
    # A delivery is a segment: fewer and larger ones, at the price of some seconds.
    "objects": {"batch_events": 50_000, "batch_bytes": 32 * 1024 * 1024, "linger_ms": 5_000, "timeout_ms": 120_000},
}
"""Kinds that are fed otherwise unless somebody says how."""


def followed_otherwise(kind: str, layout: ObjectFormat) -> Mapping[str, Any]:
    """How sinks of this kind are fed unless somebody says how; `layout` is that of objects."""
    # One object per event is as many requests: a delivery as large as a segment would never be done within its time.
    return {} if kind == "objects" and layout == "json" else FOLLOWED_OTHERWISE.get(kind, {})


def is_table_name(name: str) -> bool:
    return _TABLE_NAME.fullmatch(name) is not None


def is_taken_in_sqlite(name: str) -> bool:
    """Whether a table of events cannot be called so in SQLite: names that it keeps for itself, and ours."""
    return name.lower().startswith("sqlite_") or name.lower() == OWNERS_TABLE.lower()


def foreign_kinds() -> dict[str, EntryPoint]:
    """The kinds that other packages bring. Ours cannot be replaced by them."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in OWN_KINDS}


def kind_names() -> list[str]:
    """Every kind there is, ours first."""
    return [*OWN_KINDS, *sorted(foreign_kinds())]
