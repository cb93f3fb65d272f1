"""The audit of logs in segments: three opinions, each rule with what each of them found.

                    ┌─ files    a task per segment, which also clears items ──┐
    manifests ──────┤                                                         └─▶ sql    over what is left of them
                    └─ replay   a task per shard

The replay of a shard is one long task, so it begins first. Nothing but the comparison at the end waits for it: files
are looked at beside it, and SQL asks its questions as soon as these are. Whether frames continue the chain it asks of
the files themselves, as soon as that is planned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, TypeVar, get_args

import msgspec
from pyspark.sql import DataFrame, SparkSession

from omnirelay.lakehouse.audit_digests import Known
from omnirelay.lakehouse.audit_lease_ids import buckets_for, suspected
from omnirelay.lakehouse.audit_opinion import SqlOpinion, SqlResult, readable
from omnirelay.lakehouse.audit_plan import ShardPlan
from omnirelay.lakehouse.audit_rules import (
    RULES,
    Finding,
    Findings,
    Opined,
    Opinion,
    Replayed,
    RuleResult,
    Unseen,
    results,
)
from omnirelay.lakehouse.audit_sql_left import ClearedSegments
from omnirelay.lakehouse.audit_staging import are_read_in_place, staged
from omnirelay.lakehouse.audit_tasks import (
    REPLAYED,
    ROWS_OF_SEGMENTS,
    Options,
    ReplayDone,
    ReplayWork,
    SegmentDone,
    SegmentWork,
    tasks,
)
from omnirelay.lakehouse.failures import spark_errors
from omnirelay.lakehouse.side_by_side import begin
from omnirelay.lakehouse.sizing import Sizing

T = TypeVar("T")

_PENDING: Final = ("ready", "delayed")
_REPLAYS: Final = "omnirelay-replays"
"""The pool of Spark's fair scheduler that replays are in."""


class ShardResult(msgspec.Struct, frozen=True):
    """What was audited of a shard."""

    shard: str
    first: int
    last: int
    events: int
    segments: int
    replayed: Replayed
    states: dict[str, int]
    """Items by what SQL finds them to be at the end."""
    remarks: list[str]


class Report(msgspec.Struct, frozen=True):
    """The outcome of an audit."""

    rules: list[RuleResult]
    shards: list[ShardResult]
    events: int
    seconds: float
    unseen: list[Unseen]
    """What an opinion did not look at, and why."""

    @property
    def complete(self) -> bool:
        """Whether every opinion saw all of it."""
        return not self.unseen

    @property
    def violations(self) -> int:
        return sum(each.violations for each in self.rules)

    @property
    def clean(self) -> bool:
        return self.violations == 0

    def first(self) -> Iterator[Finding]:
        for each in self.rules:
            yield from each.first


def _unseen(what: str) -> None:
    """Nobody looks."""


