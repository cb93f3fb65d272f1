"""`EventLog`: the promise every store of the log keeps, and the values it speaks in.

A log is one shard's history as a row of *frames*. A frame is the batch of events of one commit, stored as bytes that
are never re-encoded. Frames are linked: `chain = SHA-256(previous chain + stored bytes)`.

    genesis ──▶ frame 1..3 ──▶ frame 4..4 ──▶ frame 5..900 ──▶ head
                               └── the anchor moves here when older frames are trimmed

Who may write is decided by comparison, never by time: `acquire` raises the epoch, and `append` compares epoch, last
sequence and chain with the head in one atomic step. Whoever is behind gets `LogFenced` and must drop its state.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

FRAME_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes of one frame. A store, a sink and a reader can hold one in memory without thinking about it."""

FIRST_GENERATION: Final = 1
"""Generation of a log that was never restored, promoted or cut."""


class Position(msgspec.Struct, frozen=True):
    """A place between two frames: the last event before it, and the chain up to there. Sequence 0 is the start."""

    sequence: int
    chain: bytes


class Frame(msgspec.Struct, frozen=True):
    """One commit. `data` is JSON text in UTF-8 and repeats every other field, so the chain covers them all."""

    first: int
    """Sequence of the first event."""
    last: int
    """Sequence of the last event."""
    count: int
    """Number of events. `last - first + 1`, or less when a GenerationStarted event inside jumps."""
    epoch: int
    generation: int
    time_ms: int
    data: bytes
    chain: bytes = b""
    """The chain after this frame. Filled in by `read`, ignored by `append`."""


class Head(msgspec.Struct, frozen=True):
    """The end of the log, and who may write there."""

    epoch: int
    generation: int
    position: Position
    time_ms: int
    """Time of the last frame; 0 while there is none."""


class Acquired(msgspec.Struct, frozen=True):
    """What a writer that took the log over starts from."""

    epoch: int
    generation: int
    position: Position
    time_ms: int
    """Time of the last frame; 0 while there is none."""
    unproven: str | None
    """None, or why the history is not proven complete. Then the next frame MUST start a generation (a
    GenerationStarted event whose sequence lies above `highest_known`); `append` refuses any other.
    """
    highest_known: int
    """The highest sequence or fence known from anywhere: log, head, witness, anchor, or the readable rest of a damaged
    part.
    """


class SnapshotRecord(msgspec.Struct, frozen=True):
    """A snapshot that was read back and verified: the state after the event `sequence`."""

    sequence: int
    chain: bytes
    """The chain at `sequence`; it ties the snapshot to this very history."""
    digest: str
    path: str
    """Relative to the log's directory."""
    created_ms: int
    events: int
    """Events the snapshot stands for, or any other size its writer likes to keep."""
    size: int
    """Bytes of its files."""
    highest_fence: int


class Anchor(msgspec.Struct, frozen=True):
    """Where the log begins: the last event that was trimmed. Sequence 0 and the genesis chain if none was."""

    sequence: int
    chain: bytes
    highest_fence: int
    """No fence granted up to here is higher."""
    time_ms: int
    generation: int = FIRST_GENERATION


class VerifyReport(msgspec.Struct, frozen=True):
    """What `verify` walked over. There is one only when everything checked out."""

    anchor: Anchor
    """The horizon: nothing before it could be checked."""
    position: Position
    frames: int
    events: int
    bytes: int
    generation: int
    snapshots: int
    """Snapshot records whose chain was compared with the frame they name."""
    witness_sequence: int | None
    """What the witness confirmed; None when the store has no witness or it is missing."""


class LogStatistics(msgspec.Struct, frozen=True):
    """Counters since this object was opened. Times are nanoseconds of wall clock."""

    frames: int = 0
    events: int = 0
    bytes: int = 0
    append_ns_last: int = 0
    append_ns_total: int = 0
    """Time inside the store, hashing included, waiting for the writer thread not."""
    hash_ns_total: int = 0
    checkpoints: int = 0
    checkpoint_failures: int = 0
    """Nothing is lost by one, but the WAL grows until one succeeds."""
    checkpoint_ns_total: int = 0
    wal_bytes: int = 0
    witness_writes: int = 0
    witness_failures: int = 0
    given_up: str | None = None
    """Why this object refuses every append, or None."""


