"""Tables of any length, drawn in time that grows with their rows and no faster.

rich lays out every cell by itself, which takes about a millisecond a row. Where no cell has to be folded there is
nothing to lay out: the width of every column is that of its widest cell. That is so whenever output is piped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

_GAP = 2
_FOLDED_ROWS = 500
"""Rows that are laid out together where cells have to be folded; then the headings come again."""


class Grid:
    """Columns with headings above rows of text, without lines between them."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
        self._columns = columns
        self._rows = rows
        self._right = [column in right for column in columns]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment
        from rich.style import Style

        widths = [max(map(_width, column)) for column in zip(self._columns, *self._rows, strict=True)]
        if sum(widths) + _GAP * (len(widths) - 1) > options.max_width:
            for start in range(0, max(len(self._rows), 1), _FOLDED_ROWS):
                yield self._folded(self._rows[start : start + _FOLDED_ROWS])
            return
        yield Segment(self._line(self._columns, widths), Style(bold=True))
        yield Segment.line()
        for row in self._rows:
            yield Segment(self._line(row, widths))
            yield Segment.line()

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        padded = []
        for text, width, right in zip(cells, widths, self._right, strict=True):
            padding = " " * (width - _width(text))
            padded.append(padding + text if right else text + padding)
        return (" " * _GAP).join(padded).rstrip(" ")

    def _folded(self, rows: Sequence[Sequence[str]]) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for column, right in zip(self._columns, self._right, strict=True):
            # A token that is broken into two lines cannot be pasted.
            drawn.add_column(column, justify="right" if right else "left", overflow="fold", no_wrap=column == "token")
        for row in rows:
            drawn.add_row(*map(Text, row))
        return drawn


def _width(text: str) -> int:
    """Columns of a terminal that a text takes: some characters take two, and some none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
