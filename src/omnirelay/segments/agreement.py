"""What a segment says beside its frames, compared with them: columns or lines are all that most readers look at.

Versions differ in what they make of one frame. One that does not know a field puts it into `extra`, where a later one
has a column, and has no column that was added later; one that does not know an instant leaves it a number in a line.
None of that is a difference. Columns that this version does not have, and `extra` itself, are not looked at, and the
region is taken as it stands there: no frame tells it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from omnirelay.log.base import Frame
from omnirelay.log.frame import FrameHeader, decode_header
from omnirelay.segments.lines import lines_of_frame, split_lines
from omnirelay.segments.schema import own_columns
from omnirelay.wire.events import INSTANTS, document_of
from omnirelay.wire.instants import instant

_OF_THE_WRITER: Final = frozenset({"region", "extra"})
"""Columns that the frames alone do not tell."""
_OF_THE_FRAME: Final = frozenset({"frame", "chain"})
"""What a line that begins a frame has more than its event."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Difference(NamedTuple):
    """Where a segment says something else than its frames. Without a sequence it is all of it."""

    sequence: int | None
    what: str


# -- columns -------------------------------------------------------------------------------------


def column_differences(stored: pa.Table, made: pa.Table) -> Iterator[Difference]:
    """Between the columns of a segment and those that its frames make."""
    if stored.num_rows != made.num_rows:
        yield Difference(None, f"it has {stored.num_rows} rows, its frames hold {made.num_rows} events")
        return
    unknown = _Extras(stored)
    for name in made.column_names:
        if name in _OF_THE_WRITER or (name in stored.column_names and stored[name].equals(made[name])):
            continue
        if name not in stored.column_names:
            yield from _missing(name, made, unknown)
        elif stored[name].type != made[name].type:
            yield Difference(None, f"column {name} is {stored[name].type}, not {made[name].type}")
        else:
            yield from _rows(name, stored, made, unknown)


def _missing(name: str, made: pa.Table, unknown: _Extras) -> Iterator[Difference]:
    """A column that is not there must be one that would be empty."""
    for row, (sequence, expected) in enumerate(_pairs(made, name)):
        if expected is not None and not unknown.holds(row, name):
            what = f"column {name} is missing, the frame of event {sequence} says {short(expected)}"
            yield Difference(sequence, what)
            return


def _rows(name: str, stored: pa.Table, made: pa.Table, unknown: _Extras) -> Iterator[Difference]:
    for row, (found, (sequence, expected)) in enumerate(zip(stored[name].to_pylist(), _pairs(made, name), strict=True)):
        if found != expected and not (found is None and unknown.holds(row, name)):
            yield Difference(
                sequence, f"column {name} of event {sequence} is {short(found)}, the frame says {short(expected)}"
            )


def _pairs(made: pa.Table, name: str) -> Iterator[tuple[int, Any]]:
    return zip(made["sequence"].to_pylist(), made[name].to_pylist(), strict=True)


class _Extras:
    """What the version that wrote a segment did not know of its events."""

    def __init__(self, stored: pa.Table) -> None:
        self._stored = stored
        self._texts: list[Any] | None = None
        self._members = {column.name: field.path[0] for field, column in own_columns()}

    def holds(self, row: int, column: str) -> bool:
        """Whether what stands in the column here was unknown there."""
        if self._texts is None:
            known = "extra" in self._stored.column_names
            self._texts = self._stored["extra"].to_pylist() if known else [None] * self._stored.num_rows
        text = self._texts[row]
        try:
            return isinstance(text, str) and self._members.get(column) in _decode(text)
        except (msgspec.DecodeError, TypeError):
            return False


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


# -- lines ---------------------------------------------------------------------------------------


def line_differences(data: bytes, frames: Sequence[Frame]) -> Iterator[Difference]:
    """Between the lines of a segment and those that its frames make. `frames` are as `decode_lines` gives them."""
    lines = split_lines(data)
    at = 0
    for frame in frames:
        own = lines[at : at + frame.count]
        at += frame.count
        header = decode_header(frame.data)
        if len(own) != len(header.events):
            what = f"frame {frame.first} has {len(own)} lines, and {len(header.events)} events"
            yield Difference(frame.first, what)
        elif b"\n".join([*own, b""]) != lines_of_frame(frame, _region(_document(own[0]))):
            yield from _lines(own, header)


def _lines(lines: Sequence[bytes], header: FrameHeader) -> Iterator[Difference]:
    """Line by line, because another version may have written some of them otherwise."""
    for at, (line, raw) in enumerate(zip(lines, header.events, strict=True)):
        stored = _document(bytes(raw)) or {}
        found = _document(line)
        name: str | None = "it is no JSON object"
        if found is not None:
            region = _region(found)
            made = document_of(raw, shard=header.shard, region=region, pending=header.pending, active=header.active)
            if at == 0:
                found = {each: value for each, value in found.items() if each not in _OF_THE_FRAME.difference(stored)}
            name = _differing(found, _decode(_encode(made)), stored)
        if name is not None:
            number = stored.get("sequenceNumber")
            place = number if isinstance(number, int) else header.first
            yield Difference(place, f"the line of event {place} is not what its frame says: {name}")


def _document(text: bytes) -> dict[str, Any] | None:
    try:
        document = _decode(text)
    except msgspec.DecodeError:
        return None
    return document if isinstance(document, dict) else None


def _region(document: dict[str, Any] | None) -> str | None:
    metadata = (document or {}).get("metadata")
    region = metadata.get("region") if isinstance(metadata, dict) else None
    return region if isinstance(region, str) else None


def _differing(found: dict[str, Any], made: dict[str, Any], stored: dict[str, Any]) -> str | None:
    """The name of the first member that no version would make of what is stored."""
    for name in {**made, **found}:
        if name not in found or name not in made:
            return name
        if _same(found[name], made[name]):
            continue
        if name == "metadata" and isinstance(made[name], dict) and isinstance(found[name], dict):
            if not _same({each: found[name].get(each) for each in made[name]}, made[name]):
                return name
            # A later version may tell more; its own names have a dot in them.
            if any("." not in each for each in found[name].keys() - made[name].keys()):
                return name
        elif name == "items" and all(_are_documents(each.get(name), made[name]) for each in (found, stored)):
            parts = zip(found[name], made[name], stored[name], strict=True)
            if any(_differing(*each) is not None for each in parts):
                return name
        elif name in INSTANTS or name not in stored or not _may_read(found[name], stored[name]):
            return name
    return None


def _are_documents(values: Any, like: Any) -> bool:
    return (
        isinstance(values, list)
        and isinstance(like, list)
        and len(values) == len(like)
        and all(isinstance(each, dict) for each in values)
    )


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: a number is no truth value, and 1.0 not 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _may_read(found: Any, stored: Any) -> bool:
    """Whether some version may have made this of what is stored, because it knows an instant by that name."""
    if type(stored) is int and type(found) is str:
        try:
            return found == instant(stored)
        except OverflowError:
            return False
    if isinstance(stored, dict) and isinstance(found, dict):
        return found.keys() == stored.keys() and all(_may_read(value, stored[name]) for name, value in found.items())
    if isinstance(stored, list) and isinstance(found, list):
        return len(found) == len(stored) and all(map(_may_read, found, stored))
    return _same(found, stored)
