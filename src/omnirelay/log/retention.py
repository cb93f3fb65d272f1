"""Rules of snapshots and trimming that every store shares: what may be recorded, and what may be dropped."""

from __future__ import annotations

from collections.abc import Sequence

from omnirelay.errors import InvalidArgument, LogTrimmed
from omnirelay.log.base import Anchor, Position, SnapshotRecord


def check_snapshot(record: SnapshotRecord, stored: Position | None) -> None:
    """Refuse a snapshot of another history. `stored` is the end of the frame (or the anchor) at its sequence."""
    if stored is None or stored.chain != record.chain:
        raise InvalidArgument(
            f"no frame of this log ends at {record.sequence} with the snapshot's chain;"
            " it belongs to another history or was trimmed",
            field="sequence",
            sequence=record.sequence,
        )


def check_trim(below: int, snapshots: Sequence[SnapshotRecord]) -> None:
    """Refuse to trim beyond the second-newest snapshot. `snapshots` are newest first.

    Two of them, so that a shard still starts when the newest turns out to be unreadable.
    """
    horizon = snapshots[1].sequence if len(snapshots) > 1 else 0
    if below > horizon:
        raise InvalidArgument(
            f"cannot trim below {below}: "
            + (f"the second-newest snapshot stands at {horizon}" if horizon else "there are not two snapshots yet"),
            field="below",
            found=below,
            expected=horizon,
        )


def check_drop(sequences: Sequence[int], snapshots: Sequence[SnapshotRecord]) -> None:
    """Refuse to drop one of the two newest snapshots, for the same reason. `snapshots` are newest first."""
    for record in snapshots[:2]:
        if record.sequence in sequences:
            raise InvalidArgument(
                f"cannot drop the snapshot at {record.sequence}: it is one of the two newest",
                field="sequences",
                found=record.sequence,
            )


def surplus_snapshots(snapshots: Sequence[SnapshotRecord], apart_ms: int) -> list[SnapshotRecord]:
    """Snapshots that neither a start nor a trim will need: all but the two newest that came less than `apart_ms` after
    the one kept before them. `snapshots` are newest first.

    From the oldest on, so that whether one is kept does not change with those that come later.
    """
    surplus: list[SnapshotRecord] = []
    kept: SnapshotRecord | None = None
    for record in reversed(snapshots[2:]):
        if kept is not None and record.created_ms - kept.created_ms < apart_ms:
            surplus.append(record)
        else:
            kept = record
    return surplus


def fence_at(sequence: int, snapshots: Sequence[SnapshotRecord], known: int) -> int:
    """A bound on the fences granted up to `sequence`: the oldest snapshot that covers it knows them all."""
    covering = [record for record in snapshots if record.sequence >= sequence]
    return max(known, covering[-1].highest_fence) if covering else known


def trimmed(shard: str, sequence: int, anchor: Anchor) -> LogTrimmed:
    return LogTrimmed(
        f"event {sequence} of {shard!r} was trimmed: the log begins after {anchor.sequence}; start from a snapshot",
        shard=shard,
        sequence=sequence,
        anchor=anchor.sequence,
    )


def check_range(from_sequence: int) -> None:
    if from_sequence < 1:
        raise InvalidArgument(
            f"sequences begin at 1, not at {from_sequence}", field="from_sequence", found=from_sequence
        )
