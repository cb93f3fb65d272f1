"""Deciding what the engine asks for by itself: time, caps, options, leadership, generations."""

from __future__ import annotations

from typing import Final

from omnirelay.core import events as ev
from omnirelay.core.commands import AdvanceTime, ChangeOptions, ElectLeader, EnforceCaps, StartGeneration
from omnirelay.core.intake import refuse
from omnirelay.core.options import QueueOptions
from omnirelay.core.state import State

GENERATION_JUMP: Final = 1 << 32
"""How far a new generation jumps past everything known, so that no lost fence can come again."""

PURGE_MAX: Final = 10_000
"""Most dead letters one Purged event names."""


def decide_time(state: State, command: AdvanceTime, now_ms: int) -> tuple[list[ev.Event], None]:
    return [ev.TimeAdvanced(sequence_number=state.sequence + 1, timestamp=now_ms)], None


def decide_caps(state: State, command: EnforceCaps, now_ms: int) -> tuple[list[ev.Event], int]:
    """Forget what is beyond the caps, oldest first. The answer counts the dead letters among it."""
    options = state.options
    events: list[ev.Event] = []
    dead: list[int] = []
    count, size = len(state.dead), state.dead.bytes
    if count > options.dead_letter_max or size > options.dead_letter_bytes_max:
        for item in state.dead.after(0):
            if count <= options.dead_letter_max and size <= options.dead_letter_bytes_max:
                break
            if len(dead) >= PURGE_MAX:
                break
            dead.append(item.sequence_id)
            count -= 1
            size -= item.size
    count, size = len(state.finished), state.finished_bytes
    ended_up_to: int | None = None
    if count > options.result_max or size > options.result_bytes_max:
        for item in state.finished:
            if count <= options.result_max and size <= options.result_bytes_max:
                break
            ended_up_to = item.stamp
            count -= 1
            size -= item.size
    if dead or ended_up_to is not None:
        events.append(
            ev.Purged(
                sequence_number=state.sequence + 1,
                timestamp=now_ms,
                sequence_ids=dead or None,
                ended_up_to=ended_up_to,
                reason="cap",
            )
        )
    return events, len(dead)


def decide_options(state: State, command: ChangeOptions, now_ms: int) -> tuple[list[ev.Event], None]:
    if type(command.options) is not QueueOptions:
        refuse("options", "must be QueueOptions")
    if command.options == state.options:
        return [], None
    return [
        ev.OptionsChanged(
            sequence_number=state.sequence + 1,
            timestamp=now_ms,
            options=command.options,
            principal=command.caller.principal,
        )
    ], None


def decide_leader(state: State, command: ElectLeader, now_ms: int) -> tuple[list[ev.Event], None]:
    """`down_from` is the last durable proof of life: leases move by the time nobody was there."""
    down_from = state.time if command.down_from is None else command.down_from
    return [
        ev.LeaderElected(
            sequence_number=state.sequence + 1,
            timestamp=now_ms,
            down_from=down_from or now_ms,
            epoch=command.epoch,
            owner=command.owner,
        )
    ], None


def decide_generation(state: State, command: StartGeneration, now_ms: int) -> tuple[list[ev.Event], None]:
    """Jump past every number that history we do not have may have used, item ids included."""
    return [
        ev.GenerationStarted(
            sequence_number=max(state.sequence, command.highest_known) + GENERATION_JUMP,
            timestamp=now_ms,
            generation=state.generation + 1,
            reason=command.reason,
            next_sequence_id=state.next_sequence_id + GENERATION_JUMP,
        )
    ], None
