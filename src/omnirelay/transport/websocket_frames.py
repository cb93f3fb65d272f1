"""WebSocket frames of the common kind, read and written in one step.

Nearly everything on a connection is a data message in one frame. Those are cut out of the bytes here; any other frame
is handed to the protocol engine of the `websockets` library as the bytes it came in, and never a part of one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

try:
    from websockets.speedups import apply_mask
except ImportError:  # A platform without the library's compiled part.
    from websockets.utils import apply_mask

_MASK_BIT: Final = 0x80
_LENGTH_BITS: Final = 0x7F
_SHORT_MAX: Final = 125
_TWO_BYTES: Final = 126
_TWO_BYTES_MAX: Final = 0xFFFF
_TEXT: Final = 0x81
"""A whole text message: the last frame of its message, and the first."""
_BINARY: Final = 0x82
"""The same of bytes."""
_LAST_FRAME: Final = 0x80
_DATA_OPCODES: Final = (0, 1, 2)
_MASKS_AT_A_TIME: Final = 1_024

Cut = tuple[bytes, bool]
"""Bytes, and whether they are a message; if not, they are for the protocol engine."""


class FrameReader:
    """Cuts what arrives into whole frames, in whatever pieces it comes."""

    def __init__(self, *, masked: bool, size_max: int | None) -> None:
        """`masked`: frames of this peer must be, as those of clients are. `size_max` is that of a message."""
        self._mask_bit = _MASK_BIT if masked else 0
        self._size_max = (1 << 62) if size_max is None else size_max
        self._held = bytearray()
        """The beginning of a frame."""
        self._needed = 0
        """How long that has to be before it is worth looking at again."""
        self._in_parts = False
        """A message in several frames has begun: its parts belong to the engine."""
        self._broken = False

    def take(self, data: bytes) -> Sequence[Cut]:
        """Everything that is complete, in order. What breaks the protocol goes to the engine with all that follows,
        which says so to the peer.
        """
        if self._broken:
            return ((data, False),)
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return ()
            data, self._held = bytes(self._held), bytearray()
        cuts: list[Cut] = []
        at, end = 0, len(data)
        while at < end:
            start = at + 2
            if start > end:
                self._hold(data[at:], 2)
                break
            length = data[at + 1] & _LENGTH_BITS
            if length > _SHORT_MAX:
                width = 2 if length == _TWO_BYTES else 8
                start += width
                length = int.from_bytes(data[start - width : start], "big") if start <= end else 0
            if self._mask_bit:
                start += 4
            stop = start + length
            if data[at + 1] & _MASK_BIT != self._mask_bit or length > self._size_max:
                self._broken = True
                cuts.append((data[at:], False))
                break
            if stop > end:
                self._hold(data[at:], stop - at)
                break
            first = data[at]
            if first in (_TEXT, _BINARY) and not self._in_parts:
                message = data[start:stop]
                cuts.append((apply_mask(message, data[start - 4 : start]) if self._mask_bit else message, True))
            else:
                if first & 0x0F in _DATA_OPCODES:
                    self._in_parts = not first & _LAST_FRAME
                cuts.append((data[at:stop], False))
            at = stop
        return cuts

    def _hold(self, data: bytes, needed: int) -> None:
        self._held += data
        self._needed = needed


def plain_frame(data: bytes, binary: bool) -> bytes:
    """A message of a server."""
    size = len(data)
    if size <= _SHORT_MAX:
        return b"%c%c%b" % (_BINARY if binary else _TEXT, size, data)
    return _long_head(size, 0, binary) + data


class MaskedFrames:
    """Messages of a client. Masks are random, and drawn many at a time."""

    def __init__(self) -> None:
        self._masks = b""
        self._at = 0

    def frame(self, data: bytes, binary: bool) -> bytes:
        if self._at == len(self._masks):
            self._masks, self._at = os.urandom(4 * _MASKS_AT_A_TIME), 0
        mask = self._masks[self._at : self._at + 4]
        self._at += 4
        size = len(data)
        if size <= _SHORT_MAX:
            head = b"%c%c" % (_BINARY if binary else _TEXT, size | _MASK_BIT)
        else:
            head = _long_head(size, _MASK_BIT, binary)
        return b"".join((head, mask, apply_mask(data, mask)))


def _long_head(size: int, mask_bit: int, binary: bool) -> bytes:
    first = _BINARY if binary else _TEXT
    if size <= _TWO_BYTES_MAX:
        return b"%c%c%b" % (first, _TWO_BYTES | mask_bit, size.to_bytes(2, "big"))
    return b"%c%c%b" % (first, 127 | mask_bit, size.to_bytes(8, "big"))
