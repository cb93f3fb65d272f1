"""Request ids of enqueues: what a repeat is known by, for as long as it is promised and there is room."""

from __future__ import annotations

from omnirelay.core.items import Item
from omnirelay.core.state import RequestRecord, State


def remember_request(state: State, key: bytes, sequence_id: int, digest: bytes) -> None:
    """Keep the id; a full table first gives up the oldest whose guaranteed time is over (decide checked)."""
    if key not in state.requests and len(state.requests) >= state.options.request_id_max:
        ended = state.requests_ended
        while ended:
            oldest, record = ended.popleft()
            if state.requests.get(oldest) is record:
                del state.requests[oldest]
                break
    state.requests[key] = RequestRecord(sequence_id, digest)
    settle_requests(state)


def end_request(state: State, item: Item, now_ms: int) -> None:
    key = item.request_key
    assert key is not None
    record = state.requests.get(key)
    if record is not None and record.sequence_id == item.sequence_id:
        record.ended_at = now_ms
        state.requests_ended.append((key, record))


def settle_requests(state: State) -> None:
    """Drop heads whose key has a newer record (the item was drained here and restored)."""
    ended = state.requests_ended
    while ended:
        key, record = ended[0]
        if state.requests.get(key) is record:
            return
        ended.popleft()
