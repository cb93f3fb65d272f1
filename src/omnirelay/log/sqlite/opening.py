"""Opening a log for writing: finish what a crash interrupted, check, recover where asked, and only then touch it."""

from __future__ import annotations

from omnirelay.errors import DataLoss, LogDamaged, LogOutcomeUnknown
from omnirelay.log.snapshots import newest_snapshot
from omnirelay.log.sqlite.bringing_in import bring_in
from omnirelay.log.sqlite.building import (
    create_log,
    discard_unfinished,
    empty_log,
    finish_replacement,
    mark_suspect,
)
from omnirelay.log.sqlite.checks import examine, regressed
from omnirelay.log.sqlite.connection import (
    Synchronous,
    connect_reader,
    connect_to_examine,
    keep_wal_on_close,
    migrate,
    prepare_writer,
    transaction,
    translated,
)
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.reader import read_view
from omnirelay.log.sqlite.recovery import recover_accepting_loss, recover_suspect
from omnirelay.log.sqlite.rows import HeadRow, read_meta
from omnirelay.log.sqlite.writer import JOURNAL_BYTES_MAX, Writer
from omnirelay.log.witness import Witness, read_witness, write_witness


def open_writer(
    paths: LogPaths, shard: str, *, accept_loss: bool, vfs: str | None, synchronous: Synchronous
) -> tuple[Writer, str]:
    """The writer of a log and the log's id; a log that is not there yet is created.

    The caller holds the directory's lock. Raises LogDamaged, LogRegressed, LogSchemaTooNew, altering nothing.
    """
    try:
        return _open_writer(paths, shard, accept_loss, vfs, synchronous)
    except LogOutcomeUnknown as error:
        if paths.database.exists():
            mark_suspect(paths, error.message)
        raise


def _open_writer(
    paths: LogPaths, shard: str, accept_loss: bool, vfs: str | None, synchronous: Synchronous
) -> tuple[Writer, str]:
    finish_replacement(paths)
    discard_unfinished(paths)
    if not paths.database.exists():
        _create(paths, shard, accept_loss, vfs)
    else:
        bring_in(paths, shard, vfs, accept_loss=accept_loss, keep=accept_loss)
        if accept_loss:
            lost = recover_accepting_loss(paths, shard, _witness(paths, accept_loss), vfs)
            # What the database had lost may be there once more, and fit onto what was kept of it.
            bring_in(paths, shard, vfs, accept_loss=True)
            if lost is not None:
                _renew_witness(paths, shard, vfs)
        if paths.suspect.exists():
            recover_suspect(paths, shard, _witness(paths, accept_loss), vfs)
            bring_in(paths, shard, vfs, accept_loss=accept_loss)
    with translated(paths.database, shard):
        return _open(paths, shard, _witness(paths, accept_loss), vfs, synchronous)


def write_witness_of(paths: LogPaths, shard: str, log_id: str, head: HeadRow) -> None:
    """Have the witness say what the head says."""
    write_witness(paths.witness, Witness(shard, log_id, head.generation, head.last, head.chain.hex(), head.time_ms))


def _create(paths: LogPaths, shard: str, accept_loss: bool, vfs: str | None) -> None:
    """A new log, unless something says that there was one."""
    for left in (paths.wal, paths.redo):
        if left.exists():
            raise LogDamaged(
                f"{paths.database} is missing but its {left.name} is there; put the database back, or remove both",
                shard=shard,
                file=str(paths.database),
                sequence=1,
            )
    witness = _witness(paths, accept_loss)
    snapshot = newest_snapshot(paths.directory)
    contents = empty_log(shard)
    loss: DataLoss | None = None
    known = snapshot
    if witness is not None:
        loss = regressed(paths, shard, witness, 0, f"saw event {witness.sequence}, the database is gone")
        known = max(known, witness.sequence)
    elif snapshot:
        loss = LogDamaged(
            f"{paths.database} is missing but a snapshot of it after event {snapshot} is there; put the database back,"
            f" or move {paths.directory} away to begin anew",
            shard=shard,
            file=str(paths.database),
            sequence=1,
        )
    if loss is not None:
        if not accept_loss:
            raise loss
        contents.head = contents.head._replace(unproven=f"accepted loss: {loss.message}", highest_known=known)
    create_log(paths, contents, vfs)
    write_witness_of(paths, shard, contents.log_id, contents.head)


def _open(
    paths: LogPaths, shard: str, witness: Witness | None, vfs: str | None, synchronous: Synchronous
) -> tuple[Writer, str]:
    connection = connect_to_examine(paths.database, vfs=vfs)
    try:
        with transaction(connection, "DEFERRED"):
            examined = examine(connection, paths, shard, witness)
        migrate(connection, examined.version)
        prepare_writer(connection, synchronous, JOURNAL_BYTES_MAX)
        keep_wal_on_close(connection, False)
        return Writer(connection, paths, shard, examined), examined.log_id
    except BaseException:
        connection.close()
        raise


def _witness(paths: LogPaths, accept_loss: bool) -> Witness | None:
    """The witness; an unreadable one counts as missing when the operator accepts that."""
    try:
        return read_witness(paths.witness)
    except LogDamaged:
        if accept_loss:
            return None
        raise


def _renew_witness(paths: LogPaths, shard: str, vfs: str | None) -> None:
    """What the old witness saw was given up for lost; the head remembers how far it had been."""
    with translated(paths.database, shard):
        connection = connect_reader(paths.database, vfs=vfs)
        try:
            with transaction(connection, "DEFERRED"):
                log_id = read_meta(connection)["log_id"]
                head = read_view(connection, paths.database, shard).head
        finally:
            connection.close()
    write_witness_of(paths, shard, log_id, head)
