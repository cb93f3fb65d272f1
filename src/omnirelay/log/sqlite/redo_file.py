"""When there is a redo file, and which disk it is on: the real one, or one that stands in for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from omnirelay.log.sqlite.redo_disk import OsRedoFile

HALF_BYTES: Final = 8 * 1024 * 1024
"""Of each half: a fifth of a second of as many small frames as a quick disk takes. The database has to be flushed once
for each.
"""


class RedoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """When there is a redo file, and when what is in it goes into the database."""

    after_frames: int = 64
    """A log that was written to so often gets one. Making it takes tens of milliseconds; few need it."""
    half_bytes: int = HALF_BYTES
    frame_bytes_max: int = 128 * 1024
    """Larger frames go into the database at once: to write them twice costs as much as their commit."""
    settle_bytes: int = 1024 * 1024
    """What the database lacks is brought in when it is so much …"""
    settle_s: float = 0.05
    """… or has waited for so long."""


class RedoFile(Protocol):
    def write(self, offset: int, parts: Sequence[bytes]) -> None:
        """Write these one behind the other, flushed; together they are whole blocks. Raises OSError."""
        ...

    def close(self) -> None: ...


RedoDisk = Callable[[Path, int], RedoFile]
"""Makes a redo file of a size, full of zeros; durable with its name when it returns. Raises OSError and leaves nothing
then."""

stand_ins: Final[dict[str, RedoDisk]] = {}
"""Disks that stand in for the real one, by the name of the VFS that goes with them."""


def make_redo_file(path: Path, size: int, vfs: str | None) -> RedoFile:
    """A new redo file on the disk that `vfs` stands for."""
    return stand_ins.get(vfs or "", OsRedoFile)(path, size)
