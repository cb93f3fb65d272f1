"""How a record of the redo file is written; `redo_records` finds them again.

A record begins on a boundary of 4 KiB and is padded to one, so that no flush touches a block of a record that is
acknowledged.

    record: magic, log, sizes, sequences, epoch, generation, time, chain, checksum of all that (100 of 128 bytes);
            the frame's bytes; zeros
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Final

from omnirelay.log.base import Frame

BLOCK_BYTES: Final = 4_096
MAGIC: Final = b"ORREDO1\0"
FIELDS: Final = struct.Struct("<8s8sIIQQQQq32s")
CHECK: Final = struct.Struct("<I")
HEADER_BYTES: Final = 128
_HEADER_PADDING: Final = bytes(HEADER_BYTES - FIELDS.size - CHECK.size)


def log_mark(log_id: str) -> bytes:
    """What the records of a log have in common, and those of no other."""
    return hashlib.sha256(log_id.encode()).digest()[:8]


def padded(size: int) -> int:
    """How much of the file a frame of that size takes."""
    return -(-(HEADER_BYTES + size) // BLOCK_BYTES) * BLOCK_BYTES


def header_of(mark: bytes, frame: Frame, chain: bytes) -> bytes:
    fields = FIELDS.pack(
        MAGIC,
        mark,
        len(frame.data),
        frame.count,
        frame.first,
        frame.last,
        frame.epoch,
        frame.generation,
        frame.time_ms,
        chain,
    )
    return fields + CHECK.pack(zlib.crc32(fields)) + _HEADER_PADDING
