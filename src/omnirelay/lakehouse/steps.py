"""What brings each table of silver and gold from where it is to a target: one query and one commit for each.

A step is told where its own table is. Tables need not be at the same place: one that a killed run left behind comes
from further back than the others.

With few events the tables are read once, kept as rows, and written whole: what a MERGE and a scan of Delta cost besides
the rows would be most of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from omnirelay.lakehouse import bronze, gold, gold_anomalies, gold_windows, silver
from omnirelay.lakehouse.formats import EVERYTHING, TableStore
from omnirelay.lakehouse.progress import Progress, encode_progress, events_between
from omnirelay.lakehouse.silver_intervals import fold_backpressure, fold_peers
from omnirelay.lakehouse.silver_items import fold_items
from omnirelay.lakehouse.silver_leases import fold_leases
from omnirelay.lakehouse.tables import (
    ANOMALIES,
    BACKPRESSURE,
    DAILY,
    EVENTS,
    ITEMS,
    LEASES,
    LINEAGE,
    PEERS,
    RESOURCE_HEALTH,
    SLO,
    Table,
)

_NEVER_USED: Final = ("frame", "chain", "payload_body")
"""Columns of bronze that no table is made from, and that are large."""
_KEPT_EVENTS_MAX: Final = 1_000_000
"""So many events at most are kept in memory between the steps that need them; reading more of them again is cheaper."""

Range: TypeAlias = tuple[str, str]


class Steps:
    """The steps of one target. Not for several threads at once; `close` when the target is reached."""

    def __init__(self, tables: TableStore, *, few: bool = False) -> None:
        self.tables = tables
        self._few = few
        self._held: dict[Table, DataFrame] = {}
        self._kept: dict[Range, DataFrame] = {}
        self._oldest: dict[Range, dict[str, int]] = {}
        self._spans: dict[Range, list[gold_windows.Span]] = {}
        self._of: Final[dict[Table, Callable[[Progress, Progress], None]]] = {
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

    def bring(self, table: Table, after: Progress, target: Progress) -> None:
        """Bring a table from `after` to a target, in one commit.

        `after` is what the store's `progress` said last: the commit is refused when the table is elsewhere by now.
        """
        self._of[table](after, target)

    def close(self) -> None:
        """Let go of what was kept."""
        for rows in self._kept.values():
            rows.unpersist()
        self._kept.clear()
        self._held.clear()

    # -- tables --------------------------------------------------------------------------------

    def _read(self, table: Table) -> DataFrame:
        """A table as it is now."""
        if not self._few:
            return self.tables.read(table)
        if table not in self._held:
            rows = self.tables.read(table)
            self._held[table] = (rows.drop(*_NEVER_USED) if table is EVENTS else rows).localCheckpoint()
        return self._held[table]

    def _known(self, table: Table, condition: str | None = None) -> DataFrame | None:
        """A table as it is before a step; None when there is none yet."""
        if not self.tables.exists(table):
            return None
        rows = self._read(table)
        return rows if condition is None else rows.where(condition)

    def _merge(self, table: Table, rows: DataFrame, upto: Progress, *, only: str | None = None) -> None:
        if not self._few:
            self.tables.merge(table, rows, upto, only=only)
            return
        known = self._known(table)
        if known is not None:
            both = rows.withColumn("newer", F.lit(1)).unionByName(known.withColumn("newer", F.lit(0)))
            newest = F.max("newer").over(Window.partitionBy(*table.keys))
            rows = both.withColumn("newest", newest).where("newer = newest").drop("newer", "newest")
        self._write_whole(table, rows, upto)

    def _replace(self, table: Table, rows: DataFrame, upto: Progress, *, where: str) -> None:
        if not self._few:
            self.tables.replace(table, rows, upto, where=where)
            return
        known = self._known(table, f"NOT coalesce(({where}), false)")
        self._write_whole(table, rows if known is None else rows.unionByName(known), upto)

    def _write_whole(self, table: Table, rows: DataFrame, upto: Progress) -> None:
        self._held[table] = rows.localCheckpoint()
        self.tables.replace(table, self._held[table], upto, where=EVERYTHING)

    # -- what steps are made from --------------------------------------------------------------

    def _events(self, after: Progress, upto: Progress) -> DataFrame:
        return bronze.between(self._read(EVENTS), after, upto)

    def _all_events(self, upto: Progress) -> DataFrame:
        """Bronze up to a target: it may be ahead of the other tables."""
        return bronze.between(self._read(EVENTS), {}, upto)

    def _changes(self, after: Progress, upto: Progress) -> DataFrame:
        """The events of items, kept for the next step when there are not too many."""
        key = _range(after, upto)
        if (kept := self._kept.get(key)) is not None:
            return kept
        changes = silver.item_events(self._events(after, upto))
        if self._few:
            changes = self._kept[key] = changes.localCheckpoint()
        elif events_between(after, upto) <= _KEPT_EVENTS_MAX:
            changes = self._kept[key] = changes.persist()
        return changes

    def _oldest_items(self, after: Progress, upto: Progress) -> dict[str, int]:
        """The oldest item of each shard that these events name."""
        key = _range(after, upto)
        if key not in self._oldest:
            self._oldest[key] = silver.oldest_items(self._changes(after, upto))
        return self._oldest[key]

    def _time(self, after: Progress, upto: Progress) -> list[gold_windows.Span]:
        """What time new events, and the last one before them, take up."""
        key = _range(after, upto)
        if key not in self._spans:
            events = bronze.between(self._read(EVENTS), after, upto, touching=True)
            self._spans[key] = gold_windows.spans_of(events)
        return self._spans[key]

    def _known_items(self, after: Progress, upto: Progress) -> DataFrame | None:
        """The items before these events, of each shard from the oldest that they name on."""
        items = self._known(ITEMS)
        if items is None or self._few:
            return items
        return items.where(silver.from_items_on(self._oldest_items(after, upto)))

    def _changed_leases(self, after: Progress, upto: Progress) -> DataFrame:
        return gold.changed_since(self._read(LEASES), after, upto)

    # -- silver --------------------------------------------------------------------------------

    def _leases(self, after: Progress, upto: Progress) -> None:
        live = self._known(LEASES, "ended_at IS NULL")
        rows = fold_leases(self._changes(after, upto), self._known_items(after, upto), live)
        self._merge(LEASES, rows, upto, only="t.ended_at IS NULL")

    def _items(self, after: Progress, upto: Progress) -> None:
        items = self._known_items(after, upto)
        only = None
        if items is not None and not self._few and (oldest := self._oldest_items(after, upto)):
            only = silver.from_items_on(oldest, "t.")
        self._merge(ITEMS, fold_items(self._changes(after, upto), items), upto, only=only)

    def _peers(self, after: Progress, upto: Progress) -> None:
        leases = self._changed_leases(after, upto)
        rows = fold_peers(self._changes(after, upto), leases, self._known(PEERS, "until_at IS NULL"))
        self._merge(PEERS, rows, upto, only="t.until_at IS NULL")

    def _backpressure(self, after: Progress, upto: Progress) -> None:
        rows = fold_backpressure(self._events(after, upto), self._known(BACKPRESSURE, "until_at IS NULL"))
        self._merge(BACKPRESSURE, rows, upto, only="t.until_at IS NULL")

    # -- gold ----------------------------------------------------------------------------------

    def _lineage(self, after: Progress, upto: Progress) -> None:
        rows = gold.lineage(self._changed_leases(after, upto))
        self._merge(LINEAGE, rows, upto, only="t.ended_at IS NULL")

    def _resource_health(self, after: Progress, upto: Progress) -> None:
        changed = self._changed_leases(after, upto) if after else None
        self._merge(RESOURCE_HEALTH, gold.resource_health(self._read(LEASES), changed), upto)

    def _slo(self, after: Progress, upto: Progress) -> None:
        spans = self._time(after, upto)
        rows = gold_windows.slo(self._all_events(upto), self._read(LEASES), self._read(BACKPRESSURE), spans)
        where = gold_windows.within(spans, "window_start", gold_windows.WINDOW_MS)
        self._replace(SLO, rows, upto, where=where)

    def _daily(self, after: Progress, upto: Progress) -> None:
        spans = self._time(after, upto)
        rows = gold_windows.daily(self._all_events(upto), self._read(LEASES), spans)
        self._replace(DAILY, rows, upto, where=gold_windows.within_dates(spans))

    def _anomalies(self, after: Progress, upto: Progress) -> None:
        spans = self._time(after, upto)
        frames = bronze.frames_between(self._read(EVENTS), after, upto)
        rows = gold_anomalies.anomalies(frames, self._read(LEASES), spans, self._known(ANOMALIES))
        self._replace(ANOMALIES, rows, upto, where=gold_windows.within_dates(spans))


def _range(after: Progress, upto: Progress) -> Range:
    return encode_progress(after), encode_progress(upto)
