"""Segments as lines of JSON: one event each, as every reader outside gets it.

The first event of a frame has two members more: `frame`, the stored bytes of the frame as text, and `chain`, the hash
behind it in hexadecimal. With them the lines can be checked, and put back into a log, as Parquet can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from omnirelay.errors import LogDamaged
from omnirelay.log.base import Frame
from omnirelay.log.frame import decode_header
from omnirelay.wire.event_text import lines_of
from omnirelay.wire.event_uniform import uniform_of

_CODEC: Final = "zstd"
_encode = msgspec.json.Encoder().encode


class _FrameLine(msgspec.Struct):
    """What a line that begins a frame says about it."""

    frame: str | None = None
    chain: str | None = None


_read_line = msgspec.json.Decoder(_FrameLine).decode


def encode_lines(frames: Sequence[Frame], region: str | None) -> bytes:
    """Lines of whole frames, compressed. Blocking and long: call it in a thread."""
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, _CODEC) as stream:
        for frame in frames:
            stream.write(lines_of_frame(frame, region))
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def lines_of_frame(frame: Frame, region: str | None) -> bytes:
    """One line per event, each with its line feed."""
    uniform = uniform_of(frame.data, frame.count, region)
    if uniform is not None:
        lines = uniform.lines
    else:
        header = decode_header(frame.data)
        lines = lines_of(header.events, shard=header.shard, region=region, pending=header.pending, active=header.active)
    more = _encode({"frame": frame.data.decode(), "chain": frame.chain.hex()})
    first = lines.index(b"\n")
    return b"%b,%b%b" % (lines[: first - 1], more[1:], lines[first:])


def merge_lines(objects: Sequence[bytes]) -> bytes:
    """The lines of several segments as those of one."""
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, _CODEC) as stream:
        for data in objects:
            stream.write(_text(data))
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _text(data: bytes) -> bytes:
    return pa.CompressedInputStream(pa.BufferReader(data), _CODEC).read()  # type: ignore[no-any-return]


def split_lines(data: bytes) -> list[bytes]:
    """The lines of a segment. Raises ValueError for what is none."""
    try:
        *lines, rest = _text(data).split(b"\n")
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error).splitlines()[0]) from None
    if rest:
        raise ValueError("it ends in the middle of a line")
    return lines


def decode_lines(data: bytes) -> list[Frame]:
    """The frames of a segment. Raises ValueError for what is no segment."""
    try:
        lines = [_read_line(line) for line in split_lines(data)]
    except msgspec.DecodeError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    starts = [at for at, line in enumerate(lines) if line.frame is not None]
    if lines and starts[:1] != [0]:
        raise ValueError("it does not begin with a frame")
    ends = [*starts[1:], len(lines)]
    return [_frame(lines[start], end - start) for start, end in zip(starts, ends, strict=True)]


def _frame(line: _FrameLine, count: int) -> Frame:
    data = (line.frame or "").encode()
    try:
        header = decode_header(data)
        chain = bytes.fromhex(line.chain or "")
    except LogDamaged as error:
        raise ValueError(error.message) from None
    return Frame(header.first, header.last, count, header.epoch, header.generation, header.time, data, chain)
