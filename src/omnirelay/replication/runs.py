"""Rows of a table that differ in nothing but their number and their text: what a database takes in one step.

A commit holds what a few calls did, so most of its events come in long runs of one type and one instant. Such a run is
described once, and only its texts are many: the database cuts them out of one long text, without the interpreter.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any, Final, TypeAlias

import msgspec

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.replication.commits import Commits
from omnirelay.replication.made import Run
from omnirelay.replication.rows import peers_of_commits
from omnirelay.wire.instants import instant

_ROWS_LEAST: Final = 8
"""Shorter runs than that cost more than rows, which go many at a time whatever they are."""


class Runs(msgspec.Struct, frozen=True, gc=False):
    text: bytes
    places: bytes
    """Of every line in the text of its run; see `Made`."""
    runs: Sequence[Run]


def runs_of(commits: Commits) -> Runs | None:
    """All of their rows, the same that `rows_of` makes. None when they are too short to be worth it, or not to be
    described like this.
    """
    tags = commits.tags
    numbers = [tag.sequence_number for tag in tags]
    alike, stops = _alike(commits)
    spans = list(zip([0, *stops[:-1]], stops, strict=True))
    if len(alike) * _ROWS_LEAST > len(tags) or any(_jumps(numbers[start:stop]) for start, stop in spans):
        return None
    text = b"".join(commits.pieces())
    sizes = [len(line) for line in text.split(b"\n")[:-1]]
    begins = list(accumulate([size + 1 for size in sizes], initial=0))
    runs = [
        Run(numbers[start], EVENT_NUMBERS.get(event_type, 0), instant(timestamp), peer, start, stop, *ends)
        for (event_type, timestamp, peer), (start, stop) in zip(alike, spans, strict=True)
        for ends in [(begins[start], begins[stop])]
    ]
    return Runs(text, _places(sizes, begins, runs), runs)


_Alike: TypeAlias = tuple[str, int, str | None]
"""Type, instant and peer."""


def _alike(commits: Commits) -> tuple[list[_Alike], list[int]]:
    """What one row after the other has in common, and behind which row that ends."""
    tags, peers = commits.tags, peers_of_commits(commits)
    types, timestamps = [tag.event_type for tag in tags], [tag.timestamp for tag in tags]
    alike: list[_Alike] = []
    stops: list[int] = []
    at = 0
    for count in commits.counts():
        start, at = at, at + count
        columns: tuple[list[Any], ...] = (types[start:at], timestamps[start:at], peers[start:at])
        # Most commits are of one kind; to count is far quicker than to compare one by one.
        if all(column.count(column[0]) == count for column in columns):
            alike.append((types[start], timestamps[start], peers[start]))
            stops.append(at)
            continue
        for key, group in groupby(zip(types[start:at], timestamps[start:at], peers[start:at], strict=True)):
            alike.append(key)
            stops.append((stops[-1] if stops else 0) + sum(1 for _ in group))
    return alike, stops


def _jumps(numbers: list[int]) -> bool:
    return numbers != list(range(numbers[0], numbers[0] + len(numbers)))


def _places(sizes: list[int], begins: list[int], runs: Sequence[Run]) -> bytes:
    within = array("i")
    for run in runs:
        before = run.begins - 1  # SQL counts from 1.
        within.extend([begin - before for begin in begins[run.start : run.stop]])
    # Two halves of 64 bits, as the processor has them in memory: quicker than a shift for each.
    halves = array("i", bytes(within.itemsize * 2 * len(within)))
    low, high = (0, 1) if sys.byteorder == "little" else (1, 0)
    halves[low::2] = array("i", sizes)
    halves[high::2] = within
    return halves.tobytes()
