"""One segment: whole frames as one immutable object, and the entry that a manifest keeps of it.

    00000000000000000001-00000000000000004711-3-9f2c11d0-5be1….parquet
    first event          last event           epoch chain  nonce

The nonce makes the name of every attempt to write a segment a new one. What an attempt that never got as far as the
manifest left behind is therefore never mistaken for something else, and can be swept up.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias, get_args

from omnirelay.errors import LogDamaged
from omnirelay.log.base import Frame
from omnirelay.log.chain import Link, follow
from omnirelay.log.frame import check_header
from omnirelay.segments.errors import SegmentsDamaged
from omnirelay.segments.lines import decode_lines, encode_lines, merge_lines
from omnirelay.segments.manifest import Before, Entry
from omnirelay.segments.parquet import decode_parquet, encode_parquet, merge_parquet

SegmentFormat: TypeAlias = Literal["parquet", "jsonl"]
FORMATS: Final[tuple[SegmentFormat, ...]] = get_args(SegmentFormat)

_EXTENSIONS: Final[dict[SegmentFormat, str]] = {"parquet": ".parquet", "jsonl": ".jsonl.zst"}
_DECODERS: Final[dict[SegmentFormat, Callable[[bytes], list[Frame]]]] = {
    "parquet": decode_parquet,
    "jsonl": decode_lines,
}
_MERGERS: Final[dict[SegmentFormat, Callable[[Sequence[bytes]], bytes]]] = {
    "parquet": merge_parquet,
    "jsonl": merge_lines,
}


def encode_segment(
    frames: Sequence[Frame], before: Before, kind: SegmentFormat, region: str | None
) -> tuple[Entry, bytes]:
    """The object of these frames and its entry. Blocking and long: call it in a thread."""
    data = encode_frames(frames, kind, region)
    return entry_of(frames, before, kind, data), data


def encode_frames(
    frames: Sequence[Frame], kind: SegmentFormat, region: str | None, types: Counter[str] | None = None
) -> bytes:
    """The object of these frames. Blocking and long: call it in a thread.

    How many events of each type there are is added to `types` by a format for which that is no work.
    """
    return encode_parquet(frames, region, types) if kind == "parquet" else encode_lines(frames, region)


def entry_of(frames: Sequence[Frame], before: Before, kind: SegmentFormat, data: bytes) -> Entry:
    first, last = frames[0], frames[-1]
    chain = last.chain.hex()
    name = f"{first.first:020d}-{last.last:020d}-{last.epoch}-{chain[:8]}-{secrets.token_hex(8)}{_EXTENSIONS[kind]}"
    return Entry(
        name=name,
        first=first.first,
        last=last.last,
        epoch=last.epoch,
        generation=last.generation,
        chain=chain,
        before=before,
        events=sum(frame.count for frame in frames),
        frames=len(frames),
        bytes=len(data),
        raw_bytes=sum(len(frame.data) for frame in frames),
        from_ms=first.time_ms,
        to_ms=last.time_ms,
        digest=hashlib.sha256(data).hexdigest(),
    )


def merge_objects(kind: SegmentFormat, objects: Sequence[bytes]) -> bytes:
    """Several segments as one object, rows as they are. Blocking and long: call it in a thread."""
    return _MERGERS[kind](objects)


def format_of(name: str) -> SegmentFormat | None:
    """The format that a name tells of, None when it is no segment's."""
    return next((kind for kind, extension in _EXTENSIONS.items() if name.endswith(extension)), None)


def decode_segment(entry: Entry, data: bytes, *, shard: str, log_id: str) -> list[Frame]:
    """The frames of a segment, every one checked. Raises SegmentsDamaged naming segment and place.

    Blocking and long: call it in a thread.
    """
    if hashlib.sha256(data).hexdigest() != entry.digest:
        raise damaged(shard, entry, entry.first, "is not what was written: its digest differs from the manifest's")
    kind = format_of(entry.name)
    if kind is None:
        raise damaged(shard, entry, entry.first, "has a format that this version does not know; upgrade omnirelay")
    try:
        frames = _DECODERS[kind](data)
    except ValueError as error:
        raise damaged(shard, entry, entry.first, f"cannot be read: {error}") from None
    try:
        end = follow_all(entry.before.link(), frames, shard=shard, log_id=log_id)
    except LogDamaged as error:
        place = error.details.get("sequence")
        sequence = place if isinstance(place, int) else entry.first
        raise damaged(shard, entry, sequence, f"is damaged: {error.message}") from error
    if end is None or (frames[0].first, end) != (entry.first, entry.end):
        raise damaged(shard, entry, entry.first, "does not hold the frames that the manifest says")
    return frames


def follow_all(link: Link | None, frames: Sequence[Frame], *, shard: str, log_id: str) -> Link | None:
    """Check frames against each other and against what comes before them; the new end. Raises LogDamaged.

    Without a link the first frame's own chain is taken as it is: what it was computed from was never here.
    """
    for frame in frames:
        if link is None:
            check_header(frame, shard=shard, log_id=log_id)
            link = Link(frame.last, frame.chain, frame.generation)
        else:
            link = follow(link, frame, shard=shard, log_id=log_id)
    return link


def damaged(shard: str, entry: Entry, sequence: int, what: str) -> SegmentsDamaged:
    return SegmentsDamaged(
        f"segment {entry.name} of {shard!r} {what}", shard=shard, segment=entry.name, sequence=sequence
    )
