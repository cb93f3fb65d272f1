"""`Made`: what a sink writes of some commits, ready to be written. Plain values: another process may make it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Form = Literal["lines", "rows", "parquet", "jsonl"]
"""Lines of JSON, rows of a table, or a segment in one of its formats."""


class Run(msgspec.Struct, frozen=True, gc=False):
    """Rows of a table that differ in nothing but their number and their text."""

    first: int
    """Sequence of the first; the others count on from it."""
    event_type: int
    timestamp: str
    peer: str | None
    start: int
    stop: int
    """Which rows of all these are."""
    in_frame: bool
    """Whether they stand in a frame of the commits, as the log has them, or in a part."""
    piece: int
    """In which one."""
    begins: int
    ends: int
    """Where in it, in bytes."""
    number_behind: str = ""
    """What comes behind every text, and before its number; empty where the number stands in it."""
    ending: str = ""
    """What comes behind that."""


class Made(msgspec.Struct, gc=False):
    form: Form
    parts: Sequence[bytes]
    """Lines: the text, cut up behind some of them. A segment: its bytes. Rows: the text of those lines that are not cut
    out of the frames themselves, and last the place of every row in what its run is cut out of, as 64 bits: below, how
    long it is, and above, where it begins, counted from 1.
    """
    types: dict[str, int]
    """How many events of each type."""
    runs: Sequence[Run] = ()
    """Of rows. There are none, and no parts, where rows are not to be described like this."""
