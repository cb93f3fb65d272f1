"""What makes frames one history: the rules every store applies when it writes and when it reads."""

from __future__ import annotations

import msgspec

from omnirelay.errors import InvalidArgument, LogDamaged, LogFenced
from omnirelay.log.base import FRAME_BYTES_MAX, Anchor, Frame, Head, Position
from omnirelay.log.frame import chain_of, check_header, damaged_frame


class Link(msgspec.Struct, frozen=True):
    """The end of a checked stretch of history; the next frame must fit onto it."""

    sequence: int
    chain: bytes
    generation: int

    @classmethod
    def at_anchor(cls, anchor: Anchor) -> Link:
        return cls(anchor.sequence, anchor.chain, anchor.generation)

    @classmethod
    def at_head(cls, head: Head) -> Link:
        return cls(head.position.sequence, head.position.chain, head.generation)

    @property
    def position(self) -> Position:
        return Position(self.sequence, self.chain)


def follow(link: Link, frame: Frame, *, shard: str, log_id: str) -> Link:
    """Check a stored frame against what comes before it and return the new end.

    Columns must agree with the bytes, sequences must follow, and the stored chain must be the hash of both. Raises
    LogDamaged naming the place. Events are not decoded here: `decode_frame` does that.
    """
    if frame.first != link.sequence + 1 and not (
        frame.first > link.sequence + 1 and frame.generation > link.generation
    ):
        raise damaged_frame(
            frame,
            shard,
            link.sequence + 1,
            f"stands where event {link.sequence + 1} belongs: frames are missing or out of order",
        )
    if frame.generation < link.generation:
        raise damaged_frame(
            frame, shard, frame.first, f"has generation {frame.generation} after generation {link.generation}"
        )
    if not _count_fits(frame, link.generation):
        raise damaged_frame(frame, shard, frame.first, f"has a count of {frame.count}")
    check_header(frame, shard=shard, log_id=log_id)
    chain = chain_of(link.chain, frame.data)
    if chain != frame.chain:
        raise damaged_frame(frame, shard, frame.first, "does not continue the chain: its bytes or its link changed")
    return Link(frame.last, chain, frame.generation)


def check_frame(frame: Frame, expected: Position) -> None:
    """Refuse a frame that no state of the log could make right. Raises InvalidArgument naming the field."""
    if len(frame.data) > FRAME_BYTES_MAX:
        raise InvalidArgument(
            f"a frame of {len(frame.data)} bytes is over {FRAME_BYTES_MAX}; commit fewer events at once",
            field="data",
            found=len(frame.data),
            expected=FRAME_BYTES_MAX,
        )
    if frame.first <= expected.sequence:
        raise InvalidArgument(
            f"a frame that begins at {frame.first} cannot follow event {expected.sequence}",
            field="first",
            found=frame.first,
            expected=expected.sequence + 1,
        )
    if frame.last < frame.first or not 1 <= frame.count <= frame.last - frame.first + 1:
        raise InvalidArgument(
            f"a frame {frame.first}..{frame.last} cannot hold {frame.count} events",
            field="count",
            found=frame.count,
        )


def check_generation(frame: Frame, expected: Position, generation: int, unproven: str | None, highest: int) -> None:
    """Refuse a jump without a new generation, and anything but a new generation on an unproven history.

    `generation` is the head's. Raises InvalidArgument; nothing was written.
    """
    if frame.generation > generation:
        if unproven is not None and frame.first <= highest:
            raise InvalidArgument(
                f"a new generation must begin above the highest sequence known, {highest}, not at {frame.first}",
                field="first",
                found=frame.first,
                expected=highest + 1,
            )
        return
    if unproven is not None:
        raise InvalidArgument(
            f"the history is not proven complete ({unproven}): the next frame must start generation {generation + 1}",
            field="generation",
            found=frame.generation,
            expected=generation + 1,
        )
    if frame.generation < generation:
        raise InvalidArgument(
            f"generation {frame.generation} is over, the log is in {generation}",
            field="generation",
            found=frame.generation,
            expected=generation,
        )
    if frame.first != expected.sequence + 1 or frame.count != frame.last - frame.first + 1:
        raise InvalidArgument(
            f"a frame {frame.first}..{frame.last} of {frame.count} events leaves a gap after"
            f" {expected.sequence}; only a new generation may jump",
            field="first",
            found=frame.first,
            expected=expected.sequence + 1,
        )


def fenced(shard: str, frame_epoch: int, expected: Position, head: Head) -> LogFenced:
    """The refusal of a writer whose idea of the head is not the log's."""
    if head.epoch != frame_epoch:
        message = f"another writer took {shard!r} over with epoch {head.epoch}; this one has {frame_epoch}"
    else:
        message = f"the log of {shard!r} ends at {head.position.sequence}, this writer expected {expected.sequence}"
    return LogFenced(
        message + "; drop the state and follow",
        shard=shard,
        epoch=frame_epoch,
        found_epoch=head.epoch,
        sequence=expected.sequence,
        found=head.position.sequence,
    )


def missing_frame(shard: str, sequence: int, head_sequence: int) -> LogDamaged:
    return LogDamaged(
        f"event {sequence} of {shard!r} is missing: the head says that {head_sequence} was written;"
        " restore a backup, or accept the loss from here on (omnirelay log recover)",
        shard=shard,
        sequence=sequence,
        expected=head_sequence,
    )


def _count_fits(frame: Frame, generation_before: int) -> bool:
    span = frame.last - frame.first + 1
    if frame.count == span:
        return True
    # Only a new generation jumps, so only there a frame may hold fewer events than its sequences span.
    return frame.generation > generation_before and 1 <= frame.count < span
