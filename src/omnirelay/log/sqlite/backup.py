"""A copy of a log that is in use: a directory that opens like any other, but is known to be a copy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import apsw

from omnirelay.errors import InvalidArgument, LogDamaged, LogUnavailable, OmniRelayError
from omnirelay.log.failpoints import hit
from omnirelay.log.files import make_directories, sync_directory, sync_file
from omnirelay.log.snapshots import read_recorded, write_snapshot
from omnirelay.log.sqlite.connection import connect, connect_reader, say_redo, transaction, translate
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.reader import read_view
from omnirelay.log.sqlite.rows import read_snapshots
from omnirelay.log.sqlite.statements import statement

RESTORED_BACKUP: Final = "restored backup"

_MARK_UNPROVEN: Final = statement("mark_unproven")
_DELETE_SNAPSHOT: Final = statement("delete_snapshot")


def write_backup(paths: LogPaths, shard: str, destination: Path, vfs: str | None) -> None:
    """Copy database and snapshots to the new directory `destination`, all synced before it has that name.

    The copy has no witness and its head is marked. Raises InvalidArgument when the destination exists, LogUnavailable
    when it cannot be written; nothing stays of a copy that failed.
    """
    if destination.exists():
        raise InvalidArgument(f"{destination} exists already", field="destination", file=str(destination))
    partial = destination.with_name(destination.name + ".partial")
    try:
        make_directories(destination.parent)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        _fill(partial, paths, shard, vfs)
        os.rename(partial, destination)
        sync_directory(destination.parent)
    except (OSError, apsw.Error) as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, apsw.Error) and isinstance(damage := translate(error, paths.database, shard), LogDamaged):
            raise damage from error
        raise LogUnavailable(
            f"the backup to {destination} failed: {error}; the log itself is not concerned",
            shard=shard,
            file=str(destination),
        ) from error
    except OmniRelayError:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _fill(directory: Path, paths: LogPaths, shard: str, vfs: str | None) -> None:
    copy = LogPaths(directory, directory / "leases.witness")
    source = connect_reader(paths.database, vfs=vfs)
    try:
        # One read transaction: the copy is the log of one instant, however long it takes.
        source.execute("VACUUM INTO ?", (str(copy.database),))
    finally:
        source.close()
    hit("log.backup.copied")
    connection = connect(copy.database)
    try:
        with transaction(connection):
            _copy_snapshots(connection, paths, copy, shard)
            connection.execute(_MARK_UNPROVEN, (RESTORED_BACKUP, 0))
            say_redo(connection, there=False)
    finally:
        connection.close()
    sync_file(copy.database)
    sync_directory(directory)


def _copy_snapshots(connection: apsw.Connection, paths: LogPaths, copy: LogPaths, shard: str) -> None:
    """Copy the files of the recorded snapshots; one that was pruned meanwhile is struck from the copy's records."""
    copied = 0
    for record in read_snapshots(connection):
        try:
            write_snapshot(copy.directory, record.sequence, *read_recorded(paths.directory, record))
            copied += 1
        except LogDamaged:
            connection.execute(_DELETE_SNAPSHOT, (record.sequence,))
    anchor = read_view(connection, copy.database, shard).anchor
    if anchor.sequence > 0 and copied == 0:
        raise LogUnavailable(
            f"no snapshot of {shard!r} could be copied (pruned meanwhile, or damaged), and the log does not reach back"
            " to the start without one; try again",
            shard=shard,
            retry_after_ms=1_000,
        )
