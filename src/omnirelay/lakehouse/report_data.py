"""What a report shows: numbers that were counted elsewhere, bounded whatever the size of the log.

Times are milliseconds since 1970 in UTC, lengths of time are milliseconds. A list that is cut short stands beside the
number of all there are, so that the page can say what was left out.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

BUCKETS_MAX: Final = 200
OWNERS_MAX: Final = 24
BARS_MAX: Final = 400
LANES_MAX: Final = 8
PEERS_MAX: Final = 24
INTERVALS_MAX: Final = 300
CAUSES_MAX: Final = 12
PRINCIPALS_MAX: Final = 8
GRAPH_PEERS_MAX: Final = 12
RESOURCES_MAX: Final = 14
VERSIONS_MAX: Final = 8
ANOMALIES_OF_A_KIND_MAX: Final = 12
UNWELL_MAX: Final = 20
SHARDS_MAX: Final = 40
TEXT_MAX: Final = 160
"""Characters of a name or a message that the page keeps."""

OUTCOMES: Final = ("completed", "failed", "expired", "released", "cancelled")
BAD: Final = ("failed", "expired")

_STEPS_MS: Final = tuple(
    count * unit
    for unit, counts in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (1_000, (1, 2, 5, 10, 15, 30)),
        (60_000, (1, 2, 5, 10, 15, 30)),
        (3_600_000, (1, 2, 3, 6, 12)),
        (86_400_000, (1, 2, 7, 14, 28, 91, 182, 364)),
    )
    for count in counts
)


class Span(msgspec.Struct, frozen=True):
    """The time a report is about, cut into buckets of one width."""

    from_ms: int
    to_ms: int
    """Not part of it any more."""
    bucket_ms: int

    @property
    def first_ms(self) -> int:
        """Where the first bucket begins; buckets begin at round times."""
        return self.from_ms // self.bucket_ms * self.bucket_ms

    @property
    def buckets(self) -> int:
        return -(-(self.to_ms - self.first_ms) // self.bucket_ms)


def span_of(from_ms: int, to_ms: int) -> Span:
    """Buckets as narrow as their largest number allows."""
    for step in _STEPS_MS:
        span = Span(from_ms, to_ms, step)
        if span.buckets <= BUCKETS_MAX:
            return span
    return Span(from_ms, to_ms, _STEPS_MS[-1] * -(-(to_ms - from_ms) // (_STEPS_MS[-1] * (BUCKETS_MAX - 1))))


class Shard(msgspec.Struct, frozen=True):
    name: str
    last_event: int


class Percentiles(msgspec.Struct, frozen=True):
    """None where there was nothing to measure."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The time span in numbers."""

    came_in: int = 0
    completed: int = 0
    dead: int = 0
    cancelled: int = 0
    drained: int = 0
    waiting: int = 0
    """Items that could be leased, or are delayed, at its end."""
    running: int = 0
    """Leases that are live at its end."""
    granted: int = 0
    ended: int = 0
    expired: int = 0
    failed: int = 0
    wait: Percentiles = Percentiles()
    work: Percentiles = Percentiles()
    closed_share: float = 0.0
    """Share of the time in which intake was closed, over all shards."""


class Series(msgspec.Struct, frozen=True):
    """One value for each bucket."""

    waiting: list[int] = []
    """At the end of the bucket."""
    running: list[int] = []
    came_in: list[int] = []
    wait: list[Percentiles] = []
    """Of the leases granted in it."""
    work: list[Percentiles] = []
    """Of the leases that ended in it."""
    ended: dict[str, list[int]] = {}
    """How many leases ended in it, by outcome."""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A lease."""

    row: int
    lane: int = 0
    start_ms: int
    end_ms: int | None
    outcome: str | None
    shard: str
    resource: str
    item: int | None
    attempt: int | None
    fence: int | None
    wait_ms: int | None
    principal: str | None = None
    error: str | None = None
    version: str | None = None


class OwnerRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None
    leases: int
    bad: int
    lanes: int = 1
    granted: list[int] = []
    """Leases granted in each bucket; empty when every lease is drawn."""


class Gantt(msgspec.Struct, frozen=True):
    rows: list[OwnerRow] = []
    bars: list[Bar] = []
    owners: int = 0
    leases: int = 0


Column: TypeAlias = Literal["principal", "peer", "resource", "outcome"]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    column: Column
    label: str | None
    """None: the log does not say."""
    leases: int
    bad: int
    kind: str
    """named, unknown, others, version, or the name of an outcome."""


class Edge(msgspec.Struct, frozen=True, array_like=True):
    source: int
    target: int
    leases: int
    bad: int


class Graph(msgspec.Struct, frozen=True):
    nodes: list[Node] = []
    edges: list[Edge] = []
    principals: int = 0
    peers: int = 0
    resources: int = 0
    versions: int = 0


class Interval(msgspec.Struct, frozen=True):
    row: int
    from_ms: int
    until_ms: int | None
    """None: it lasts."""
    reason: str | None


class PeerRow(msgspec.Struct, frozen=True, kw_only=True):
    shard: str
    name: str
    from_ms: int
    last_seen_ms: int | None
    unwell_ms: int
    known_ms: int
    signs: int
    expiries: int


class Peers(msgspec.Struct, frozen=True):
    rows: list[PeerRow] = []
    unwell: list[Interval] = []
    peers: int = 0
    intervals: int = 0
    """Unhealthy ones of all peers."""


class CauseRow(msgspec.Struct, frozen=True):
    shard: str
    cause: str
    times: int
    closed_ms: int


class Backpressure(msgspec.Struct, frozen=True):
    rows: list[CauseRow] = []
    intervals: list[Interval] = []
    causes: int = 0
    times: int = 0


class Anomaly(msgspec.Struct, frozen=True):
    kind: str
    shard: str
    day: str
    subject: str
    value: float | None
    expected: float | None
    detail: str


class Anomalies(msgspec.Struct, frozen=True):
    found: list[Anomaly] = []
    counts: dict[str, int] = {}


class Unwell(msgspec.Struct, frozen=True):
    """A resource that keeps failing."""

    shard: str
    resource: str
    health: str
    in_a_row: int
    leases: int
    owners: int
    last_ended_ms: int | None


class Resources(msgspec.Struct, frozen=True):
    unwell: list[Unwell] = []
    counts: dict[str, int] = {}
    """Resources by their health."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the page shows."""

    warehouse: str
    made_ms: int
    version: str
    span: Span
    shards: list[Shard] = []
    shard_count: int = 0
    headline: Headline = Headline()
    series: Series = Series()
    gantt: Gantt = Gantt()
    lineage: Graph = Graph()
    peers: Peers = Peers()
    backpressure: Backpressure = Backpressure()
    anomalies: Anomalies = Anomalies()
    resources: Resources = Resources()


def clipped(text: str) -> str:
    """A text without its middle if it is long: both ends of a name tell it from others."""
    if len(text) <= TEXT_MAX:
        return text
    half = (TEXT_MAX - 1) // 2
    return f"{text[:half]}…{text[-half:]}"
