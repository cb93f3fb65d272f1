"""What events make of items, as the flat columns are asked: nothing is taken from the rules of the product."""

from __future__ import annotations

from typing import Final

NOT_THERE, PENDING, LEASED, COMPLETED, DEAD, CANCELLED, DRAINED, PURGED = range(8)
STATES: Final = {
    PENDING: "pending",
    LEASED: "leased",
    COMPLETED: "completed",
    DEAD: "dead",
    CANCELLED: "cancelled",
    DRAINED: "drained",
    PURGED: "purged",
}
KINDS: Final = {
    "Enqueue": (PENDING, (NOT_THERE,)),
    "LeaseGranted": (LEASED, (PENDING,)),
    "Completed": (COMPLETED, (LEASED,)),
    "Heartbeat": (LEASED, (LEASED,)),
    "Failed": (PENDING, (LEASED,)),
    "Released": (PENDING, (LEASED,)),
    "Expired": (PENDING, (LEASED,)),
    "DeadLettered": (DEAD, (PENDING,)),
    "Cancelled": (CANCELLED, (PENDING, LEASED)),
    "DeadLetterEdited": (DEAD, (DEAD,)),
    "DrainSnapshot": (DRAINED, (PENDING,)),
    "Redriven": (PENDING, (DEAD,)),
    "Purged": (PURGED, (DEAD,)),
    # An item may come back under its number once it is forgotten; only of a dead one it is known that it is not.
    "RestoreSnapshot": (PENDING, (NOT_THERE, COMPLETED, CANCELLED, DRAINED, PURGED)),
}
"""What an item is behind an event, and what it has to be before it. The commonest come first."""
NUMBERS: Final = {kind: number for number, kind in enumerate(KINDS)}
AFTER: Final = tuple(after for after, _ in KINDS.values())
ALLOWED: Final = tuple(sum(1 << state for state in before) for _, before in KINDS.values())
"""The states before, as bits."""
LISTED: Final = ("DrainSnapshot", "Redriven", "Purged")
"""They name items in a list."""
SINGLE: Final = tuple(kind for kind in KINDS if kind not in (*LISTED, "RestoreSnapshot"))
"""They name one item, in a column of its own."""
OWNED: Final = ("Heartbeat", "Completed", "Failed", "Released", "Expired")
"""They name the lease that they are about."""
