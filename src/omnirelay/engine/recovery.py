"""From a log back to a state: the newest snapshot that reads back, then every frame after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from omnirelay.core.events import Event
from omnirelay.core.evolve import evolve_all
from omnirelay.core.snapshot import load
from omnirelay.core.state import State
from omnirelay.errors import LogDamaged, LogTrimmed, OutOfRange
from omnirelay.log.base import EventLog, Position, SnapshotRecord
from omnirelay.log.frame import decode_frame, genesis_chain
from omnirelay.log.snapshots import read_recorded

Progress = Callable[[int, int], None]
"""Called with (sequence reached, sequence to reach) now and then."""

_YIELD_EVENTS = 10_000


class Recovered(msgspec.Struct, frozen=True):
    """A state, and the place in the log it stands for."""

    state: State
    position: Position
    replayed_events: int
    snapshot_sequence: int | None
    passed_over: list[str] = []
    """What was wrong with newer snapshots."""


async def rebuild(log: EventLog, to_sequence: int | None = None, progress: Progress | None = None) -> Recovered:
    """The state after `to_sequence`, or after the last durable event.

    A snapshot that does not check out is passed over for an older one, and in the end for the log from its
    beginning; only when frames for that were trimmed is it LogDamaged.
    """
    end = (await log.head()).position.sequence
    if to_sequence is None:
        to_sequence = end
    elif to_sequence > end:
        raise OutOfRange(f"the log ends at {end}, there is no {to_sequence}", sequence=to_sequence, last=end)
    damage: LogDamaged | None = None
    passed_over: list[str] = []
    for record in [*(await log.snapshots()), None]:
        if record is not None and record.sequence > to_sequence:
            continue
        try:
            # In a thread: a large one takes seconds, and a node that starts answers probes and other shards meanwhile.
            start = await asyncio.to_thread(_from_snapshot, log, record)
        except LogDamaged as error:
            damage = error
            passed_over.append(error.message)
            continue
        try:
            recovered = await _replay(log, start, to_sequence, progress)
            return msgspec.structs.replace(recovered, passed_over=passed_over)
        except LogTrimmed:
            if damage is not None:
                raise damage from None
            raise
    raise AssertionError("the beginning of the log is always tried")


def _from_snapshot(log: EventLog, record: SnapshotRecord | None) -> Recovered:
    if record is None:
        return Recovered(State(), Position(0, genesis_chain(log.shard, log.log_id)), 0, None)
    directory = snapshot_directory(log)
    if directory is None:
        raise LogDamaged("this log keeps no snapshot files")
    state = load(*read_recorded(directory, record))
    if state.sequence != record.sequence:
        raise LogDamaged(
            f"the snapshot recorded for {record.sequence} holds the state after {state.sequence}",
            sequence=record.sequence,
        )
    return Recovered(state, Position(record.sequence, record.chain), 0, record.sequence)


async def _replay(log: EventLog, start: Recovered, to_sequence: int, progress: Progress | None) -> Recovered:
    state, position = start.state, start.position
    replayed = 0
    since_yield = 0
    if position.sequence < to_sequence:
        async for frame in log.read(position.sequence + 1, to_sequence):
            events = decode_frame(frame, shard=log.shard, log_id=log.log_id)
            if frame.last > to_sequence:
                events = [event for event in events if event.sequence_number <= to_sequence]
            _apply(state, events, log.shard)
            replayed += len(events)
            position = Position(frame.last, frame.chain)
            since_yield += frame.count
            if since_yield >= _YIELD_EVENTS:
                since_yield = 0
                if progress is not None:
                    progress(state.sequence, to_sequence)
                await asyncio.sleep(0)
    return Recovered(state, position, replayed, start.snapshot_sequence)


def _apply(state: State, events: list[Event], shard: str) -> None:
    try:
        evolve_all(state, events)
    except (LookupError, AssertionError, AttributeError, TypeError, ValueError) as error:
        event = next(event for event in events if event.sequence_number > state.sequence)
        # The chain is whole, so these bytes were written; no version of the rules could have decided them.
        raise LogDamaged(
            f"event {event.sequence_number} of {shard!r} ({type(event).__name__}) does not follow from those before it:"
            f" {error!r}; restore a backup from before it",
            shard=shard,
            sequence=event.sequence_number,
        ) from error


def snapshot_directory(log: EventLog) -> Path | None:
    """Where the log keeps its snapshot files; None for a store without a directory."""
    return getattr(log, "directory", None)
