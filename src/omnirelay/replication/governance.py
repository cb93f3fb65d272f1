"""Who did what to which resource: one JSON line per enqueue, grant, heartbeat, completion, failure and expiry.

Most events name only an item and its lease. Whose they are is remembered from the events before, and looked up in the
shard where those were delivered in an earlier life of the process.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec

from omnirelay.core.state import State
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.sinks import SinkRefused
from omnirelay.wire.instants import instant

ITEMS_REMEMBERED_MAX = 100_000

Action = Literal["enqueue", "grant", "heartbeat", "completion", "failure", "expiry"]

_ACTIONS: dict[str, Action] = {
    "Enqueue": "enqueue",
    "LeaseGranted": "grant",
    "Heartbeat": "heartbeat",
    "Completed": "completion",
    "Failed": "failure",
    "Expired": "expiry",
}
_ALSO_READ = frozenset({"RestoreSnapshot", "DeadLetterEdited"})
"""Events that have no line, but say which resource an item is about."""


class GovernanceLine(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One line. A field that is not known is null; none is ever left out."""

    schema_version: Annotated[Literal[1], msgspec.Meta(description="Version of this layout.")] = 1
    sequence_number: Annotated[int, msgspec.Meta(description="The event in the log of the shard.")]
    action: Annotated[Action, msgspec.Meta(description="What was done.")]
    time: Annotated[str, msgspec.Meta(description="When, ISO-8601 with an offset.")]
    shard: Annotated[str, msgspec.Meta(description="The shard it was done in.")]
    item: Annotated[int, msgspec.Meta(description="The sequenceId of the item.")]
    attempt: Annotated[int | None, msgspec.Meta(description="The attempt of the lease; null for an enqueue.")]
    fence: Annotated[int | None, msgspec.Meta(description="The fence of the lease; null for an enqueue.")]
    resource_type: Annotated[str | None, msgspec.Meta(description="What kind of resource the item is about.")]
    resource_id: Annotated[str | None, msgspec.Meta(description="Which one.")]
    peer: Annotated[str | None, msgspec.Meta(description="Who enqueued, or who holds the lease, as it named itself.")]
    principal: Annotated[str | None, msgspec.Meta(description="The same, as it was authenticated.")]
    thumbprint: Annotated[str | None, msgspec.Meta(description="Of the certificate it came with.")]


def governance_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a line."""
    [schema], components = msgspec.json.schema_components([GovernanceLine], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of the governance sink",
        **schema,
        "$defs": components,
    }


class Holder(msgspec.Struct):
    """What an item is about, and who leased it last."""

    resource_type: str | None = None
    resource_id: str | None = None
    fence: int | None = None
    peer: str | None = None
    principal: str | None = None
    thumbprint: str | None = None
    """Of the lease's owner; the shard itself does not remember it."""


Lookup = Callable[[int, str | None], Holder | None]
"""Takes the id of an item and that of a lease, if it is about one."""


def holder_in(state: State, item_id: int, lease_id: str | None) -> Holder | None:
    """What a shard knows of an item now, and of a lease that lives or has ended."""
    item = state.items.get(item_id)
    if item is None:
        return None
    holder = Holder(item.payload.resource_type, item.payload.resource_id)
    lease = None if lease_id is None else state.ended.find(item_id, lease_id) or item.lease
    if lease is not None:
        holder.fence, holder.peer, holder.principal = lease.token.fence, lease.owner or None, lease.principal
    return holder


class _Resource(msgspec.Struct, rename="camel"):
    resource_type: str
    resource_id: str


class _Token(msgspec.Struct, rename="camel"):
    sequence_id: int
    attempt: int
    lease_id: str
    fence: int | None = None


class _RestoredItem(msgspec.Struct, rename="camel"):
    sequence_id: int
    payload: _Resource


class _Stored(msgspec.Struct, rename="camel"):
    """The fields of the events that are read here."""

    sequence_id: int | None = None
    payload: _Resource | None = None
    ownership: _Token | None = None
    items: list[_RestoredItem] = []
    peer_id: str | None = None
    principal: str | None = None
    principal_thumbprint: str | None = None


_read = msgspec.json.Decoder(_Stored).decode
_write = msgspec.json.Encoder().encode


def _unknown(item: int, lease_id: str | None) -> Holder | None:
    return None


