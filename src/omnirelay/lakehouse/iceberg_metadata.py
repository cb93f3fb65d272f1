"""What is done to the metadata of an Iceberg table, through its Java: snapshots, branches, and what is removed.

Each of these is one write of the metadata, which the catalogue takes only when nobody wrote any since it was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

from pyspark.sql import SparkSession

from omnirelay.errors import DataLoss
from omnirelay.lakehouse.formats import overtaken
from omnirelay.lakehouse.progress import NOTHING, Progress, decode_progress, encode_progress
from omnirelay.lakehouse.tables import Table

STAMP: Final = "omnirelay-progress"
"""In the summary of a snapshot: how far the table has come with it."""
_LOOK_BACK: Final = 1_000
"""Snapshots that are looked through for the last of ours; between two of ours there is only upkeep."""
_BRANCH_LIFE_MS: Final = 24 * 3600 * 1000
"""A branch that is older was left by a crash. No change takes that long."""
_LOST: Final = ("Cannot fast-forward", "CommitFailedException", "stale table metadata")
"""What Iceberg says when somebody else was quicker."""


class IcebergMetadata:
    """The metadata of tables, by their paths. Nothing is kept: every call reads what is there."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = cast(Any, spark._jvm)
        self._session: Any = spark._jsparkSession
        self._hadoop: Any = self._session.sessionState().newHadoopConf()
        self._tables: Any = self._jvm.org.apache.iceberg.hadoop.HadoopTables(self._hadoop)

    def newest(self, path: str) -> Any | None:
        """The snapshot that is the table; None when there is no table, or nothing was ever committed to it."""
        return self._tables.load(path).currentSnapshot() if self._tables.exists(path) else None

    def head(self, path: str, branch: str) -> Any:
        return self._tables.load(path).snapshot(branch)

    def said(self, path: str, snapshot: Any) -> Progress:
        """The progress of a snapshot, or of the last before it that has one: upkeep says nothing of it."""
        table = self._tables.load(path)
        for _ in range(_LOOK_BACK):
            found = stamp_of(snapshot)
            if found is not None:
                return found
            before = snapshot.parentId()
            snapshot = None if before is None else table.snapshot(before)
            if snapshot is None:
                break
        raise DataLoss(
            f"none of the last snapshots of {path} says how far the table has come; run `omnirelay lakehouse rebuild`",
            code="error.lakehouse.progress",
            table=path,
        )

    def begin(self, path: str) -> None:
        """Commit to a new table that it holds nothing."""
        table = self._tables.load(path)
        if table.currentSnapshot() is None:
            table.newFastAppend().set(STAMP, encode_progress(NOTHING)).commit()

    def branch(self, path: str, name: str, base: int) -> None:
        made = self._tables.load(path).manageSnapshots().createBranch(name, base)
        made.setMaxRefAgeMs(name, _BRANCH_LIFE_MS).commit()

    def unbranch(self, path: str, name: str) -> None:
        self._tables.load(path).manageSnapshots().removeBranch(name).commit()

    def publish(self, path: str, branch: str, base: int) -> bool:
        """Make a branch the table, at once; False when the table has left the snapshot that the branch began from."""
        table = self._tables.load(path)
        if table.currentSnapshot().snapshotId() != base:
            return False
        # Made of the metadata that was just looked at, and refused when there is newer: nobody comes between.
        table.manageSnapshots().fastForwardBranch("main", branch).removeBranch(branch).commit()
        return True

    def remove_old(self, path: str, before_ms: int) -> None:
        """Forget snapshots but the newest, and branches that a crash left; remove files that are nobody's then."""
        actions = self._jvm.org.apache.iceberg.spark.actions.SparkActions.get(self._session)
        actions.expireSnapshots(self._tables.load(path)).expireOlderThan(before_ms).retainLast(1).execute()
        # The procedure of the same name refuses less than a day; whoever names a number of hours has decided.
        actions.deleteOrphanFiles(self._tables.load(path)).olderThan(before_ms).execute()

    def delete(self, path: str) -> None:
        """Remove a table, also one whose metadata cannot be read, for which the catalogue would refuse it."""
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        place.getFileSystem(self._hadoop).delete(place, True)


def stamp_of(snapshot: Any) -> Progress | None:
    return decode_progress(snapshot.summary().get(STAMP))


@contextmanager
def quicker_others(table: Table) -> Iterator[None]:
    """What Iceberg raises when somebody else was quicker, as TableOvertaken."""
    try:
        yield
    except Exception as error:
        # Which class it is depends on whether Spark stands between; the name is in the text on every way.
        if any(each in str(error) for each in _LOST):
            raise overtaken(table) from error
        raise
