"""Deciding what closes intake: too much is pending, or something outside of the shard asks for it.

Every cause closes and opens for itself. Intake is open when none is left.
"""

from __future__ import annotations

from omnirelay.core import events as ev
from omnirelay.core.closures import CLOSURES_MAX, DEPTH
from omnirelay.core.commands import CloseIntake, OpenIntake, SignalBackpressure
from omnirelay.core.intake import TEXT_MAX, check_name, refuse
from omnirelay.core.rules.pausing import RETRY_AFTER_MS
from omnirelay.core.state import State
from omnirelay.errors import ResourceExhausted


def check_backpressure(state: State) -> None:
    """Refuse new items while intake is closed, with everything that closes it."""
    if not state.backpressure and not state.closures:
        return
    options = state.options
    reasons = [closure.reason for closure in state.closures.values()]
    if state.backpressure:
        reasons.insert(0, depth_reason(state))
    raise ResourceExhausted(
        "; ".join(reasons),
        retry_after_ms=RETRY_AFTER_MS,
        pendingCount=state.pending_count,
        highWatermark=options.high_mark,
        lowWatermark=options.low_mark,
        **({"causes": ", ".join(causes_of(state))} if state.closures else {}),
    )


def depth_reason(state: State) -> str:
    return f"{state.pending_count} items are pending; intake opens again when {state.options.low_mark} are left"


def causes_of(state: State) -> list[str]:
    """The names of all causes that keep intake closed."""
    return [DEPTH, *state.closures] if state.backpressure else list(state.closures)


def decide_backpressure(state: State, command: SignalBackpressure, now_ms: int) -> tuple[list[ev.Event], bool]:
    """The cooldown delays a change and never loses it: whoever asks again when it is over gets it then."""
    due = state.backpressure_due()
    if due is None or due > now_ms:
        return [], False
    return [_changed(state, now_ms, active=not state.backpressure)], True


def decide_close(state: State, command: CloseIntake, now_ms: int) -> tuple[list[ev.Event], bool]:
    """A cause that closes intake already changes nothing; its first reason stays."""
    check_name("cause", command.cause)
    check_name("reason", command.reason, TEXT_MAX)
    if command.cause == DEPTH:
        refuse("cause", f"must not be {DEPTH!r}: that is found by the shard itself")
    if command.cause in state.closures:
        return [], False
    if len(state.closures) >= CLOSURES_MAX:
        refuse("cause", f"cannot close intake: {CLOSURES_MAX} causes do already")
    return [_changed(state, now_ms, active=True, cause=command.cause, reason=command.reason)], True


def decide_open(state: State, command: OpenIntake, now_ms: int) -> tuple[list[ev.Event], bool]:
    """Opens what this cause closed, and nothing else; without it nothing changes."""
    check_name("cause", command.cause)
    check_name("reason", command.reason, TEXT_MAX)
    if command.cause not in state.closures:
        return [], False
    return [_changed(state, now_ms, active=False, cause=command.cause, reason=command.reason)], True


def _changed(
    state: State, now_ms: int, *, active: bool, cause: str | None = None, reason: str | None = None
) -> ev.BackpressureChanged:
    others = [other for other in causes_of(state) if other != (cause or DEPTH)]
    return ev.BackpressureChanged(
        sequence_number=state.sequence + 1,
        timestamp=now_ms,
        active=active,
        pending=state.pending_count,
        high_watermark=state.options.high_mark,
        low_watermark=state.options.low_mark,
        cause=cause,
        reason=reason,
        others=others or None,
    )
