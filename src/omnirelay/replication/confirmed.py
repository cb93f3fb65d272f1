"""What sinks have confirmed, as a witness of the log: an event that one of them has got was durable in it.

A log that ends before such an event lost its end, or an older copy of its directory was put in its place. Its own
witness lies in the same directory and comes back with it; the checkpoints lie beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import apsw
import msgspec

from omnirelay.errors import LogRegressed, LogUnavailable
from omnirelay.log.files import WriterLock
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.restoring import raise_highest_known, read_head

CHECKPOINT_FILE: Final = "replication.db"
"""Beside the directories of the logs."""


class Confirmed(msgspec.Struct, frozen=True):
    """How far a sink has come with a log."""

    sequence: int
    sink: str
    log_id: str
    """Empty where an older version wrote it: then nobody knows which log it is of."""


def confirmed_by_sinks(data: Path, shard: str) -> list[Confirmed]:
    """What every sink has got of a shard, if their account of it is in the directory. Raises LogUnavailable."""
    path = data / CHECKPOINT_FILE
    if not path.exists():
        return []
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            columns = {row[1] for row in connection.execute("pragma table_info(checkpoints)")}
            if not columns:
                return []  # A crash came before its tables were made.
            log_id = "log_id" if "log_id" in columns else "''"
            rows = connection.execute(f"select sequence, sink, {log_id} from checkpoints where shard = ?", (shard,))
            return [Confirmed(int(str(row[0])), str(row[1]), str(row[2])) for row in rows]
        finally:
            connection.close()
    except apsw.Error as error:
        raise LogUnavailable(
            f"{path} cannot be read ({error}), and it may know how far the lost log had come; mend it, or move it away",
            shard=shard,
            file=str(path),
        ) from error


def check_confirmed(data: Path, namespace: str) -> None:
    """Raises LogRegressed when a sink has got an event of this log that it no longer has; LogDamaged, LogSchemaTooNew.

    Not for a log that starts a generation anyway: no number of what it lost comes again there. Blocks for a moment.
    """
    if not LogPaths.of(data, namespace).database.exists():
        return
    try:
        # Before the log: no sink is ahead of a log that is read after it.
        confirmed = confirmed_by_sinks(data, namespace)
    except LogUnavailable:
        return  # The sinks will say so, and nobody else has to wait for them.
    log_id, head = read_head(data, namespace)
    furthest = max((each for each in confirmed if each.log_id == log_id), key=lambda each: each.sequence, default=None)
    if furthest is None or furthest.sequence <= head.last or head.unproven is not None:
        return
    database = LogPaths.of(data, namespace).database
    raise LogRegressed(
        f"the sink {furthest.sink} has got event {furthest.sequence}, the log ends at {head.last}: acknowledged events"
        f" are missing from {database}; put the right file back, or accept the loss (omnirelay log recover), which"
        " starts a new generation",
        shard=namespace,
        file=str(database),
        witness=str(data / CHECKPOINT_FILE),
        sequence=head.last + 1,
        expected=furthest.sequence,
        found=head.last,
    )


def give_up_confirmed(data: Path, namespace: str, loss: LogRegressed) -> None:
    """Have the log go on in a generation above all that sinks have got. Raises LogLocked while a node runs."""
    highest = max((each.sequence for each in confirmed_by_sinks(data, namespace)), default=0)
    lock = WriterLock(LogPaths.of(data, namespace).lock)
    try:
        raise_highest_known(data, namespace, f"accepted loss: {loss.message}", highest)
    finally:
        lock.release()
