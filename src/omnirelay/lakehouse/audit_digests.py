"""Digests that the node itself recorded: those of its snapshots, and that of its state where the segments end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from omnirelay.core.snapshot import digest, dump
from omnirelay.errors import LogTrimmed, OutOfRange

if TYPE_CHECKING:
    from omnirelay.core.state import State
    from omnirelay.log.sqlite import SqliteLog


class Known(msgspec.Struct, frozen=True):
    """What a log of the node says about states."""

    log_id: str
    digests: dict[int, str]
    """Of the state behind an event."""
    start: list[bytes] | None = None
    """The state that the segments begin with, as a snapshot has it; None when they begin with the log."""
    remark: str | None = None
    """Why nothing of it can be compared with the segments."""


async def known_of(directory: Path, shard: str, *, anchor: int, last: int) -> Known:
    """Read the log `directory/shard`; a node may be writing it. Segments begin behind `anchor` and end with `last`.

    Where the log does not reach to one of them, nothing is said about it. Raises what opening and replaying a log does.
    """
    # Every Python worker of an audit imports this module, and no worker opens a log.
    from omnirelay.log.sqlite import SqliteLog

    log = SqliteLog.open(directory, shard, read_only=True)
    try:
        digests = {record.sequence: record.digest for record in await log.snapshots()}
        if last not in digests and (state := await _state_at(log, last)) is not None:
            digests[last] = digest(state)
        start = None
        if anchor and (state := await _state_at(log, anchor)) is not None:
            header, chunks = dump(state)
            start = [header, *chunks]
        wanted = {at: value for at, value in digests.items() if anchor <= at <= last}
        return Known(log.log_id, wanted, start)
    finally:
        await log.close()


async def _state_at(log: SqliteLog, sequence: int) -> State | None:
    """The state behind an event; None when the log has not come there yet, or no longer reaches back so far."""
    from omnirelay.engine.recovery import rebuild

    try:
        return (await rebuild(log, sequence)).state
    except (LogTrimmed, OutOfRange):
        return None
