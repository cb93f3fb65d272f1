"""Tables in Delta Lake: a commit carries its progress as user metadata, and a number that has one winner."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from omnirelay.errors import DataLoss, Unimplemented
from omnirelay.lakehouse.formats import overtaken, own_session
from omnirelay.lakehouse.progress import NOTHING, Progress, commit_number, decode_progress, encode_progress
from omnirelay.lakehouse.tables import Table

_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
_APP: Final = "spark.databricks.delta.write.txnAppId"
_NUMBER: Final = "spark.databricks.delta.write.txnVersion"
_LOOK_BACK: Final = 1_000
"""Commits that are looked through for the last of ours; between two of ours there is only upkeep."""


class DeltaTables:
    """Path tables below a warehouse: LAYER/NAME. The catalogue knows nothing of them."""

    def __init__(self, spark: SparkSession, warehouse: str) -> None:
        # Settings of a session hold for its commits: no other work may run in it.
        self.spark = own_session(spark)
        # Columns may be added. A MERGE takes them over only with this.
        self.spark.conf.set("spark.databricks.delta.schema.autoMerge.enabled", "true")
        self.warehouse = warehouse.removeprefix("file://").rstrip("/")

    def path(self, table: Table) -> str:
        return f"{self.warehouse}/{table.layer}/{table.name}"

    def exists(self, table: Table) -> bool:
        return self.version(table) >= 0

    def version(self, table: Table) -> int:
        if (log := self._local_log(table)) is not None:
            return max((int(each.stem) for each in log.glob("*.json") if each.stem.isdecimal()), default=-1)
        from delta.tables import DeltaTable

        if not DeltaTable.isDeltaTable(self.spark, self.path(table)):
            return -1
        newest = DeltaTable.forPath(self.spark, self.path(table)).history(1).select("version").first()
        return -1 if newest is None else int(newest[0])

    def progress(self, table: Table) -> Progress:
        newest = self.version(table)
        if newest < 0:
            return NOTHING
        for text in self._stamps(table, newest):
            found = decode_progress(text)
            if found is not None:
                return found
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
            from delta.tables import DeltaTable

            history = DeltaTable.forPath(self.spark, self.path(table)).history(_LOOK_BACK)
            yield from (row[0] for row in history.select("userMetadata").toLocalIterator())
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
        with self._committing(table, progress):
            self._write(table, rows, progress, mode="append")

    def merge(self, table: Table, rows: DataFrame, progress: Progress, *, only: str | None = None) -> None:
        if not self.exists(table):
            self.append(table, rows, progress)
            return
        from delta.tables import DeltaTable

        same = " AND ".join(f"t.`{key}` <=> s.`{key}`" for key in table.keys)
        condition = same if only is None else f"{same} AND ({only})"
        with self._committing(table, progress):
            self.spark.conf.set(_METADATA, encode_progress(progress))
            self.spark.conf.set(_APP, _app(table))
            self.spark.conf.set(_NUMBER, str(commit_number(progress)))
            try:
                (
                    DeltaTable.forPath(self.spark, self.path(table))
                    .alias("t")
                    .merge(rows.alias("s"), condition)
                    .whenMatchedUpdateAll()
                    .whenNotMatchedInsertAll()
                    .execute()
                )
            finally:
                for name in (_METADATA, _APP, _NUMBER):
                    self.spark.conf.unset(name)

    def replace(self, table: Table, rows: DataFrame, progress: Progress, *, where: str) -> None:
        if not self.exists(table):
            self.append(table, rows, progress)
            return
        with self._committing(table, progress):
            self._write(table, rows, progress, mode="overwrite", where=where)

    def _write(self, table: Table, rows: DataFrame, progress: Progress, *, mode: str, where: str | None = None) -> None:
        writer = (
            rows.write.format("delta")
            .mode(mode)
            .option("mergeSchema", "true")
            .option("userMetadata", encode_progress(progress))
            .option("txnAppId", _app(table))
            .option("txnVersion", commit_number(progress))
        )
        if where is not None:
            writer = writer.option("replaceWhere", where)
        if table.partition:
            writer = writer.partitionBy(*table.partition)
        writer.save(self.path(table))

    @contextmanager
    def _committing(self, table: Table, progress: Progress) -> Iterator[None]:
        """A commit that is skipped says nothing, so the table is asked afterwards."""
        try:
            yield
        except Exception as error:
            # Which class it is depends on how Spark is reached; its name is in the text on every way.
            if "ConcurrentTransactionException" in str(error) or "DELTA_CONCURRENT" in str(error):
                raise overtaken(table) from error
            raise
        if self.progress(table) == progress:
            return
        # A change without any rows makes no commit by itself.
        self._write(table, self.read(table).limit(0), progress, mode="append")
        if self.progress(table) != progress:
            raise overtaken(table)

    # -- upkeep --------------------------------------------------------------------------------

    def optimize(self, tables: Sequence[Table]) -> None:
        from delta.tables import DeltaTable

        for table in tables:
            if self.exists(table):
                DeltaTable.forPath(self.spark, self.path(table)).optimize().executeCompaction()

    def vacuum(self, tables: Sequence[Table], hours: float) -> None:
        from delta.tables import DeltaTable

        # Delta refuses less than a week unless told so; whoever names a number of hours has decided.
        self.spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        for table in tables:
            if self.exists(table):
                DeltaTable.forPath(self.spark, self.path(table)).vacuum(hours)

    def drop(self, table: Table) -> None:
        path = self.path(table)
        if "://" in path:
            # Deleting rows would keep the transaction numbers, and then a table that begins anew is never written.
            raise Unimplemented(f"tables that are not in a directory are not removed from here; remove {path} first")
        shutil.rmtree(path, ignore_errors=True)


def _app(table: Table) -> str:
    return f"omnirelay:lakehouse:{table.layer}.{table.name}"
