"""Taking the lead of a shard: what surrounds the replay, and the first frame of a new writer."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from omnirelay.core import commands as cmd
from omnirelay.core.decide import apply
from omnirelay.core.events import Event
from omnirelay.core.options import QueueOptions
from omnirelay.core.state import State
from omnirelay.engine.ids import lease_ids
from omnirelay.log.base import Acquired, EventLog, Position
from omnirelay.log.frame import encode_frame

_log = logging.getLogger("omnirelay.engine")

NEW_LEADER = "a new leader looks for itself"
"""Why a cause that had closed intake is withdrawn when a shard is taken over."""


async def take_lead(
    log: EventLog,
    state: State,
    acquired: Acquired,
    owner: str,
    options: QueueOptions | None,
    now_ms: int,
) -> Position:
    """The first frame of a leadership: a new generation where history is not proven, then the election."""
    events: list[Event] = []
    first: list[cmd.Command] = []
    down_from = state.time
    if acquired.unproven is not None:
        _log.warning("generation_started", extra={"shard": log.shard, "reason": acquired.unproven})
        first.append(cmd.StartGeneration(acquired.unproven, acquired.highest_known))
    first.append(cmd.ElectLeader(acquired.epoch, owner, down_from))
    # Causes from outside held for the last leader. Those that still hold are told again; one whose origin is gone
    # (a sink that nobody configures any more) would keep the shard closed for ever.
    first += [cmd.OpenIntake(cause, NEW_LEADER) for cause in state.closures]
    if options is not None:
        first.append(cmd.ChangeOptions(options))
    for command in first:
        apply(state, command, now_ms, now_ms, lease_ids(), events)
    depth = (state.pending_count, state.leased.live)
    frame = encode_frame(log.shard, log.log_id, state.generation, acquired.epoch, now_ms, events, depth)
    return await log.append(frame, acquired.position)


@contextmanager
def collector_away(wanted: bool) -> Iterator[None]:
    """Keep the garbage collector off a state while it is built, and away from it for good afterwards."""
    pause = wanted and gc.isenabled()
    if pause:
        gc.disable()
    try:
        yield
    finally:
        if pause:
            gc.enable()
        if wanted:
            gc.freeze()
