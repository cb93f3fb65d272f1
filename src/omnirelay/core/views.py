"""Reading the state: single items, listings and counts. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from itertools import islice

from omnirelay.core.answers import BackpressureSignal, ItemView, Page, Stats
from omnirelay.core.closures import DEPTH, Closure
from omnirelay.core.events import BackpressureChanged
from omnirelay.core.intake import check_caller, check_required_number, check_text, refuse, request_key
from omnirelay.core.items import COMPLETED, DEAD, DELAYED, LEASED, READY, STATE_NAMES, Item
from omnirelay.core.options import COMMAND_BYTES_MAX
from omnirelay.core.payload import Caller, Payload
from omnirelay.core.rules.closing import depth_reason
from omnirelay.core.rules.handling import SCAN_MAX, find_item, matches
from omnirelay.core.state import State
from omnirelay.core.trail import Trail
from omnirelay.errors import NotFound

PAGE_MAX = 1_000
PAGE_BYTES_MAX = COMMAND_BYTES_MAX
"""With the item that takes it beyond this a page ends. A thousand items may have gigabytes of bodies and results, and a
node has to hold and encode a page as a whole.
"""

_NO_TRAIL = Trail()


def view(item: Item) -> ItemView:
    """The item as it is now. Whoever looks gets a payload of its own: changing it changes nothing here."""
    lease = item.lease
    trail = item.trail or _NO_TRAIL
    return ItemView(
        sequence_id=item.sequence_id,
        state=STATE_NAMES[item.state],
        payload=_copied(item.payload),
        attempt=item.attempt,
        priority=item.priority,
        weight=item.weight,
        enqueued_at=item.enqueued_at,
        not_before=item.not_before,
        max_attempts=item.max_attempts,
        last_error=trail.last_error,
        ownership_token=None if lease is None else lease.token,
        owner_peer_id=None if lease is None else lease.owner,
        principal=None if lease is None else lease.principal,
        granted_at=None if lease is None else lease.granted_at,
        last_heartbeat_at=None if lease is None else lease.heartbeat_at or None,
        expires_at=None if lease is None else lease.deadline,
        progress=trail.progress,
        cancel_requested=trail.cancel_requested,
        cancel_reason=trail.cancel_reason,
        result=trail.result,
        result_encoding=trail.result_encoding,
        parent_sequence_id=trail.parent,
        ended_at=item.ended_at if item.state >= COMPLETED else None,
    )


def _copied(payload: Payload) -> Payload:
    own = copy(payload)
    if own.attributes is not None:
        own.attributes = dict(own.attributes)
    return own


def _bytes_of(item: Item) -> int:
    """About what an item adds to a page; a result is part of its size."""
    progress = None if item.trail is None else item.trail.progress
    return item.size if progress is None else item.size + len(progress)


def locate(state: State, sequence_id: int | None, request_id: str | None, caller: Caller) -> Item:
    """The item by its id, or by the request id it was enqueued with (in the caller's scope)."""
    if (sequence_id is None) == (request_id is None):
        refuse("sequenceId", "or requestId is required, and only one of them")
    if request_id is not None:
        check_caller(caller)
        check_text("requestId", request_id)
        record = state.requests.get(request_key(caller.principal, request_id))
        if record is None:
            raise NotFound(f"no item is known under requestId {request_id!r}", field="requestId")
        sequence_id = record.sequence_id
    assert sequence_id is not None
    return find_item(state, sequence_id)


def dead_letters(
    state: State,
    *,
    sequence_id: int | None = None,
    resource_type: str | None = None,
    error_code: str | None = None,
    after: int = 0,
    items_max: int = 100,
) -> Page:
    """A page of dead letters, the longest dead first. A page may be short and still have a `next`."""
    check_required_number("maxItems", items_max, 1, PAGE_MAX)
    check_required_number("after", after, 0, 1 << 62)
    if sequence_id is not None:
        item = find_item(state, sequence_id)
        if item.state != DEAD:
            raise NotFound(
                f"item {sequence_id} is not a dead letter, it is {STATE_NAMES[item.state]}",
                sequenceId=sequence_id,
            )
        return Page([view(item)], None, len(state.dead))
    page: list[ItemView] = []
    size = 0
    last = after
    for looked_at, item in enumerate(state.dead.after(after)):
        if looked_at >= SCAN_MAX or len(page) >= items_max or size > PAGE_BYTES_MAX:
            return Page(page, last, len(state.dead))
        last = item.stamp
        if matches(item, resource_type, error_code):
            page.append(view(item))
            size += _bytes_of(item)
    return Page(page, None, len(state.dead))


def peek(
    state: State,
    *,
    state_name: str = "ready",
    resource_type: str | None = None,
    tenant: str | None = None,
    after: int = 0,
    items_max: int = 100,
) -> Page:
    """A page of items in one state: ready ones as they became so, delayed ones by their time, leased ones by deadline.

    Meant for people and dashboards: `after` counts the items passed over, so a page may repeat or miss an item that
    moved meanwhile. Dead letters are listed exactly, see `dead_letters`. A page may be short and still have a `next`.
    """
    check_required_number("maxItems", items_max, 1, PAGE_MAX)
    check_required_number("after", after, 0, 1 << 53)
    if state_name not in STATE_NAMES:
        refuse("state", f"must be one of {', '.join(STATE_NAMES)}")
    wanted = STATE_NAMES.index(state_name)
    if wanted == DEAD:
        return dead_letters(state, resource_type=resource_type, after=after, items_max=items_max)
    source, total = _listed(state, wanted)
    page: list[ItemView] = []
    size = 0
    passed = after
    for item in islice(source, after, after + SCAN_MAX):
        if len(page) >= items_max or size > PAGE_BYTES_MAX:
            return Page(page, passed, total)
        passed += 1
        if item.state != wanted or not matches(item, resource_type, None):
            continue
        if tenant is None or state.schedule.tenant_of(item) == tenant:
            page.append(view(item))
            size += _bytes_of(item)
    return Page(page, passed if passed < total else None, total)


def _listed(state: State, wanted: int) -> tuple[Iterator[Item], int]:
    if wanted == READY:
        return iter(state.ready), state.ready.live
    if wanted == DELAYED:
        return iter(state.delayed), state.delayed.live
    if wanted == LEASED:
        return iter(state.leased), state.leased.live
    return iter(state.finished), len(state.finished)


def stats(state: State, now_ms: int) -> Stats:
    oldest = state.ready.first()
    return Stats(
        pending_count=state.pending_count,
        ready_count=state.ready.live,
        delayed_count=state.delayed.live,
        active_lease_count=state.leased.live,
        dead_letter_count=len(state.dead),
        completed_count=len(state.finished),
        oldest_ready_age_ms=0 if oldest is None else max(0, now_ms - oldest.enqueued_at),
        live_bytes=state.live_bytes,
        last_sequence=state.sequence,
        generation=state.generation,
        backpressure=backpressure(state),
        pauses=list(state.pauses.values()),
    )


def changed_backpressure(state: State, event: BackpressureChanged, shard: str) -> BackpressureSignal:
    """What an event said of intake. Causes it only names have their reason from the state, which may be further on."""
    known = {closure.cause: closure for closure in backpressure(state).causes}
    names = [event.cause or DEPTH] if event.active else []
    names += event.others or []
    return BackpressureSignal(
        active=bool(names),
        pending=event.pending,
        high_watermark=event.high_watermark,
        low_watermark=event.low_watermark,
        since=event.timestamp,
        shard=shard,
        causes=tuple(known.get(name) or Closure(name, event.reason or "", event.timestamp) for name in names),
    )


def backpressure(state: State, shard: str = "") -> BackpressureSignal:
    causes = tuple(state.closures.values())
    if state.backpressure:
        causes = (Closure(DEPTH, depth_reason(state), state.backpressure_at or 0), *causes)
    changes = [moment for moment in (state.backpressure_at, state.closures_at) if moment is not None]
    return BackpressureSignal(
        active=bool(causes),
        pending=state.pending_count,
        high_watermark=state.options.high_mark,
        low_watermark=state.options.low_mark,
        # The first cause closed it, the last to go opened it.
        since=min((cause.since for cause in causes), default=max(changes, default=None)),
        shard=shard,
        causes=causes,
    )
