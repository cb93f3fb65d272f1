"""`lakehouse report`: the tables as one page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omnirelay.cli.commands import command
from omnirelay.cli.lakehouse_run import Kind, Master, TableFormat, Warehouse, opened_tables
from omnirelay.cli.options import Format, Output, instant_option
from omnirelay.cli.printing import note, print_answer


def add_to(group: typer.Typer) -> None:
    command(group, "report", _REPORT)(report)


_REPORT = """
    omnirelay lakehouse report --warehouse ./lake
    omnirelay lakehouse report --warehouse ./lake --from 2026-01-31T08:00 --to 2026-01-31T20:00 --out day.html --open
    omnirelay lakehouse report --warehouse ./lake --shard orders --format parquet
"""


def report(
    warehouse: Warehouse,
    begin: Annotated[str | None, instant_option("--from", help="Begin then; where the log begins otherwise.")] = None,
    end: Annotated[str | None, instant_option("--to", help="End before then; where the log ends otherwise.")] = None,
    shards: Annotated[
        list[str] | None, typer.Option("--shard", help="Only this shard; may be repeated.", metavar="NAME")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The file to write.", metavar="FILE")] = Path("report.html"),
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    kind: TableFormat = Kind.DELTA,
    master: Master = "local[*]",
    output: Output = Format.TABLE,
) -> None:
    """Make one HTML file of the tables: charts of depth, waiting, leases, lineage and health. It needs no network.

    Instants without an offset are UTC. The path of the file is printed.
    """
    from omnirelay.lakehouse.errors import needs_extra
    from omnirelay.wire.instants import read_instant_or_none

    try:
        from omnirelay.lakehouse.report import Wanted, check_place, make_report, write_page
        from omnirelay.lakehouse.report_page import render
    except ImportError as error:
        raise needs_extra(error) from None
    wanted = Wanted(
        from_ms=read_instant_or_none("from", begin), to_ms=read_instant_or_none("to", end), shards=shards or ()
    )
    path = out.absolute()
    check_place(path)
    with opened_tables(warehouse, kind, master) as tables:
        note("counting")
        page = render(make_report(tables, kind, wanted))
    write_page(page, path)
    size = len(page.encode())
    print_answer(output, {"path": str(path), "bytes": size}, None, lambda: str(path))
    if not show:
        return
    import webbrowser

    if not webbrowser.open(path.as_uri()):
        note("no browser could be started; open the file yourself")
