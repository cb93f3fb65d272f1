"""Deciding about pauses: what closes the shard, or parts of it, for a while."""

from __future__ import annotations

from omnirelay.core import events as ev
from omnirelay.core.answers import EnqueueResult, PauseAnswer
from omnirelay.core.commands import PauseScope, ResumeScope
from omnirelay.core.intake import TEXT_MAX, TIME_MAX_MS, check_name, check_number, check_text, refuse
from omnirelay.core.pauses import Pause, scope_name
from omnirelay.core.payload import NewItem, Payload
from omnirelay.core.state import State
from omnirelay.errors import Unavailable

PAUSES_MAX = 10_000
"""Most scopes that may be paused at a time."""

RETRY_AFTER_MS = 1_000
"""Advice when there is no room: long enough not to hammer, short enough not to idle."""


def decide_pause(state: State, command: PauseScope, now_ms: int) -> tuple[list[ev.Event], PauseAnswer]:
    scope = _check_scope(command.resource_type, command.tenant)
    check_text("reason", command.reason, TEXT_MAX)
    check_number("until", command.until_ms, 0, TIME_MAX_MS)
    if type(command.intake) is not bool:
        refuse("intake", "must be true or false")
    if command.until_ms is not None and command.until_ms <= now_ms:
        refuse("until", "must be in the future")
    if scope not in state.pauses and len(state.pauses) >= PAUSES_MAX:
        refuse("scope", f"cannot be paused: {PAUSES_MAX} pauses are there already")
    paused = ev.Paused(
        sequence_number=state.sequence + 1,
        timestamp=now_ms,
        resource_type=command.resource_type,
        tenant=command.tenant,
        intake=command.intake,
        reason=command.reason,
        until=command.until_ms,
        principal=command.caller.principal,
    )
    pause = Pause(
        resource_type=command.resource_type,
        tenant=command.tenant,
        intake=command.intake,
        reason=command.reason,
        principal=command.caller.principal,
        since=now_ms,
        until=command.until_ms,
    )
    return [paused], PauseAnswer(list({**state.pauses, scope: pause}.values()))


def decide_resume(state: State, command: ResumeScope, now_ms: int) -> tuple[list[ev.Event], PauseAnswer]:
    """Resuming what is not paused changes nothing."""
    scope = _check_scope(command.resource_type, command.tenant)
    pauses = [pause for name, pause in state.pauses.items() if name != scope]
    if scope not in state.pauses:
        return [], PauseAnswer(pauses)
    resumed = ev.Resumed(
        sequence_number=state.sequence + 1,
        timestamp=now_ms,
        resource_type=command.resource_type,
        tenant=command.tenant,
        principal=command.caller.principal,
    )
    return [resumed], PauseAnswer(pauses)


def _check_scope(resource_type: str | None, tenant: str | None) -> str:
    if resource_type is not None and tenant is not None:
        refuse("scope", "must be a resourceType or a tenant, not both; neither means the whole shard")
    check_name("resourceType", resource_type)
    check_name("tenant", tenant)
    return scope_name(resource_type, tenant)


def pauses_over(state: State, payload: Payload) -> list[Pause]:
    """The pauses that cover an item with this payload."""
    if not state.pauses:
        return []
    attributes = payload.attributes
    tenant = "" if attributes is None else attributes.get(state.options.tenant_attribute, "")
    scopes = (scope_name(None, None), scope_name(payload.resource_type, None), scope_name(None, tenant))
    return [state.pauses[scope] for scope in scopes if scope in state.pauses]


def check_intake(state: State, items: list[NewItem], results: list[EnqueueResult]) -> None:
    """Refuse new items whose intake is paused; those that are in already are not new."""
    if not any(pause.intake for pause in state.pauses.values()):
        return
    for index, item in enumerate(items):
        for pause in pauses_over(state, item.payload):
            if pause.intake and not results[index].duplicate:
                because = f": {pause.reason}" if pause.reason else ""
                raise Unavailable(
                    f"intake of {pause.scope} is paused{because}; try again later",
                    code="error.resourcelease.paused",
                    retry_after_ms=RETRY_AFTER_MS,
                    index=index,
                )
