"""Tables in Apache Iceberg, below a warehouse that is a directory: LAYER/NAME, a catalogue of the kind `hadoop`.

A change is written to a branch of its own, and then the branch becomes the table:

    main  ──●───────────────●      the snapshot that `progress` was asked of, and the one that replaces it
             ╲             ╱
    branch    ●──(●)──────●        what the change took, one snapshot or several; the last carries the progress

Nobody sees the branch. Making it the table is one write of the metadata, which is refused when the table has left the
snapshot that the change began from. So of two pipelines with the same work one commits, a run that is repeated finds
in the table how far it came, and it does not matter where either is killed: what is left is a branch, and `vacuum`
removes it with its files.
"""

from __future__ import annotations

import fcntl
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from omnirelay.errors import InvalidArgument, Unimplemented
from omnirelay.lakehouse.formats import overtaken, own_session, place_of
from omnirelay.lakehouse.iceberg_metadata import STAMP, IcebergMetadata, quicker_others, stamp_of
from omnirelay.lakehouse.jars import iceberg_coordinates
from omnirelay.lakehouse.progress import NOTHING, Progress, encode_progress
from omnirelay.lakehouse.tables import Table

_CATALOG: Final = "omnirelay_iceberg"
_STAMPED: Final = f"spark.sql.iceberg.snapshot-property.{STAMP}"
_SCHEMES: Final = ("hdfs", "viewfs", "abfs", "abfss")
"""Where a rename happens at once or not at all, and never over a file that is there: what a commit rests on."""


