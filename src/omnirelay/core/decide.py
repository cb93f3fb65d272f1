"""`decide` turns a command into events; `apply` also evolves them. This is all an engine calls.

    decide(state, command, now_ms, arrived_ms) -> (events, answer)     reads only, or raises
    apply(state, command, now_ms, arrived_ms, ids, out) -> answer      decides, evolves, appends to `out`

A command either raises and changes nothing, or all of its events happen. Granting several leases is
the one command that decides and evolves in turns: which item is next depends on the grant before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core.answers import CompleteAnswer, GrantedLease
from omnirelay.core.evolve import evolve_all, evolve_completed, evolve_granted
from omnirelay.core.intake import caller_bytes, check_batch, check_caller, check_grant, check_storable
from omnirelay.core.items import COMPLETE
from omnirelay.core.rules.acknowledge import (
    PLAIN_COMPLETE,
    decide_complete,
    decide_expire,
    decide_fail,
    decide_heartbeat,
    decide_release,
    decide_return,
    find_lease,
)
from omnirelay.core.rules.enqueue import decide_enqueue
from omnirelay.core.rules.grant import (
    decide_next_grant,
    describe_grant,
    filter_of,
    grant_key,
    heartbeat_interval,
    repeated_grants,
)
from omnirelay.core.rules.handling import (
    decide_cancel,
    decide_drain,
    decide_edit,
    decide_purge,
    decide_redrive,
    decide_restore,
)
from omnirelay.core.rules.pausing import decide_backpressure, decide_pause, decide_resume
from omnirelay.core.rules.upkeep import (
    decide_caps,
    decide_generation,
    decide_leader,
    decide_options,
    decide_time,
)
from omnirelay.core.state import State
from omnirelay.errors import InvalidArgument

Ids = Callable[[], str]
"""Gives a new lease id each time: a lower-case UUID."""


def apply(state: State, command: cmd.Command, now_ms: int, arrived_ms: int, ids: Ids, out: list[ev.Event]) -> Any:
    if type(command) is cmd.CompleteItem and command.plain:
        return _apply_plain_complete(state, command, now_ms, arrived_ms, out)
    if type(command) is cmd.GrantLeases:
        return apply_grants(state, command, now_ms, ids, out)
    events, answer = decide(state, command, now_ms, arrived_ms)
    evolve_all(state, events)
    out += events
    return answer


def _apply_plain_complete(
    state: State, command: cmd.CompleteItem, now_ms: int, arrived_ms: int, out: list[ev.Event]
) -> CompleteAnswer:
    """The commonest acknowledgement without the lists and tables that the others need; the rules are the same."""
    try:
        asked: Any = command
        item, lease = find_lease(state, asked.token, command.caller, arrived_ms, COMPLETE)
    except _WRONG_TYPES as error:
        raise _misplaced(error) from error
    if item is None:
        return CompleteAnswer(lease.follow_up_ids)
    sequence = state.sequence + 1
    event = ev.Completed(sequence_number=sequence, timestamp=now_ms, ownership=lease.token)
    evolve_completed(state, event)
    state.sequence = sequence
    state.time = now_ms
    out.append(event)
    return PLAIN_COMPLETE


def apply_grants(
    state: State, command: cmd.GrantLeases, now_ms: int, ids: Ids, out: list[ev.Event]
) -> list[GrantedLease]:
    """Grant up to `items_max` leases; a repeat by request id gets what it still holds, and nothing new."""
    check_grant(command, state.options)
    if command.request_id is not None:
        repeated = repeated_grants(state, command, now_ms)
        if repeated:
            return repeated
    granted: list[GrantedLease] = []
    caller = command.caller
    key = grant_key(caller, command.request_id)
    duration_ms = command.lease_duration_ms or state.options.lease_duration_ms
    heartbeat_after_ms = heartbeat_interval(state.options, duration_ms)
    only = filter_of(command)
    for _ in range(command.items_max):
        if not state.schedule.offering:
            break
        event = decide_next_grant(state, caller, duration_ms, key, now_ms, ids(), only)
        if event is None:
            break
        evolve_granted(state, event)
        state.sequence = event.sequence_number
        state.time = now_ms
        out.append(event)
        item = state.items[event.ownership.sequence_id]
        assert item.lease is not None
        granted.append(describe_grant(item, item.lease, now_ms, heartbeat_after_ms))
    return granted


def decide(state: State, command: Any, now_ms: int, arrived_ms: int) -> tuple[list[ev.Event], Any]:
    try:
        kind = type(command)
        acknowledging = _ACKNOWLEDGING.get(kind)
        if acknowledging is not None:
            return acknowledging(state, command, now_ms, arrived_ms)
        deciding = _DECIDING.get(kind)
        if deciding is not None:
            check_caller(command.caller)
            events, answer = deciding(state, command, now_ms)
            if kind is not cmd.EnqueueItems:
                check_storable(events)
            return events, answer
        return _UPKEEP[kind](state, command, now_ms)
    except _WRONG_TYPES as error:
        raise _misplaced(error) from error


def check_enqueue(state: State, command: cmd.EnqueueItems) -> None:
    """Refuse what is wrong in itself, whether there is room for it or not."""
    try:
        check_caller(command.caller)
        check_batch(command.items, state.options.body_limit, per_item=caller_bytes(command.caller))
    except _WRONG_TYPES as error:
        raise _misplaced(error) from error


_WRONG_TYPES: Final = (TypeError, ValueError, AttributeError, OverflowError, RecursionError)


def _misplaced(error: Exception) -> InvalidArgument:
    """A value of a wrong type got past the checks of its field. Nothing was changed yet: deciding only reads."""
    return InvalidArgument(
        f"the request has a value that does not belong there: {error}",
        code="resourcelease.request.invalid",
        field="request",
    )


_ACKNOWLEDGING: Final[dict[type[Any], Callable[[State, Any, int, int], tuple[list[ev.Event], Any]]]] = {
    cmd.ExtendLease: decide_heartbeat,
    cmd.CompleteItem: decide_complete,
    cmd.FailItem: decide_fail,
    cmd.ReleaseItem: decide_release,
}

_DECIDING: Final[dict[type[Any], Callable[[State, Any, int], tuple[list[ev.Event], Any]]]] = {
    cmd.EnqueueItems: decide_enqueue,
    cmd.CancelItem: decide_cancel,
    cmd.DrainItems: decide_drain,
    cmd.RestoreItems: decide_restore,
    cmd.EditDeadLetter: decide_edit,
    cmd.RedriveItems: decide_redrive,
    cmd.PurgeItems: decide_purge,
    cmd.ChangeOptions: decide_options,
    cmd.PauseScope: decide_pause,
    cmd.ResumeScope: decide_resume,
}
"""What callers ask for besides the lease cycle; all of it bears a caller."""

_UPKEEP: Final[dict[type[Any], Callable[[State, Any, int], tuple[list[ev.Event], Any]]]] = {
    cmd.ReturnUndelivered: decide_return,
    cmd.ExpireLeases: decide_expire,
    cmd.AdvanceTime: decide_time,
    cmd.EnforceCaps: decide_caps,
    cmd.SignalBackpressure: decide_backpressure,
    cmd.ElectLeader: decide_leader,
    cmd.StartGeneration: decide_generation,
}
"""What the engine asks for by itself."""
