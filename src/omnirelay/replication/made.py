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
    piece: int
    """Which part their texts stand in."""
    begins: int
    ends: int
    """Where in it, in bytes."""


class Made(msgspec.Struct, gc=False):
    form: Form
    parts: Sequence[bytes]
    """Lines: the text, cut up behind some of them. A segment: its bytes. Rows: the text of all lines, cut up too, and
    last the place of every line in the text of its run, as 64 bits: how many bytes of other lines are before it above
    (line feeds not counted), how long it is below.
    """
    types: dict[str, int]
    """How many events of each type."""
    runs: Sequence[Run] = ()
    """Of rows. There are none, and no parts, where rows are not to be described like this."""