class IcebergTables:
    def __init__(self, spark: SparkSession, warehouse: str) -> None:
        iceberg_coordinates()
        if not hasattr(spark, "_jsparkSession"):
            raise Unimplemented("tables in Iceberg are not written through Spark Connect; use delta there")
        self.warehouse = _place(warehouse)
        # Settings of a session hold for its commits: no other work may run in it, nor two commits at once.
        self.at_once = 1
        self.spark = own_session(spark)
        settings = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": self.warehouse,
            # Others commit to the tables as well.
            ".cache-enabled": "false",
        }
        for name, value in settings.items():
            self.spark.conf.set(f"spark.sql.catalog.{_CATALOG}{name}", value)
        self._metadata = IcebergMetadata(self.spark)
        self._bases: dict[Table, int | None] = {}
        """Snapshots that the progress was read of: what the next change of the table has to begin from."""

    def path(self, table: Table) -> str:
        return f"{self.warehouse}/{table.layer}/{table.name}"

    def exists(self, table: Table) -> bool:
        return self.version(table) >= 0

    def version(self, table: Table) -> int:
        newest = self._metadata.newest(self.path(table))
        return -1 if newest is None else int(newest.sequenceNumber())

    def progress(self, table: Table) -> Progress:
        newest = self._metadata.newest(self.path(table))
        self._bases[table] = None if newest is None else int(newest.snapshotId())
        return NOTHING if newest is None else self._metadata.said(self.path(table), newest)

    def read(self, table: Table) -> DataFrame:
        return self.spark.table(_name(table))

    # -- commits -------------------------------------------------------------------------------

    def append(self, table: Table, rows: DataFrame, progress: Progress) -> None:
        self._commit(table, rows, progress, lambda branch: self._add(table, branch, rows))

    def stay(self, table: Table, progress: Progress) -> None:
        self.append(table, self.spark.createDataFrame([], table.ddl), progress)

    def merge(self, table: Table, rows: DataFrame, progress: Progress, *, only: str | None = None) -> None:
        if not self.exists(table):
            self.append(table, rows, progress)
            return

        def change(branch: str) -> None:
            target = branch.rpartition(".")[2]
            same = " AND ".join(f"{target}.`{key}` <=> s.`{key}`" for key in table.keys)
            (
                # By the DataFrame, which gives the table no other name: SQL would need a view of the rows, and this
                # Spark plans a view over tables of a catalogue wrongly when there are subqueries in it.
                self._whole(table, rows)
                .alias("s")
                .mergeInto(branch, F.expr(same if only is None else f"{same} AND ({_renamed(only, target)})"))
                .whenMatched()
                # Columns that these rows do not have keep what they are.
                .update({name: F.col(f"s.`{name}`") for name in rows.columns})
                .whenNotMatched()
                .insertAll()
                .merge()
            )

        self._commit(table, rows, progress, change)

    def replace(self, table: Table, rows: DataFrame, progress: Progress, *, where: str) -> None:
        def change(branch: str) -> None:
            self.spark.sql(f"DELETE FROM {branch} WHERE {where}")
            self._add(table, branch, rows)

        self._commit(table, rows, progress, change)

    def _commit(self, table: Table, rows: DataFrame, progress: Progress, change: Callable[[str], None]) -> None:
        """Let `change` write to a branch, which then becomes the table."""
        path = self.path(table)
        branch = f"omnirelay_{secrets.token_hex(8)}"
        with self._alone(table), quicker_others(table):
            base = self._begun(table, rows)
            self._metadata.branch(path, branch, base)
            published = False
            try:
                self.spark.conf.set(_STAMPED, encode_progress(progress))
                change(f"{_name(table)}.branch_{branch}")
                if stamp_of(self._metadata.head(path, branch)) != progress:
                    # A change of no rows makes no snapshot by itself.
                    self._add(table, f"{_name(table)}.branch_{branch}", self.read(table).limit(0))
                published = self._metadata.publish(path, branch, base)
            finally:
                self.spark.conf.unset(_STAMPED)
                if not published:
                    self._metadata.unbranch(path, branch)
            if not published:
                raise overtaken(table)

    def _begun(self, table: Table, rows: DataFrame) -> int:
        """The snapshot that a change begins from; the table is made, and given new columns, where that is needed."""
        if table not in self._bases:
            self.progress(table)
        base = self._bases.pop(table)
        if base is None:
            self._create(table, rows)
        newest = self._metadata.newest(self.path(table))
        if newest is None or (stamp_of(newest) != NOTHING if base is None else newest.snapshotId() != base):
            raise overtaken(table)
        self._add_columns(table, rows)
        return int(newest.snapshotId())

    # -- shape ---------------------------------------------------------------------------------

    def _create(self, table: Table, rows: DataFrame) -> None:
        """A table without rows that says so. Left by a crash, it is as good as none."""
        by = f" PARTITIONED BY ({', '.join(f'`{name}`' for name in table.partition)})" if table.partition else ""
        self.spark.sql(
            f"CREATE TABLE IF NOT EXISTS {_name(table)} ({_ddl(rows, rows.columns)}) USING iceberg{by}"
            # Every change writes the metadata three times. What old files of it say stands in the newest too.
            " TBLPROPERTIES ('format-version'='2', 'write.metadata.delete-after-commit.enabled'='true')"
        )
        self._metadata.begin(self.path(table))

    def _add_columns(self, table: Table, rows: DataFrame) -> None:
        known = set(self.read(table).columns)
        new = [name for name in rows.columns if name not in known]
        if new:
            self.spark.sql(f"ALTER TABLE {_name(table)} ADD COLUMNS ({_ddl(rows, new)})")

    def _whole(self, table: Table, rows: DataFrame) -> DataFrame:
        """Rows with every column of the table, in its order."""
        known = set(rows.columns)
        return rows.select(
            *(
                F.col(f"`{field.name}`") if field.name in known else F.lit(None).cast(field.dataType).alias(field.name)
                for field in self.read(table).schema.fields
            )
        )

    def _add(self, table: Table, branch: str, rows: DataFrame) -> None:
        self._whole(table, rows).writeTo(branch).append()

    # -- upkeep --------------------------------------------------------------------------------

    def optimize(self, tables: Sequence[Table]) -> None:
        for table in tables:
            if self.exists(table):
                with self._alone(table), quicker_others(table):
                    for procedure in ("rewrite_data_files", "rewrite_manifests"):
                        self.spark.sql(f"CALL {_CATALOG}.system.{procedure}(table => '{table.layer}.{table.name}')")

    def vacuum(self, tables: Sequence[Table], hours: float) -> None:
        before_ms = int((time.time() - hours * 3600) * 1000)
        for table in tables:
            newest = self._metadata.newest(self.path(table))
            if newest is None:
                continue
            if stamp_of(newest) is None:
                # Upkeep was the last to commit. What says how far the table has come must not be what is removed.
                self.append(table, self.read(table).limit(0), self.progress(table))
            with self._alone(table), quicker_others(table):
                self._metadata.remove_old(self.path(table), before_ms)

    def drop(self, table: Table) -> None:
        self._bases.pop(table, None)
        with self._alone(table):
            self._metadata.delete(self.path(table))

    @contextmanager
    def _alone(self, table: Table) -> Iterator[None]:
        """One writer at a time in a directory: there a rename puts one file in place of another, and loses a commit."""
        if "://" in self.warehouse:
            yield
            return
        lock = Path(self.warehouse) / table.layer / f".{table.name}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise overtaken(table) from None
            yield


def _place(warehouse: str) -> str:
    """Where the tables are."""
    place = place_of(warehouse)
    if "://" in place and place.partition("://")[0] not in _SCHEMES:
        raise InvalidArgument(
            f"the format iceberg needs a directory or HDFS as its warehouse, got {warehouse!r}; use delta there",
            field="warehouse",
        )
    return place


def _name(table: Table) -> str:
    return f"{_CATALOG}.{table.layer}.{table.name}"


def _renamed(condition: str, target: str) -> str:
    """A condition in which the table is called `t`, with another name for it. What stands in quotes stays."""
    return re.sub(r"'(?:[^'\\]|\\.)*'|\bt\.", lambda found: found[0] if found[0][0] == "'" else f"{target}.", condition)


def _ddl(rows: DataFrame, names: Sequence[str]) -> str:
    return ", ".join(f"`{name}` {rows.schema[name].dataType.simpleString()}" for name in names)
