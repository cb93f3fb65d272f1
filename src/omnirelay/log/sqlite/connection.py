"""Connections to a log's database, and the one place where SQLite's errors become ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import apsw

from omnirelay.errors import LogDamaged, LogOutcomeUnknown, LogSchemaTooNew, LogUnavailable, OmniRelayError
from omnirelay.log.sqlite.statements import MIGRATIONS, SCHEMA_VERSION

Synchronous = Literal["OFF", "NORMAL", "FULL", "EXTRA"]

PAGE_SIZE: Final = 16_384
"""Measured: frames of 500 B cost the same as with 4 KiB pages, frames of 500 KB a third less."""

APPLICATION_ID: Final = 0x4F524C47

VERSION_WITH_REDO: Final = 1_001
"""The `user_version` of version 1 while there is a redo file. Versions of omnirelay that know of none refuse it as one
that is too new for them, in place of losing what only that file has.
"""

BUSY_TIMEOUT_MS: Final = 5_000

_CACHE_KIB: Final = 4 * 1024
"""Nothing is read twice here. Measured: a cache that stays in the processor's is a tenth faster than one of 24 MiB;
the rare frame that does not fit spills into the WAL early, which costs nothing.
"""

# Losing track of what is on the disk is worse than losing a write: these give the shard up. An I/O error that does not
# say what failed may have been a flush too.
_SYNC_FAILURES: Final = frozenset({apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC, apsw.SQLITE_IOERR})

# Our statements are fixed: one that SQLite cannot prepare met a damaged schema, and a key that is taken belongs to a
# row that no commit of ours left there.
_DAMAGE: Final = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.FormatError,
    apsw.SQLError,
    apsw.ConstraintError,
    apsw.MismatchError,
)

# SQLite rolled back, or never began: the same bytes may be tried again.
_DEFINITE: Final = (
    apsw.FullError,
    apsw.IOError,
    apsw.ReadOnlyError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.CantOpenError,
    apsw.PermissionsError,
    apsw.AuthError,
    apsw.NoMemError,
    apsw.ProtocolError,
    apsw.InterruptError,
    apsw.AbortError,
)


def connect(path: Path, *, vfs: str | None = None) -> apsw.Connection:
    """A connection that may write, to a file that exists. It changes nothing by being opened.

    Automatic checkpoints are off: SQLite drops their errors, and a flush that failed there must be heard of.
    """
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    connection.wal_autocheckpoint(0)
    return connection


def connect_to_examine(path: Path, *, vfs: str | None = None) -> apsw.Connection:
    """A connection that leaves the files as they are when it is closed without having written.

    A WAL with something in it stays: copying it into the database is a change, and after a failed flush a dangerous
    one. An empty one SQLite creates with the connection and removes with it.
    """
    wal = path.with_name(path.name + "-wal")
    has_wal = wal.exists() and wal.stat().st_size > 0
    connection = connect(path, vfs=vfs)
    keep_wal_on_close(connection, has_wal)
    return connection


def connect_reader(path: Path, *, vfs: str | None = None) -> apsw.Connection:
    """A connection that never writes, checkpoints or blocks the writer."""
    connection = apsw.Connection(
        f"file:{quote(str(path))}?mode=ro", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI, vfs=vfs
    )
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    keep_wal_on_close(connection)
    return connection


def prepare_writer(connection: apsw.Connection, synchronous: Synchronous, journal_bytes_max: int) -> None:
    """Settings of the connection that appends. Anything but FULL or EXTRA gives up durability and is for tests."""
    mode = connection.execute("PRAGMA journal_mode = WAL").get
    if mode != "wal":
        raise LogUnavailable(f"SQLite cannot use its write-ahead log here (it says {mode!r}): no shared memory?")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    # A statement that inserts many rows keeps a journal of its own, which by default is a file made for it.
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA journal_size_limit = {journal_bytes_max}")


def keep_wal_on_close(connection: apsw.Connection, keep: bool = True) -> None:
    """By default the last connection to close copies the WAL into the database and removes it."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(keep))


def create(path: Path, *, vfs: str | None = None) -> apsw.Connection:
    """A new database file with the current schema, in a transaction that the caller fills and commits.

    A rollback journal and FULL syncing, so that the file is on the disk when the transaction is.
    """
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    _migrate(connection, 0)
    return connection


def check_version(connection: apsw.Connection, path: Path) -> int:
    """The schema version of an existing log. Raises LogSchemaTooNew, or LogDamaged when it is no log of ours."""
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise LogDamaged(f"{path} is not a log of omnirelay; restore a backup", file=str(path))
    version = _pragma(connection, "user_version")
    if version == VERSION_WITH_REDO:
        return SCHEMA_VERSION
    if version > SCHEMA_VERSION:
        raise LogSchemaTooNew(
            f"{path} has schema version {version}, this version of omnirelay knows {SCHEMA_VERSION}; upgrade omnirelay",
            file=str(path),
            found=version,
            expected=SCHEMA_VERSION,
        )
    if version < 1:
        raise LogDamaged(f"{path} has no schema version; restore a backup", file=str(path), found=version)
    return version


def has_redo(connection: apsw.Connection) -> bool:
    """Whether a redo file may hold what the database lacks."""
    return _pragma(connection, "user_version") == VERSION_WITH_REDO


def say_redo(connection: apsw.Connection, *, there: bool) -> None:
    """Note that there is a redo file, or that it is not needed any more; durable with the transaction around it."""
    connection.execute(f"PRAGMA user_version = {VERSION_WITH_REDO if there else SCHEMA_VERSION}")


def migrate(connection: apsw.Connection, version: int) -> None:
    """Take a log of an older version to this one, in one transaction."""
    if version < SCHEMA_VERSION:
        with transaction(connection):
            _migrate(connection, version)


def _migrate(connection: apsw.Connection, version: int) -> None:
    for script in MIGRATIONS[version:]:
        connection.execute(script)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _pragma(connection: apsw.Connection, name: str) -> int:
    value = connection.execute(f"PRAGMA {name}").get
    return value if isinstance(value, int) else 0


@contextmanager
def transaction(connection: apsw.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Commit at the end, roll back on any exception."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            # What went wrong first is what the caller must hear of: it says whether the outcome is known.
            with suppress(apsw.Error):
                connection.execute("ROLLBACK")
        raise


@contextmanager
def translated(path: Path, shard: str) -> Iterator[None]:
    """Turn SQLite's exceptions into ours."""
    try:
        yield
    except apsw.Error as error:
        raise translate(error, path, shard) from error


def is_sync_failure(error: apsw.Error) -> bool:
    return isinstance(error, apsw.IOError) and getattr(error, "extendedresult", None) in _SYNC_FAILURES


def translate(error: apsw.Error, path: Path, shard: str) -> OmniRelayError:
    """What an error of SQLite means for the log."""
    place: dict[str, Any] = {"shard": shard, "file": str(path), "sqlite": str(error)}
    if isinstance(error, _DAMAGE):
        return LogDamaged(
            f"{path} is damaged: {error}; restore a backup, or accept the loss (omnirelay log recover)", **place
        )
    if not is_sync_failure(error) and isinstance(error, _DEFINITE):
        return LogUnavailable(
            f"{path} cannot be used now: {error}; nothing was written, try the same frame again",
            retry_after_ms=1_000,
            **place,
        )
    return LogOutcomeUnknown(
        f"a flush of {path} failed: {error}; nobody knows what the disk holds."
        " Check the disk, then reopen the log: it reads everything back",
        **place,
    )
