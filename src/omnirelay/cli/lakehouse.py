"""`lakehouse doctor`: whether Spark can run here. The commands of the pipeline are added to the same group."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from omnirelay.cli import lakehouse_audit, lakehouse_report, lakehouse_run
from omnirelay.cli.commands import TOOLS, command, new_group
from omnirelay.cli.exits import FAILED
from omnirelay.cli.options import Format, Output
from omnirelay.cli.printing import print_answer, show, table


def add_to(app: typer.Typer) -> None:
    group = new_group("Make tables of the log, with Spark.")
    command(group, "doctor", _DOCTOR)(doctor)
    # Commands that run the pipeline register here, each module with its own add_to(group).
    lakehouse_run.add_to(group)
    lakehouse_audit.add_to(group)
    lakehouse_report.add_to(group)
    app.add_typer(group, name="lakehouse", rich_help_panel=TOOLS)


_DOCTOR = """
    omnirelay lakehouse doctor
    omnirelay lakehouse doctor --fetch
    omnirelay lakehouse doctor --try -o json
"""


def doctor(
    fetch: Annotated[bool, typer.Option("--fetch", help="Fetch the jars that are missing first.")] = False,
    attempt: Annotated[bool, typer.Option("--try", help="Start Spark and write a small table too.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Say what Spark needs, what of it is there, and how to get the rest. Ends with 1 when something is missing."""
    from omnirelay.lakehouse.doctor import examine, fetch_missing, try_session

    if fetch:
        fetch_missing()
    findings = examine()
    well = all(finding.ok or not finding.needed for finding in findings)
    if well and attempt:
        findings.append(try_session())
        well = findings[-1].ok
    answer: list[dict[str, Any]] = [
        {"name": each.name, "ok": each.ok, "needed": each.needed, "found": each.found, "remedy": each.remedy}
        for each in findings
    ]
    rows = [
        (each.name, "yes" if each.ok else "NO" if each.needed else "no", each.found, each.remedy) for each in findings
    ]
    print_answer(
        output, {"ok": well, "findings": answer}, answer, lambda: table(["what", "there", "found", "remedy"], rows)
    )
    if output is Format.TABLE:
        show("Spark can run here." if well else "Spark cannot run here yet: see the remedies.")
    if not well:
        raise typer.Exit(FAILED)
