"""`lakehouse report`: the tables of a warehouse as one page to look at.

silver and gold ──▶ Spark groups and ranks ──▶ Report (bounded) ──▶ report_page.render ──▶ one HTML file
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from omnirelay._version import __version__
from omnirelay.errors import InvalidArgument
from omnirelay.lakehouse import report_data
from omnirelay.lakehouse.errors import TablesMissing
from omnirelay.lakehouse.formats import TableStore
from omnirelay.lakehouse.progress import events_in, sequences
from omnirelay.lakehouse.report_counts import extent, series_and_headline
from omnirelay.lakehouse.report_data import Report, Shard, clipped, span_of
from omnirelay.lakehouse.report_health import anomalies, backpressure, peers, resources
from omnirelay.lakehouse.report_leases import gantt
from omnirelay.lakehouse.report_lineage import lineage
from omnirelay.lakehouse.sizing import Sizing
from omnirelay.lakehouse.tables import (
    ANOMALIES,
    BACKPRESSURE,
    ITEMS,
    LEASES,
    LINEAGE,
    PEERS,
    RESOURCE_HEALTH,
    SLO,
    Table,
)
from omnirelay.wire.instants import instant

NEEDED: Final = (LEASES, ITEMS, PEERS, BACKPRESSURE, LINEAGE, SLO, RESOURCE_HEALTH, ANOMALIES)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a report is to be about. None: where the log begins, or ends."""

    from_ms: int | None = None
    to_ms: int | None = None
    shards: Sequence[str] = ()
    """Empty: all."""

    def __post_init__(self) -> None:
        if self.from_ms is not None and self.to_ms is not None:
            _in_order(self.from_ms, self.to_ms)


def _in_order(from_ms: int, to_ms: int) -> None:
    if from_ms >= to_ms:
        raise InvalidArgument(
            f"from must be before to, and before the end of the log: {instant(from_ms)} is not before {instant(to_ms)}",
            field="from",
        )


def make_report(tables: TableStore, kind: str, wanted: Wanted | None = None, *, now_ms: int | None = None) -> Report:
    """Count what the page shows. Raises TablesMissing, and InvalidArgument for a time or a shard there is not."""
    wanted = wanted or Wanted()
    missing = [f"{table.layer}.{table.name}" for table in NEEDED if not tables.exists(table)]
    if missing:
        raise TablesMissing(
            f"there is no {', '.join(missing)} in {tables.warehouse} as {kind}; make the tables first:"
            f" omnirelay lakehouse run --source SEGMENTS --warehouse {tables.warehouse} --format {kind}",
            warehouse=tables.warehouse,
        )
    progress = tables.progress(SLO)
    ends = sequences(progress)
    for shard in wanted.shards:
        if shard not in ends:
            known = ", ".join(sorted(ends)[: report_data.SHARDS_MAX]) or "none"
            raise InvalidArgument(f"shard {shard!r} is not in the tables; there are: {known}", field="shard")
    with Sizing(tables.spark).suited(events_in(progress)):
        return _counted(tables, wanted, ends, int(time.time() * 1000) if now_ms is None else now_ms)


def _counted(tables: TableStore, wanted: Wanted, ends: Mapping[str, int], now_ms: int) -> Report:
    shards = sorted(wanted.shards or ends)

    @cache
    def rows(table: Table) -> DataFrame:
        there = tables.read(table)
        return there.where(F.col("shard").isin(shards)) if wanted.shards else there

    found = extent(rows)
    begin, end = found if found is not None else (now_ms - 1_000, now_ms)
    begin = begin if wanted.from_ms is None else wanted.from_ms
    end = end if wanted.to_ms is None else wanted.to_ms
    _in_order(begin, end)
    # An instant has no width to draw in.
    span = span_of(begin, max(end, begin + 1_000))
    closed, share = backpressure(rows, span, len(shards))
    series, headline = series_and_headline(rows, span, share)
    return Report(
        warehouse=clipped(tables.warehouse),
        made_ms=now_ms,
        version=__version__,
        span=span,
        shards=[Shard(clipped(name), ends[name]) for name in shards[: report_data.SHARDS_MAX]],
        shard_count=len(shards),
        headline=headline,
        series=series,
        gantt=gantt(rows, span),
        lineage=lineage(rows, span),
        peers=peers(rows, span),
        backpressure=closed,
        anomalies=anomalies(rows, span),
        resources=resources(rows),
    )


def check_place(path: Path) -> None:
    """Refuse a place where no file can be written, before anything is counted for it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    if path.is_dir():
        raise InvalidArgument(f"out: {path} is a directory; name a file in it", field="out")


def write_page(page: str, path: Path) -> None:
    """Put the page in its place whole: whoever has an older one open never sees a part of it."""
    staging = path.with_name(f".{path.name}.part")
    try:
        staging.write_text(page, encoding="utf-8")
        staging.replace(path)
    except OSError as error:
        staging.unlink(missing_ok=True)
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> InvalidArgument:
    return InvalidArgument(f"out: cannot write {path}: {error.strerror or error}", field="out")
