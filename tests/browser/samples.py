"""Reports for the browser, made without Spark: one with everything in it, one as large as any can be, an empty one."""

from __future__ import annotations

import random
from itertools import pairwise

from omnirelay.lakehouse import report_data as data
from omnirelay.lakehouse.report_lanes import into_lanes

START = 1_773_000_000_000
HOSTILE = '</script><img src=x onerror="window.broken=1">{{script}}\u2028'


def nothing() -> data.Report:
    span = data.span_of(START, START + 1_000)
    zeros = [0] * span.buckets
    none = [data.Percentiles()] * span.buckets
    series = data.Series(zeros, zeros, zeros, none, none, dict.fromkeys(data.OUTCOMES, zeros))
    return data.Report(
        warehouse="lake",
        made_ms=START,
        version="1",
        span=span,
        shards=[data.Shard("jobs", 0)],
        shard_count=1,
        series=series,
    )


def everything(name: str = "orders") -> data.Report:
    """Two hours of three peers; `name` is that of a resource, an owner, an error and whatever else the log names."""
    return _report(name, peers=3, leases=60, minutes=120, whole=True)


def largest() -> data.Report:
    """Every list as long as it may be, every text too."""
    return _report("x" * 2_000, peers=data.OWNERS_MAX, leases=data.BARS_MAX, minutes=60 * 24 * 28, whole=False)


def _report(name: str, *, peers: int, leases: int, minutes: int, whole: bool) -> data.Report:
    choice = random.Random(1)
    name = data.clipped(name)
    span = data.span_of(START, START + minutes * 60_000)
    buckets = range(span.buckets)
    shards = [data.Shard(data.clipped(f"{name} {at}"), 1_000 + at) for at in range(1 if whole else data.SHARDS_MAX)]
    shard = shards[0].name
    owners = [data.clipped(f"{name}-peer-{at}") for at in range(peers)]

    def share() -> data.Percentiles:
        middle = choice.lognormvariate(6, 1)
        return data.Percentiles(middle, middle * 4, middle * 11)

    series = data.Series(
        waiting=[30 + at % 17 for at in buckets],
        running=[at % 9 for at in buckets],
        came_in=[at % 5 for at in buckets],
        wait=[share() if at % 7 else data.Percentiles() for at in buckets],
        work=[share() for _ in buckets],
        ended={outcome: [choice.randrange(9) for _ in buckets] for outcome in data.OUTCOMES},
    )
    return data.Report(
        warehouse=data.clipped(f"lake {name}"),
        made_ms=START,
        version="1",
        span=span,
        shards=shards,
        shard_count=len(shards) if whole else 500,
        headline=data.Headline(
            came_in=900, completed=850, dead=3, waiting=41, running=6, granted=930, ended=924, expired=20, failed=33,
            wait=share(), work=share(), closed_share=0.04,
        ),
        series=series,
        gantt=_gantt(name, shard, owners, leases, span, choice, whole=whole),
        lineage=_lineage(name, owners, choice, whole=whole),
        peers=_peers(shard, owners, span, whole=whole),
        backpressure=_backpressure(name, shard, span, whole=whole),
        anomalies=_anomalies(name, shard, 1 if whole else data.ANOMALIES_OF_A_KIND_MAX),
        resources=data.Resources(
            [
                data.Unwell(shard, data.clipped(f"table/{name}"), "failing", 4, 9, 2, span.to_ms - 5_000)
                for _ in range(1 if whole else data.UNWELL_MAX)
            ],
            {"failing": 1 if whole else 90, "healthy": 12},
        ),
    )  # fmt: skip


def _gantt(
    name: str, shard: str, owners: list[str], leases: int, span: data.Span, choice: random.Random, *, whole: bool
) -> data.Gantt:
    outcomes = (*data.OUTCOMES, "completed", "completed", "completed", "completed", None)
    bars = []
    for number in range(leases):
        start = choice.randrange(span.from_ms, span.to_ms - 1)
        outcome = choice.choice(outcomes)
        length = int(choice.expovariate(30 / (span.to_ms - span.from_ms)))
        bars.append(
            data.Bar(
                row=number % len(owners),
                start_ms=start if outcome else span.to_ms - length // 4,
                end_ms=min(start + length, span.to_ms - 1) if outcome else None,
                outcome=outcome,
                shard=shard,
                resource=data.clipped(f"table/{name}.{number % 5}"),
                item=number,
                attempt=1,
                fence=number * 3,
                wait_ms=choice.randrange(90_000),
                principal=name,
                error=name if outcome == "failed" else None,
                version="7" if outcome == "completed" else None,
            )
        )
    granted = [] if whole else [choice.randrange(5_000) for _ in range(span.buckets)]
    rows = [data.OwnerRow(name=owner, leases=leases, bad=3, granted=granted) for owner in owners]
    rows, bars = into_lanes(rows, bars, span)
    return data.Gantt(rows, bars, len(owners) if whole else 700, len(bars) if whole else 400_000)