class GovernanceLines:
    """Makes the lines of one shard. Give it every event, in order.

    A delivery that failed comes again, and an event in it must not meet what was remembered of those behind it: then a
    lease would have lost its owner to the next one. So what an event changed is taken back when it comes again.
    """

    def __init__(
        self, lookup: Lookup = _unknown, *, remembered_max: int = ITEMS_REMEMBERED_MAX, repeated_max: int = 1_000
    ) -> None:
        """`repeated_max` events of a delivery may come again."""
        self._repeated_max = repeated_max
        self._lookup = lookup
        self._remembered_max = remembered_max
        self._holders: OrderedDict[int, Holder] = OrderedDict()
        self._last = 0
        """The newest event that came."""
        self._before: deque[tuple[int, int, Holder | None]] = deque()
        """Event, item, and what was known of the item before this event changed it."""

    def line_of(self, event: ReplicatedEvent) -> bytes | None:
        """The line of an event, None when it has none. Raises SinkRefused for one that cannot be understood."""
        action = _ACTIONS.get(event.event_type)
        if action is None and event.event_type not in _ALSO_READ:
            return None
        try:
            stored = _read(event.data)
        except msgspec.DecodeError as error:
            message = f"{event.event_type} is not as this version knows it: {error}"
            raise SinkRefused(message, sequence=event.sequence) from None
        if event.sequence <= self._last:
            self._take_back(event.sequence)
        self._last = event.sequence
        while self._before and self._before[0][0] <= self._last - self._repeated_max:
            self._before.popleft()
        self._remember_resources(stored)
        return None if action is None else _write(self._line(event, action, stored))

    def _take_back(self, sequence: int) -> None:
        """Forget what this event and those behind it have changed."""
        while self._before and self._before[-1][0] >= sequence:
            _, item, before = self._before.pop()
            if before is None:
                self._holders.pop(item, None)
            else:
                self._holders[item] = before

    def _keep_before(self, item: int) -> None:
        holder = self._holders.get(item)
        self._before.append((self._last, item, None if holder is None else copy.copy(holder)))

    def _remember_resources(self, stored: _Stored) -> None:
        if stored.sequence_id is not None and stored.payload is not None:
            self._remember(stored.sequence_id, stored.payload)
        for item in stored.items:
            self._remember(item.sequence_id, item.payload)

    def _remember(self, item: int, resource: _Resource) -> None:
        self._keep_before(item)
        holder = self._holder(item)
        holder.resource_type, holder.resource_id = resource.resource_type, resource.resource_id

    def _holder(self, item: int, lease_id: str | None = None) -> Holder:
        holder = self._holders.get(item)
        if holder is None:
            holder = self._holders[item] = self._lookup(item, lease_id) or Holder()
            if len(self._holders) > self._remembered_max:
                self._holders.popitem(last=False)
        return holder

    def _line(self, event: ReplicatedEvent, action: Action, stored: _Stored) -> GovernanceLine:
        token = stored.ownership
        item = stored.sequence_id if token is None else token.sequence_id
        if item is None:
            raise SinkRefused(f"{event.event_type} names no item", sequence=event.sequence)
        holder = self._holder(item, None if token is None else token.lease_id)
        fence = None if token is None else token.fence
        peer, principal, thumbprint = stored.peer_id or None, stored.principal, stored.principal_thumbprint
        if action == "grant":
            # Its own number is the fence of a lease.
            fence = event.sequence if fence is None else fence
            self._keep_before(item)
            holder.fence, holder.peer, holder.principal, holder.thumbprint = fence, peer, principal, thumbprint
        elif token is not None:
            owner = holder
            if fence is not None and fence != owner.fence:
                # A later lease of the item is remembered: this comes again from far back. The shard may know its owner.
                owner = self._lookup(item, token.lease_id) or owner
            if fence is None or fence == owner.fence:
                peer, principal, thumbprint = owner.peer, owner.principal, owner.thumbprint
        return GovernanceLine(
            sequence_number=event.sequence,
            action=action,
            time=instant(event.timestamp),
            shard=event.shard,
            item=item,
            attempt=None if token is None else token.attempt,
            fence=fence,
            resource_type=holder.resource_type,
            resource_id=holder.resource_id,
            peer=peer,
            principal=principal,
            thumbprint=thumbprint,
        )
