"""What brings each table of silver and gold from where it is to a target: one query and one commit for each.

A step is told where its own table is. Tables need not be at the same place: one that a killed run left behind comes
from further back than the others.

With few events the tables are read once, kept as rows, and written whole: what changes and scans of Delta cost besides
the rows would be most of the time. With many, a step looks only at rows of shards that have new events, and of those at
the ones that may still change. Of a shard that is new the tables have none: its rows are added, nothing is compared.

With few new events among many, what several steps begin from is made once and kept as rows, too: the new events and the
leases that they changed. Each look at a Delta table is a query of its own, and planning those is most of what a small
run takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from omnirelay.lakehouse import bronze, gold, gold_anomalies, gold_daily, gold_windows, silver
from omnirelay.lakehouse.formats import EVERYTHING, NO_ROW, TableStore
from omnirelay.lakehouse.progress import NOTHING, Progress, encode_progress, events_between
from omnirelay.lakehouse.silver import of_shards
from omnirelay.lakehouse.silver_intervals import CLOSED_OR_OPENED, TOLD_OF_PEERS, fold_backpressure, fold_peers
from omnirelay.lakehouse.silver_items import fold_items
from omnirelay.lakehouse.silver_leases import fold_leases
from omnirelay.lakehouse.sizing import Suited
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
    """The steps of one target; `close` when the target is reached.

    Steps of different tables may be taken by several threads at once, those behind leases when leases are there.
    """

    def __init__(self, tables: TableStore, suited: Suited) -> None:
        self.tables = tables
        self._few = suited.few
        self._few_new = suited.few_new
        self._making = threading.RLock()
        """Held while something is made that several steps need: whoever comes second waits for it."""
        self._held: dict[Table, DataFrame] = {}
        self._fresh: dict[Range, DataFrame] = {}
        self._kept: dict[Range, DataFrame] = {}
        self._changed: dict[Range, DataFrame] = {}
        self._named: dict[tuple[Range, frozenset[str]], silver.Ranges] = {}
        self._news: dict[Range, gold_windows.News] = {}
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
        for each in (self._held, self._fresh, self._kept, self._changed):
            each.clear()

    # -- tables --------------------------------------------------------------------------------

    def _read(self, table: Table) -> DataFrame:
        """A table as it is now."""
        if not self._few:
            return self.tables.read(table)
        with self._making:
            if table not in self._held:
                rows = self.tables.read(table)
                self._held[table] = (rows.drop(*_NEVER_USED) if table is EVENTS else rows).localCheckpoint()
            return self._held[table]

    def _known(self, table: Table, condition: str = EVERYTHING) -> DataFrame | None:
        """A table as it is before a step; None when there is none yet."""
        return self._read(table).where(condition) if self.tables.exists(table) else None

    def _past(self, table: Table, after: Progress, upto: Progress, condition: str = EVERYTHING) -> DataFrame | None:
        """The rows of shards with new events, before a step; None when there cannot be any."""
        shards = _continued(after, upto)
        return self._known(table, f"{of_shards(shards)} AND ({condition})") if shards else None

    def _merge(self, table: Table, rows: DataFrame, after: Progress, upto: Progress, *, only: str = EVERYTHING) -> None:
        """Put rows in place of those with the same key, which all meet the condition `only`, or beside them."""
        if not self._few:
            if (shards := _continued(after, upto)) and only != NO_ROW:
                self.tables.merge(table, rows, upto, only=f"{of_shards(shards, 't.')} AND ({only})")
            else:
                self.tables.append(table, rows, upto)
            return
        known = self._known(table)
        if known is not None:
            both = rows.withColumn("newer", F.lit(1)).unionByName(known.withColumn("newer", F.lit(0)))
            newest = F.max("newer").over(Window.partitionBy(*table.keys))
            rows = both.withColumn("newest", newest).where("newer = newest").drop("newer", "newest")
        self._write_whole(table, rows, upto)

    def _replace(self, table: Table, rows: DataFrame, after: Progress, upto: Progress, *, where: str) -> None:
        if after == NOTHING:
            where = EVERYTHING  # What is there was made by an older version.
        if not self._few:
            if (after == NOTHING or _continued(after, upto)) and where != NO_ROW:
                self.tables.replace(table, rows, upto, where=where)
            else:
                self.tables.append(table, rows, upto)
            return
        known = None if where == EVERYTHING else self._known(table, f"NOT coalesce(({where}), false)")
        self._write_whole(table, rows if known is None else rows.unionByName(known), upto)

    def _write_whole(self, table: Table, rows: DataFrame, upto: Progress) -> None:
        self._held[table] = rows.localCheckpoint()
        self.tables.replace(table, self._held[table], upto, where=EVERYTHING)

    # -- what steps are made from --------------------------------------------------------------

    def _touching(self, after: Progress, upto: Progress) -> DataFrame:
        """New events and the last one before them, of each shard."""
        if not self._few_new or self._few:
            return bronze.between(self._read(EVENTS), after, upto, touching=True)
        key = _range(after, upto)
        with self._making:
            if key not in self._fresh:
                rows = bronze.between(self._read(EVENTS), after, upto, touching=True)
                self._fresh[key] = rows.drop(*_NEVER_USED).localCheckpoint()
            return self._fresh[key]

    def _events(self, after: Progress, upto: Progress) -> DataFrame:
        return bronze.between(self._touching(after, upto), after, upto)

    def _changes(self, after: Progress, upto: Progress) -> DataFrame:
        """The events of items, kept for the next step when there are not too many."""
        key = _range(after, upto)
        with self._making:
            if (kept := self._kept.get(key)) is not None:
                return kept
            changes = silver.item_events(self._events(after, upto), self._new(after, upto).kinds)
            if self._few_new:
                changes = self._kept[key] = changes.localCheckpoint()
            elif events_between(after, upto) <= _KEPT_EVENTS_MAX:
                changes = self._kept[key] = changes.persist()
            return changes

    def _items_of(self, kinds: frozenset[str], after: Progress, upto: Progress) -> silver.Ranges:
        """Of each shard the first and the last item that new events of these types name."""
        if kinds.isdisjoint(self._new(after, upto).kinds):
            return {}
        key = _range(after, upto), kinds
        with self._making:
            if key not in self._named:
                self._named[key] = silver.ranges_of(self._changes(after, upto), kinds)
            return self._named[key]

    def _new(self, after: Progress, upto: Progress) -> gold_windows.News:
        """What new events are, and what time they fall into."""
        key = _range(after, upto)
        with self._making:
            if key not in self._news:
                self._news[key] = gold_windows.news_of(self._touching(after, upto), after)
            return self._news[key]

    def _items_concerned(self, after: Progress, upto: Progress, table: str = "") -> str:
        """What is true of all items that these events may concern, as they were before."""
        if self._few:
            return EVERYTHING
        going_on = silver.both(self._new(after, upto).going_on, self._items_of(silver.DRAINED, after, upto))
        return silver.open_or_back(going_on, self._items_of(silver.COMING_BACK, after, upto), table)

    def _past_items(self, after: Progress, upto: Progress) -> DataFrame | None:
        if not _continued(after, upto):
            return None
        return self._past(ITEMS, after, upto, self._items_concerned(after, upto))

    def _changed_leases(self, after: Progress, upto: Progress) -> DataFrame:
        """Leases that new events concern, as they are now."""
        key = _range(after, upto)
        with self._making:
            if (kept := self._changed.get(key)) is not None:
                return kept
            changed = gold.changed_since(self._read(LEASES), after, upto)
            if self._few_new:
                changed = self._changed[key] = changed.localCheckpoint()
            return changed

    def _leases_by_window(self, after: Progress, upto: Progress) -> DataFrame:
        """Leases that were granted or ended in the five minutes with new events, and perhaps more."""
        if not self._few_new or self._few:
            return self._read(LEASES)
        spans = self._new(after, upto).spans
        rows = self._read(LEASES).where(gold_windows.granted_or_ended(spans))
        return rows.select(*gold_windows.OF_LEASES).localCheckpoint()

    # -- silver --------------------------------------------------------------------------------

    def _leases(self, after: Progress, upto: Progress) -> None:
        live = self._past(LEASES, after, upto, "ended_at IS NULL")
        rows = fold_leases(self._changes(after, upto), self._past_items(after, upto), live)
        self._merge(LEASES, rows, after, upto, only="t.ended_at IS NULL")

    def _items(self, after: Progress, upto: Progress) -> None:
        rows = fold_items(self._changes(after, upto), self._past_items(after, upto))
        only = self._items_concerned(after, upto, "t.") if _continued(after, upto) else EVERYTHING
        self._merge(ITEMS, rows, after, upto, only=only)

    def _peers(self, after: Progress, upto: Progress) -> None:
        if self._new(after, upto).kinds.isdisjoint(TOLD_OF_PEERS):
            self.tables.stay(PEERS, upto)
            return
        leases = self._changed_leases(after, upto)
        rows = fold_peers(self._changes(after, upto), leases, self._past(PEERS, after, upto, "until_at IS NULL"))
        self._merge(PEERS, rows, after, upto, only="t.until_at IS NULL")

    def _backpressure(self, after: Progress, upto: Progress) -> None:
        if CLOSED_OR_OPENED not in self._new(after, upto).kinds:
            self.tables.stay(BACKPRESSURE, upto)
            return
        last = self._past(BACKPRESSURE, after, upto, "until_at IS NULL")
        self._merge(
            BACKPRESSURE, fold_backpressure(self._events(after, upto), last), after, upto, only="t.until_at IS NULL"
        )

    # -- gold ----------------------------------------------------------------------------------

    def _lineage(self, after: Progress, upto: Progress) -> None:
        rows = gold.lineage(self._changed_leases(after, upto))
        self._merge(LINEAGE, rows, after, upto, only="t.ended_at IS NULL")

    def _resource_health(self, after: Progress, upto: Progress) -> None:
        changed = self._changed_leases(after, upto)
        where = None
        if self._few_new and not self._few:
            where = gold.resources_of(changed)
        if where is None:
            where = of_shards(_concerned(after, upto))
        rows = gold.resource_health(changed, self._past(RESOURCE_HEALTH, after, upto, where))
        self._replace(RESOURCE_HEALTH, rows, after, upto, where=where)

    def _slo(self, after: Progress, upto: Progress) -> None:
        spans = self._new(after, upto).spans
        known = self._past(SLO, after, upto)
        leases = self._leases_by_window(after, upto)
        rows = gold_windows.slo(self._events(after, upto), leases, self._read(BACKPRESSURE), spans, known)
        where = gold_windows.within(spans, "window_start", gold_windows.WINDOW_MS)
        self._replace(SLO, rows, after, upto, where=where)

    def _daily(self, after: Progress, upto: Progress) -> None:
        spans = self._new(after, upto).spans
        known = self._past(DAILY, after, upto)
        rows = gold_daily.daily(self._events(after, upto), self._changed_leases(after, upto), spans, known)
        self._replace(DAILY, rows, after, upto, where=gold_windows.within_dates(spans))

    def _anomalies(self, after: Progress, upto: Progress) -> None:
        spans = self._new(after, upto).spans
        frames = bronze.frames_between(self._touching(after, upto), after, upto)
        known = self._past(ANOMALIES, after, upto)
        days = self._read(DAILY).where(of_shards(_concerned(after, upto)))
        rows = gold_anomalies.anomalies(frames, days, spans, known)
        self._replace(ANOMALIES, rows, after, upto, where=gold_windows.within_dates(spans))


def _concerned(after: Progress, upto: Progress) -> list[str]:
    """The shards that have new events."""
    return [shard for shard, end in upto.items() if shard not in after or after[shard].sequence < end.sequence]


def _continued(after: Progress, upto: Progress) -> list[str]:
    """Those of them that had some before."""
    return [shard for shard in _concerned(after, upto) if shard in after]


def _range(after: Progress, upto: Progress) -> Range:
    return encode_progress(after), encode_progress(upto)
