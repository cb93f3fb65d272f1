"""How long things took, read off batches of events of one kind: what the meters of a shard count.

Apart from them because it runs for every event, and what runs for every event is compiled.
"""

from __future__ import annotations

from typing import Any

from omnirelay.core.items import Item


def waits(
    grants: list[Any], items: dict[int, Item], put_off: dict[int, int], granted_at: dict[int, int], room: int
) -> list[int]:
    """How long each item waited for its first lease, of those that are still there: from when it came, or could run
    where it is in `put_off`, which forgets it. Up to `room` of the grants are noted in `granted_at`.
    """
    found: list[int] = []
    for event in grants:
        token: Any = event.ownership
        number: Any = token.sequence_id
        at: Any = event.timestamp
        if room > 0:
            granted_at[number] = at
            room -= 1
        if token.attempt == 1:
            due = put_off.pop(number, -1) if put_off else -1
            if due < 0:
                item = items.get(number)
                if item is None:
                    continue
                due = item.enqueued_at
            now_ms: int = at
            found.append(now_ms - due if now_ms > due else 0)
    return found


def lease_times(ends: list[Any], granted_at: dict[int, int]) -> list[int]:
    """How long each lease lived whose grant was noted."""
    found: list[int] = []
    for event in ends:
        token: Any = event.ownership
        at = granted_at.pop(token.sequence_id, -1)
        if at >= 0:
            ended_ms: int = event.timestamp
            found.append(ended_ms - at)
    return found
