"""What commands print: tables for people, JSON for programs, progress for whoever waits at a terminal.

Results go to stdout; everything about the way there goes to stderr. A table that is piped is not cut to any width.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

from omnirelay.cli.options import Format

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_PIPED_WIDTH = 100_000

Rows = Sequence[Sequence[object]]


# -- JSON ----------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=not _takes_all_text()) + "\n")


def print_line(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=not _takes_all_text(), separators=(",", ":")) + "\n")


def print_encoded(text: bytes) -> None:
    """Print a line of JSON as it came."""
    if _takes_all_text():
        sys.stdout.write(text.decode() + "\n")
    else:
        print_line(json.loads(text))


def _takes_all_text() -> bool:
    """Whether stdout is UTF-8. With another encoding JSON is escaped to ASCII: it has to be JSON still."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def print_answer(
    output: Format, answer: Any, elements: Iterable[Any] | None, table: Callable[[], RenderableType | str]
) -> None:
    """Print an answer as asked: as it is, one element a line, or as `table` shows it to people."""
    if output is Format.JSON:
        print_json(answer)
    elif output is Format.JSONL:
        for element in [answer] if elements is None else elements:
            print_line(element)
    else:
        show(table())


# -- tables --------------------------------------------------------------------------------------


def console(stream: TextIO | None = None) -> Console:
    from rich.console import Console

    stream = stream or sys.stdout
    width = None if stream.isatty() else _PIPED_WIDTH
    # Without a colour system there is no bold either: NO_COLOR is for who reads escape sequences as noise.
    system: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(file=stream, width=width, color_system=system, highlight=False, markup=False, emoji=False)


def show(what: RenderableType | str) -> None:
    """Print for people. Piped output has no spaces at the ends of lines, which only pad a table."""
    if isinstance(what, str):
        sys.stdout.write(what.rstrip("\n") + "\n")
        return
    if sys.stdout.isatty():
        console().print(what)
        return
    sys.stdout.write(_as_text(what))


def _as_text(what: RenderableType) -> str:
    drawing = console()
    with drawing.capture() as capture:
        drawing.print(what)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def table(columns: Sequence[str], rows: Rows, *, right: Sequence[str] = ()) -> RenderableType:
    """A table with headings. Cells are text as it is: nothing in them is markup or moves the cursor."""
    from omnirelay.cli.grids import Grid

    return Grid(columns, [[cell(value) for value in row] for row in rows], right)


def fields(pairs: Iterable[tuple[str, object]]) -> RenderableType:
    """Names and values below each other; a value of None is left out."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    drawn.add_column(style="bold", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None:
            drawn.add_row(name, Text(cell(value)))
    return drawn


def stacked(*parts: RenderableType | None) -> RenderableType:
    from rich.console import Group

    return Group(*(part for part in parts if part is not None))


def spaced(parts: Sequence[RenderableType]) -> list[RenderableType]:
    """The same with an empty line between them."""
    return [part for each in parts for part in (each, "")][:-1]


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return visible(str(value))


def visible(text: str) -> str:
    """The text with everything escaped that a terminal would act on instead of showing it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def note(text: str) -> None:
    """A remark for people, beside the result."""
    print(text, file=sys.stderr)


# -- times ---------------------------------------------------------------------------------------


def since(instant: str | None, now: datetime | None = None) -> str | None:
    """How far an instant is from now: `12s ago` or `in 3m`."""
    if instant is None:
        return None
    at = datetime.fromisoformat(instant)
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    return f"in {short(-seconds)}" if seconds < 0 else f"{short(seconds)} ago"


def short(seconds: float) -> str:
    """A length of time in its two largest units."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = int(seconds)
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length}{unit}" + (f"{rest}{smaller}" if rest else "")
    return f"{whole}s"


# -- progress and watching -----------------------------------------------------------------------


def _unseen(done: int, total: int | None = None) -> None:
    """Nobody looks."""


@contextmanager
def progress(
    what: str, total: int | None = None, *, in_bytes: bool = False
) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr while the block runs, if somebody looks. Call what it yields with (done, total)."""
    if not sys.stderr.isatty():
        yield _unseen
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    counts = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), counts, TimeElapsedColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task(what, total=total)

        def move(done: int, total: int | None = None) -> None:
            if total is None:
                bar.update(task, completed=done)
            else:
                bar.update(task, completed=done, total=total)

        yield move


def watching(
    watch: bool, interval_ms: int, look: Callable[[], tuple[Any, Any, Callable[[], Any]]], output: Format
) -> None:
    """Look once, or with `watch` again and again until interrupted. On a terminal a table is drawn over the last."""
    pause = threading.Event()
    if not watch:
        print_answer(output, *look())
        return
    if output is not Format.TABLE or not sys.stdout.isatty():
        while True:
            print_answer(output, *look())
            sys.stdout.flush()
            pause.wait(interval_ms / 1000)
    from rich.live import Live

    with Live(console=console(), auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            answer = look()
            drawn = answer[2]()
            live.update(stacked(drawn, f"\n{datetime.now().astimezone():%H:%M:%S}, ctrl-C to stop"), refresh=True)
            pause.wait(interval_ms / 1000)
