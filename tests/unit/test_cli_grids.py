"""Tables for people: aligned where they fit, folded where they do not."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from omnirelay.cli.grids import Grid


def drawn(grid: Grid, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, markup=False, emoji=False, highlight=False, color_system=None).print(grid)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    grid = Grid(["id", "name", "why"], [["1", "a", "x"], ["100", "longer", ""]], right=["id"])
    assert drawn(grid, 80) == [
        " id  name    why",
        "  1  a       x",
        "100  longer",
    ]


def test_characters_of_two_columns_count_twice() -> None:
    grid = Grid(["name", "n"], [["\u6771\u4eac", "1"], ["Osaka", "2"]])
    assert drawn(grid, 80) == ["name   n", "\u6771\u4eac   1", "Osaka  2"]


def test_table_without_rows_has_its_headings() -> None:
    assert drawn(Grid(["id", "name"], []), 80) == ["id  name"]
    assert drawn(Grid(["id", "name"], []), 5) != []


@pytest.mark.parametrize("count", [1, 1_200])
def test_cells_are_folded_where_there_is_no_room_and_nothing_is_cut_off(count: int) -> None:
    grid = Grid(["id", "text"], [[str(number), "abcdefghijklmnopqrstuvwxyz"] for number in range(count)])
    lines = drawn(grid, 20)
    assert all(len(line) <= 20 for line in lines)
    rows = [line for line in lines if not line.startswith("id")]
    text = "".join(line.split()[-1] for line in rows)
    assert text == "abcdefghijklmnopqrstuvwxyz" * count
    assert [line.split()[0] for line in rows if not line.startswith(" ")] == [str(number) for number in range(count)]


def test_tokens_are_never_broken() -> None:
    token = "17:1:0b9f5c9e-52a1-4c3e-9d5a-3f1f1a2b3c4d:42"
    lines = drawn(Grid(["token", "type", "body"], [[token, "table", "x" * 80]]), 70)
    assert token in lines[1]
