"""`ReplicationSink`: what follows the log.

A sink gets every event of a shard, in order, at least once. It is told where its checkpoint stands, so that what comes
again can be recognised by its sequence; a target that can keep the checkpoint itself, with the data, makes that exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from omnirelay.errors import OmniRelayError, Unavailable
from omnirelay.log.files import is_hopeless
from omnirelay.replication.events import ReplicatedEvent


class SinkRefused(OmniRelayError):
    """The target will never take this event, however often it is sent. Any other error means: try again."""

    default_code = "replication.refused"

    def __init__(self, message: str, *, sequence: int) -> None:
        super().__init__(message, sequence=sequence)
        self.sequence = sequence


class SinkUnusable(OmniRelayError):
    """The sink cannot work as it is configured, or its target holds something else. Trying again is of no use."""

    default_code = "replication.unusable"


def not_writable(place: Path, error: OSError) -> SinkUnusable | Unavailable:
    """What to raise when a directory cannot be written: whether that can mend itself is told by the error."""
    kind = SinkUnusable if is_hopeless(error) else Unavailable
    return kind(f"cannot write to {place}: {error.strerror or error}")


class TargetChanged(OmniRelayError):
    """The target is no longer the one that was opened: it was removed, moved or replaced. Nothing of this delivery
    counts; the sink is closed and opened again, and what its target then lacks is delivered again.
    """

    default_code = "replication.target_changed"


class SinkGap(OmniRelayError):
    """An event came too early: what is between it and the last one has to come first."""

    default_code = "replication.gap"


class ReplicationSink(Protocol):
    """One target of one shard. Methods are never called at the same time, except that a call which took too long is
    cancelled and made again: work in threads must not overlap with its repetition.
    """

    rebuilds_state: bool
    """The target holds a state made of all events: leaving one out would make it wrong, so it waits instead."""

    async def open(self, shard: str) -> int | None:
        """Get ready. Returns the last sequence the target itself is known to hold, None when it keeps no account.

        It goes before the checkpoint kept here. Raises SinkUnusable; anything else is tried again. Called once more
        after `close` when somebody resumes it, and after several failures in a row.

        A sink that has a method `of_log(log_id)` is told before which log it is, so that it can keep the id with its
        target and refuse one that holds another log's events. If it has an attribute `newest` (see `Newest`) after
        this, that event is compared with the one of the same number in the log.
        """
        ...

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        """Take these in, in order; when it returns they are as safe as the target makes them.

        All may have come before. Raises SinkRefused for one that can never be taken; then none counts as taken.

        A sink that has an attribute `takes_commits` which is true gets whole commits wherever possible, as `Commits`,
        of which events are made only when it asks for them: for targets so quick that this would be most of the work.
        If it also has a method `async prepare(commits)`, that is called with what will come next, most often while
        `apply` is busy with what comes before it: for work that changes nothing outside, like making text. Nobody
        promises that those commits ever come; what `prepare` raises is passed over. With an attribute
        `events_beside_callers` it gets no more events than that at once while callers of the node are about.

        A sink whose target takes nothing behind a gap has a method `async holds(shard)`: the last sequence that is
        there, 0 for none. It may be called at any time, also before `open`, and changes nothing.

        A sink that has a method `expect(events)` is told before each call how many events the log has behind these, or
        0 while callers of the node are about: for what is better done once, at the end of many.
        """
        ...

    async def close(self) -> None:
        """Let go of everything. Safe to call twice, and without `open`."""
        ...


class CheckpointingSink:
    """Base of sinks that rebuild a state: takes each event once, in order, and never skips over a gap.

    Given repeated, shuffled or gapped deliveries it ends in the same state. What comes too early is an error, so that
    whoever delivers comes back with what is missing.
    """

    rebuilds_state = True

    def __init__(self) -> None:
        self.last = 0

    async def open(self, shard: str) -> int | None:
        return self.last

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        for event in events:
            if event.sequence <= self.last:
                continue
            # Not `last + 1`: a new generation jumps ahead, and then only the log knows what was before it.
            if event.previous != self.last:
                raise SinkGap(
                    f"event {event.sequence} came after {self.last}, but in the log it follows {event.previous}",
                    sequence=event.sequence,
                )
            self.apply_one(event)
            self.last = event.sequence

    def apply_one(self, event: ReplicatedEvent) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to close."""
