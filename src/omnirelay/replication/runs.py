"""Rows of a table that differ in nothing but their number and their text: what a database takes in one step.

A commit holds what a few calls did, so most of its events come in long runs of one type and one instant. Such a run is
described once, and only its texts are many: the database cuts them out, without the interpreter. Where all events of a
commit are alike it cuts them out of the commit itself, and ends each with what readers get. Then there is no other text
at all, to be made or to be sent from one process to another.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any, Final

import msgspec

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.replication.commits import PIECE_BYTES, Commits, Tag
from omnirelay.replication.made import Run
from omnirelay.replication.rows import peers_of_lines
from omnirelay.wire.event_uniform import Places
from omnirelay.wire.instants import instant

_ROWS_LEAST: Final = 8
"""Shorter runs than that cost more than rows, which go many at a time whatever they are."""


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
    for at in range(len(commits.frames)):
        places = commits.places_of(at)
        if places is not None:
            found.add_frame(at, commits.frames[at].first, places)
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

    def add_frame(self, at: int, first: int, places: Places) -> None:
        """Events that are cut out of the frame itself, and only their ends are made."""
        alike, replaced = places.alike, None
        if (deadline := places.deadline) is not None:
            replaced = (len(deadline.stands), deadline.reads.decode(), deadline.behind)
        self._add(
            alike.event_type,
            places.sizes,
            gap=len(alike.separator),
            first=first,
            timestamp=instant(alike.timestamp),
            peer=alike.peer,
            in_frame=True,
            piece=at,
            begins=alike.begins,
            ends=alike.ends,
            beginning=len(alike.beginning),
            ending=alike.reads.decode(),
            replaced=replaced,
        )

    def add_lines(self, lines: bytes, tags: Sequence[Tag]) -> bool:
        """False where numbers jump."""
        *sizes, _ = map(len, lines.split(b"\n"))
        if not self.texts or len(self.texts[-1]) >= PIECE_BYTES:
            self.texts.append(bytearray())
        begins, stop = len(self.texts[-1]), 0
        self.texts[-1] += lines
        rows = zip([(tag.event_type, tag.timestamp) for tag in tags], peers_of_lines(lines), strict=True)
        for ((event_type, timestamp), peer), group in groupby(rows):
            start, stop = stop, stop + sum(1 for _ in group)
            numbers = [tag.sequence_number for tag in tags[start:stop]]
            if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
                return False
            ends = begins + sum(sizes[start:stop]) + len(numbers)
            self._add(
                event_type,
                sizes[start:stop],
                gap=1,
                first=numbers[0],
                timestamp=instant(timestamp),
                peer=peer,
                in_frame=False,
                piece=len(self.texts) - 1,
                begins=begins,
                ends=ends,
            )
            begins = ends
        return True

    def _add(self, event_type: str, sizes: list[int], *, gap: int, **rest: Any) -> None:
        start = len(self._sizes)
        self._sizes += sizes
        # The first one begins at 1, and one gap is counted for it.
        self._begins += accumulate(sizes[:-1], initial=1 - gap)
        self.types[event_type] += len(sizes)
        number = EVENT_NUMBERS.get(event_type, 0)
        self.runs.append(Run(event_type=number, start=start, stop=len(self._sizes), gap=gap, **rest))

    def places(self) -> bytes:
        return _places(self._sizes, self._begins)


def _places(sizes: list[int], before: list[int]) -> bytes:
    # Two halves of 64 bits, as the processor has them in memory: quicker than a shift for each.
    halves = array("i", bytes(array("i").itemsize * 2 * len(sizes)))
    low, high = (0, 1) if sys.byteorder == "little" else (1, 0)
    halves[low::2] = array("i", sizes)
    halves[high::2] = array("i", before)
    return halves.tobytes()
