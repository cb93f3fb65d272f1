"""New database files: built under another name, synced, and put in place so that a crash leaves the old or the new."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from omnirelay.errors import LogDamaged
from omnirelay.log.base import FIRST_GENERATION, Anchor, Frame, SnapshotRecord
from omnirelay.log.failpoints import hit
from omnirelay.log.files import remove_file, replace_file, sync_directory, sync_file
from omnirelay.log.frame import genesis_chain
from omnirelay.log.sqlite.connection import create, translated
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.rows import HeadRow
from omnirelay.log.sqlite.statements import statement

_INSERT_META: Final = statement("insert_meta")
_INSERT_HEAD: Final = statement("insert_head")
_INSERT_ANCHOR: Final = statement("insert_anchor")
_INSERT_FRAME: Final = statement("insert_frame")
_PUT_SNAPSHOT: Final = statement("put_snapshot")


_ASIDE: Final = re.compile(r"leases\.db\.[a-z]+-[0-9]+")


class Contents(msgspec.Struct):
    """Everything a database holds but its frames."""

    shard: str
    log_id: str
    created_ms: int
    head: HeadRow
    anchor: Anchor
    snapshots: list[SnapshotRecord]


class _Replacement(msgspec.Struct):
    aside: str


def empty_log(shard: str, unproven: str | None = None, highest_known: int = 0) -> Contents:
    """A log nobody has written to, under a new random id."""
    log_id = secrets.token_hex(16)
    genesis = genesis_chain(shard, log_id)
    head = HeadRow(0, FIRST_GENERATION, 0, genesis, 0, unproven, highest_known)
    return Contents(shard, log_id, time.time_ns() // 1_000_000, head, Anchor(0, genesis, 0, 0), [])


def create_log(paths: LogPaths, contents: Contents, vfs: str | None) -> None:
    """Put a first database in place. Nothing may be there yet."""
    build(paths, contents, (), vfs)
    os.rename(paths.new, paths.database)
    sync_directory(paths.directory)


def build(paths: LogPaths, contents: Contents, frames: Iterable[Frame], vfs: str | None) -> None:
    """Write a whole database under the name `new` and sync it. Its head is the caller's to get right."""
    discard_unfinished(paths)
    with translated(paths.new, contents.shard):
        connection = create(paths.new, vfs=vfs)
        try:
            connection.executemany(
                _INSERT_META,
                [
                    ("shard", contents.shard),
                    ("log_id", contents.log_id),
                    ("created_ms", str(contents.created_ms)),
                ],
            )
            connection.execute(_INSERT_HEAD, tuple(contents.head))
            connection.execute(_INSERT_ANCHOR, msgspec.structs.astuple(contents.anchor))
            connection.executemany(_PUT_SNAPSHOT, map(msgspec.structs.astuple, contents.snapshots))
            for frame in frames:
                connection.execute(_INSERT_FRAME, frame_row(frame, frame.chain))
            connection.execute("COMMIT")
        finally:
            connection.close()
    sync_file(paths.new)
    sync_directory(paths.directory)


def frame_row(frame: Frame, chain: bytes) -> tuple[int, int, int, int, int, int, bytes, bytes]:
    """The bindings of `insert_frame`."""
    return (
        frame.last,
        frame.first,
        frame.count,
        frame.epoch,
        frame.generation,
        frame.time_ms,
        chain,
        frame.data,
    )


def replace_database(paths: LogPaths, label: str) -> str:
    """Put `new` in the database's place and keep the old one aside; returns the name it is kept under.

    Database and WAL are two files and no rename moves both. An old WAL beside a new database would be replayed into
    it, so a marker makes the move one step: from the moment it is durable, every opening finishes the move.
    """
    aside = paths.free_aside(label)
    hit("log.recovery.copied")
    replace_file(paths.replacement, msgspec.json.encode(_Replacement(aside)))
    hit("log.recovery.marked")
    finish_replacement(paths)
    return aside


def finish_replacement(paths: LogPaths) -> None:
    """Finish a move that a crash interrupted. Does nothing when there is none."""
    if not paths.replacement.exists():
        return
    try:
        aside = msgspec.json.decode(paths.replacement.read_bytes(), type=_Replacement).aside
        if not _ASIDE.fullmatch(aside):
            raise ValueError(f"{aside!r} is no name to keep a database under")
    except ValueError as error:
        raise LogDamaged(
            f"{paths.replacement} cannot be read: {error}; keep {paths.new.name} and {paths.database.name} and ask for"
            " help, one of them is the log",
            file=str(paths.replacement),
        ) from error
    if paths.new.exists():
        paths.shared_memory.unlink(missing_ok=True)
        for source, suffix in ((paths.wal, "-wal"), (paths.database, "")):
            if source.exists():
                os.rename(source, paths.directory / (aside + suffix))
        sync_directory(paths.directory)
        hit("log.recovery.moved_aside")
        os.rename(paths.new, paths.database)
        sync_directory(paths.directory)
    hit("log.recovery.renamed")
    remove_file(paths.suspect)
    remove_file(paths.replacement)


def mark_suspect(paths: LogPaths, reason: str) -> None:
    """After a failed flush: have the next opening read everything back and copy it.

    A disk that cannot flush may not take the marker either. Then the next opening checks what it always does.
    """
    with suppress(OSError):
        replace_file(paths.suspect, reason.encode() + b"\n")


def discard_unfinished(paths: LogPaths) -> None:
    """Remove what a crash left of a database being built."""
    for suffix in ("", "-journal"):
        remove_file(paths.new.with_name(paths.new.name + suffix))
