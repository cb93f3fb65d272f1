"""How frames are found in the redo file after a crash. `redo_layout` says how they lie there."""

from __future__ import annotations

import hashlib
import zlib

import msgspec

from omnirelay.log.base import Frame
from omnirelay.log.chain import Link, follow
from omnirelay.log.sqlite.redo_layout import BLOCK_BYTES, CHECK, FIELDS, HEADER_BYTES, MAGIC, log_mark


class Record(msgspec.Struct, frozen=True):
    """What a header in the file says."""

    offset: int
    size: int
    """Of the frame's bytes."""
    frame: Frame
    """Without its bytes."""


def is_of_another_log(content: bytes, log_id: str) -> bool:
    """Whether the record at the very beginning, where every file gets its first, is one of another log."""
    return content.startswith(MAGIC) and not content.startswith(MAGIC + log_mark(log_id))


def read_records(content: bytes, log_id: str) -> list[Record]:
    """Every header in a redo file that this log wrote and that is whole, in no particular order."""
    mark = MAGIC + log_mark(log_id)
    records = []
    for offset in range(0, len(content), BLOCK_BYTES):
        if content.startswith(mark, offset):
            record = _read_record(content, offset)
            if record is not None:
                records.append(record)
    return records


def _read_record(content: bytes, offset: int) -> Record | None:
    end = offset + FIELDS.size
    fields = content[offset:end]
    check = content[end : end + CHECK.size]
    if len(check) < CHECK.size or CHECK.unpack(check)[0] != zlib.crc32(fields):
        return None
    _, _, size, count, first, last, epoch, generation, time_ms, chain = FIELDS.unpack(fields)
    return Record(offset, size, Frame(first, last, count, epoch, generation, time_ms, b"", chain))


def frames_behind(content: bytes, records: list[Record], link: Link, *, shard: str, log_id: str) -> list[Frame]:
    """The frames that go on from the end of the database, checked one by one as far as they go."""
    by_first: dict[int, list[Record]] = {}
    for record in records:
        by_first.setdefault(record.frame.first, []).append(record)
    frames: list[Frame] = []
    while True:
        for record in by_first.get(link.sequence + 1, ()):
            frame = _whole(content, record, link)
            if frame is not None:
                link = follow(link, frame, shard=shard, log_id=log_id)
                frames.append(frame)
                break
        else:
            return frames


def _whole(content: bytes, record: Record, link: Link) -> Frame | None:
    """The frame of a record, if its bytes continue the chain; None when it was cut short, or is of an older lap."""
    start = record.offset + HEADER_BYTES
    data = content[start : start + record.size]
    running = hashlib.sha256(link.chain)
    running.update(data)
    if len(data) < record.size or running.digest() != record.frame.chain:
        return None
    return msgspec.structs.replace(record.frame, data=data)
