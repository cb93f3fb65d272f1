"""What a log becomes afterwards: tables, an audit and a report, in one Spark session.

    python -m examples.demo_lakehouse DIR

`DIR/segments` holds the log as the demo's node wrote it down on its way. The tables go into `DIR/lake`, the page is
`DIR/report.html`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from omnirelay.errors import OmniRelayError
from omnirelay.lakehouse.audit import Audit
from omnirelay.lakehouse.audit_plan import plan
from omnirelay.lakehouse.errors import SparkUnusable
from omnirelay.lakehouse.pipeline import Pipeline
from omnirelay.lakehouse.report import make_report, write_page
from omnirelay.lakehouse.report_page import render
from omnirelay.lakehouse.session import open_session


def started(console: Console) -> tuple[SparkSession, str]:
    """A session, and the format it writes: Delta, or plain Parquet where Delta's jars cannot be fetched."""
    try:
        return open_session(app="omnirelay demo"), "delta"
    except SparkUnusable as error:
        console.print(f"  without Delta, because {error.message}; the tables are Parquet", soft_wrap=True)
        return open_session(app="omnirelay demo", delta=False), "parquet"


def tell_tables(directory: Path, console: Console) -> bool:
    """Make tables, audit and report; whether everything was found in order."""
    source = str(directory / "segments")
    with console.status("  Spark starts"):
        spark, kind = started(console)
    try:
        with console.status("  from segments to tables") as status:
            pipeline = Pipeline(
                spark, source, str(directory / "lake"), kind, report=lambda step, _: status.update(f"  table {step}")
            )
            made = pipeline.run()
        console.print(
            f"  {made.events:,} events became {len(made.steps)} {kind} tables in {made.seconds:.0f} s", soft_wrap=True
        )
        with console.status("  the log is audited"):
            plans, found = asyncio.run(plan(source))
            audit = Audit(spark, source, plans, found).run()
        verdict = "all kept" if audit.clean else f"{audit.violations} violations"
        console.print(f"  {audit.events:,} events audited by {len(audit.rules)} rules: {verdict}")
        for finding in audit.first():
            console.print(f"    {finding}", soft_wrap=True, markup=False)
        with console.status("  the report is drawn"):
            page = directory / "report.html"
            write_page(render(make_report(pipeline.tables, kind)), page)
        console.print(f"  look at it: {page}", soft_wrap=True)
        return audit.clean and not made.refused
    finally:
        spark.stop()


def main() -> int:
    console = Console(highlight=False)
    try:
        return 0 if tell_tables(Path(sys.argv[1]), console) else 1
    except OmniRelayError as error:
        sys.exit(f"error: {error.message} ({error.code})")


if __name__ == "__main__":
    sys.exit(main())
