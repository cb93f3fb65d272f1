"""The fenced log: one ordered, durable, hash-chained history per shard. See `EventLog` for the promise.

Stores are imported when they are first used: a process that only reads frames needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
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

_STORES = {
    "MemoryLog": "omnirelay.log.memory",
    "MemoryStorage": "omnirelay.log.memory",
    "SqliteLog": "omnirelay.log.sqlite",
}


def __getattr__(name: str) -> Any:
    try:
        module = _STORES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(import_module(module), name)
    globals()[name] = value  # The next access does not come here.
    return value
