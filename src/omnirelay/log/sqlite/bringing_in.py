"""What a crash left in the redo file goes into the database, before anybody reads the log or writes to it.

Frames that go on from the end of the database are durable and may have been acknowledged. A last record that does not
check out was cut short by the crash, and nobody was told of it. One in the middle, with others behind it, was durable
once and is damaged: that is refused with its place named.

Afterwards the redo file is gone, and the database says so: while there is one, its `user_version` is that of a log
with a redo file. A version of omnirelay that knows of none refuses such a log in place of losing its end, and this one
refuses it when the file is missing. Behind a failed flush of the database it stays until that was copied: what the
database seems to have may never have reached the disk.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from omnirelay.errors import LogDamaged, LogLocked, LogOutcomeUnknown, LogUnavailable
from omnirelay.log.base import Frame, Position
from omnirelay.log.chain import Link
from omnirelay.log.files import WriterLock, remove_file, sync_directory
from omnirelay.log.sqlite.building import frame_row, mark_suspect
from omnirelay.log.sqlite.checks import check_identity
from omnirelay.log.sqlite.connection import (
    check_version,
    connect_reader,
    connect_to_examine,
    has_redo,
    say_redo,
    transaction,
    translated,
)
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.reader import View, read_view
from omnirelay.log.sqlite.redo_records import Record, frames_behind, is_of_another_log, read_records
from omnirelay.log.sqlite.statements import statement

_INSERT_FRAME: Final = statement("insert_frame")
_ADVANCE_HEAD: Final = statement("advance_head")
_MARK_UNPROVEN: Final = statement("mark_unproven")


def bring_in(paths: LogPaths, shard: str, vfs: str | None, *, accept_loss: bool = False, keep: bool = False) -> None:
    """Empty the redo file into the database and remove it. The caller has the directory's lock.

    Raises LogDamaged, altering nothing, and whatever reading the database raises. With `accept_loss` the valid
    frames are kept, the rest is put aside, and the history is unproven; a database that is damaged itself is left as
    it is, for whoever recovers it. With `keep` the file stays as it is, to be brought in once more.
    """
    if not paths.database.exists():
        return
    try:
        with translated(paths.database, shard):
            keep = keep or paths.suspect.exists()
            lost = _bring_in(paths, shard, vfs, accept_loss, keep)
    except LogOutcomeUnknown as error:
        mark_suspect(paths, error.message)
        raise
    except LogDamaged:
        if accept_loss:
            return
        raise
    if keep:
        return
    if lost:
        paths.redo.rename(paths.free_redo_aside())
        sync_directory(paths.directory)
    else:
        remove_file(paths.redo)


def bring_in_if_left(paths: LogPaths, shard: str, vfs: str | None) -> None:
    """The same for whoever only reads, unless a writer lives: then what is in its file is its own to bring in.

    Raises LogUnavailable where the directory cannot be written and the database lacks something.
    """
    with _alone_with(paths.redo) as found:
        if not found:
            _check_not_missing(paths, shard, vfs)
            return
        try:
            lock = WriterLock(paths.lock)
        except LogLocked:
            return
        except OSError as error:
            _refuse_if_behind(paths, shard, vfs, error)
            return
        try:
            bring_in(paths, shard, vfs)
        finally:
            lock.release()


def wait_for_readers(paths: LogPaths) -> None:
    """Wait for readers that are bringing something in; they have the directory's lock for so long."""
    with _alone_with(paths.redo):
        pass


