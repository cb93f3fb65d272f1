"""`TableStore`: the few things the pipeline asks of a table format, and the formats there are.

Each changing call is one commit, which carries the progress it brings the table to. It happens whole or not at all, and
of those that begin from the same place one happens. A format that cannot promise this has no place here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, get_args

from omnirelay.errors import InvalidArgument, OmniRelayError, Status
from omnirelay.lakehouse.progress import Progress
from omnirelay.lakehouse.tables import Table
from omnirelay.segments.connecting import path_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FormatName: TypeAlias = Literal["delta", "parquet", "iceberg"]
FORMATS: Final[tuple[FormatName, ...]] = get_args(FormatName)

AT_ONCE: Final = 3
"""Tables that are changed at the same time where nothing speaks against it: more of them do not make two processors
quicker, and each has rows in memory.
"""
EVERYTHING: Final = "true"
"""The condition that every row of a table meets."""
NO_ROW: Final = "false"
"""The condition that no row meets."""


class TableStore(Protocol):
    """The tables of one warehouse. Threads may change different tables at once, as many as `at_once` says."""

    warehouse: str
    at_once: int
    spark: SparkSession
    """The session of its own, in which all that is committed has to be computed."""

    def exists(self, table: Table) -> bool: ...

    def path(self, table: Table) -> str: ...

    def version(self, table: Table) -> int:
        """The number of the newest commit, -1 when there is no table."""
        ...

    def progress(self, table: Table) -> Progress:
        """As of the newest commit of ours; empty when there is none.

        The next change of the table begins from here: it is refused when the table has come further meanwhile.
        """
        ...

    def read(self, table: Table) -> DataFrame: ...

    def append(self, table: Table, rows: DataFrame, progress: Progress) -> None:
        """Add rows; columns that the table does not have yet are added to it."""
        ...

    def stay(self, table: Table, progress: Progress) -> None:
        """Only commit how far the table has come: its rows are what they should be there, too."""
        ...

    def merge(self, table: Table, rows: DataFrame, progress: Progress, *, only: str | None = None) -> None:
        """Put rows in place of those with the same key, or beside them.

        `only` is a condition on the table's rows, which it calls `t`, that all of those to be replaced meet; it saves
        looking at the others, and they stay as they are whatever their keys.
        """
        ...

    def replace(self, table: Table, rows: DataFrame, progress: Progress, *, where: str) -> None:
        """Put rows in place of all that meet a condition; the new ones meet it too."""
        ...

    def optimize(self, tables: Sequence[Table]) -> None:
        """Make few large files of many small ones."""
        ...

    def vacuum(self, tables: Sequence[Table], hours: float) -> None:
        """Remove files that no commit of the last `hours` needs."""
        ...

    def drop(self, table: Table) -> None: ...


_MARKS: Final = {"delta": "_delta_log", "parquet": "_commits", "iceberg": "metadata"}
"""What a table of each format has in its directory."""


def marked(directory: Path) -> list[str]:
    """The formats of the tables in a directory; more than one when somebody mixed them."""
    return [name for name, mark in _MARKS.items() if any(directory.glob(f"*/*/{mark}"))]


def check_named(warehouse: str) -> None:
    """Raises InvalidArgument for a warehouse without a name, which would be the root of the file system."""
    if not warehouse.removeprefix("file://").strip("/ "):
        raise InvalidArgument(f"warehouse must name a directory, got {warehouse!r}", field="warehouse")


def place_of(warehouse: str) -> str:
    """Where tables are: a directory in full, also when it is given as `file:///a%20lake`; other addresses as they are.

    Delta and Iceberg know tables by whole paths only, and Java may have been started in another directory.
    """
    check_named(warehouse)
    if "://" in warehouse and not warehouse.startswith("file://"):
        return warehouse.rstrip("/")
    return str(path_of(warehouse).absolute())


def open_tables(spark: SparkSession, warehouse: str, kind: str) -> TableStore:
    """The tables of a warehouse in one format.

    Raises InvalidArgument for a format there is not, and for a warehouse without a name or whose tables have another.
    """
    place = place_of(warehouse)
    for other in () if "://" in place else marked(Path(place)):
        # Two formats in one folder would take each other's files for waste.
        if other != kind:
            raise InvalidArgument(
                f"the tables in {warehouse} are {other}, not {kind}; say --format {other}, or name another directory",
                field="format",
            )
    if kind == "delta":
        from omnirelay.lakehouse.formats_delta import DeltaTables

        return DeltaTables(spark, warehouse)
    if kind == "parquet":
        from omnirelay.lakehouse.formats_parquet import ParquetTables

        return ParquetTables(spark, warehouse)
    if kind == "iceberg":
        from omnirelay.lakehouse.formats_iceberg import IcebergTables

        return IcebergTables(spark, warehouse)
    raise InvalidArgument(f"format must be one of {', '.join(FORMATS)}, got {kind!r}", field="format")


_TIME_ZONE: Final = "spark.sql.session.timeZone"
"""In which Spark tells days. Those of the tables are UTC's, wherever the caller of a pipeline lives: rows of the same
day must not come to lie in two.
"""


def own_session(spark: SparkSession) -> SparkSession:
    """Another session with the settings of this one: what is set for a commit must not meet other work.

    Through Spark Connect there is none to be had; there every client has a session of its own to begin with.
    """
    from omnirelay.lakehouse.source import register

    if not hasattr(spark, "_jsparkSession"):
        spark.conf.set(_TIME_ZONE, "UTC")
        return spark
    session = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if name.startswith(("spark.sql.", "spark.databricks.")) and session.conf.isModifiable(name):
            session.conf.set(name, value)
    session.conf.set(_TIME_ZONE, "UTC")
    # It is the active one from here on, and that is where Spark looks for formats, for the caller's session, too.
    register(session)
    return session


class TableOvertaken(OmniRelayError):
    """Somebody else committed first. Nothing is lost: what is there is whole, and the next run goes on from it."""

    status = Status.ABORTED
    default_code = "error.lakehouse.overtaken"


def overtaken(table: Table) -> TableOvertaken:
    return TableOvertaken(
        f"another pipeline has changed {table.name} at the same time; this run wrote nothing there, run it again",
        table=table.name,
    )
