"""The pipeline: from segments to bronze, silver and gold, each table one commit at a time.

    segments ──▶ bronze.events ──▶ leases ──▶ items ──▶ peers ──▶ backpressure ──▶ gold …
                       ▲               every table says in its commits how far it has come

It may be killed anywhere. Every step brings one table to a target, and the target of a run that was cut off is where
its first table, `leases`, already is. The next run first brings the others there, each from where it is itself, and
only then goes on. So no table is ever folded from another that is ahead of it by a part.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from omnirelay.lakehouse import bronze, gold, gold_anomalies, gold_windows, silver
from omnirelay.lakehouse.bronze_source import Refused, find_new
from omnirelay.lakehouse.formats import open_tables
from omnirelay.lakehouse.progress import Progress, commit_number
from omnirelay.lakehouse.silver_intervals import fold_backpressure, fold_peers
from omnirelay.lakehouse.silver_items import fold_items
from omnirelay.lakehouse.silver_leases import fold_leases
from omnirelay.lakehouse.tables import (
    ANOMALIES,
    BACKPRESSURE,
    DAILY,
    EVENTS,
    GOLD,
    ITEMS,
    LEASES,
    LINEAGE,
    PEERS,
    RESOURCE_HEALTH,
    SILVER,
    SLO,
    TABLES,
    Table,
)

Step: TypeAlias = Callable[[Progress, Progress], None]
"""Brings one table from where it is to a target."""


class Done(msgspec.Struct, frozen=True):
    """One step of a run."""

    table: str
    seconds: float


class Summary(msgspec.Struct, kw_only=True):
    """What a run did."""

    events: int = 0
    """New in bronze."""
    segments: int = 0
    """Files that were read for them."""
    refused: list[Refused] = []
    newly_refused: int = 0
    steps: list[Done] = []
    progress: dict[str, int] = {}
    """The last event of each shard that the tables hold."""
    seconds: float = 0.0

    @property
    def changed(self) -> bool:
        return bool(self.steps)


def _unseen(what: str, seconds: float | None) -> None:
    """Nobody looks."""


def _go_on(point: str) -> None:
    """Nothing happens between two commits."""


class Pipeline:
    """One source and one warehouse. Two of them on the same warehouse do no harm: one of them is told to come again."""

    def __init__(
        self,
        spark: SparkSession,
        source: str,
        warehouse: str,
        kind: str = "delta",
        *,
        options: Mapping[str, Any] | None = None,
        report: Callable[[str, float | None], None] = _unseen,
        failpoint: Callable[[str], None] = _go_on,
    ) -> None:
        """`report(step, seconds)` is called when a step begins (None) and ends; `failpoint(name)` after each commit."""
        self.tables = open_tables(spark, warehouse, kind)
        self._source = source
        self._options = options
        self._report = report
        self._failpoint = failpoint
        self._steps: Final[dict[Table, Step]] = {
            LEASES: self._leases,
            ITEMS: self._items,
            PEERS: self._peers,
            BACKPRESSURE: self._backpressure,
            LINEAGE: self._lineage,
            SLO: self._slo,
            RESOURCE_HEALTH: self._resource_health,
            ANOMALIES: self._anomalies,
            DAILY: self._daily,
        }

    def run(self) -> Summary:
        """Take in what is new and bring every table up to it. Commits nothing when there is nothing new."""
        began = time.monotonic()
        summary = self.ingest()
        while (target := self._target()) is not None:
            for table in (*SILVER, *GOLD):
                after = self.tables.progress(table)
                if after != target:
                    self._timed(summary, table, partial(self._steps[table], after, target))
        summary.progress = {name: end.sequence for name, end in self.tables.progress(EVENTS).items()}
        summary.seconds = time.monotonic() - began
        return summary

    def rebuild(self) -> Summary:
        """Make every table anew from the segments there are."""
        for table in TABLES:
            self.tables.drop(table)
        return self.run()

    def _timed(self, summary: Summary, table: Table, work: Callable[[], None]) -> None:
        name = f"{table.layer}.{table.name}"
        self._report(name, None)
        began = time.monotonic()
        work()
        seconds = time.monotonic() - began
        summary.steps.append(Done(name, seconds))
        self._report(name, seconds)
        self._failpoint(name)

    # -- bronze --------------------------------------------------------------------------------

    def ingest(self) -> Summary:
        """Only take in what is new; the other tables stay as they are."""
        summary = Summary()
        after = self.tables.progress(EVENTS)
        staging = Path(tempfile.mkdtemp(prefix="omnirelay-segments-"))
        try:
            plans = asyncio.run(find_new(self._source, after, staging, self._options))
            summary.refused = [plan.refused for plan in plans if plan.refused is not None]
            summary.newly_refused = bronze.quarantine(self.tables, summary.refused)
            summary.segments = sum(len(plan.paths) for plan in plans)
            upto = bronze.ends_of(plans, after)
            rows = bronze.new_events(self.tables.spark, plans, after)
            if rows is not None and upto != after:
                self._timed(summary, EVENTS, lambda: self.tables.append(EVENTS, rows, upto))
                summary.events = bronze.between(self.tables.read(EVENTS), after, upto).count()
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return summary

    # -- targets -------------------------------------------------------------------------------

    def _target(self) -> Progress | None:
        """Where all tables are to be brought next; None when they are there."""
        newest = self.tables.progress(EVENTS)
        begun = self.tables.progress(LEASES)
        if any(self.tables.progress(table) != begun for table in (*SILVER, *GOLD)):
            return begun
        return None if commit_number(begun) == commit_number(newest) else newest

    # -- silver --------------------------------------------------------------------------------

    def _events(self, after: Progress, upto: Progress) -> DataFrame:
        return bronze.between(self.tables.read(EVENTS), after, upto)

    def _changes(self, after: Progress, upto: Progress) -> DataFrame:
        return silver.item_events(self._events(after, upto))

    def _known(self, table: Table, condition: str | None = None) -> DataFrame | None:
        """A table as it is before a step; None when there is none yet."""
        if not self.tables.exists(table):
            return None
        rows = self.tables.read(table)
        return rows if condition is None else rows.where(condition)

    def _leases(self, after: Progress, upto: Progress) -> None:
        changes = self._changes(after, upto)
        live = self._known(LEASES, "ended_at IS NULL")
        items = self._known_items(changes)
        rows = fold_leases(changes, items, live)
        only = None
        if live is not None:
            # Rows to be replaced are live ones, and no live one is older than the oldest of them.
            low = silver.lowest(live, "fence")
            only = "false" if low is None else f"t.fence >= {low} AND t.ended_at IS NULL"
        self.tables.merge(LEASES, rows, upto, only=only)

    def _known_items(self, changes: DataFrame) -> DataFrame | None:
        """The items before these events, from the oldest that they name on."""
        items = self._known(ITEMS)
        if items is None:
            return None
        low = silver.lowest(changes, "item")
        return items.where(F.lit(False) if low is None else F.col("item") >= low)

    def _items(self, after: Progress, upto: Progress) -> None:
        changes = self._changes(after, upto)
        items = self._known(ITEMS)
        low = None if items is None else silver.lowest(changes, "item")
        if items is not None and low is not None:
            items = items.where(F.col("item") >= low)
        self.tables.merge(ITEMS, fold_items(changes, items), upto, only=None if low is None else f"t.item >= {low}")

    def _peers(self, after: Progress, upto: Progress) -> None:
        leases = gold.changed_since(self.tables.read(LEASES), after, upto)
        rows = fold_peers(self._changes(after, upto), leases, self._known(PEERS, "until_at IS NULL"))
        self.tables.merge(PEERS, rows, upto, only="t.until_at IS NULL")

    def _backpressure(self, after: Progress, upto: Progress) -> None:
        rows = fold_backpressure(self._events(after, upto), self._known(BACKPRESSURE, "until_at IS NULL"))
        self.tables.merge(BACKPRESSURE, rows, upto, only="t.until_at IS NULL")

    # -- gold ----------------------------------------------------------------------------------

    def _changed_leases(self, after: Progress, upto: Progress) -> DataFrame:
        return gold.changed_since(self.tables.read(LEASES), after, upto)

    def _spans(self, after: Progress, upto: Progress) -> list[gold_windows.Span]:
        return gold_windows.spans_of(bronze.between(self.tables.read(EVENTS), after, upto, touching=True))

    def _all_events(self, upto: Progress) -> DataFrame:
        """Bronze up to a target: it may be ahead of the other tables."""
        return bronze.between(self.tables.read(EVENTS), {}, upto)

    def _lineage(self, after: Progress, upto: Progress) -> None:
        self.tables.merge(LINEAGE, gold.lineage(self._changed_leases(after, upto)), upto)

    def _resource_health(self, after: Progress, upto: Progress) -> None:
        rows = gold.resource_health(self.tables.read(LEASES), self._changed_leases(after, upto))
        self.tables.merge(RESOURCE_HEALTH, rows, upto)

    def _slo(self, after: Progress, upto: Progress) -> None:
        spans = self._spans(after, upto)
        rows = gold_windows.slo(self._all_events(upto), self.tables.read(LEASES), self.tables.read(BACKPRESSURE), spans)
        where = gold_windows.within(spans, "window_start", gold_windows.WINDOW_MS)
        self.tables.replace(SLO, rows, upto, where=where)

    def _daily(self, after: Progress, upto: Progress) -> None:
        spans = self._spans(after, upto)
        rows = gold_windows.daily(self._all_events(upto), self.tables.read(LEASES), spans)
        self.tables.replace(DAILY, rows, upto, where=gold_windows.within_dates(spans))

    def _anomalies(self, after: Progress, upto: Progress) -> None:
        spans = self._spans(after, upto)
        rows = gold_anomalies.anomalies(self._all_events(upto), self.tables.read(LEASES), spans)
        self.tables.replace(ANOMALIES, rows, upto, where=gold_windows.within_dates(spans))
