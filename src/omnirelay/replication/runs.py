"""Rows of a table that differ in nothing but their number and their text: what a database takes in one step.

A commit holds what a few calls did, so most of its events come in long runs of one type and one instant. Such a run is
described once, and only its texts are many: the rows are then made by the database, without the interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import msgspec

from omnirelay.core.events import EVENT_NUMBERS
from omnirelay.replication.commits import Commits
from omnirelay.replication.rows import peers_of_commits, texts_of_commits
from omnirelay.wire.instants import instant

_ROWS_LEAST: Final = 8
"""Shorter runs than that cost more than rows, which go many at a time whatever they are."""


class Run(msgspec.Struct, frozen=True, gc=False):
    """The rows of the texts from `start` up to `stop`."""

    first: int
    """Sequence of the first; the others count on from it."""
    event_type: int
    timestamp: str
    peer: str | None
    start: int
    stop: int


class Runs(msgspec.Struct, frozen=True, gc=False):
    texts: tuple[str, ...]
    runs: Sequence[Run]


def runs_of(commits: Commits) -> Runs | None:
    """All of their rows, the same that `rows_of` makes. None when they are too short to be worth it, or not to be
    described like this.
    """
    tags = commits.tags
    numbers = [tag.sequence_number for tag in tags]
    runs: list[Run] = []
    start = 0
    types, timestamps = [tag.event_type for tag in tags], [tag.timestamp for tag in tags]
    for (event_type, timestamp, peer), group in groupby(zip(types, timestamps, peers_of_commits(commits), strict=True)):
        stop = start + sum(1 for _ in group)
        runs.append(Run(numbers[start], EVENT_NUMBERS.get(event_type, 0), instant(timestamp), peer, start, stop))
        start = stop
    if len(runs) * _ROWS_LEAST > len(tags) or any(_jumps(numbers[run.start : run.stop]) for run in runs):
        return None
    # Where texts are handed over by their address alone, one would end there.
    if any(b"\0" in piece for piece in commits.pieces()):
        return None
    return Runs(tuple(texts_of_commits(commits)), runs)


def _jumps(numbers: list[int]) -> bool:
    return numbers != list(range(numbers[0], numbers[0] + len(numbers)))
