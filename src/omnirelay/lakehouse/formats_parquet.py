"""Tables as plain Parquet files in a directory, for those who have no Delta.

    LAYER/NAME/_commits/00000000000000000007.json    the newest counts: its progress, and the folders that are the table
    LAYER/NAME/part-7-5be1…/                         rows of one commit; columns of the partition stand in the path

A commit is a file that only one can create. Bronze adds a folder with every commit, the others only for shards that
are new: they are small and otherwise written anew whole. Folders that the newest commit does not list are what a crash
left, or older states; `vacuum` removes them when no commit that was the newest a while ago lists them either.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from omnirelay.errors import DataLoss, InvalidArgument
from omnirelay.lakehouse.formats import AT_ONCE, overtaken, own_session, place_of
from omnirelay.lakehouse.progress import NOTHING, Progress, decode_progress, encode_progress
from omnirelay.lakehouse.segment_files import as_it_is
from omnirelay.lakehouse.tables import Table
from omnirelay.log.files import make_directories, sync_directory, write_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Commit(msgspec.Struct, frozen=True):
    """One state of a table."""

    progress: str
    folders: tuple[str, ...]


_decode = msgspec.json.Decoder(Commit).decode

_ABANDONED_HOURS: Final = 24.0
"""Nobody writes on one commit for longer."""


class ParquetTables:
    def __init__(self, spark: SparkSession, warehouse: str) -> None:
        place = place_of(warehouse)
        if "://" in place:
            raise InvalidArgument(
                f"the format parquet needs a directory as its warehouse, got {warehouse!r}; use delta there",
                field="warehouse",
            )
        self.spark = own_session(spark)
        # A shard may be called 007.
        self.spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        self.at_once = AT_ONCE
        self.warehouse = place
        self._bases: dict[Table, int] = {}
        """Commits that the progress was read of: what the next change of a table begins from."""

    def path(self, table: Table) -> str:
        return f"{self.warehouse}/{table.layer}/{table.name}"

    def exists(self, table: Table) -> bool:
        return self.version(table) >= 0

    def version(self, table: Table) -> int:
        return max(self._versions(table), default=-1)

    def _versions(self, table: Table) -> list[int]:
        folder = Path(self.path(table)) / "_commits"
        return [int(each.stem) for each in folder.glob("*.json") if each.stem.isdecimal()]

    def progress(self, table: Table) -> Progress:
        version = self._bases[table] = self.version(table)
        newest = self._at(table, version)
        return NOTHING if newest is None else decode_progress(newest.progress) or NOTHING

    def _newest(self, table: Table) -> Commit | None:
        return self._at(table, self.version(table))

    def _at(self, table: Table, version: int) -> Commit | None:
        if version < 0:
            return None
        path = self._commit_path(table, version)
        try:
            return _decode(path.read_bytes())
        except msgspec.DecodeError as error:
            raise DataLoss(
                f"the commit {path} cannot be read: {error}; run `omnirelay lakehouse rebuild`",
                code="error.lakehouse.progress",
                table=table.name,
            ) from None

    def _commit_path(self, table: Table, version: int) -> Path:
        return Path(self.path(table)) / "_commits" / f"{version:020d}.json"

    def read(self, table: Table) -> DataFrame:
        newest = self._newest(table)
        if newest is None or not newest.folders:
            return self.spark.createDataFrame([], table.ddl)
        return self._rows(table, newest.folders)

    def _rows(self, table: Table, folders: Sequence[str]) -> DataFrame:
        whole: DataFrame | None = None
        for folder in folders:
            # Each by itself: Spark finds the columns of a partition below one common folder only.
            reader = self.spark.read.option("basePath", f"{self.path(table)}/{folder}")
            if table.columns:
                reader = reader.schema(table.ddl)
            rows = reader.parquet(as_it_is(f"{self.path(table)}/{folder}"))
            if "date" in table.partition:
                rows = rows.withColumn("date", rows["date"].cast("date"))
            whole = rows if whole is None else whole.unionByName(rows, allowMissingColumns=True)
        assert whole is not None, "a commit lists at least one folder here"
        return whole

    # -- commits -------------------------------------------------------------------------------

    def append(self, table: Table, rows: DataFrame, progress: Progress) -> None:
        self._commit(table, rows, progress, keep=True)

    def stay(self, table: Table, progress: Progress) -> None:
        version, newest = self._begun(table)
        if newest is None:
            # One has to be able to tell that there is a table, and what its columns are.
            self._bases[table] = version
            self._commit(table, self.spark.createDataFrame([], table.ddl), progress, keep=True)
        else:
            self._publish(table, version + 1, Commit(encode_progress(progress), newest.folders))

    def merge(self, table: Table, rows: DataFrame, progress: Progress, *, only: str | None = None) -> None:
        if self.exists(table):
            kept = self.read(table).join(rows.select(*table.keys), on=list(table.keys), how="left_anti")
            rows = rows.unionByName(kept, allowMissingColumns=True)
        self._commit(table, rows, progress, keep=False)

    def replace(self, table: Table, rows: DataFrame, progress: Progress, *, where: str) -> None:
        if self.exists(table):
            kept = self.read(table).where(f"NOT coalesce(({where}), false)")
            rows = rows.unionByName(kept, allowMissingColumns=True)
        self._commit(table, rows, progress, keep=False)

    def _commit(self, table: Table, rows: DataFrame, progress: Progress, *, keep: bool) -> None:
        version, newest = self._begun(table)
        before = newest.folders if newest is not None and keep else ()
        folder = f"part-{version + 1}-{secrets.token_hex(8)}"
        writer = rows.write.mode("errorifexists").option("compression", "zstd")
        if table.partition:
            writer = writer.partitionBy(*table.partition)
        writer.parquet(f"{self.path(table)}/{folder}")
        self._publish(table, version + 1, Commit(encode_progress(progress), (*before, folder)))

    def _begun(self, table: Table) -> tuple[int, Commit | None]:
        """The commit that a change begins from."""
        version = self._bases.pop(table) if table in self._bases else self.version(table)
        return version, self._at(table, version)

    def _publish(self, table: Table, version: int, commit: Commit) -> None:
        if not _create(self._commit_path(table, version), msgspec.json.encode(commit)):
            raise overtaken(table)

    # -- upkeep --------------------------------------------------------------------------------

    def optimize(self, tables: Sequence[Table]) -> None:
        for table in tables:
            # First where it is, then the rows of just that: what comes in meanwhile makes the commit fail.
            progress = self.progress(table)
            newest = self._at(table, self._bases.get(table, -1))
            if newest is not None and len(newest.folders) > 1:
                rows = self._rows(table, newest.folders)
                if table.partition:
                    rows = rows.repartition(*table.partition)
                self._commit(table, rows, progress, keep=False)

    def vacuum(self, tables: Sequence[Table], hours: float) -> None:
        now = time.time()
        for table in tables:
            versions = sorted(self._versions(table))
            if not versions:
                continue
            needed = self._needed(table, versions, now - hours * 3600)
            for found in Path(self.path(table)).glob("part-*"):
                # One for a version that is yet to come is being written, unless whoever wrote it is long gone.
                coming = int(found.name.split("-")[1]) > versions[-1]
                kept_hours = max(hours, _ABANDONED_HOURS) if coming else hours
                if found.name not in needed and now - found.stat().st_mtime > kept_hours * 3600:
                    shutil.rmtree(found)

    def _needed(self, table: Table, versions: Sequence[int], since: float) -> set[str]:
        """The folders of every commit that was the newest at some time since then."""
        # A commit was the table until the next one came, however long ago its rows were written.
        until = {version: self._commit_path(table, after).stat().st_mtime for version, after in pairwise(versions)}
        kept = [version for version in versions if version not in until or until[version] > since]
        commits = [self._at(table, version) for version in kept]
        return {folder for commit in commits if commit is not None for folder in commit.folders}

    def drop(self, table: Table) -> None:
        self._bases.pop(table, None)
        shutil.rmtree(self.path(table), ignore_errors=True)


def _create(path: Path, data: bytes) -> bool:
    """Create a file at once and whole, durable; False when there is one of that name."""
    make_directories(path.parent)
    staging = path.with_name(f".staging-{secrets.token_hex(8)}")
    write_file(staging, (data,))
    try:
        os.link(staging, path)
    except FileExistsError:
        return False
    finally:
        staging.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True
