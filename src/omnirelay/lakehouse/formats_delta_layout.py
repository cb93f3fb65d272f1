"""How the rows of a Delta table lie in files: those that may still change apart, others by when they were made.

Only so a run that changes few rows writes few again, and what is asked of some minutes is found in a few files. It
holds for what a run writes, and for all of a table when upkeep lays it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from omnirelay.lakehouse.progress import NOTHING, Progress
from omnirelay.lakehouse.tables import Table

FILE_EVENTS: Final = 250_000
"""Upkeep puts the rows that so many events of a shard began into one file: about as many as a run does."""


def apart(table: Table, rows: DataFrame, base: Progress, progress: Progress, parts: int) -> DataFrame:
    """The rows of a change, in `parts` files for each kind of them."""
    if table.open is None:
        return rows
    if table.event is None or parts == 1:
        return _in_files(rows, table, F.pmod(F.hash(*table.keys), F.lit(parts)), F.lit(0), parts, 1)
    part = _part_by_event(table.event, dict.fromkeys(progress, parts), base, progress)
    return _in_files(rows, table, part, part, parts, parts)


def anew(table: Table, rows: DataFrame, progress: Progress, file_events: int = FILE_EVENTS) -> DataFrame:
    """All rows of a table that says how they should lie, in as few files as there should be."""
    parts = {shard: max(1, -(-end.count // file_events)) for shard, end in sorted(progress.items())}
    files = sum(parts.values())
    if table.near:
        return rows.repartitionByRange(files, *table.near)
    if table.event is None:
        return _in_files(rows, table, F.pmod(F.hash(*table.keys), F.lit(files)), F.lit(0), files, 1)
    first = dict(zip(parts, accumulate(parts.values(), initial=0), strict=False))
    part = _of_shard(progress, first.__getitem__) + _part_by_event(table.event, parts, NOTHING, progress)
    return _in_files(rows, table, part, part, files, files)


def _in_files(
    rows: DataFrame, table: Table, done: Column, open_: Column, done_files: int, open_files: int
) -> DataFrame:
    assert table.open is not None
    may_change = F.col(table.open).isNull()
    place = F.when(may_change, open_ + done_files).otherwise(done)
    return rows.repartitionById(done_files + open_files, place.cast("int"))


def _of_shard(progress: Progress, number: Callable[[str], int]) -> Column:
    values = (each for shard in progress for each in (F.lit(shard), F.lit(number(shard))))
    return F.create_map(*values)[F.col("shard")]


def _part_by_event(column: str, parts: Mapping[str, int], base: Progress, progress: Progress) -> Column:
    """In which of the parts of its shard a row is, when rows are put in order of an event of theirs.

    Events come in all along a log, so parts of as many events hold about as many rows. A row from before the change is
    in the first part, one that says no event, too.
    """

    def begin(shard: str) -> int:
        return base[shard].sequence if shard in base else 0

    behind = F.col(column) - _of_shard(progress, begin)
    width = _of_shard(progress, lambda shard: max(progress[shard].sequence - begin(shard), 1))
    number = _of_shard(progress, parts.__getitem__)
    part = F.floor(behind * number / width)
    return F.coalesce(F.least(F.greatest(part, F.lit(0)), number - 1), F.lit(0))