class LogSize(msgspec.Struct, frozen=True):
    """How much of a log there is."""

    events: int
    bytes: int
    """Of the frames that hold the events, whole."""


class EventLog(Protocol):
    """One shard's log. Every method is safe to call from the event loop; none blocks it but `append_now`.

    Two objects on one log are safe in any number of processes: all but one are refused. One object is for one event
    loop, and its appends MUST NOT overlap (there is one frame in flight per shard).

    Cancelling a call does not undo it. An append that was cancelled may still become durable: append the same frame
    again to learn where it stands.
    """

    @property
    def shard(self) -> str: ...

    @property
    def log_id(self) -> str:
        """Random name given at creation. Two logs of one shard never share it."""
        ...

    async def acquire(self, owner: str) -> Acquired:
        """Raise the epoch durably; from then on every older epoch is refused."""
        ...

    def append(self, frame: Frame, expected: Position) -> Awaitable[Position]:
        """Add a frame right after `expected`; durable when what it returns is done. Awaited at once, or later: a store
        MAY begin before that.

        Epoch, last sequence and chain are compared with the head in the step that writes. A frame that already is the
        head (a retry of the same bytes) is answered with its position and not written again.

        Raises InvalidArgument for a frame that can never be right (over 8 MiB, sequences that do not follow, no new
        generation where one is due), LogFenced, LogUnavailable (nothing was written; try the same frame again),
        LogOutcomeUnknown (give the shard up; reopen to learn what holds), LogDamaged.
        """
        ...

    def append_now(self, frame: Frame, expected: Position) -> Position | None:
        """The same on the caller's own thread, durable when it returns, for as long as the store is so quick that a hop
        to another thread would cost as much. None: it is not, right now, and nothing was done.
        """
        ...

    def make_way(self) -> None:
        """To be called before the loop is kept busy for long: an append that has begun in another thread needs the
        interpreter for a moment before it is the disk's, and may not get it for as long. Waits no more than a few
        milliseconds; does nothing when there is none.
        """
        ...

    def read(self, from_sequence: int = 1, to_sequence: int | None = None) -> AsyncIterator[Frame]:
        """Frames that hold a sequence from `from_sequence` to `to_sequence` (or the end), in order.

        Only durable frames, each checked against the chain of the frame before it. The end is the head when the
        reading began. Raises LogTrimmed below the anchor and LogDamaged naming the first bad frame.
        """
        ...

    async def head(self) -> Head: ...

    async def size_after(self, sequence: int, up_to: int | None = None) -> LogSize:
        """How much of the log is behind `sequence`, up to the frame that ends at `up_to` (None: to the end).

        What was trimmed does not count.
        """
        ...

    async def snapshots(self) -> list[SnapshotRecord]:
        """Newest first."""
        ...

    async def add_snapshot(self, record: SnapshotRecord, epoch: int) -> None:
        """Record a snapshot that was read back and verified. The same record again changes nothing.

        Raises LogFenced, and InvalidArgument when no frame ends at its sequence with its chain.
        """
        ...

    async def drop_snapshots(self, sequences: Sequence[int], epoch: int) -> None:
        """Strike these snapshots from the records; of their files the caller disposes. Unknown ones are passed over.

        Raises InvalidArgument for one of the two newest, changing nothing; LogFenced.
        """
        ...

    async def trim(self, below: int, epoch: int) -> Anchor:
        """Drop whole frames whose last sequence is less than `below`, a few milliseconds at a time.

        Snapshot records older than the new anchor go too: nothing can be replayed onto them. Raises InvalidArgument
        beyond the second-newest snapshot, changing nothing; LogFenced.
        """
        ...

    async def anchor(self) -> Anchor: ...

    async def verify(self, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
        """Walk and decode everything; `progress(frames done, frames in all)` is called on the event loop.

        Raises LogDamaged naming the first bad frame, or the snapshot file without which a trimmed log cannot be opened;
        LogRegressed, or UnknownEvent.
        """
        ...

    async def backup(self, destination: Path) -> None:
        """Copy the log while it is in use; `destination` must not exist and is complete when it does.

        A log led from the copy is `unproven`: it may be older than what was acknowledged since.
        """
        ...

    def statistics(self) -> LogStatistics: ...

    async def close(self) -> None:
        """Stop. Safe to call twice; never loses what `append` returned for."""
        ...
