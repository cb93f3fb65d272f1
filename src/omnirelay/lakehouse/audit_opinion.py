"""The opinion of SQL as a whole: reads what can be read, asks every question, and brings back few rows.

No event rows come to the driver: only those that are wrong, as many as are named, and how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import groupby
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from omnirelay.core.options import QueueOptions
from omnirelay.lakehouse import audit_sql, audit_sql_frames, audit_sql_gates
from omnirelay.lakehouse.audit_plan import ShardPlan
from omnirelay.lakehouse.audit_rules import FINDINGS_MAX, Finding, Opined
from omnirelay.lakehouse.segment_files import SegmentFile, scan_of, segment_uri
from omnirelay.segments.manifest import Entry, segment_key
from omnirelay.segments.segment import format_of

_SHARDS: Final = (
    "shard STRING, whole BOOLEAN, first BIGINT, cut BOOLEAN, anchor BIGINT, anchor_generation BIGINT,"
    " begin_chain BINARY, end_ms BIGINT, leader BIGINT, shift_ms BIGINT"
)
_read_options = msgspec.json.Decoder(QueueOptions).decode


class SqlResult(msgspec.Struct, frozen=True):
    opined: list[Opined]
    states: dict[str, dict[str, int]]
    """Items of each shard by what they are at the end."""
    remarks: dict[str, str]
    """Shards that were not looked at, or not to their end, and why."""


def readable(plan: ShardPlan, usable: Sequence[bool]) -> tuple[Entry, ...]:
    """The segments from the first on that can be read and continue each other."""
    taken: list[Entry] = []
    end = plan.anchor.sequence
    for entry, good in zip(plan.entries, usable, strict=True):
        if not good or entry.before.sequence != end:
            break
        taken.append(entry)
        end = entry.last
    return tuple(taken)


class SqlOpinion:
    """Asks its questions of the shards' readable segments."""

    def __init__(
        self,
        spark: SparkSession,
        address: str,
        plans: Mapping[str, ShardPlan],
        entries: Mapping[str, Sequence[Entry]],
        staged: Mapping[str, str],
        report: Callable[[str], None],
    ) -> None:
        """`staged` are the addresses of segments that are read from elsewhere, by their keys."""
        self._spark = spark
        self._address = address
        self._staged = staged
        self._remarks: dict[str, str] = {}
        self._plans: dict[str, ShardPlan] = {}
        self._entries: dict[str, Sequence[Entry]] = {}
        self._report = report
        for shard, plan in plans.items():
            if any(format_of(self._uri(shard, entry)) != "parquet" for entry in entries[shard]):
                self._remarks[shard] = "not read with SQL: some of its segments are lines, and Spark is not here"
            elif plan.entries and not entries[shard]:
                self._remarks[shard] = "not read with SQL: its first segment cannot be read"
            elif entries[shard]:
                self._plans[shard], self._entries[shard] = plan, entries[shard]
                if len(entries[shard]) < len(plan.entries):
                    self._remarks[shard] = f"read with SQL up to event {entries[shard][-1].last} only"

    def run(self) -> SqlResult:
        if not self._plans:
            return SqlResult([], {}, self._remarks)
        events = self._events()
        shards, history, kinds = self._shards(events)
        self._report("sql: options and takeovers known")
        named = audit_sql_gates.gated(history)
        rows = audit_sql.followed(audit_sql.item_rows(events, kinds, named=named), shards)
        frames = audit_sql.per_frame(rows).persist()
        try:
            totals = self._totals(frames)
            self._report("sql: items followed")
            found = [
                audit_sql_frames.out_of_line(events, shards),
                audit_sql_frames.off_chain(events, shards),
                audit_sql_frames.off_depth(events, frames, shards),
                audit_sql_gates.beyond_capacity(frames, shards, history),
                *(audit_sql_gates.beyond_gates(rows, history) if named else ()),
            ]
            if any(each["wrong"] or each["wrong_fence"] for each in totals.values()):
                found.append(audit_sql.named_rows(rows))
            opined = list(_opined(reduce(DataFrame.unionByName, found)))
            self._report("sql: every rule asked for")
        finally:
            frames.unpersist()
        states = {shard: {name: each[name] for name in audit_sql.STATES.values()} for shard, each in totals.items()}
        return SqlResult(opined, states, self._remarks)

    def _events(self) -> DataFrame:
        files = [
            SegmentFile(shard, self._uri(shard, entry), entry)
            for shard, entries in self._entries.items()
            for entry in entries
        ]
        events = scan_of(self._spark, files)
        for shard, plan in self._plans.items():
            if self._cut(plan):
                events = events.where((F.col("shard") != shard) | (F.col("sequence") <= plan.last))
        return events

    def _uri(self, shard: str, entry: Entry) -> str:
        return self._staged.get(segment_key(shard, entry.name)) or segment_uri(self._address, shard, entry)

    def _cut(self, plan: ShardPlan) -> bool:
        return plan.last < self._entries[plan.shard][-1].last

    def _shards(self, events: DataFrame) -> tuple[DataFrame, audit_sql_gates.History, set[str]]:
        """What is to be known of each shard, its options over time, and the types of all events."""
        down_ms = F.unix_millis("timestamp") - F.unix_millis("down_from")
        special = F.when(
            audit_sql.is_kind("OptionsChanged", "LeaderElected"), F.struct("sequence", "options", down_ms.alias("ms"))
        )
        known = {
            row["shard"]: row
            for row in events.groupBy("shard")
            .agg(
                F.max(F.unix_millis("timestamp")).alias("end_ms"),
                F.collect_list(special).alias("special"),
                F.collect_set("event_type").alias("kinds"),
            )
            .collect()
        }
        history: dict[str, list[tuple[int, QueueOptions]]] = {}
        values = []
        for shard, plan in self._plans.items():
            row = known.get(shard)
            own = sorted([] if row is None else row["special"], key=lambda each: int(each["sequence"]))
            # A log begins with the options that a state has by itself.
            history[shard] = [(0, QueueOptions())] if plan.whole else []
            history[shard] += [(each["sequence"], _read_options(each["options"])) for each in own if each["options"]]
            takeovers = [each for each in own if each["options"] is None]
            leader = takeovers[-1]["sequence"] if takeovers else 0
            shift = sum(max(each["ms"] or 0, 0) for each in takeovers)
            end_ms = None if row is None else row["end_ms"]
            before = (plan.anchor.sequence, plan.anchor.generation, plan.begin_chain)
            values.append((shard, plan.whole, plan.first, self._cut(plan), *before, end_ms, leader, shift))
        kinds = {kind for row in known.values() for kind in row["kinds"]}
        return self._spark.createDataFrame(values, _SHARDS), history, kinds

    def _totals(self, frames: DataFrame) -> dict[str, dict[str, Any]]:
        names = ("wrong", "wrong_fence", *audit_sql.STATES.values())
        rows = frames.groupBy("shard").agg(*(F.sum(name).alias(name) for name in names)).collect()
        return {row["shard"]: row.asDict() for row in rows}


def _opined(violations: DataFrame) -> Iterable[Opined]:
    of_rule = Window.partitionBy("rule", "shard")
    rows = (
        violations.withColumn("count", F.count("*").over(of_rule))
        .withColumn("place", F.row_number().over(of_rule.orderBy("sequence", "item")))
        .where(F.col("place") <= FINDINGS_MAX)
        .collect()
    )
    rows.sort(key=lambda row: (row["rule"], row["shard"], row["place"]))
    for (rule, shard), group in groupby(rows, key=lambda row: (row["rule"], row["shard"])):
        named = list(group)
        findings = [Finding(rule, "sql", shard, row["sequence"], row["what"], row["item"]) for row in named]
        yield Opined("sql", shard, {rule: named[0]["count"]}, findings)
