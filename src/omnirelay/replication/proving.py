"""Proving a log that was just written, before anybody relies on it: chain, events and snapshots, read back whole."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from omnirelay.core.evolve import evolve
from omnirelay.core.snapshot import digest, load
from omnirelay.core.state import State
from omnirelay.errors import LogDamaged, OmniRelayError
from omnirelay.log.base import SnapshotRecord
from omnirelay.log.frame import decode_frame
from omnirelay.log.snapshots import read_recorded
from omnirelay.log.sqlite import SqliteLog
from omnirelay.log.sqlite.restoring import History


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A log that was proved after it was written."""

    shard: str
    log_id: str
    horizon: int
    """The log begins behind this event."""
    last: int
    chain: str
    events: int
    generation: int
    """Of the last event. The next leader starts another one."""
    fences_above: int
    """The next generation begins above this number."""
    snapshots: int
    """How many there were to compare the replayed state with."""
    digest: str
    """Of the state after the last event."""


async def prove(data: Path, history: History, move: Callable[[int, int], None]) -> Restored:
    """Read back what was written to `data/SHARD`: the whole chain, every event applied, every snapshot's digest.

    `move` is called with (events done, events in all). Raises LogDamaged and its kind.
    """
    log = await asyncio.to_thread(SqliteLog.open, data, history.shard, read_only=True)
    try:
        report = await log.verify()
        state = await _replayed(log, history, report.events, move)
    finally:
        await log.close()
    return Restored(
        shard=history.shard,
        log_id=history.log_id,
        horizon=report.anchor.sequence,
        last=report.position.sequence,
        chain=report.position.chain.hex(),
        events=report.events,
        generation=report.generation,
        fences_above=0,
        snapshots=len(history.snapshots),
        digest=digest(state),
    )


async def _replayed(log: SqliteLog, history: History, events: int, move: Callable[[int, int], None]) -> State:
    """The state after the last event. Every snapshot on the way has to be the state that the events lead to."""
    snapshots = sorted(history.snapshots, key=lambda record: record.sequence)
    state = State()
    if history.anchor.sequence > 0:
        if not snapshots:
            raise LogDamaged(
                f"the log of {log.shard!r} begins behind event {history.anchor.sequence} and has no snapshot: nothing"
                " says what the state was; take another backup",
                shard=log.shard,
                sequence=1,
            )
        state = load(*read_recorded(log.directory, snapshots[0]))
    await asyncio.to_thread(_check_files, log.directory, snapshots)
    digests = {record.sequence: record.digest for record in snapshots}
    _compare(state, digests, log.shard)
    done = 0
    if state.sequence < history.end.sequence:
        async for frame in log.read(state.sequence + 1):
            for event in decode_frame(frame, shard=log.shard, log_id=log.log_id):
                try:
                    evolve(state, event)
                except OmniRelayError:
                    raise
                except Exception as error:
                    raise LogDamaged(
                        f"event {event.sequence_number} of {log.shard!r} does not follow from those before it:"
                        f" {error!r}",
                        shard=log.shard,
                        sequence=event.sequence_number,
                    ) from error
            _compare(state, digests, log.shard)
            done += frame.count
            move(done, events)
    return state


def _check_files(directory: Path, snapshots: list[SnapshotRecord]) -> None:
    """The files of every snapshot have to be what the log has recorded. Raises LogDamaged naming one that is not."""
    for record in snapshots:
        deque(read_recorded(directory, record)[1], maxlen=0)


def _compare(state: State, digests: dict[int, str], shard: str) -> None:
    expected = digests.get(state.sequence)
    if expected is not None and digest(state) != expected:
        raise LogDamaged(
            f"the snapshot at event {state.sequence} of {shard!r} is another state than the events lead to",
            shard=shard,
            sequence=state.sequence,
        )
