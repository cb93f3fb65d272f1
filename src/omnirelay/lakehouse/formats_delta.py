"""Tables in Delta Lake: a commit carries its progress as user metadata, and where it began as its application.

Delta takes one transaction with the same number of an application. Ours are called after the progress that a change
begins from, and all have the number 1: of those that begin from the same place the table takes one. Rows that were laid
anew count as another place, with the same progress.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession, Window
from pyspark.sql import functions as F

from omnirelay.errors import DataLoss, Unimplemented
from omnirelay.lakehouse.formats import AT_ONCE, EVERYTHING, overtaken, own_session, place_of
from omnirelay.lakehouse.formats_delta_layout import FILE_EVENTS, anew, apart
from omnirelay.lakehouse.progress import NOTHING, Progress, commit_number, decode_stamp, encode_progress
from omnirelay.lakehouse.tables import EVENTS, Table

_ONLY: Final = 1
_REMEMBERED: Final = "interval 1 days"
"""How long Delta remembers transactions. No change takes that long from its beginning to its commit."""
_UNCHECKED: Final = "spark.databricks.delta.replaceWhere.constraintCheck.enabled"
_WRITERS: Final = "spark.sql.maxConcurrentOutputFileWriters"
_WRITERS_MAX: Final = "4"
"""Files that a task writes side by side. Without, the rows of a partitioned table are sorted before."""
_INDEXED: Final = {EVENTS: "sequence,event_type,timestamp,sequence_id,ownership_sequence_id,peer_id,frame_first"}
"""Columns that Delta keeps the least and greatest value of, where that is not done for all of many."""
_NO_TABLE: Final = ("DELTA_TABLE_ONLY_OPERATION", "DELTA_MISSING_DELTA_TABLE", "DELTA_PATH_DOES_NOT_EXIST")
"""What Delta says of a place where there is none."""
_LOOK_BACK: Final = 1_000
"""Commits that are looked through for the last of ours; between two of ours there is only upkeep."""


SMALL_BYTES: Final = 1_000_000
"""Up to this size a table is written whole, where rows that may change are not in files of their own."""


class _Size(msgspec.Struct):
    bytes: int = msgspec.field(name="tableSizeBytes")


_decode_size = msgspec.json.Decoder(_Size).decode


class _Place(msgspec.Struct, frozen=True):
    """What a change begins from."""

    progress: Progress
    laid: bool = False
    """Whether nothing has come since the rows were laid anew."""

    @property
    def name(self) -> str:
        return f"{commit_number(self.progress)}{'.laid' if self.laid else ''}"


class DeltaTables:
    """Path tables below a warehouse: LAYER/NAME. The catalogue knows nothing of them."""

    def __init__(
        self,
        spark: SparkSession,
        warehouse: str,
        *,
        small_bytes: int = SMALL_BYTES,
        file_events: int = FILE_EVENTS,
    ) -> None:
        # Settings of a session hold for its commits: no other work may run in it.
        self.spark = own_session(spark)
        # New rows need not meet the condition of what they replace: that is about the rows that were.
        self.spark.conf.set(_UNCHECKED, "false")
        self.spark.conf.set(_WRITERS, _WRITERS_MAX)
        self.at_once = AT_ONCE
        self._small_bytes = small_bytes
        self._file_events = file_events
        self.warehouse = place_of(warehouse)
        self._bases: dict[Table, _Place] = {}
        """What the next change of a table begins from."""

    def path(self, table: Table) -> str:
        return f"{self.warehouse}/{table.layer}/{table.name}"

    def exists(self, table: Table) -> bool:
        return self.version(table) >= 0

    def version(self, table: Table) -> int:
        if (log := self._local_log(table)) is not None:
            return max((int(each.stem) for each in log.glob("*.json") if each.stem.isdecimal()), default=-1)
        try:
            newest = self._history(table, 1).select("version").first()
        except AnalysisException as error:
            if error.getCondition() not in _NO_TABLE:
                raise
            return -1
        return -1 if newest is None else int(newest[0])

    def _history(self, table: Table, commits: int) -> DataFrame:
        return self.spark.sql(f"DESCRIBE HISTORY {self._name(table)} LIMIT {commits}")

    def _name(self, table: Table) -> str:
        """The table in SQL. Everything is done in SQL, which works through Spark Connect, too."""
        return f"delta.`{self.path(table).replace('`', '``')}`"

    def progress(self, table: Table) -> Progress:
        found = self._bases[table] = self._found(table)
        return found.progress

    def _found(self, table: Table) -> _Place:
        newest = self.version(table)
        if newest < 0:
            return _Place(NOTHING)
        for text in self._stamps(table, newest):
            stamp = decode_stamp(text)
            if stamp is not None:
                return _Place(stamp.shards, stamp.laid)
        raise DataLoss(
            f"none of the last {_LOOK_BACK} commits of {self.path(table)} says how far the table has come;"
            " run `omnirelay lakehouse rebuild`",
            code="error.lakehouse.progress",
            table=table.name,
        )

    def _stamps(self, table: Table, newest: int) -> Iterator[str | None]:
        """The metadata of commits, newest first."""
        log = self._local_log(table)
        if log is None:
            yield from (row[0] for row in self._history(table, _LOOK_BACK).select("userMetadata").toLocalIterator())
            return
        # A few lines of text: a query by Spark would take a quarter of a second for every table.
        for version in range(newest, max(-1, newest - _LOOK_BACK), -1):
            commit = log / f"{version:020d}.json"
            if not commit.is_file():
                return
            for line in commit.read_text().splitlines():
                info = json.loads(line).get("commitInfo")
                if info is not None:
                    yield info.get("userMetadata")
                    break

    def _local_log(self, table: Table) -> Path | None:
        return None if "://" in self.warehouse else Path(self.path(table)) / "_delta_log"

    def read(self, table: Table) -> DataFrame:
        return self.spark.read.format("delta").load(self.path(table))

    # -- commits -------------------------------------------------------------------------------

    def append(self, table: Table, rows: DataFrame, progress: Progress) -> None:
        with self._committing(table, progress) as base:
            self._write(table, rows, progress, base, mode="append")

    def stay(self, table: Table, progress: Progress) -> None:
        self.append(table, self.spark.createDataFrame([], table.ddl), progress)

    def merge(self, table: Table, rows: DataFrame, progress: Progress, *, only: str | None = None) -> None:
        """Take out all rows that may be replaced, and put them back with the new ones in place of some.

        Where those that may are few, they are in files of their own, so that little is written again. MERGE would put
        rows that are done with into one file with those that are not, and write them all again the next time. It also
        takes its progress from settings of the session, where tables that are changed at once would meet.
        """
        if not self.exists(table):
            self.append(table, rows, progress)
            return
        where = EVERYTHING if only is None or self._is_small(table) else _bare(only)
        known = self.read(table) if where == EVERYTHING else self.read(table).where(where)
        of_key = Window.partitionBy(*reversed(table.keys))
        mine = known.withColumn("newer", F.lit(0))
        if only is not None and where == EVERYTHING:
            # Rows that may not be replaced stay, whatever their keys.
            mine = known.withColumn("newer", F.when(F.expr(_bare(only)), 0))
        both = rows.withColumn("newer", F.lit(1)).unionByName(mine, allowMissingColumns=True)
        newest = F.max("newer").over(of_key)
        chosen = both.withColumn("newest", newest).where("newer IS NULL OR newer = newest").drop("newer", "newest")
        self._overwrite(table, chosen, progress, where)

    def replace(self, table: Table, rows: DataFrame, progress: Progress, *, where: str) -> None:
        if not self.exists(table):
            self.append(table, rows, progress)
            return
        if where != EVERYTHING and self._is_small(table):
            others = self.read(table).where(f"NOT coalesce(({where}), false)")
            rows, where = rows.unionByName(others, allowMissingColumns=True), EVERYTHING
        self._overwrite(table, rows, progress, where)

    def _overwrite(self, table: Table, rows: DataFrame, progress: Progress, where: str) -> None:
        with self._committing(table, progress) as base:
            self._write(table, rows, progress, base, mode="overwrite", where=None if where == EVERYTHING else where)

    def _is_small(self, table: Table) -> bool:
        """Whether writing the whole table anew takes less than finding the files to be changed.

        Delta runs four queries for that. It tells the size of a table beside each commit, unless that was cut off.
        """
        if table.open is not None or (log := self._local_log(table)) is None:
            return False
        try:
            told = _decode_size((log / f"{self.version(table):020d}.crc").read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return False
        return told.bytes <= self._small_bytes

    def _write(
        self, table: Table, rows: DataFrame, progress: Progress, base: _Place, *, mode: str, where: str | None = None
    ) -> None:
        parts = int(self.spark.conf.get("spark.sql.shuffle.partitions") or 1)
        rows = apart(table, rows, base.progress, progress, parts)
        writer = self._writer(table, rows, base, encode_progress(progress)).mode(mode).option("mergeSchema", "true")
        if table in _INDEXED:
            writer = writer.option("delta.dataSkippingStatsColumns", _INDEXED[table])
        if where is not None:
            writer = writer.option("replaceWhere", where)
        writer.save(self.path(table))

    @staticmethod
    def _writer(table: Table, rows: DataFrame, base: _Place, stamp: str) -> DataFrameWriter:
        writer = (
            rows.write.format("delta")
            .option("userMetadata", stamp)
            .option("txnAppId", f"omnirelay:lakehouse:{table.layer}.{table.name}:{base.name}")
            .option("txnVersion", _ONLY)
            .option("delta.setTransactionRetentionDuration", _REMEMBERED)
        )
        return writer.partitionBy(*table.partition) if table.partition else writer

    @contextmanager
    def _committing(self, table: Table, progress: Progress) -> Iterator[_Place]:
        """What one commit begins from. A commit that is skipped says nothing, so the table is asked afterwards."""
        base = self._bases.pop(table) if table in self._bases else self._found(table)
        with _one_of(table):
            yield base
        if self._found(table).progress == progress:
            return
        # A change without any rows makes no commit by itself.
        self._write(table, self.read(table).limit(0), progress, base, mode="append")
        if self._found(table).progress != progress:
            raise overtaken(table)

    # -- upkeep --------------------------------------------------------------------------------

    def optimize(self, tables: Sequence[Table]) -> None:
        for table in tables:
            if not self.exists(table):
                continue
            if table.open is None and not table.near:
                self.spark.sql(f"OPTIMIZE {self._name(table)}")
            else:
                self._lay_anew(table)

    def _lay_anew(self, table: Table) -> None:
        """Write the whole table in order. OPTIMIZE would put rows that may still change into the same files as those
        that are done with, of whatever time, and the next run would write them all again.
        """
        progress = self.progress(table)
        base = self._bases.pop(table)
        if base.laid:
            return
        # A run that begins from here, too, has the same name: so either it comes or this.
        rows = anew(table, self.read(table), progress, self._file_events)
        writer = self._writer(table, rows, base, encode_progress(progress, laid=True)).option("dataChange", "false")
        with _one_of(table):
            writer.mode("overwrite").save(self.path(table))
        if self._found(table) != _Place(progress, laid=True):
            raise overtaken(table)

    def vacuum(self, tables: Sequence[Table], hours: float) -> None:
        # Delta refuses less than a week unless told so; whoever names a number of hours has decided.
        self.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        with _without_console(self.spark):
            for table in tables:
                if self.exists(table):
                    self.spark.sql(f"VACUUM {self._name(table)} RETAIN {hours:f} HOURS")

    def drop(self, table: Table) -> None:
        self._bases.pop(table, None)
        path = self.path(table)
        if "://" in path:
            # Deleting rows would keep the transaction numbers, and then a table that begins anew is never written.
            raise Unimplemented(f"tables that are not in a directory are not removed from here; remove {path} first")
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _without_console(spark: SparkSession) -> Iterator[None]:
    """Delta prints what it removed, on the stdout that Java has of this process: what commands answer stands there.

    Scala knows for each thread where it prints to, and a thread here has one there. Through Spark Connect all of that
    is the server's.
    """
    if not hasattr(spark, "_jvm"):
        yield
        return
    java: Any = spark._jvm
    console = getattr(getattr(java.scala, "Console$"), "MODULE$")
    before = console.out()
    console.setOutDirect(java.java.io.PrintStream(java.java.io.OutputStream.nullOutputStream()))
    try:
        yield
    finally:
        console.setOutDirect(before)


@contextmanager
def _one_of(table: Table) -> Iterator[None]:
    """Raises TableOvertaken where another commit that begins from the same place is being made, and comes first."""
    try:
        yield
    except Exception as error:
        # Which class it is depends on how Spark is reached; its name is in the text on every way.
        if "ConcurrentTransactionException" in str(error) or "DELTA_CONCURRENT" in str(error):
            raise overtaken(table) from error
        raise


def _bare(condition: str) -> str:
    """A condition in which the table is called `t`, without a name for it. What stands in quotes stays."""
    return re.sub(r"'(?:[^'\\]|\\.)*'|\bt\.", lambda found: found[0] if found[0][0] == "'" else "", condition)
