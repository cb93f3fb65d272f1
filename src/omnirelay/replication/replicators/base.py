"""`Replicator`: the promise that every replicator keeps, and how what is published gets its number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from omnirelay.core.intake import TIME_MAX_MS
from omnirelay.errors import InvalidArgument
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.sinks import SinkGap
from omnirelay.wire.instants import read_instant

Publishable: TypeAlias = Mapping[str, Any] | ReplicatedEvent
"""An event by the names of its JSON, which gets a number and, unless it brings one, a timestamp; or one of a log, which
keeps the number it has.
"""

SHARD_ID: Final = "shardId"
"""Member of a stored event: the shard it is from, when that is not the one whose numbers it has."""


class Replicator(Protocol):
    """Takes events in, in order, and carries them on. One object is for one event loop."""

    @property
    def shard(self) -> str:
        """Whose numbers these are: events of a log are taken only when they are of this one."""
        ...

    @property
    def last(self) -> int:
        """Number of the last event that was taken in; 0 for none, and before `start`."""
        ...

    async def start(self) -> None:
        """Find out where the numbers go on, and begin to deliver. Once more after `stop` is fine."""
        ...

    async def publish(self, events: Sequence[Publishable]) -> list[ReplicatedEvent]:
        """Give these the next numbers and take them in: all of them, or none, and then no number is used up.

        Returns them as they were taken in, when they are as safe as the replicator keeps them; it does not wait for
        where they are carried to. Calls at the same time are taken one after the other.

        An event of a log keeps its number. One that was taken before is passed over and not returned, so that after a
        failure all may come again; one that would leave a gap raises SinkGap. Raises InvalidArgument for what is no
        event, naming its index.
        """
        ...

    async def stop(self) -> None:
        """Finish what is under way and let go. Safe to call twice."""
        ...


def numbered(events: Sequence[Publishable], shard: str, last: int, now_ms: int, region: str) -> list[ReplicatedEvent]:
    """The events that are new behind `last`, each with its number. Raises SinkGap and InvalidArgument."""
    taken: list[ReplicatedEvent] = []
    for index, event in enumerate(events):
        if not isinstance(event, ReplicatedEvent):
            event = _new(event, index, shard, last, now_ms, region)
        elif event.shard != shard:
            raise _refused(index, f"has a number of {event.shard!r}, and here are those of {shard!r}")
        elif event.sequence <= last:
            continue
        elif event.previous != last:
            raise SinkGap(
                f"event {event.sequence} came after {last}, but in the log it follows {event.previous}",
                sequence=event.sequence,
            )
        elif event.sequence != last + 1 and event.event_type != "GenerationStarted":
            raise _refused(index, f"jumps from {last} to {event.sequence}, which only GenerationStarted may")
        taken.append(event)
        last = event.sequence
    return taken


def _new(event: Any, index: int, shard: str, last: int, now_ms: int, region: str) -> ReplicatedEvent:
    if not isinstance(event, Mapping):
        raise _refused(index, f"must be an object, got {type(event).__name__}")
    name = event.get("eventType")
    if not isinstance(name, str) or not name:
        raise _refused(index, f"needs an eventType, got {name!r}")
    if event.get("sequenceNumber"):
        raise _refused(index, "has a sequenceNumber, which is given here")
    timestamp = _timestamp(event.get("timestamp"), index, now_ms)
    head = {"eventType": name, "sequenceNumber": last + 1, "timestamp": timestamp}
    try:
        data = msgspec.json.encode({**head, **{key: event[key] for key in event if key not in head}})
    except (TypeError, ValueError, RecursionError) as error:
        raise _refused(index, f"cannot be written as JSON: {error}") from None
    return ReplicatedEvent(shard, last + 1, last, name, timestamp, data, region)


def _timestamp(given: Any, index: int, now_ms: int) -> int:
    if given is None:
        return now_ms
    if type(given) is int and 0 <= given <= TIME_MAX_MS:
        return given
    if isinstance(given, str):
        return read_instant("timestamp", given)
    raise _refused(index, f"has a timestamp that is none: {given!r}")


def labelled(event: ReplicatedEvent) -> ReplicatedEvent:
    """The event as of the shard that it says itself to be from."""
    if SHARD_ID.encode() not in event.data:
        return event
    own = _read_label(event.data).shard_id
    return event if not isinstance(own, str) else msgspec.structs.replace(event, shard=own)


class _Label(msgspec.Struct, rename="camel"):
    shard_id: Any = None


_read_label = msgspec.json.Decoder(_Label).decode


def _refused(index: int, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"event {index} {what}", code="error.resourcelease.replication.event_required", field="events", index=index
    )
