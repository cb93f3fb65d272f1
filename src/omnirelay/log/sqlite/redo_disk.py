"""The redo file on a real disk: made at its full size, and written so that a write is durable when it returns."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from omnirelay.log.files import sync_directory
from omnirelay.log.sqlite.redo_layout import BLOCK_BYTES

_STEP: Final = bytes(1024 * 1024)
_STAGING_BYTES: Final = 256 * 1024


class OsRedoFile:
    """Written past the page cache where the file system lets one: a copy of each record for readers that never come
    is a tenth of what a small write costs.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._staging = memoryview(mmap.mmap(-1, _STAGING_BYTES))
        """What is written past the page cache has to begin on a boundary in memory, too."""
        path.unlink(missing_ok=True)
        try:
            write_zeros(path, size)
            self._descriptor = _open_durable(path, self._staging[:BLOCK_BYTES])
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def write(self, offset: int, parts: Sequence[bytes]) -> None:
        data = b"".join(parts)
        size = len(data)
        if size > len(self._staging):
            self._staging = memoryview(mmap.mmap(-1, size))
        staged = self._staging[:size]
        staged[:] = data
        written = os.pwrite(self._descriptor, staged, offset)
        while written < size:
            written += os.pwrite(self._descriptor, staged[written:], offset + written)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _open_durable(path: Path, zeros: memoryview) -> int:
    """A write to this descriptor returns when its bytes are on the disk: one call in place of two, and one wait of the
    kernel in place of two.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_DSYNC
    try:
        descriptor = os.open(path, flags | getattr(os, "O_DIRECT", 0))
        try:
            os.pwrite(descriptor, zeros, 0)  # Some take the flag and refuse the write.
        except OSError:
            os.close(descriptor)
            raise
    except OSError:
        return os.open(path, flags)  # Some file systems have nothing but the page cache.
    return descriptor


def write_zeros(path: Path, size: int) -> None:
    """A file whose blocks are all written. Blocks that were only reserved cost the first flush of each as much as a
    file that grows.
    """
    with open(path, "xb", buffering=0) as file:
        left = size
        while left > 0:
            left -= file.write(_STEP[:left])
        os.fsync(file.fileno())
    sync_directory(path.parent)
