"""Every metric a node exports: its name, kind, unit and meaning. Dashboards and alerts rely on the names.

Prometheus has no dots in names: `omnirelay.resourcelease.pending` is scraped as `omnirelay_resourcelease_pending`,
counters with `_total` behind it. Labels are few and bounded: never an item, a peer or a resource id. The label `shard`
is what events have as `shard.id` in their metadata; it has one name in all metrics, so that they can be joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ("shard",)
    buckets: tuple[float, ...] = ()

    @property
    def exported(self) -> str:
        return self.name.replace(".", "_")


SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0, 7_200.0, 86_400.0)
CALL_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
BYTES = (256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 8_388_608.0)

PENDING = Metric("omnirelay.resourcelease.pending", "gauge", "Items that are ready or delayed.")
READY = Metric("omnirelay.resourcelease.ready", "gauge", "Items that could be leased, gates aside.")
DELAYED = Metric("omnirelay.resourcelease.delayed", "gauge", "Items whose time has not come.")
ACTIVE = Metric("omnirelay.resourcelease.active", "gauge", "Live leases.")
DEAD = Metric("omnirelay.resourcelease.dead_letters", "gauge", "Dead letters kept.")
OLDEST_READY = Metric(
    "omnirelay.resourcelease.oldest_ready_age_seconds", "gauge", "How long the oldest ready item has been here."
)
LIVE_BYTES = Metric("omnirelay.resourcelease.live_bytes", "gauge", "Bytes of payloads that are pending or leased.")
BACKPRESSURE = Metric("omnirelay.resourcelease.backpressure.active", "gauge", "1 while intake is closed.")
PAUSES = Metric("omnirelay.resourcelease.pauses", "gauge", "Pauses in force.")
LAST_SEQUENCE = Metric("omnirelay.resourcelease.last_sequence", "gauge", "Sequence of the last durable event.")
UP = Metric("omnirelay.resourcelease.up", "gauge", "1 while the shard takes writes.")

EVENTS = Metric("omnirelay.resourcelease.events", "counter", "Durable events by type.", labels=("shard", "event_type"))
BACKPRESSURE_TRANSITIONS = Metric(
    "omnirelay.resourcelease.backpressure.transitions",
    "counter",
    "Times that intake closed or opened.",
    labels=("shard", "to"),
)
EXPIRIES = Metric("omnirelay.resourcelease.expiries", "counter", "Leases that ran out.")
DEAD_LETTERED = Metric("omnirelay.resourcelease.dead_lettered", "counter", "Items that became dead letters.")
WAIT = Metric(
    "omnirelay.resourcelease.wait_seconds",
    "histogram",
    "From when an item could run to its grant.",
    buckets=SECONDS,
)
LEASE_TIME = Metric(
    "omnirelay.resourcelease.lease_seconds",
    "histogram",
    "From grant to acknowledgement or expiry.",
    buckets=SECONDS,
)
ATTEMPTS = Metric(
    "omnirelay.resourcelease.attempts",
    "histogram",
    "Attempts an item had when it was completed.",
    buckets=(1.0, 2.0, 3.0, 5.0, 10.0, 20.0),
)

FRAME_BYTES = Metric("omnirelay.log.frame_bytes", "histogram", "Bytes of a frame.", buckets=BYTES)
FRAME_EVENTS = Metric(
    "omnirelay.log.frame_events",
    "histogram",
    "Events of a frame.",
    buckets=(1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000),
)
COMMIT = Metric("omnirelay.log.commit_seconds", "histogram", "Time inside the store per append.", buckets=CALL_SECONDS)
WAL_BYTES = Metric("omnirelay.log.wal_bytes", "gauge", "Size of the write-ahead log.")
CHECKPOINT_FAILURES = Metric("omnirelay.log.checkpoint_failures", "counter", "Checkpoints of the WAL that failed.")

REPLICATION_EVENTS = Metric(
    "omnirelay.resourcelease.replication.events",
    "counter",
    "Events that a sink has taken, by type.",
    labels=("shard", "sink", "event_type"),
)
REPLICATION_LAG = Metric(
    "omnirelay.resourcelease.replication.lag_seconds",
    "histogram",
    "From when the first event of a delivery happened until its sink had taken it.",
    labels=("shard", "sink"),
    buckets=SECONDS,
)
REPLICATION_FAILURES = Metric(
    "omnirelay.resourcelease.replication.failures",
    "counter",
    "Deliveries that failed, and events that were parked.",
    labels=("shard", "sink"),
)

REPLICATION_BEHIND = Metric(
    "omnirelay.resourcelease.replication.behind_events",
    "gauge",
    "Events that a sink has not confirmed yet.",
    labels=("shard", "sink"),
)
REPLICATION_BEHIND_BYTES = Metric(
    "omnirelay.resourcelease.replication.behind_bytes",
    "gauge",
    "Bytes of the log that a sink has not confirmed yet.",
    labels=("shard", "sink"),
)
REPLICATION_BEHIND_SECONDS = Metric(
    "omnirelay.resourcelease.replication.behind_seconds",
    "gauge",
    "Age of the oldest event that a sink has not confirmed yet.",
    labels=("shard", "sink"),
)
REPLICATION_STATE = Metric(
    "omnirelay.resourcelease.replication.state",
    "gauge",
    "1, with the state that a sink is in.",
    labels=("shard", "sink", "state"),
)
REPLICATION_PARKED = Metric(
    "omnirelay.resourcelease.replication.parked",
    "gauge",
    "Events that are kept beside because a sink never takes them.",
    labels=("shard", "sink"),
)
REPLICATION_CLOSES_INTAKE = Metric(
    "omnirelay.resourcelease.replication.closes_intake",
    "gauge",
    "1 while a required sink keeps the intake of its shard closed.",
    labels=("shard", "sink"),
)
REPLICATION_DROPPED = Metric(
    "omnirelay.resourcelease.replication.requirement_dropped",
    "gauge",
    "1 while a required sink holds back more of the log than it may and counts as optional.",
    labels=("shard", "sink"),
)

CALLS = Metric(
    "omnirelay.rpc.requests", "counter", "Calls by procedure and status.", labels=("procedure", "transport", "status")
)
CALL_DURATION = Metric(
    "omnirelay.rpc.duration_seconds",
    "histogram",
    "Time to serve a call, waiting included.",
    labels=("procedure", "transport"),
    buckets=CALL_SECONDS,
)
CALLS_ACTIVE = Metric("omnirelay.rpc.active", "gauge", "Calls being served.", labels=())

ALL: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