@contextmanager
def _alone_with(path: Path) -> Iterator[bool]:
    """Wait for whoever else is here; whether the file is there then."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield path.exists()
    finally:
        os.close(descriptor)


def _check_not_missing(paths: LogPaths, shard: str, vfs: str | None) -> None:
    with translated(paths.database, shard):
        connection = connect_reader(paths.database, vfs=vfs)
        try:
            # In this order, and again: its writer may be making the file just now, or removing it.
            if has_redo(connection) and not paths.redo.exists() and has_redo(connection):
                with transaction(connection, "DEFERRED"):
                    view = read_view(connection, paths.database, shard)
                raise _missing(paths, shard, view.head.last)
        finally:
            connection.close()


def _refuse_if_behind(paths: LogPaths, shard: str, vfs: str | None, error: OSError) -> None:
    with translated(paths.database, shard):
        connection = connect_reader(paths.database, vfs=vfs)
        try:
            with transaction(connection, "DEFERRED"):
                view = read_view(connection, paths.database, shard)
                frames, _ = _left(paths, shard, check_identity(connection, paths, shard), view)
        finally:
            connection.close()
    if frames:
        raise LogUnavailable(
            f"events {frames[0].first} to {frames[-1].last} of {shard!r} are in {paths.redo} only, and cannot be"
            f" brought into the database: {error}; open the log where it can be written",
            shard=shard,
            file=str(paths.redo),
        ) from error


def _bring_in(paths: LogPaths, shard: str, vfs: str | None, accept_loss: bool, keep: bool) -> bool:
    """Whether there is a file with something in it that is lost."""
    connection = connect_to_examine(paths.database, vfs=vfs)
    try:
        check_version(connection, paths.database)
        expected = has_redo(connection)
        if not expected and not paths.redo.exists():
            return False
        log_id = check_identity(connection, paths, shard)
        loss: LogDamaged | None = None
        highest = 0
        connection.execute("PRAGMA synchronous = FULL")
        with transaction(connection):
            view = read_view(connection, paths.database, shard)
            frames: Sequence[Frame] = ()
            if paths.redo.exists():
                frames, lost = _left(paths, shard, log_id, view)
                if lost:
                    loss = _damaged(paths, shard, view, frames, lost)
                    highest = max(record.frame.last for record in lost)
            elif expected:
                loss = _missing(paths, shard, view.head.last)
            if loss is not None and not accept_loss:
                raise loss
            _insert(connection, view, frames)
            if loss is not None:
                connection.execute(_MARK_UNPROVEN, (f"accepted loss: {loss.message}", highest))
            if not keep:
                say_redo(connection, there=False)
        return loss is not None and paths.redo.exists()
    finally:
        connection.close()


def _left(paths: LogPaths, shard: str, log_id: str, view: View) -> tuple[list[Frame], list[Record]]:
    """What the database lacks, and records behind it that only a loss explains."""
    content = paths.redo.read_bytes()
    if is_of_another_log(content, log_id):
        raise LogDamaged(
            f"{paths.redo} is that of another log; put the right one back, or accept the loss (omnirelay log recover)",
            shard=shard,
            file=str(paths.redo),
        )
    records = read_records(content, log_id)
    head = view.head
    mine = [each for each in records if (each.frame.epoch, each.frame.generation) == (head.epoch, head.generation)]
    frames = frames_behind(content, mine, Link.at_head(head.head), shard=shard, log_id=log_id)
    end = frames[-1].last if frames else head.last
    return frames, [record for record in records if record.frame.first > end + 1]


def _insert(connection: apsw.Connection, view: View, frames: Sequence[Frame]) -> None:
    position = view.head.position
    for frame in frames:
        connection.execute(_INSERT_FRAME, frame_row(frame, frame.chain))
        connection.execute(
            _ADVANCE_HEAD,
            (
                frame.generation,
                frame.last,
                frame.chain,
                frame.time_ms,
                frame.epoch,
                position.sequence,
                position.chain,
            ),
        )
        position = Position(frame.last, frame.chain)


def _missing(paths: LogPaths, shard: str, end: int) -> LogDamaged:
    return LogDamaged(
        f"{paths.redo} is missing, and {paths.database} need not have all that was in it; put it back, or accept the"
        " loss (omnirelay log recover)",
        shard=shard,
        file=str(paths.redo),
        sequence=end + 1,
        kept=end,
    )


def _damaged(paths: LogPaths, shard: str, view: View, frames: Sequence[Frame], lost: Sequence[Record]) -> LogDamaged:
    end = frames[-1].last if frames else view.head.last
    first = min(lost, key=lambda record: record.frame.first)
    return LogDamaged(
        f"event {end + 1} of {shard!r} is missing or damaged in {paths.redo}: it has event {first.frame.first} and"
        " others behind that; restore a backup, or accept the loss from here on (omnirelay log recover)",
        shard=shard,
        file=str(paths.redo),
        sequence=end + 1,
        found=first.frame.first,
        offset=first.offset,
        kept=end,
        known=max(record.frame.last for record in lost),
    )
