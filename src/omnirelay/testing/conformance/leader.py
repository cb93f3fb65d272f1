"""A writer without an engine: makes events and frames, appends them, and knows where it stands."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from omnirelay.core.events import Enqueue, Event, GenerationStarted, TimeAdvanced
from omnirelay.core.payload import Payload
from omnirelay.log import Acquired, EventLog, Frame, SnapshotRecord, encode_frame
from omnirelay.log.snapshots import write_snapshot

TIME_MS: Final = 1_700_000_000_000


class SimulatedCrash(BaseException):
    """Raised at a failpoint. Not an Exception, so that nothing that handles errors handles it."""


def make_events(first: int, count: int, *, body: bytes = b"work") -> list[Event]:
    """`count` events from sequence `first` on: enqueues, and a TimeAdvanced at the end of every frame."""
    events: list[Event] = [
        Enqueue(
            sequence_number=sequence,
            timestamp=TIME_MS + sequence,
            sequence_id=sequence,
            payload=Payload(resource_type="table", resource_id=f"orders-{sequence}", body=body),
        )
        for sequence in range(first, first + count - 1)
    ]
    last = first + count - 1
    return [*events, TimeAdvanced(sequence_number=last, timestamp=TIME_MS + last)]


class Leader:
    """A writer in the way an engine is one: knows its epoch and generation, and where the log ends."""

    def __init__(self, log: EventLog, acquired: Acquired) -> None:
        self.log = log
        self.epoch = acquired.epoch
        self.generation = acquired.generation
        self.position = acquired.position
        self.unproven = acquired.unproven
        self.highest_known = acquired.highest_known

    @classmethod
    async def of(cls, log: EventLog, owner: str = "tester") -> Leader:
        return cls(log, await log.acquire(owner))

    def frame(self, count: int = 3, *, body: bytes = b"work") -> Frame:
        """The next frame, not appended."""
        return self.frame_of(make_events(self.position.sequence + 1, count, body=body))

    def frame_of(self, events: Sequence[Event]) -> Frame:
        time_ms = events[-1].timestamp
        return encode_frame(self.log.shard, self.log.log_id, self.generation, self.epoch, time_ms, events)

    async def append(self, frame: Frame | None = None, *, inline: bool = False) -> Frame:
        """Append a frame (by default the next one) and move on; `inline` at once, if the store is quick enough."""
        frame = frame if frame is not None else self.frame()
        position = self.log.append_now(frame, self.position) if inline else None
        self.position = position or await self.log.append(frame, self.position)
        return frame

    async def append_many(self, frames: int) -> list[Frame]:
        return [await self.append() for _ in range(frames)]

    def generation_start(self) -> Frame:
        """The frame that starts a generation above everything known."""
        first = max(self.highest_known, self.position.sequence) + (1 << 32)
        self.generation += 1
        event = GenerationStarted(
            sequence_number=first,
            timestamp=TIME_MS + first,
            generation=self.generation,
            reason="test",
            next_sequence_id=first,
        )
        return self.frame_of([event])

    async def snapshot(self, *, highest_fence: int = 0) -> SnapshotRecord:
        """Record a snapshot at the end of the log, with files where the log has a directory for them."""
        sequence = self.position.sequence
        contents = b"the state after %d" % sequence
        path, size = f"snapshots/{sequence:020d}", len(contents)
        directory: Path | None = getattr(self.log, "directory", None)
        if directory is not None:
            path, size = write_snapshot(directory, sequence, contents, ())
        record = SnapshotRecord(
            sequence=sequence,
            chain=self.position.chain,
            digest=sha256(contents).hexdigest(),
            path=path,
            created_ms=TIME_MS,
            events=sequence,
            size=size,
            highest_fence=highest_fence,
        )
        await self.log.add_snapshot(record, self.epoch)
        return record


async def frames_of(log: EventLog, from_sequence: int = 1, to_sequence: int | None = None) -> list[Frame]:
    return [frame async for frame in log.read(from_sequence, to_sequence)]
