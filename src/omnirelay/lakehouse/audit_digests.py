"""Digests that the node itself recorded: those of its snapshots, and that of its state where the segments end."""

from __future__ import annotations

from pathlib import Path

import msgspec

from omnirelay.core.snapshot import digest, dump
from omnirelay.engine.recovery import rebuild
from omnirelay.errors import OutOfRange
from omnirelay.log.sqlite import SqliteLog


class Known(msgspec.Struct, frozen=True):
    """What a log of the node says about states."""

    log_id: str
    digests: dict[int, str]
    """Of the state behind an event."""
    start: list[bytes] | None = None
    """The state that the segments begin with, as a snapshot has it; None when they begin with the log."""


async def known_of(directory: Path, shard: str, *, anchor: int, last: int) -> Known:
    """Read the log `directory/shard`; a node may be writing it. Segments begin behind `anchor` and end with `last`.

    Raises what opening and replaying a log raises, LogTrimmed when it no longer reaches back to `anchor`.
    """
    log = SqliteLog.open(directory, shard, read_only=True)
    try:
        digests = {record.sequence: record.digest for record in await log.snapshots()}
        end = (await log.head()).position.sequence
        if anchor < last <= end and last not in digests:
            digests[last] = digest((await rebuild(log, last)).state)
        start = None
        if anchor:
            if anchor > end:
                raise OutOfRange(
                    f"the log ends at {end}, the segments begin behind {anchor}", sequence=anchor, last=end
                )
            header, chunks = dump((await rebuild(log, anchor)).state)
            start = [header, *chunks]
        wanted = {at: value for at, value in digests.items() if anchor <= at <= last}
        return Known(log.log_id, wanted, start)
    finally:
        await log.close()
