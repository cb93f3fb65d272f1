"""Rows of a table that differ in nothing but their number and their text: what a database takes in one step.

A commit holds what a few calls did, so most of its events come in long runs of one type and one instant. Such a run is
described once, and only its texts are many: the database cuts them out, without the interpreter. Where all events of a
commit are alike it cuts them out of the commit itself, and ends each with what readers get. Then there is no text to be
made, or to be sent from one process to another. Where they have a deadline, what is cut out ends before it, and the
database puts the number of the event behind it again: one place is enough for an event.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, count, groupby
from operator import add
from typing import Any, Final

import msgspec

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.replication.commits import PIECE_BYTES, Commits, Tag
from omnirelay.replication.made import Run
from omnirelay.replication.rows import peers_of_lines
from omnirelay.wire.event_uniform import Places, Uniform
from omnirelay.wire.instants import instant

_ROWS_LEAST: Final = 8
"""Shorter runs than that cost more than rows, which go many at a time whatever they are."""


class _Row(msgspec.Struct, frozen=True, gc=False):
    """What the rows of a run have in common, but for the number, which is that of the first."""

    first: int
    event_type: str
    timestamp: int
    peer: str | None


class Runs(msgspec.Struct, frozen=True, gc=False):
    texts: Sequence[bytes]
    """Of what is not cut out of the frames."""
    places: bytes
    """Of every row in what it is cut out of; see `Made`."""
    types: dict[str, int]
    runs: Sequence[Run]


def runs_of(commits: Commits) -> Runs | None:
    """All of their rows, the same that `rows_of` makes. None when they are too short to be worth it, or not to be
    described like this.
    """
    found = _Found()
    for at, frame in enumerate(commits.frames):
        places = commits.places_of(at)
        if isinstance(places, Places):
            found.add_places(at, frame.first, places)
        elif isinstance(places, Uniform):
            found.add_uniform(frame.first, places)
        elif not found.add_lines(commits.lines_of(at), commits.tags_of(at)):
            return None
        if len(found.runs) * _ROWS_LEAST > len(commits):
            return None
    return Runs([bytes(text) for text in found.texts], found.places(), dict(found.types), found.runs)


class _Found:
    """Runs of one frame after the other."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.texts: list[bytearray] = []
        self.types: Counter[str] = Counter()
        self._sizes: list[int] = []
        self._begins: list[int] = []

    def add_places(self, at: int, first: int, places: Places) -> None:
        """Events that are cut out of the frame itself: only what they end with is made."""
        alike = places.alike
        self._add(
            _Row(first, alike.event_type, alike.timestamp, alike.peer),
            places.sizes,
            gap=places.gap,
            in_frame=True,
            piece=at,
            begins=places.begins,
            ends=alike.ends,
            number_behind=places.number_behind,
            ending=alike.reads.decode(),
        )

    def add_uniform(self, first: int, uniform: Uniform) -> None:
        """The lines of a frame that differ in nothing but their text."""
        *sizes, _ = map(len, uniform.lines.split(b"\n"))
        begins = self._put(uniform.lines)
        self._add_text(_Row(first, uniform.event_type, uniform.timestamp, uniform.peer), sizes, begins)

    def add_lines(self, lines: bytes, tags: Sequence[Tag]) -> bool:
        """Any lines. False where numbers jump."""
        *sizes, _ = map(len, lines.split(b"\n"))
        begins, stop = self._put(lines), 0
        rows = zip([(tag.event_type, tag.timestamp) for tag in tags], peers_of_lines(lines), strict=True)
        for ((event_type, timestamp), peer), group in groupby(rows):
            start, stop = stop, stop + sum(1 for _ in group)
            numbers = [tag.sequence_number for tag in tags[start:stop]]
            if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
                return False
            begins = self._add_text(_Row(numbers[0], event_type, timestamp, peer), sizes[start:stop], begins)
        return True

    def _put(self, lines: bytes) -> int:
        """Where they begin in the last of the texts."""
        if not self.texts or len(self.texts[-1]) >= PIECE_BYTES:
            self.texts.append(bytearray())
        begins = len(self.texts[-1])
        self.texts[-1] += lines
        return begins

    def _add_text(self, row: _Row, sizes: list[int], begins: int) -> int:
        """Where they end."""
        ends = begins + sum(sizes) + len(sizes)
        self._add(row, sizes, gap=1, in_frame=False, piece=len(self.texts) - 1, begins=begins, ends=ends)
        return ends

    def _add(self, row: _Row, sizes: list[int], *, gap: int, **where: Any) -> None:
        start = len(self._sizes)
        self._sizes += sizes
        self._begins += map(add, accumulate(sizes[:-1], initial=1), count(0, gap))
        self.types[row.event_type] += len(sizes)
        self.runs.append(
            Run(
                first=row.first,
                event_type=EVENT_NUMBERS.get(row.event_type, 0),
                timestamp=instant(row.timestamp),
                peer=row.peer,
                start=start,
                stop=len(self._sizes),
                **where,
            )
        )

    def places(self) -> bytes:
        return _places(self._sizes, self._begins)


def _places(sizes: list[int], before: list[int]) -> bytes:
    # Two halves of 64 bits, as the processor has them in memory: quicker than a shift for each.
    halves = array("i", bytes(array("i").itemsize * 2 * len(sizes)))
    low, high = (0, 1) if sys.byteorder == "little" else (1, 0)
    halves[low::2] = array("i", sizes)
    halves[high::2] = array("i", before)
    return halves.tobytes()
