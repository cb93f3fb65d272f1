"""A copy of a log that is in use: a directory that opens like any other, but is known to be a copy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import apsw

from omnirelay.errors import InvalidArgument, LogUnavailable
from omnirelay.log.failpoints import hit
from omnirelay.log.files import make_directories, sync_directory, sync_file
from omnirelay.log.sqlite.connection import connect, connect_reader, transaction, translated
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.reader import read_view
from omnirelay.log.sqlite.rows import read_snapshots
from omnirelay.log.sqlite.statements import statement

RESTORED_BACKUP: Final = "restored backup"

_MARK_UNPROVEN: Final = statement("mark_unproven")
_DELETE_SNAPSHOT: Final = statement("delete_snapshot")


def write_backup(paths: LogPaths, shard: str, destination: Path, vfs: str | None) -> None:
    """Copy database and snapshots to the new directory `destination`, all synced before it has that name.

    The copy has no witness and its head is marked. Raises InvalidArgument when the destination exists.
    """
    if destination.exists():
        raise InvalidArgument(f"{destination} exists already", field="destination", file=str(destination))
    make_directories(destination.parent)
    partial = destination.with_name(destination.name + ".partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir()
    copy = LogPaths(partial, partial / "leases.witness")
    with translated(paths.database, shard):
        source = connect_reader(paths.database, vfs=vfs)
        try:
            source.execute("VACUUM INTO ?", (str(copy.database),))
        finally:
            source.close()
    hit("log.backup.copied")
    with translated(copy.database, shard):
        connection = connect(copy.database)
        try:
            with transaction(connection):
                _copy_snapshots(connection, paths, copy, shard)
                connection.execute(_MARK_UNPROVEN, (RESTORED_BACKUP, 0))
        finally:
            connection.close()
    sync_file(copy.database)
    sync_directory(partial)
    os.rename(partial, destination)
    sync_directory(destination.parent)


def _copy_snapshots(connection: apsw.Connection, paths: LogPaths, copy: LogPaths, shard: str) -> None:
    """Copy the files of the recorded snapshots; one that was pruned meanwhile is struck from the copy's records."""
    copied = 0
    for record in read_snapshots(connection):
        target = copy.directory / record.path
        make_directories(target.parent)
        try:
            shutil.copytree(paths.directory / record.path, target)
        except (FileNotFoundError, shutil.Error):
            shutil.rmtree(target, ignore_errors=True)
            connection.execute(_DELETE_SNAPSHOT, (record.sequence,))
            continue
        for file in target.iterdir():
            sync_file(file)
        sync_directory(target)
        sync_directory(target.parent)
        copied += 1
    anchor = read_view(connection, copy.database, shard).anchor
    if anchor.sequence > 0 and copied == 0:
        raise LogUnavailable(
            f"every snapshot of {shard!r} was pruned during the backup, and its log does not reach back"
            " to the start; try again",
            shard=shard,
            retry_after_ms=1_000,
        )
