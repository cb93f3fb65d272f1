"""What is checked before a log is written to. Refusals name the place and alter nothing.

The cost does not grow with the log: the last frame is hashed and compared with its head, its predecessor and the
witness. The frames before are checked as they are replayed, and by `verify`.
"""

from __future__ import annotations

import apsw
import msgspec

from omnirelay.errors import LogDamaged, LogRegressed
from omnirelay.log.base import Anchor
from omnirelay.log.chain import Link, follow, missing_frame
from omnirelay.log.frame import genesis_chain
from omnirelay.log.sqlite.connection import check_version
from omnirelay.log.sqlite.paths import LogPaths
from omnirelay.log.sqlite.reader import View, read_view
from omnirelay.log.sqlite.rows import HeadRow, link_before, position_at, read_last_frame, read_meta
from omnirelay.log.witness import Witness

WITNESS_MISSING = "witness missing"
WITNESS_OLD = "witness older than the oldest frame"


class Examined(msgspec.Struct, frozen=True):
    """A log that may be opened, and what is not proven about it."""

    log_id: str
    version: int
    head: HeadRow
    anchor: Anchor
    unproven: str | None
    highest_known: int


def examine(connection: apsw.Connection, paths: LogPaths, shard: str, witness: Witness | None) -> Examined:
    """Check schema, identity, end and witness. Raises LogSchemaTooNew, LogDamaged, LogRegressed.

    MUST run inside a read transaction, so that all of it is of one instant.
    """
    version = check_version(connection, paths.database)
    log_id = check_identity(connection, paths, shard)
    view = read_view(connection, paths.database, shard)
    check_end(connection, paths, shard, log_id, view)
    unproven = view.head.unproven
    doubt = check_witness(connection, paths, shard, log_id, view, witness)
    if unproven is None:
        unproven = doubt
    return Examined(log_id, version, view.head, view.anchor, unproven, highest_known(view, witness))


def highest_known(view: View, witness: Witness | None) -> int:
    return max(
        view.head.last,
        view.head.highest_known,
        view.anchor.sequence,
        view.anchor.highest_fence,
        witness.sequence if witness is not None else 0,
    )


def check_identity(connection: apsw.Connection, paths: LogPaths, shard: str) -> str:
    """The log id. Raises LogDamaged when this is another shard's log."""
    meta = read_meta(connection)
    log_id = meta.get("log_id")
    if log_id is None or meta.get("shard") != shard:
        raise LogDamaged(
            f"{paths.database} holds the log of shard {meta.get('shard')!r}, not of {shard!r}; put the right file back",
            shard=shard,
            file=str(paths.database),
            expected=shard,
            found=meta.get("shard"),
        )
    return log_id


def check_end(connection: apsw.Connection, paths: LogPaths, shard: str, log_id: str, view: View) -> None:
    """Compare the head row with the last frame, and the last frame with the one before."""
    head, anchor = view.head, view.anchor
    if anchor.sequence == 0 and anchor.chain != genesis_chain(shard, log_id):
        raise _damaged(paths, shard, 0, "has an anchor that is not the genesis of this log")
    frame = read_last_frame(connection)
    if frame is None:
        link = Link.at_anchor(anchor)
    else:
        link = follow(link_before(connection, frame.last, anchor), frame, shard=shard, log_id=log_id)
    if head.last > link.sequence:
        raise missing_frame(shard, link.sequence + 1, head.last)
    if head.last < link.sequence:
        raise _damaged(paths, shard, head.last + 1, f"has a frame up to {link.sequence}, its head ends at {head.last}")
    time_ms = anchor.time_ms if frame is None else frame.time_ms
    if (head.chain, head.generation, head.time_ms) != (link.chain, link.generation, time_ms):
        raise _damaged(paths, shard, head.last, "has a head row that differs from its last frame")
    if frame is not None and head.epoch < frame.epoch:
        raise _damaged(
            paths, shard, head.last, f"has epoch {head.epoch} in its head row and {frame.epoch} in its last frame"
        )


def check_witness(
    connection: apsw.Connection, paths: LogPaths, shard: str, log_id: str, view: View, witness: Witness | None
) -> str | None:
    """Compare the log with its witness: None when it holds what the witness saw, or a doubt that is no refusal.

    Raises LogRegressed when the log is behind the witness, beside it, or another log altogether.
    """
    if witness is None:
        return WITNESS_MISSING if view.head.last > 0 else None
    if (witness.shard, witness.log_id) != (shard, log_id):
        raise regressed(
            paths,
            shard,
            witness,
            view.head.last,
            f"belongs to log {witness.log_id} of {witness.shard!r}, this is log {log_id} of {shard!r}",
        )
    if witness.sequence > view.head.last:
        raise regressed(
            paths,
            shard,
            witness,
            view.head.last,
            f"saw event {witness.sequence}, the log ends at {view.head.last}",
        )
    if witness.sequence < view.anchor.sequence:
        return WITNESS_OLD
    if position_at(connection, witness.sequence, view.anchor) != witness.position:
        raise regressed(
            paths,
            shard,
            witness,
            view.head.last,
            f"saw another history up to event {witness.sequence} than the log has",
        )
    return None


def regressed(paths: LogPaths, shard: str, witness: Witness, found: int, what: str) -> LogRegressed:
    return LogRegressed(
        f"the witness {paths.witness} {what}: acknowledged events are missing from {paths.database};"
        " put the right file back, or accept the loss (omnirelay log recover), which starts a new generation",
        shard=shard,
        file=str(paths.database),
        witness=str(paths.witness),
        sequence=found + 1,
        expected=witness.sequence,
        found=found,
    )


def _damaged(paths: LogPaths, shard: str, sequence: int, what: str) -> LogDamaged:
    return LogDamaged(
        f"{paths.database} {what}; restore a backup, or accept the loss (omnirelay log recover)",
        shard=shard,
        file=str(paths.database),
        sequence=sequence,
    )
