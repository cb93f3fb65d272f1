"""The opinion of SQL as a whole: reads what can be read, asks every question, and brings back few rows.

    segments that were cleared ─▶ follow what is left ─┬─▶ in order
                                                       └─▶ not, or not cleared ─▶ follow every event, name what is wrong

No event rows come to the driver: only those that are wrong, as many as are named, and how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import groupby
from operator import or_
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from omnirelay.core.options import QueueOptions
from omnirelay.lakehouse import audit_lease_ids, audit_sql, audit_sql_frames, audit_sql_gates, audit_sql_pieces
from omnirelay.lakehouse.audit_clearing import Change, Cleared
from omnirelay.lakehouse.audit_kinds import STATES
from omnirelay.lakehouse.audit_plan import ShardPlan
from omnirelay.lakehouse.audit_rules import FINDINGS_MAX, Finding, Opined
from omnirelay.lakehouse.audit_sql_left import ClearedSegments, continues, enqueued_from, is_in_order, totals
from omnirelay.lakehouse.segment_files import SegmentFile, scan_of, segment_uri
from omnirelay.lakehouse.sizing import PARTITIONS, Sizing
from omnirelay.segments.manifest import Entry, segment_key
from omnirelay.segments.segment import format_of

_BEGUN: Final = pa.schema({"shard": pa.string(), "anchor": pa.int64(), "anchor_generation": pa.int64()})
_LINKED: Final = pa.schema({"shard": pa.string(), "first": pa.int64(), "begin_chain": pa.binary()})
_SHARDS: Final = pa.schema(
    {
        "shard": pa.string(),
        "whole": pa.bool_(),
        "cut": pa.bool_(),
        **{field.name: field.type for schema in (_BEGUN, _LINKED) for field in schema},
        **dict.fromkeys(("end_ms", "leader", "shift_ms", "enqueued_from"), pa.int64()),
    }
)
_CHANGES: Final = ("OptionsChanged", "LeaderElected")
_FEWER: Final = 16
"""One part in so many of the partitions that all events take is enough for a row per piece, or per frame."""
_QUICK_EVENTS: Final = 40
"""Events that are passed over, in a look at frames alone, in the time that following one takes."""
_FEW_FRAMES: Final = 2_000
"""For more it pays to have code made: without, every look at the bytes of a frame copies them."""
_read_options = msgspec.json.Decoder(QueueOptions).decode


class SqlResult(msgspec.Struct, frozen=True):
    opined: list[Opined]
    states: dict[str, dict[str, int]]
    """Items of each shard by what they are at the end."""
    remarks: dict[str, str]
    """Shards that were not looked at, or not to their end, and why."""


class _Known(msgspec.Struct, frozen=True):
    """What one scan says of everything."""

    end_ms: dict[str, int]
    kinds: set[str]
    """The rare types that there are events of."""
    pieces: int
    span: tuple[int, int] | None
    """The numbers between which something may be out of line."""


def _unasked() -> None:
    """Nobody asked before."""


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
        segments: ClearedSegments | None = None,
        broken: Callable[[], Collection[str] | None] = _unasked,
    ) -> None:
        """`staged` are the addresses of segments that are read from elsewhere, by their keys.

        Without `segments`, in which most items are cleared already, every event is asked for. `broken` says what
        `broken_chains` came to when all segments were asked for before; None when they were not.
        """
        self._spark = spark
        self._address = address
        self._staged = staged
        self._remarks: dict[str, str] = {}
        self._plans: dict[str, ShardPlan] = {}
        self._entries: dict[str, Sequence[Entry]] = {}
        self._report = report
        self._segments = segments
        self._broken = broken
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
        states: dict[str, dict[str, int]] = {}
        opined: list[Opined] = []
        in_order = {} if self._segments is None else self.in_order(self._segments)
        states |= {shard: found for shard, found in in_order.items() if found}
        if rest := [shard for shard in self._plans if shard not in in_order]:
            named, found = self._followed(rest)
            states |= found
            opined += named
        return SqlResult(opined, states, self._remarks)

    # -- what is left of cleared segments ------------------------------------------------------

    def in_order(self, segments: ClearedSegments) -> dict[str, dict[str, int]]:
        """The shards that are in order, each with its items by what they are at the end: none when it has no items."""
        cleared: dict[str, list[Cleared]] = {}
        changes: dict[str, list[Change]] = {}
        history: dict[str, list[tuple[int, QueueOptions]]] = {}
        for shard, plan in self._plans.items():
            known = continues(plan, segments.cleared[shard])
            if known is None or shard in segments.suspected or len(self._entries[shard]) < len(plan.entries):
                continue
            told = [change for each in known for change in each.changes]
            options = _history(plan, told)
            # Which keys are live at a time is asked of all leases together.
            if not audit_sql_gates.gated({shard: options}):
                cleared[shard], changes[shard], history[shard] = known, told, options
        if not cleared:
            return {}
        end_ms = {shard: max(each.end_ms for each in known) for shard, known in cleared.items()}
        shards = self._shards(cleared, end_ms, changes, {shard: enqueued_from(each) for shard, each in cleared.items()})
        left = segments.left
        if cleared.keys() != segments.cleared.keys():
            left = left.join(F.broadcast(shards.select("shard")), "shard", "left_semi")
        frames = sum(each.frames for known in cleared.values() for each in known)
        rows = frames + sum(each.left for known in cleared.values() for each in known)
        events = sum(entry.events for shard in cleared for entry in self._entries[shard])
        # Neither waits for the other: while one is planned, the other has the processors.
        with (
            Sizing(self._spark).suited(max(rows, events // _QUICK_EVENTS)),
            ThreadPoolExecutor(1, thread_name_prefix="omnirelay-audit-chain") as pool,
        ):
            asking = pool.submit(self._broken_among, list(cleared), frames)
            found = totals(self._together(left), shards, history, self._together)
            self._report("sql: what is left of items followed")
            broken = asking.result()
            wrong = {
                shard for shard, each in cleared.items() if shard in broken or not is_in_order(each, found.get(shard))
            }
        return {
            shard: {
                name: found[shard][name] + sum(each.states.get(name, 0) for each in known) for name in STATES.values()
            }
            if shard in found
            else {}
            for shard, known in cleared.items()
            if shard not in wrong
        }

    def broken_chains(self) -> set[str]:
        """The shards in which a frame does not continue the chain; of nothing else is asked."""
        if not self._plans:
            return set()
        frames = sum(entry.frames for shard in self._plans for entry in self._entries[shard])
        with Sizing(self._spark, _FEW_FRAMES).suited(frames):
            return self._off_chain(self._plans, frames)

    def _broken_among(self, chosen: Collection[str], frames: int) -> Collection[str]:
        asked = self._broken()
        return self._off_chain(chosen, frames) if asked is None else asked

    def _off_chain(self, chosen: Collection[str], frames: int) -> set[str]:
        linked = [(shard, self._plans[shard].first, self._plans[shard].begin_chain) for shard in chosen]
        broken = audit_sql_frames.off_chain(self._events(chosen), self._few(linked, _LINKED), frames)
        found = {row["shard"] for row in broken.select("shard").collect()}
        self._report("sql: chains asked for")
        return found

    # -- every event ---------------------------------------------------------------------------

    def _followed(self, chosen: Collection[str]) -> tuple[list[Opined], dict[str, dict[str, int]]]:
        """What is wrong in these shards, and their items by what they are at the end."""
        events = self._events(chosen)
        pieces = self._together(audit_sql_pieces.pieces(events)).persist()
        frames: DataFrame | None = None
        try:
            known = self._known(pieces)
            changes = self._changes(events, known)
            shards = self._shards(chosen, known.end_ms, changes)
            history = {shard: _history(self._plans[shard], changes.get(shard, [])) for shard in chosen}
            self._report("sql: options and takeovers known")
            named = audit_sql_gates.gated(history)
            rows = audit_sql.followed(audit_sql.item_rows(events, known.kinds, named=named), shards)
            frames = self._together(audit_sql.per_frame(rows)).persist()
            counted = self._totals(frames)
            self._report("sql: items followed")
            told = frames.join(audit_sql_pieces.told_depth(pieces), ["shard", "frame_first"], "left")
            found = [
                audit_sql_frames.off_chain(events, shards, known.pieces),
                audit_sql_frames.off_depth(told, shards, audit_sql_gates.room(history)),
                *(audit_sql_gates.beyond_gates(rows, history) if named else ()),
            ]
            if known.span is not None:
                odd = audit_sql_pieces.odd_buckets(pieces, self._begun())
                found.append(audit_sql_frames.out_of_line(_between(events, known.span), odd, shards))
            if doubtful := [shard for shard in chosen if self._segments is None or shard in self._segments.suspected]:
                of_these = shards.where(F.col("shard").isin(doubtful))
                found.append(audit_lease_ids.granted_again(self._events(doubtful), of_these))
            if any(each["wrong"] or each["wrong_fence"] for each in counted.values()):
                found.append(audit_sql.named_rows(rows))
            opined = list(_opined(reduce(DataFrame.unionByName, found)))
            self._report("sql: every rule asked for")
        finally:
            if frames is not None:
                frames.unpersist()
            pieces.unpersist()
        states = {shard: {name: each[name] for name in STATES.values()} for shard, each in counted.items()}
        return opined, states

    def _events(self, chosen: Collection[str]) -> DataFrame:
        files = [
            SegmentFile(shard, self._uri(shard, entry), entry) for shard in chosen for entry in self._entries[shard]
        ]
        events = scan_of(self._spark, files)
        for shard in chosen:
            if self._cut(self._plans[shard]):
                events = events.where((F.col("shard") != shard) | (F.col("sequence") <= self._plans[shard].last))
        return events

    def _together(self, rows: DataFrame) -> DataFrame:
        """Few rows of many events in few partitions: what is kept stays in as many tasks as it was made by.

        In a single one, when there are few events, they need not be brought together by anything that is asked.
        """
        partitions = int(self._spark.conf.get(PARTITIONS) or 1)
        return rows.coalesce(max(min(2, partitions), partitions // _FEWER))

    def _uri(self, shard: str, entry: Entry) -> str:
        return self._staged.get(segment_key(shard, entry.name)) or segment_uri(self._address, shard, entry)

    def _cut(self, plan: ShardPlan) -> bool:
        return plan.last < self._entries[plan.shard][-1].last

    def _begun(self) -> DataFrame:
        """What the segments of each shard begin behind."""
        values = [(shard, plan.anchor.sequence, plan.anchor.generation) for shard, plan in self._plans.items()]
        return self._few(values, _BEGUN)

    def _known(self, pieces: DataFrame) -> _Known:
        of_shards = pieces.groupBy("shard").agg(
            F.max("time").alias("end_ms"), F.bit_or("kinds").alias("kinds"), F.count("*").alias("pieces")
        )
        odd = audit_sql_pieces.odd_buckets(pieces, self._begun())
        spans = odd.groupBy("shard").agg(F.min("low").alias("low"), F.max("high").alias("high"))
        rows = of_shards.join(F.broadcast(spans), "shard", "left").collect()
        mask = reduce(or_, (row["kinds"] or 0 for row in rows), 0)
        spans_of = [(row["low"], row["high"]) for row in rows if row["low"] is not None]
        return _Known(
            {row["shard"]: row["end_ms"] for row in rows},
            audit_sql_pieces.kinds_in(mask),
            sum(row["pieces"] for row in rows),
            (min(low for low, _ in spans_of), max(high for _, high in spans_of)) if spans_of else None,
        )

    def _changes(self, events: DataFrame, known: _Known) -> dict[str, list[Change]]:
        """New options and takeovers of each shard, in order."""
        changes: dict[str, list[Change]] = {}
        if not known.kinds.isdisjoint(_CHANGES):
            down_ms = F.unix_millis("timestamp") - F.unix_millis("down_from")
            rows = events.where(audit_sql.is_kind(*_CHANGES))
            for row in rows.select("shard", "sequence", "options", down_ms.alias("ms")).collect():
                changes.setdefault(row["shard"], []).append(Change(row["sequence"], row["options"], row["ms"]))
        return {shard: sorted(each, key=lambda change: change.sequence) for shard, each in changes.items()}

    def _shards(
        self,
        chosen: Collection[str],
        end_ms: Mapping[str, int],
        changes: Mapping[str, Sequence[Change]],
        enqueued: Mapping[str, int | None] | None = None,
    ) -> DataFrame:
        """What is to be known of each shard."""
        values = []
        for shard in chosen:
            plan = self._plans[shard]
            takeovers = [each for each in changes.get(shard, ()) if each.options is None]
            leader = takeovers[-1].sequence if takeovers else 0
            shift = sum(max(each.ms or 0, 0) for each in takeovers)
            before = (plan.anchor.sequence, plan.anchor.generation, plan.first, plan.begin_chain)
            behind = (end_ms.get(shard), leader, shift, (enqueued or {}).get(shard))
            values.append((shard, plan.whole, self._cut(plan), *before, *behind))
        return self._few(values, _SHARDS)

    def _few(self, values: Sequence[tuple[Any, ...]], schema: pa.Schema) -> DataFrame:
        """Rows that are part of the query itself. Of values in a list Spark would make them in Python, in a job."""
        rows = [dict(zip(schema.names, each, strict=True)) for each in values]
        return self._spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema))

    def _totals(self, frames: DataFrame) -> dict[str, dict[str, Any]]:
        names = ("wrong", "wrong_fence", *STATES.values())
        rows = frames.groupBy("shard").agg(*(F.sum(name).alias(name) for name in names)).collect()
        return {row["shard"]: row.asDict() for row in rows}


def _history(plan: ShardPlan, changes: Sequence[Change]) -> list[tuple[int, QueueOptions]]:
    """The options of a shard, with the event from which on they hold."""
    # A log begins with the options that a state has by itself.
    begun = [(0, QueueOptions())] if plan.whole else []
    return begun + [(each.sequence, _read_options(each.options)) for each in changes if each.options]


def _between(events: DataFrame, span: tuple[int, int]) -> DataFrame:
    """Few row groups of few files, when that is where something is: their statistics say what they hold."""
    return events.where(F.col("sequence").between(*span))


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
