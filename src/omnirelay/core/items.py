"""The records a shard keeps in memory, one of each per item and per lease.

Flat objects with slots that hold no cycles; compiled, they are C structs that the garbage collector never looks at.
What few items need (errors, progress, results) sits in a `Trail` made on demand. How they lie in a snapshot is the
business of `records`.

    DELAYED ──▶ READY ──▶ LEASED ──▶ COMPLETED
                  ▲          ├─────▶ DEAD ──▶ READY (redriven)
                  └──────────┘ └───▶ CANCELLED
"""

from __future__ import annotations

from sys import intern
from typing import Final

from omnirelay.core.native import mypyc_attr
from omnirelay.core.payload import OwnershipToken, Payload
from omnirelay.core.trail import Trail

DELAYED: Final = 0
READY: Final = 1
LEASED: Final = 2
COMPLETED: Final = 3
DEAD: Final = 4
CANCELLED: Final = 5

STATE_NAMES: Final = ("delayed", "ready", "leased", "completed", "dead", "cancelled")

NO_VERB: Final = 0
COMPLETE: Final = 1
FAIL: Final = 2
RELEASE: Final = 3
LOST: Final = 4
"""How a lease ended; LOST is an expiry or a forced cancel: no acknowledgement ended it."""

VERB_NAMES: Final = ("", "complete", "fail", "release", "")


@mypyc_attr(acyclic=True)
class Lease:
    """Who owns an item, and for how long. From `verb` on it is how the lease ended, for repeated acknowledgements."""

    __slots__ = (
        "answer_not_before",
        "answer_state",
        "deadline",
        "duration",
        "ended_at",
        "follow_up_ids",
        "granted_at",
        "heartbeat_at",
        "owner",
        "principal",
        "request_key",
        "token",
        "verb",
    )

    def __init__(
        self,
        token: OwnershipToken,
        owner: str,
        principal: str | None,
        granted_at: int,
        deadline: int,
        duration: int,
        request_key: str | None,
    ) -> None:
        self.token = token
        self.owner = owner
        self.principal = principal
        self.granted_at = granted_at
        self.deadline = deadline
        self.duration = duration
        self.request_key = request_key
        self.heartbeat_at = 0
        """When the last heartbeat came; 0 while none has."""
        self.verb = NO_VERB
        self.ended_at = 0
        self.answer_state = LEASED
        self.answer_not_before: int | None = None
        self.follow_up_ids: list[int] | None = None


@mypyc_attr(acyclic=True)
class Item:
    """One piece of work, from its enqueue until it is forgotten.

    `stamp` is the number of the event that put the item where it is now: heaps recognise by it
    whether an entry still stands. `size` is what the item counts against byte capacities. `order` is its place among
    others: its sequence id, or a later one when it was redriven to the tail of a queue.
    """

    __slots__ = (
        "attempt",
        "ended_at",
        "enqueued_at",
        "lease",
        "max_attempts",
        "not_before",
        "order",
        "payload",
        "place",
        "priority",
        "request_key",
        "sequence_id",
        "size",
        "stamp",
        "state",
        "trail",
        "weight",
    )

    def __init__(
        self,
        sequence_id: int,
        payload: Payload,
        state: int,
        stamp: int,
        attempt: int,
        priority: int,
        weight: int,
        max_attempts: int | None,
        enqueued_at: int,
        not_before: int | None,
        size: int,
        request_key: bytes | None,
        order: int,
    ) -> None:
        # Compiled, this is how it lies in memory. What queues look at comes first, so that they wait for it only once.
        self.order = order
        self.place = 0
        """What queues mark it with."""
        self.state = state
        self.priority = priority
        self.payload = payload
        self.weight = weight
        self.stamp = stamp
        self.sequence_id = sequence_id
        self.attempt = attempt
        self.lease: Lease | None = None
        self.trail: Trail | None = None
        self.enqueued_at = enqueued_at
        self.size = size
        self.ended_at = 0
        self.request_key = request_key
        self.not_before = not_before
        self.max_attempts = max_attempts

    def with_trail(self) -> Trail:
        trail = self.trail
        if trail is None:
            trail = self.trail = Trail()
        return trail


def attempts_before(item: Item) -> int:
    """Attempts made before the item was last redriven, which no longer count; the present one always does.

    What came in from elsewhere was not always checked: a log may hold an item that says otherwise of itself.
    """
    trail = item.trail
    if trail is None or trail.attempt_floor <= 0:
        return 0
    return min(trail.attempt_floor, item.attempt - 1)


def size_of(payload: Payload) -> int:
    """Bytes a payload counts for: its body and its attributes."""
    size = len(payload.body)
    if payload.attributes:
        for name, value in payload.attributes.items():
            size += len(name) + len(value)
    return size


_intern: Final = intern
"""Asked for with every attribute; compiled code would look the name up in its module each time."""

NO_BODY: Final = Payload(resource_type="", resource_id="").body
"""The one empty body. Encoders leave defaults out by identity, and not every empty `bytes` is the same object."""


def intern_strings(payload: Payload) -> int:
    """Share the strings that repeat across items: a million copies of "table" are 50 MB. Returns the payload's size."""
    payload.resource_type = intern(payload.resource_type)
    size = len(payload.body)
    if not size:
        payload.body = NO_BODY
    if payload.payload_encoding is not None:
        payload.payload_encoding = intern(payload.payload_encoding)
    attributes = payload.attributes
    if attributes is not None:
        size += share_attributes(payload, attributes)
    return size


_single: Final[dict[str, dict[str, dict[str, str]]]] = {}
"""Maps of one attribute, by its name and value. Most items that have any have a tenant, and a map is as large as the
item itself."""

_SINGLE_MAX: Final = 16_384
"""So many values of a name are shared; then it begins anew, because they may be ones that never come back …"""

_NAMES_MAX: Final = 64
"""… and so many names."""


def _share_single(name: str, value: str) -> dict[str, str]:
    values = _single.get(name)
    if values is None:
        if len(_single) >= _NAMES_MAX:
            _single.clear()
        values = _single[_intern(name)] = {}
    elif len(values) >= _SINGLE_MAX:
        values.clear()
    known = values[_intern(value)] = {_intern(name): _intern(value)}
    return known


def share_attributes(payload: Payload, attributes: dict[str, str]) -> int:
    """The same for its attributes: a single one as the map that all have who have it. Of several, values are replaced
    where they are, by equal ones; the map is made anew only when a name has to be replaced too. Returns the size."""
    size = 0
    if len(attributes) == 1:
        for name, value in attributes.items():
            size = len(name) + len(value)
            values = _single.get(name)
            known = None if values is None else values.get(value)
            payload.attributes = _share_single(name, value) if known is None else known
        return size
    anew = type(attributes) is not dict or not attributes
    for name, value in attributes.items():
        size += len(name) + len(value)
        if anew or _intern(name) is not name:
            anew = True
            continue
        shared = _intern(value)
        if shared is not value:
            attributes[name] = shared
    if anew:
        payload.attributes = {_intern(name): _intern(value) for name, value in attributes.items()} or None
    return size
