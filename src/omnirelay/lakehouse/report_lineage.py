"""The graph of a report: principal, peer, resource, and what came of it, with the number of leases on every edge.

Each column has its most frequent values as nodes and one node for all others, so that the graph has a bounded size.
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Final, TypeAlias, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from omnirelay.lakehouse import report_data
from omnirelay.lakehouse.report_counts import Rows, touching
from omnirelay.lakehouse.report_data import Edge, Graph, Node, Span, clipped
from omnirelay.lakehouse.report_leases import is_bad
from omnirelay.lakehouse.tables import LINEAGE

COLUMNS: Final[tuple[report_data.Column, ...]] = get_args(report_data.Column)
_MOST: Final = {
    "principal": report_data.PRINCIPALS_MAX,
    "peer": report_data.GRAPH_PEERS_MAX,
    "resource": report_data.RESOURCES_MAX,
    "version": report_data.VERSIONS_MAX,
}
_OTHERS: Final = "*"
_UNKNOWN: Final = "?"
_NAMED: Final = "="
_VERSION: Final = "@"
"""What a key begins with says what it is: no name of the log can be taken for something else."""
_BETWEEN: Final = "\x1f"
"""Between the parts of a key."""
_Key: TypeAlias = tuple[report_data.Column, str]


def lineage(rows: Rows, span: Span) -> Graph:
    leases = rows(LINEAGE).where(F.col("started_at").isNotNull() & touching("started_at", "ended_at", span))
    resource = F.concat(F.lit(_NAMED), "resource_type", F.lit(_BETWEEN), F.coalesce("resource_id", F.lit("")))
    version = F.concat(F.lit(_VERSION), "resource_type", F.lit("/"), "resource_id", F.lit(_BETWEEN), "table_version")
    keyed = leases.select(
        _named("principal").alias("principal"),
        _named("peer").alias("peer"),
        F.coalesce(resource, F.lit(_UNKNOWN)).alias("resource"),
        version.alias("version"),
        F.coalesce("outcome", F.lit("running")).alias("outcome"),
        is_bad().cast("bigint").alias("bad"),
        "fence",
    )
    tops, totals = _frequent(keyed)
    if not tops["principal"]:
        return Graph()
    shown = keyed.select(
        *(
            F.when(F.col(name).isin(tops[name]), F.col(name)).otherwise(F.lit(_OTHERS)).alias(name)
            for name in COLUMNS
            if name != "outcome"
        ),
        _outcome(tops["version"]).alias("outcome"),
        "bad",
    )
    return Graph(*_graph(shown), *(totals[name] for name in _MOST))


def _named(name: str) -> Column:
    return F.coalesce(F.concat(F.lit(_NAMED), name), F.lit(_UNKNOWN))


def _frequent(keyed: DataFrame) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Which values get a node of their own, and how many there are: what most leases have, and the newest versions."""
    parts = []
    for name, most in _MOST.items():
        weight = F.max("fence") if name == "version" else F.count("*")
        groups = keyed.where(F.col(name).isNotNull()).groupBy(F.col(name).alias("key")).agg(weight.alias("weight"))
        groups = groups.withColumn("of", F.lit(name))
        top = groups.orderBy(F.desc("weight"), "key").limit(most).select("of", "key")
        parts += [top.withColumn("number", F.lit(None).cast("bigint"))]
        parts += [groups.agg(F.lit(name).alias("of"), F.lit(None).cast("string"), F.count("*").alias("number"))]
    tops: dict[str, list[str]] = {name: [] for name in _MOST}
    totals: dict[str, int] = {}
    for name, key, number in reduce(DataFrame.union, parts).collect():
        if key is None:
            totals[name] = number
        else:
            tops[name].append(key)
    return tops, totals


def _outcome(newest: list[str]) -> Column:
    """The newest versions of tables by name, other leases by their outcome."""
    older = F.when(F.col("version").isNotNull(), F.lit(f"{_VERSION}{_OTHERS}"))
    other = F.coalesce(older, F.concat(F.lit(_NAMED), "outcome"))
    return F.when(F.col("version").isin(newest), F.col("version")).otherwise(other)


def _graph(shown: DataFrame) -> tuple[list[Node], list[Edge]]:
    pairs = list(pairwise(COLUMNS))
    grouped = shown.groupingSets([[F.col(a), F.col(b)] for a, b in pairs], *COLUMNS).agg(
        F.count("*").alias("leases"), F.sum("bad").alias("bad")
    )
    counted = [row.asDict() for row in grouped.collect()]
    totals: dict[_Key, list[int]] = {}
    flows: list[tuple[_Key, _Key, int, int]] = []
    for row in counted:
        [source, target] = [(name, row[name]) for name in COLUMNS if row[name] is not None]
        flows.append((source, target, row["leases"], row["bad"]))
        # Every column but the last begins one pair; the last ends one.
        for key in (source, target) if target[0] == COLUMNS[-1] else (source,):
            sums = totals.setdefault(key, [0, 0])
            sums[0] += row["leases"]
            sums[1] += row["bad"]
    keys = sorted(totals, key=lambda key: (COLUMNS.index(key[0]), _last(key[1]), -totals[key][0], key[1]))
    places = {key: at for at, key in enumerate(keys)}
    nodes = [_node(*key, *totals[key]) for key in keys]
    edges = [Edge(places[source], places[target], leases, bad) for source, target, leases, bad in flows]
    return nodes, sorted(edges, key=lambda edge: (edge.source, edge.target))


def _last(key: str) -> bool:
    """What stands for others comes below what has a name."""
    return key in (_OTHERS, f"{_VERSION}{_OTHERS}")


def _node(column: report_data.Column, key: str, leases: int, bad: int) -> Node:
    mark, text = key[0], key[1:]
    label: str | None = None
    if mark == _NAMED and column == "outcome":
        kind, label = text, text
    elif mark == _VERSION:
        table, _, version = text.partition(_BETWEEN)
        kind, label = "version", "other versions" if text == _OTHERS else clipped(f"{table} version {version}")
    elif mark == _NAMED:
        kind, label = "named", clipped(text.replace(_BETWEEN, "/"))
    else:
        kind = "others" if mark == _OTHERS else "unknown"
    return Node(column=column, label=label, leases=leases, bad=bad, kind=kind)
