"""The fenced log: one ordered, durable, hash-chained history per shard. See `EventLog` for the promise."""

from omnirelay.log.base import (
    FIRST_GENERATION,
    FRAME_BYTES_MAX,
    Acquired,
    Anchor,
    EventLog,
    Frame,
    Head,
    LogSize,
    LogStatistics,
    Position,
    SnapshotRecord,
    VerifyReport,
)
from omnirelay.log.frame import chain_of, decode_frame, decode_header, encode_frame, genesis_chain
from omnirelay.log.memory import MemoryLog, MemoryStorage
from omnirelay.log.sqlite import SqliteLog

__all__ = [
    "FIRST_GENERATION",
    "FRAME_BYTES_MAX",
    "Acquired",
    "Anchor",
    "EventLog",
    "Frame",
    "Head",
    "LogSize",
    "LogStatistics",
    "MemoryLog",
    "MemoryStorage",
    "Position",
    "SnapshotRecord",
    "SqliteLog",
    "VerifyReport",
    "chain_of",
    "decode_frame",
    "decode_header",
    "encode_frame",
    "genesis_chain",
]
