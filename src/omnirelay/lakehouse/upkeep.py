"""Upkeep of the tables of a warehouse: few large files instead of many small ones, and none that nobody needs.

A store does what it is told. Here stands what is refused: a place without any table, where doing nothing would look
like success, and removing files so young that somebody may be at work on them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from omnirelay.errors import FailedPrecondition, InvalidArgument
from omnirelay.lakehouse.errors import TablesMissing
from omnirelay.lakehouse.formats import TableStore, marked, place_of
from omnirelay.lakehouse.tables import TABLES, Table

KEEP_HOURS: Final = 168.0
KEEP_HOURS_MIN: Final = 24.0
"""Nobody takes longer from the first file of a change to its commit; formats rest on the same number."""


class KeepsTooLittle(FailedPrecondition):
    """Files would be removed that a run or a reader beside it may need."""

    default_code = "error.lakehouse.keeps_too_little"


def check_keep_hours(hours: float, *, force: bool = False) -> None:
    """Raises InvalidArgument for what is no number of hours, KeepsTooLittle for too few unless forced."""
    if not (math.isfinite(hours) and hours >= 0):
        raise InvalidArgument(f"keep-hours must be a number of hours from 0 on, got {hours}", field="keep-hours")
    if hours < KEEP_HOURS_MIN and not force:
        raise KeepsTooLittle(
            f"keep-hours {hours:g} is less than {KEEP_HOURS_MIN:g}: a run that is under way could lose the files it is"
            " writing, and readers those they read; stop them all and say --force, or keep more",
            field="keep-hours",
        )


def check_warehouse(warehouse: str) -> None:
    """Raises TablesMissing for a directory without a table of any format. A bucket is asked later, by Spark."""
    place = place_of(warehouse)
    if "://" not in place and not marked(Path(place)):
        raise _missing(warehouse)


def optimize(tables: TableStore) -> list[Table]:
    """Make few large files of many small ones; the tables that were there. Raises TablesMissing, TableOvertaken."""
    there = _there(tables)
    tables.optimize(there)
    return there


def vacuum(tables: TableStore, hours: float = KEEP_HOURS, *, force: bool = False) -> list[Table]:
    """Remove files that no commit of the last `hours` needs; the tables that were there.

    Raises TablesMissing, KeepsTooLittle for less than `KEEP_HOURS_MIN` unless forced, TableOvertaken.
    """
    check_keep_hours(hours, force=force)
    there = _there(tables)
    tables.vacuum(there, hours)
    return there


def _there(tables: TableStore) -> list[Table]:
    there = [table for table in TABLES if tables.exists(table)]
    if not there:
        raise _missing(tables.warehouse)
    return there


def _missing(warehouse: str) -> TablesMissing:
    return TablesMissing(
        f"there are no tables in {warehouse}; is it the right directory? `omnirelay lakehouse run` makes them",
        warehouse=warehouse,
    )