def _lineage(name: str, owners: list[str], choice: random.Random, *, whole: bool) -> data.Graph:
    others: list[tuple[str | None, str]] = [] if whole else [(None, "others")]
    resources = [data.clipped(f"table/{name}.{at}") for at in range(5 if whole else data.RESOURCES_MAX)]
    versions = [data.clipped(f"table/{name} version {at}") for at in range(1 if whole else data.VERSIONS_MAX)]
    names: dict[data.Column, list[tuple[str | None, str]]] = {
        "principal": [*[(name, "named")] * (1 if whole else data.PRINCIPALS_MAX), (None, "unknown"), *others],
        "peer": [*((owner, "named") for owner in owners[: data.GRAPH_PEERS_MAX]), *others],
        "resource": [*((each, "named") for each in resources), *others],
        "outcome": [
            *((each, each) for each in (*data.OUTCOMES, "running")),
            *((each, "version") for each in versions),
        ],
    }
    places = [(column, at) for column, labels in names.items() for at in range(len(labels))]
    sums = dict.fromkeys(places, 0)
    flows: dict[tuple[int, int], int] = {}
    for _ in range(600 if whole else 20_000):
        path = [(column, int(len(labels) * choice.random() ** 2)) for column, labels in names.items()]
        for place in path:
            sums[place] += 1
        for source, target in pairwise(path):
            edge = places.index(source), places.index(target)
            flows[edge] = flows.get(edge, 0) + 1
    nodes = [
        data.Node(column=column, label=names[column][at][0], kind=names[column][at][1], leases=sums[column, at], bad=1)
        for column, at in places
    ]
    edges = [data.Edge(source, target, count, count // 5) for (source, target), count in flows.items()]
    return data.Graph(nodes, edges, *([2, len(owners), 5, 1] if whole else [60, 700, 90_000, 12_000]))


def _peers(shard: str, owners: list[str], span: data.Span, *, whole: bool) -> data.Peers:
    length = span.to_ms - span.from_ms
    rows = [
        data.PeerRow(
            shard=shard, name=owner, from_ms=span.from_ms + at * length // 50, last_seen_ms=span.to_ms - 9_000,
            unwell_ms=length // 10, known_ms=length, signs=400, expiries=at,
        )
        for at, owner in enumerate(owners)
    ]  # fmt: skip
    unwell = [
        data.Interval(
            at % len(owners),
            span.from_ms + (at + 1) * length // (data.INTERVALS_MAX + 3),
            span.from_ms + (at + 2) * length // (data.INTERVALS_MAX + 3),
            "its lease ran out",
        )
        for at in (range(40, 280, 60) if whole else range(data.INTERVALS_MAX))
    ]
    return data.Peers(rows, unwell, len(rows) if whole else 700, len(unwell) if whole else 9_000)


def _backpressure(name: str, shard: str, span: data.Span, *, whole: bool) -> data.Backpressure:
    length = span.to_ms - span.from_ms
    causes = ["pending", name] if whole else [name] * data.CAUSES_MAX
    rows = [data.CauseRow(shard, data.clipped(cause), 3, length // 20) for cause in causes]
    intervals = [
        data.Interval(
            at % len(rows),
            span.from_ms + at * length // 300,
            span.from_ms + (at + 5) * length // 300 if at < 250 else None,
            name,
        )
        for at in (range(20, 280, 80) if whole else range(data.INTERVALS_MAX))
    ]  # fmt: skip
    return data.Backpressure(rows, intervals, len(rows) if whole else 90, len(intervals) if whole else 9_000)


def _anomalies(name: str, shard: str, each: int) -> data.Anomalies:
    kinds = ("clock_skew", "owner_fails", "resource_expires", "retry_storm")
    found = [
        data.Anomaly(
            kind, shard, "2026-03-08", name, 0.75, 0.125, f"9 of 12 leases ended badly: {name}"[: data.TEXT_MAX]
        )
        for kind in kinds
        for _ in range(each)
    ]
    return data.Anomalies(found, dict.fromkeys(kinds, 1 if each == 1 else 4_000))
