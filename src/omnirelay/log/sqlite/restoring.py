"""A log built anew out of the frames of another place. Nothing here has the log's final name: that is the caller's.

The copy keeps log id and chain, so that what was proved about the frames stays proved. Its head is marked unproven:
nobody can tell whether the place it comes from had the end of the history, so the next leader starts a generation.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw
import msgspec

from omnirelay.errors import LogDamaged
from omnirelay.log.base import Anchor, Frame, SnapshotRecord
from omnirelay.log.chain import Link, follow
from omnirelay.log.files import make_directories, sync_directory, sync_file
from omnirelay.log.snapshots import read_recorded, write_snapshot
from omnirelay.log.sqlite.backup import RESTORED_BACKUP
from omnirelay.log.sqlite.bringing_in import bring_in_if_left
from omnirelay.log.sqlite.building import Contents, build
from omnirelay.log.sqlite.checks import check_identity, highest_known
from omnirelay.log.sqlite.connection import check_version, connect, connect_reader, transaction, translated
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.reader import read_view
from omnirelay.log.sqlite.rows import HeadRow, read_meta, read_size, read_snapshots
from omnirelay.log.sqlite.statements import statement

_MARK_UNPROVEN: Final = statement("mark_unproven")


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a log but its frames: where it begins, where it has to end, what stands on it."""

    shard: str
    log_id: str
    created_ms: int
    anchor: Anchor
    end: Link
    epoch: int
    time_ms: int
    """Of the last frame."""
    highest_known: int
    """No sequence or fence that this history tells of is higher."""
    events: int
    reason: str
    """Why what comes next is a new generation."""
    snapshots: tuple[SnapshotRecord, ...] = ()
    directory: Path | None = None
    """Where the files of the snapshots are."""


@contextmanager
def _examined(paths: LogPaths, shard: str) -> Iterator[tuple[apsw.Connection, str]]:
    """The log as it is at one moment, and its id. Raises LogDamaged, LogSchemaTooNew, LogUnavailable."""
    bring_in_if_left(paths, shard, None)
    with translated(paths.database, shard):
        connection = connect_reader(paths.database)
        try:
            with transaction(connection, "DEFERRED"):
                check_version(connection, paths.database)
                yield connection, check_identity(connection, paths, shard)
        finally:
            connection.close()


def read_history(data: Path, namespace: str) -> History:
    """What a log in `data/namespace` says of itself. Raises LogDamaged, LogSchemaTooNew, LogUnavailable."""
    paths = LogPaths.of(data, namespace)
    with _examined(paths, namespace) as (connection, log_id):
        view = read_view(connection, paths.database, namespace)
        created = read_meta(connection).get("created_ms", "")
        return History(
            shard=namespace,
            log_id=log_id,
            created_ms=int(created) if created.isdecimal() else view.head.time_ms,
            anchor=view.anchor,
            end=Link.at_head(view.head.head),
            epoch=view.head.epoch,
            time_ms=view.head.time_ms,
            highest_known=highest_known(view, None),
            events=read_size(connection, 0, None).events,
            reason=RESTORED_BACKUP,
            snapshots=tuple(read_snapshots(connection)),
            directory=paths.directory,
        )


def read_head(data: Path, shard: str) -> tuple[str, HeadRow]:
    """The id of the log in `data/shard`, and its head row. Raises as `read_history` does."""
    paths = LogPaths.of(data, shard)
    with _examined(paths, shard) as (connection, log_id):
        return log_id, read_view(connection, paths.database, shard).head


def without_damaged_snapshots(history: History) -> History:
    """The same without the snapshots whose files are not what was recorded. Blocks: it reads them all.

    Nobody misses them as long as the frames, or another one, say what the state was. Raises LogDamaged otherwise.
    """
    kept: list[SnapshotRecord] = []
    damage: LogDamaged | None = None
    for record in history.snapshots:
        assert history.directory is not None
        try:
            deque(read_recorded(history.directory, record)[1], maxlen=0)
        except LogDamaged as error:
            damage = damage or error
        else:
            kept.append(record)
    if damage is not None and not kept and history.anchor.sequence > 0:
        raise damage
    return msgspec.structs.replace(history, snapshots=tuple(kept))


def build_log(data: Path, history: History, frames: Iterable[Frame]) -> None:
    """Write the log to `data/SHARD`, synced. Every frame is checked; blocking and long: call it in a thread.

    Raises LogDamaged naming the first frame that does not fit, or when the frames end elsewhere than they should.
    """
    paths = LogPaths.of(data, history.shard)
    make_directories(paths.directory)
    for record in history.snapshots:
        assert history.directory is not None
        write_snapshot(paths.directory, record.sequence, *read_recorded(history.directory, record))
    end = history.end
    head = HeadRow(
        history.epoch, end.generation, end.sequence, end.chain, history.time_ms, history.reason, history.highest_known
    )
    contents = Contents(
        history.shard, history.log_id, history.created_ms, head, history.anchor, list(history.snapshots)
    )
    build(paths, contents, _checked(history, frames), None)
    os.rename(paths.new, paths.database)
    sync_directory(paths.directory)


def _checked(history: History, frames: Iterable[Frame]) -> Iterator[Frame]:
    link = Link.at_anchor(history.anchor)
    for frame in frames:
        link = follow(link, frame, shard=history.shard, log_id=history.log_id)
        yield frame
    if link != history.end:
        raise LogDamaged(
            f"the frames of {history.shard!r} end with event {link.sequence}, they should end with"
            f" {history.end.sequence}: events are missing",
            shard=history.shard,
            sequence=link.sequence + 1,
            expected=history.end.sequence,
        )


def raise_highest_known(data: Path, shard: str, reason: str, highest: int) -> None:
    """Have the next generation begin above `highest`, too."""
    paths = LogPaths.of(data, shard)
    with translated(paths.database, shard):
        connection = connect(paths.database)
        try:
            with transaction(connection):
                connection.execute(_MARK_UNPROVEN, (reason, highest))
        finally:
            connection.close()
    sync_file(paths.database)
    sync_directory(paths.directory)