class Audit:
    """One look at the segments that were planned. It only reads."""

    def __init__(
        self,
        spark: SparkSession,
        address: str,
        plans: Collection[ShardPlan],
        found: Collection[Findings] = (),
        *,
        known: Mapping[str, Known] | None = None,
        options: Options = None,
        report: Callable[[str], None] = _unseen,
    ) -> None:
        """`plans` and `found` are what `plan` says; `known` what logs of the node say about their states.

        A shard that `known` names is to be compared: that nothing of it was is among what was not seen.
        """
        self._spark = spark
        self._address = address
        self._plans = list(plans)
        self._found = [Opined.of(each) for each in found]
        self._unplanned = [each.shard for each in found if each.shard not in {plan.shard for plan in plans}]
        self._known = known or {}
        self._options = options
        self._report = report

    def run(self) -> Report:
        began = time.monotonic()
        events = sum(entry.events for plan in self._plans for entry in plan.entries)
        with Sizing(self._spark).suited(events):
            replaying = begin(partial(self._replayed, self._replays()), "audit-replays")
            broken = begin(self._broken_chains, "audit-chains")
            try:
                files, sql = self._files_and_sql(broken)
            except Exception:
                # Nothing goes on behind the back of who asked. A signal is no error, and waits for nobody.
                begun: list[Future[Any]] = [replaying, broken]
                wait(begun)
                raise
            replayed = replaying.result()
        opined = [*self._found, *files, *(each.opined for each in replayed), *sql.opined]
        opined += self._compared(replayed, sql)
        unseen = list(self._unseen({each.replayed.shard: each.replayed for each in replayed}, sql, files))
        shards = self._shards({each.replayed.shard: each.replayed for each in replayed}, sql, unseen)
        return Report(
            rules=results(opined, self._looked(replayed, sql)),
            shards=shards,
            events=sum(each.events for each in shards),
            seconds=time.monotonic() - began,
            unseen=unseen,
        )

    # -- the opinions --------------------------------------------------------------------------

    def _replays(self) -> DataFrame | None:
        if not self._plans:
            return None
        work = ReplayWork(self._address, self._options, self._plans, dict(self._known))
        return tasks(self._spark, work, REPLAYED)

    def _replayed(self, replays: DataFrame | None) -> list[ReplayDone]:
        """In a pool of their own: Spark shares processors out between pools, where in one pool the tasks of whoever
        came first would take all of them, and SQL would wait for replays of other shards.
        """
        if replays is None:
            return []
        if hasattr(self._spark, "_jsparkSession"):
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _REPLAYS)
        replayed = [_read(row["replayed"], ReplayDone) for row in replays.collect()]
        self._report(f"replay: {sum(each.replayed.events for each in replayed)} events")
        return replayed

    def _files_and_sql(self, broken: Future[set[str] | None]) -> tuple[list[Opined], SqlResult]:
        """One read of each segment serves both: the task that checks a file clears most of its items."""
        places = [(number, at) for number, plan in enumerate(self._plans) for at in range(len(plan.entries))]
        if not places:
            return [], self._sql([], None, broken)
        buckets = buckets_for(sum(entry.events for plan in self._plans for entry in plan.entries))
        work = SegmentWork(self._address, self._options, self._plans, places, buckets)
        rows = tasks(self._spark, work, ROWS_OF_SEGMENTS).persist()
        try:
            # Marks of the first bucket come along: there is but one for millions of events.
            told = rows.where("done IS NOT NULL OR bucket = 0").select("done", "shard", "marks").collect()
            done = [_read(row["done"], SegmentDone) for row in told if row["done"] is not None]
            self._report(f"files: {len(places)} segments read")
            files = [each.opined for each in done]
            cleared = {(each.opined.shard, each.opined.place): each.cleared for each in done}
            of_shards = {
                plan.shard: [cleared[plan.shard, at] for at in range(len(plan.entries))] for plan in self._plans
            }
            marked = [row for row in told if row["marks"] is not None]
            shared = suspected(marked, rows, buckets) | {each.opined.shard for each in done if not each.marked}
            return files, self._sql(files, ClearedSegments(of_shards, rows, frozenset(shared)), broken)
        finally:
            rows.unpersist()

    def _broken_chains(self) -> set[str] | None:
        """What SQL finds of all segments that are listed, while others read them; None when it has to ask later, of
        those that turn out to be readable.
        """
        plans = {plan.shard: plan for plan in self._plans}
        entries = {plan.shard: plan.entries for plan in self._plans}
        if not are_read_in_place(self._spark, self._address, entries):
            return None
        # Settings of a session suit one size at a time, and others are suited meanwhile.
        spark = self._spark.newSession()
        try:
            return SqlOpinion(spark, self._address, plans, entries, {}, self._report).broken_chains()
        except spark_errors():
            return None

    def _sql(
        self, files: Collection[Opined], segments: ClearedSegments | None, broken: Future[set[str] | None]
    ) -> SqlResult:
        usable = {(each.shard, each.place): each.usable for each in files}
        entries = {
            plan.shard: readable(plan, [usable[plan.shard, at] for at in range(len(plan.entries))])
            for plan in self._plans
        }
        plans = {plan.shard: plan for plan in self._plans}
        with staged(self._spark, self._address, self._options, entries) as elsewhere:
            return SqlOpinion(
                self._spark, self._address, plans, entries, elsewhere, self._report, segments, broken.result
            ).run()

    # -- together ------------------------------------------------------------------------------

    def _compared(self, replayed: Collection[ReplayDone], sql: SqlResult) -> list[Opined]:
        """Where both opinions saw all of a shard, they have to end with the same items."""
        compared = []
        for each in replayed:
            done = each.replayed
            counted = sql.states.get(done.shard)
            if counted is None or done.remark or done.begun or done.shard in sql.remarks:
                continue
            ours = (sum(done.states[name] for name in _PENDING), done.states["leased"], done.states["dead"])
            theirs = (counted["pending"], counted["leased"], counted["dead"])
            if ours != theirs:
                findings = Findings("replay", done.shard)
                findings.add(
                    "ends",
                    done.last,
                    "at the end the replay has {} items pending, {} leased and {} dead,".format(*ours)
                    + " SQL {}, {} and {}".format(*theirs),
                )
                compared.append(Opined.of(findings))
        return compared

    def _looked(self, replayed: Collection[ReplayDone], sql: SqlResult) -> dict[str, set[Opinion]]:
        """Which opinions looked at which rule, at least in one shard."""
        there: set[Opinion] = {"files"}
        if any(each.replayed.digest is not None for each in replayed):
            there.add("replay")
        if sql.states:
            there.add("sql")
        looked = {rule.id: set(rule.opinions) & there for rule in RULES}
        if not any(each.replayed.snapshots for each in replayed):
            looked["digests"] = set()
        return looked

    def _unseen(
        self, replayed: Mapping[str, Replayed], sql: SqlResult, files: Collection[Opined] = ()
    ) -> Iterator[Unseen]:
        for shard in self._unplanned:
            for opinion in get_args(Opinion):
                yield Unseen(opinion, shard, "its manifest, or an index of it, cannot be read")
        for plan in self._plans:
            gone = [plan.entries[each.place] for each in files if each.shard == plan.shard and each.replaced]
            if gone := [entry for entry in gone if plan.looked_at(entry)]:
                why = f"segments from event {min(entry.first for entry in gone)} on were merged or dropped while the"
                yield Unseen("files", plan.shard, f"{len(gone)} {why} audit went on; audit again")
            if (remark := replayed[plan.shard].remark) is not None:
                yield Unseen("replay", plan.shard, remark)
            if (remark := self._not_compared(plan, replayed[plan.shard])) is not None:
                yield Unseen("replay", plan.shard, remark)
            if (remark := sql.remarks.get(plan.shard)) is not None:
                yield Unseen("sql", plan.shard, remark)
            if not plan.whole:
                why = f"with SQL nothing is known of items from before event {plan.anchor.sequence + 1}"
                yield Unseen("sql", plan.shard, why)

    def _not_compared(self, plan: ShardPlan, done: Replayed) -> str | None:
        """Why no state was compared, where somebody named what to compare it with."""
        known = self._known.get(plan.shard)
        if known is None or done.snapshots:
            return None
        if known.remark is not None:
            return f"not compared: {known.remark}"
        if done.remark is not None or not plan.entries:
            return None  # It was not replayed to where there is something to compare, which is said already.
        return "not compared: the log to compare it with knows none of its states"

    def _shards(
        self, replayed: Mapping[str, Replayed], sql: SqlResult, unseen: Collection[Unseen]
    ) -> list[ShardResult]:
        return [
            ShardResult(
                plan.shard,
                max(plan.first, plan.anchor.sequence + 1),
                plan.last,
                sum(entry.events for entry in plan.entries),
                len(plan.entries),
                replayed[plan.shard],
                sql.states.get(plan.shard, {}),
                [each.why for each in unseen if each.shard == plan.shard],
            )
            for plan in self._plans
        ]


def _read(text: str, kind: type[T]) -> T:
    return msgspec.json.decode(text, type=kind)


def as_plain(report: Report) -> dict[str, Any]:
    """The report for programs."""
    return {
        "clean": report.clean,
        "complete": report.complete,
        "unseen": [msgspec.to_builtins(each) for each in report.unseen],
        "violations": report.violations,
        "events": report.events,
        "seconds": round(report.seconds, 3),
        "rules": [
            {
                "id": each.rule.id,
                "sentence": each.rule.sentence,
                "opinions": each.counts,
                "violations": each.violations,
                "first": [msgspec.to_builtins(finding) for finding in each.first],
            }
            for each in report.rules
        ],
        "shards": [msgspec.to_builtins(each) for each in report.shards],
    }
