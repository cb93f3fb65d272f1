"""`Parcels`: large things between two processes, in a file that lies in memory.

One side puts something into it and tells the other by a ticket where it is; it must not put anything else until the
other has answered. Nothing is copied while the interpreter lock is held.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from typing import Final

TICKET: Final = struct.Struct("<QQ")
"""Where the note is, and how long: it stands behind everything else and says what that is."""

_TOGETHER: Final = 512
"""Pieces that are written in one step; systems allow 1,024."""


def new_parcels() -> Parcels:
    """Raises OSError."""
    if hasattr(os, "memfd_create"):
        return Parcels(os.memfd_create("omnirelay-parcels"))
    with tempfile.TemporaryFile() as file:
        return Parcels(os.dup(file.fileno()))


class Parcels:
    """Close it."""

    def __init__(self, file: int) -> None:
        self.file = file

    def put(self, pieces: Sequence[bytes], note: bytes) -> bytes:
        """The ticket. Raises OSError, when there is no memory left for one."""
        at = 0
        for start in range(0, len(pieces), _TOGETHER):
            at = self._write(pieces[start : start + _TOGETHER], at)
        self._write([note], at)
        return TICKET.pack(at, len(note))

    def _write(self, pieces: Sequence[bytes], at: int) -> int:
        """Where it ends."""
        left = [memoryview(piece) for piece in pieces if piece]
        while left:
            written = os.pwritev(self.file, left, at)
            at += written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]
        return at

    def note(self, ticket: bytes) -> bytes:
        at, size = TICKET.unpack(ticket)
        return self._read(at, size)

    def pieces(self, sizes: Sequence[int]) -> Iterator[bytes]:
        """What was put, in pieces of these sizes."""
        at = 0
        for size in sizes:
            yield self._read(at, size)
            at += size

    def _read(self, at: int, size: int) -> bytes:
        data = os.pread(self.file, size, at)
        if len(data) != size:
            raise OSError("a parcel is shorter than its ticket says")
        return data

    def close(self) -> None:
        """Safe to call twice."""
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)
