"""Rows of a table that differ in nothing but their number and their text: what a database takes in one step.

A commit holds what a few calls did, so most of its events come in long runs of one type and one instant. Such a run is
described once, and only its texts are many: the database cuts them out of one long text, without the interpreter.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import Final, TypeAlias

import msgspec

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.replication.commits import Commits, is_contiguous
from omnirelay.replication.made import Run
from omnirelay.replication.rows import peers_of_lines
from omnirelay.wire.event_uniform import Uniform
from omnirelay.wire.instants import instant

_ROWS_LEAST: Final = 8
"""Shorter runs than that cost more than rows, which go many at a time whatever they are."""


class Runs(msgspec.Struct, frozen=True, gc=False):
    texts: Sequence[bytes]
    places: bytes
    """Of every line in the text of its run; see `Made`."""
    runs: Sequence[Run]


def runs_of(commits: Commits) -> Runs | None:
    """All of their rows, the same that `rows_of` makes. None when they are too short to be worth it, or not to be
    described like this.
    """
    runs: list[Run] = []
    sizes: list[int] = []
    before: list[int] = []
    texts: list[bytes] = []
    at = 0
    for text, frames in commits.pieces_of_frames():
        begins = 0
        for frame in range(at, at + frames):
            for alike, lengths in _runs_in(commits, frame):
                if alike is None or len(runs) * _ROWS_LEAST > len(commits):
                    return None
                first, event_type, timestamp, peer = alike
                start, stop, ends = len(sizes), len(sizes) + len(lengths), begins + sum(lengths) + len(lengths)
                number = EVENT_NUMBERS.get(event_type, 0)
                runs.append(Run(first, number, instant(timestamp), peer, start, stop, len(texts), begins, ends))
                sizes += lengths
                before += accumulate(lengths[:-1], initial=0)
                begins = ends
        at += frames
        texts.append(text)
    if len(runs) * _ROWS_LEAST > len(commits):
        return None
    return Runs(texts, _places(sizes, before), runs)


_Alike: TypeAlias = tuple[int, str, int, str | None]
"""The number of the first; type, instant and peer of all."""


def _runs_in(commits: Commits, at: int) -> Iterator[tuple[_Alike | None, list[int]]]:
    """What rows of a frame have in common, and how long their texts are; None where their numbers jump."""
    frame, part = commits.frames[at], commits.parts()[at]
    if isinstance(part, Uniform) and is_contiguous(frame):
        *sizes, _ = map(len, part.lines.split(b"\n"))
        yield (frame.first, part.event_type, part.timestamp, part.peer), sizes
        return
    lines = part.lines if isinstance(part, Uniform) else part
    *sizes, _ = map(len, lines.split(b"\n"))
    tags, stop = commits.tags_of(at), 0
    rows = zip([(tag.event_type, tag.timestamp) for tag in tags], peers_of_lines(lines), strict=True)
    for ((event_type, timestamp), peer), group in groupby(rows):
        start, stop = stop, stop + sum(1 for _ in group)
        numbers = [tag.sequence_number for tag in tags[start:stop]]
        counted = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        yield (numbers[0], event_type, timestamp, peer) if counted else None, sizes[start:stop]


def _places(sizes: list[int], before: list[int]) -> bytes:
    # Two halves of 64 bits, as the processor has them in memory: quicker than a shift for each.
    halves = array("i", bytes(array("i").itemsize * 2 * len(sizes)))
    low, high = (0, 1) if sys.byteorder == "little" else (1, 0)
    halves[low::2] = array("i", sizes)
    halves[high::2] = array("i", before)
    return halves.tobytes()
