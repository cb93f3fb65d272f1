"""`decide` turns a command into events; `apply` also evolves them. This is all an engine calls.

    decide(state, command, now_ms, arrived_ms) -> (events, answer)     reads only, or raises
    apply(state, command, now_ms, arrived_ms, ids, out) -> answer      decides, evolves, appends to `out`

A command either raises and changes nothing, or all of its events happen. Granting several leases is
the one command that decides and evolves in turns: which item is next depends on the grant before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import astuple

from omnirelay.core import commands as cmd
from omnirelay.core import events as ev
from omnirelay.core.answers import CompleteAnswer, EnqueueAnswer, EnqueueResult, GrantedLease
from omnirelay.core.cycle import complete, lease_out, take_in
from omnirelay.core.evolve import evolve_all
from omnirelay.core.intake import check_caller, check_grant, check_storable, refuse
from omnirelay.core.items import COMPLETE
from omnirelay.core.options import COMMAND_BYTES_MAX
from omnirelay.core.payload import Caller, OwnershipToken
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
from omnirelay.core.rules.closing import decide_backpressure, decide_close, decide_open
from omnirelay.core.rules.enqueue import check_items, decide_enqueue, is_open_for, plan_enqueue
from omnirelay.core.rules.grant import (
    choose,
    describe_grant,
    filter_of,
    grant_event,
    grant_key,
    heartbeat_interval,
    owner_of,
    repeated_grants,
)
from omnirelay.core.rules.handling import (
    decide_cancel,
    decide_drain,
    decide_edit,
    decide_purge,
    decide_redrive,
)
from omnirelay.core.rules.pausing import decide_pause, decide_resume
from omnirelay.core.rules.restoring import RESTORED_BYTES_MAX, decide_restore
from omnirelay.core.rules.upkeep import (
    decide_caps,
    decide_generation,
    decide_leader,
    decide_options,
    decide_time,
)
from omnirelay.core.state import State
from omnirelay.errors import InvalidArgument, OmniRelayError

Ids = Callable[[], str]
"""Gives a new lease id each time: a lower-case UUID."""

# What is asked for with every item; compiled code would look a name up in its module each time.
_astuple: Final = astuple
_COMPLETE_ITEM: Final = cmd.CompleteItem
_GRANT_LEASES: Final = cmd.GrantLeases
_ENQUEUE_ITEMS: Final = cmd.EnqueueItems
_ENQUEUE: Final = ev.Enqueue
_ENQUEUE_RESULT: Final = EnqueueResult
_COMPLETED: Final = ev.Completed
_PLAIN_COMPLETE: Final = PLAIN_COMPLETE
_OWNERSHIP_TOKEN: Final = OwnershipToken


def apply(state: State, command: cmd.Command, now_ms: int, arrived_ms: int, ids: Ids, out: list[ev.Event]) -> Any:
    kind = type(command)
    if kind is _COMPLETE_ITEM:
        token, caller, result, result_encoding, follow_ups = _astuple(command)
        if result is None and result_encoding is None and follow_ups is None:
            return _apply_plain_complete(state, token, caller, now_ms, arrived_ms, out)
    elif kind is _GRANT_LEASES:
        return apply_grants(state, command, now_ms, ids, out)
    elif kind is _ENQUEUE_ITEMS:
        return _apply_enqueue(state, command, now_ms, out)
    events, answer = decide(state, command, now_ms, arrived_ms)
    out += events  # Before anything changes, here as everywhere: what breaks off without events changed nothing.
    evolve_all(state, events)
    return answer


def acknowledge_all(
    state: State,
    commands: Any,
    now_ms: int,
    arrived_ms: int,
    ids: Ids,
    out: list[ev.Event],
    ends: list[int],
    outcomes: list[Any],
    events_max: int,
    bytes_max: int,
) -> None:
    """Decide acknowledgements from where `outcomes` ends, each on its own: one that is refused changes nothing for the
    others. Stops early when `out` has `events_max` events or the results have more than `bytes_max` bytes.
    """
    for at in range(len(outcomes), len(commands)):
        if len(out) >= events_max or bytes_max < 0:
            return
        command: Any = commands[at]
        kind = type(command)
        try:
            outcome = apply(state, command, now_ms, arrived_ms, ids, out)
            outcomes.append(outcome)
            ends.append(len(out))
            if outcome is _PLAIN_COMPLETE:
                continue  # As most are: without a result.
        except OmniRelayError as error:
            outcomes.append(error)
        if kind is _COMPLETE_ITEM:
            result: Any = command.result
            if type(result) is bytes:  # Whatever else a caller put there was refused.
                bytes_max -= len(result)


def _apply_plain_complete(
    state: State, token: Any, caller: Caller, now_ms: int, arrived_ms: int, out: list[ev.Event]
) -> CompleteAnswer:
    """The commonest acknowledgement without the lists and tables that the others need; the rules are the same."""
    try:
        item, lease = find_lease(state, token, caller, arrived_ms, COMPLETE)
    except _WRONG_TYPES as error:
        raise _misplaced(error) from error
    if item is None:
        return CompleteAnswer(lease.follow_up_ids)
    sequence = state.sequence + 1
    out.append(_COMPLETED(lease.token, sequence_number=sequence, timestamp=now_ms))
    complete(state, item, now_ms, sequence)
    state.sequence = sequence
    state.time = now_ms
    return PLAIN_COMPLETE


def _apply_enqueue(state: State, command: Any, now_ms: int, out: list[ev.Event]) -> EnqueueAnswer:
    """Plain items that nothing stands in the way of are taken in one by one; any other batch goes the long way."""
    try:
        check_caller(command.caller)
        size, plain = check_items(state, command)
        items: list[Any] = command.items
        planned = None
        if not plain or not is_open_for(state, len(items), size):
            planned = plan_enqueue(state, command, size, now_ms)
    except _WRONG_TYPES as error:
        raise _misplaced(error) from error
    if planned is not None:
        events, answer = planned
        out += events
        evolve_all(state, events)
        return answer
    caller: Caller = command.caller
    principal = caller.principal
    peer_id = caller.peer_id
    now: Any = now_ms  # Compiled code would make an object of it for every item.
    results: list[EnqueueResult] = []
    for item in items:
        payload, priority, weight, _not_before, _delay_ms, _max_attempts = _astuple(item)
        sequence = state.sequence + 1
        number: Any = state.next_sequence_id
        out.append(
            # By place: matching this many names would cost more than all else.
            _ENQUEUE(
                number,
                payload,
                priority,
                weight,
                None,
                None,
                None,
                None,
                None,
                peer_id,
                principal,
                sequence_number=sequence,
                timestamp=now,
            )
        )
        take_in(state, number, payload, priority, weight, None, None, None, sequence, now_ms)
        state.sequence = sequence
        results.append(_ENQUEUE_RESULT(number, False))
    state.time = now_ms
    return EnqueueAnswer(results, state.pending_count, state.leased.live, True)


def apply_grants(state: State, command: Any, now_ms: int, ids: Ids, out: list[ev.Event]) -> list[GrantedLease]:
    """Grant up to `items_max` leases, but none behind as many bytes as a command may have: whatever answers with them
    holds all of it at once. A repeat by request id gets what it still holds, and nothing new.
    """
    check_grant(command, state.options)
    caller, items_max, wanted_ms, request_id, _types, _tenants = _astuple(command)
    if request_id is not None:
        repeated = repeated_grants(state, command, now_ms)
        if repeated:
            return repeated
    granted: list[GrantedLease] = []
    key = grant_key(caller, request_id)
    duration_ms: int = wanted_ms or state.options.lease_duration_ms
    heartbeat_after_ms = heartbeat_interval(state.options, duration_ms)
    deadline = now_ms + duration_ms
    # Compiled code makes an object of a number each time it hands one out; these are the same for all leases.
    now: Any = now_ms
    expires_at: Any = deadline
    expires_in: Any = duration_ms
    heartbeat_after: Any = heartbeat_after_ms
    owner = owner_of(caller)
    principal = caller.principal
    only = filter_of(command)
    schedule = state.schedule
    bytes_left: int = COMMAND_BYTES_MAX
    for _ in range(items_max):
        if not schedule.offering or bytes_left < 0:
            break
        if only is None and schedule.grants < schedule.guard_at:
            item, guard = schedule.first(), False
        else:
            item, guard = choose(state, only, now_ms)
        if item is None:
            break
        fence = state.sequence + 1
        number: Any = fence
        token = _OWNERSHIP_TOKEN(item.sequence_id, item.attempt, ids(), number)
        out.append(grant_event(token, number, now, expires_at, owner, principal, key, guard))
        lease = lease_out(state, item, fence, now_ms, token, deadline, owner, principal, key, guard)
        state.sequence = fence
        state.time = now_ms
        bytes_left -= item.size
        granted.append(describe_grant(item, lease, expires_at, expires_in, heartbeat_after))
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
            if kind is cmd.RestoreItems:
                check_storable(events, RESTORED_BYTES_MAX)
            elif kind is not cmd.EnqueueItems:
                check_storable(events)
            return events, answer
        upkeep = _UPKEEP.get(kind)
        if upkeep is None:
            refuse("command", f"must be something a shard can be asked to do, not {kind.__name__}")
        return upkeep(state, command, now_ms)
    except _WRONG_TYPES as error:
        raise _misplaced(error) from error


def check_enqueue(state: State, command: cmd.EnqueueItems) -> None:
    """Refuse what is wrong in itself, whether there is room for it or not."""
    try:
        check_caller(command.caller)
        check_items(state, command)
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
    cmd.CloseIntake: decide_close,
    cmd.OpenIntake: decide_open,
    cmd.ElectLeader: decide_leader,
    cmd.StartGeneration: decide_generation,
}
"""What the engine asks for by itself."""
