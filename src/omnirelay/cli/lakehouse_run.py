"""`lakehouse run|rebuild|optimize|vacuum`: make tables of segments, and keep them in order."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from omnirelay.cli.commands import command
from omnirelay.cli.exits import DAMAGED
from omnirelay.cli.lakehouse_sessions import spark_for_command
from omnirelay.cli.log_places import StoreOptions, is_path, read_options
from omnirelay.cli.options import Format, Output
from omnirelay.cli.printing import note, print_answer, short, stacked, table
from omnirelay.cli.running import run_async
from omnirelay.cli.stopping import set_when_interrupted
from omnirelay.errors import NotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import RenderableType

    from omnirelay.errors import OmniRelayError
    from omnirelay.lakehouse.formats import TableStore
    from omnirelay.lakehouse.pipeline import Pipeline, Summary


class Kind(StrEnum):
    DELTA = "delta"
    PARQUET = "parquet"
    ICEBERG = "iceberg"


def _named(value: str) -> str:
    """What an empty variable of a shell leaves of `--warehouse $LAKE` would be the root of the file system."""
    if not value.strip():
        raise typer.BadParameter("is empty; name a directory")
    return value


Source = Annotated[
    str,
    typer.Option(
        "--source",
        help="Where the segments are: a directory, or s3://BUCKET/PREFIX.",
        metavar="ADDRESS",
        callback=_named,
    ),
]
Warehouse = Annotated[
    str, typer.Option("--warehouse", help="The directory the tables go into.", metavar="DIR", callback=_named)
]
Gone = Annotated[
    list[str] | None,
    typer.Option(
        "--gone",
        help="A shard whose segments are gone for good: that the tables hold it is no error; may be repeated.",
        metavar="SHARD",
    ),
]
TableFormat = Annotated[Kind, typer.Option("--format", help="The format of the tables.")]
Master = Annotated[str, typer.Option("--master", help="Where Spark runs: local[*], spark://…, k8s://…", metavar="URL")]


def add_to(group: typer.Typer) -> None:
    command(group, "run", _RUN)(run)
    command(group, "rebuild", _REBUILD)(rebuild)
    command(group, "optimize", _OPTIMIZE)(optimize)
    command(group, "vacuum", _VACUUM)(vacuum)


_RUN = """
    omnirelay lakehouse run --source ./segments --warehouse ./lake
    omnirelay lakehouse run --continuous --every 30 --source ./segments --warehouse ./lake
    omnirelay lakehouse run --source ./segments --warehouse ./lake --format parquet -o json
    omnirelay lakehouse run --source s3://lake/leases --option region=eu-central-1 --warehouse ./lake
"""


def run(
    source: Source,
    warehouse: Warehouse,
    continuous: Annotated[
        bool, typer.Option("--continuous/--once", help="Look again and again, until it is interrupted.")
    ] = False,
    every: Annotated[
        float,
        typer.Option(
            "--every", help="With --continuous: seconds between two runs.", metavar="SECONDS", min=0.1, max=86_400
        ),
    ] = 10.0,
    option: StoreOptions = None,
    gone: Gone = None,
    kind: TableFormat = Kind.DELTA,
    master: Master = "local[*]",
    output: Output = Format.TABLE,
) -> None:
    """Take in what is new in the segments and bring every table up to it. It may be stopped at any time.

    Ends with 6 when a segment was refused, or all of a shard that the tables hold are gone; the tables hold everything
    before it, and all of the other shards. Ends with 4 when there are no segments at all. With --continuous an
    interruption or a SIGTERM ends it behind the table that is being changed; a second one at once.
    Another pipeline that is quicker, a store that does not answer, or segments that were there and are away do not end
    it then: it says so and tries again.
    """
    route = Route(source, read_options(option), warehouse, kind, master, gone or [])
    if continuous:
        summary = _continuously(route, every, output)
    else:
        with _pipeline(route) as pipeline:
            summary = pipeline.run()
        _print(summary, output)
    if summary is not None and summary.refused:
        raise typer.Exit(DAMAGED)


def _continuously(route: Route, every: float, output: Format) -> Summary | None:
    """Run until asked to stop; what the last run found, None when no run came to its end."""
    asked = threading.Event()
    printed = False

    def seen(summary: Summary) -> None:
        nonlocal printed
        if not printed or summary.changed or summary.newly_refused:
            _print(summary, output)
        printed = True

    def hindered(error: OmniRelayError, wait_s: float) -> None:
        note(f"{error.message} ({error.code}); again in {short(wait_s)}")

    # In this order: Spark puts in a handler of its own when it starts.
    with _pipeline(route, stopping=asked.is_set, waits=True) as pipeline, set_when_interrupted(asked):
        from omnirelay.lakehouse.continuous import run_until_asked

        summary = run_until_asked(pipeline.run, asked, every, seen=seen, hindered=hindered, known=pipeline.holds_events)
        note("stopped")
    return summary


_REBUILD = """
    omnirelay lakehouse rebuild --source ./segments --warehouse ./lake --yes
    omnirelay lakehouse rebuild --source s3://lake/leases --option region=eu-central-1 --warehouse ./lake --yes
"""


def rebuild(
    source: Source,
    warehouse: Warehouse,
    yes: Annotated[bool, typer.Option("--yes", help="Do it: the tables there are now are removed first.")] = False,
    option: StoreOptions = None,
    gone: Gone = None,
    kind: TableFormat = Kind.DELTA,
    master: Master = "local[*]",
    output: Output = Format.TABLE,
) -> None:
    """Remove the tables and make them anew from the segments there are. Events that no segment holds are gone then.

    The segments are looked at first: where no event can be read, or none of a shard that the tables hold, they stay as
    they are.
    """
    if not yes:
        raise typer.BadParameter("say --yes: the tables are removed first, and only what segments hold comes back")
    with _pipeline(Route(source, read_options(option), warehouse, kind, master, gone or [])) as pipeline:
        summary = pipeline.rebuild()
    _print(summary, output)
    if summary.refused:
        raise typer.Exit(DAMAGED)


_OPTIMIZE = """
    omnirelay lakehouse optimize --warehouse ./lake
"""


def optimize(warehouse: Warehouse, kind: TableFormat = Kind.DELTA, master: Master = "local[*]") -> None:
    """Make few large files of many small ones. No row changes."""
    from omnirelay.lakehouse import upkeep

    with opened_tables(warehouse, kind, master) as tables:
        done = upkeep.optimize(tables)
    note(f"{len(done)} tables optimized")


_VACUUM = """
    omnirelay lakehouse vacuum --warehouse ./lake
    omnirelay lakehouse vacuum --warehouse ./lake --keep-hours 24
"""


def vacuum(
    warehouse: Warehouse,
    keep_hours: Annotated[
        float, typer.Option("--keep-hours", help="Keep what was current that long ago.", metavar="HOURS", min=0)
    ] = 168.0,
    force: Annotated[
        bool, typer.Option("--force", help="Keep less than 24 hours. Nobody may write or read the tables meanwhile.")
    ] = False,
    kind: TableFormat = Kind.DELTA,
    master: Master = "local[*]",
) -> None:
    """Remove files that the tables no longer need. Older versions of them cannot be read afterwards.

    Less than 24 hours is refused without --force: files that a run is about to commit would be removed, too.
    """
    from omnirelay.lakehouse import upkeep

    upkeep.check_keep_hours(keep_hours, force=force)
    with opened_tables(warehouse, kind, master) as tables:
        done = upkeep.vacuum(tables, keep_hours, force=force)
    note(f"{len(done)} tables vacuumed")


# -- set-up ----------------------------------------------------------------------------------------


@contextmanager
def _session(kind: Kind, master: str) -> Iterator[SparkSession]:
    from omnirelay.lakehouse.session import open_session

    def start() -> SparkSession:
        return open_session(master, app="omnirelay lakehouse", delta=kind is Kind.DELTA, iceberg=kind is Kind.ICEBERG)

    note("starting Spark")
    with spark_for_command(start) as spark:
        yield spark


class Route(NamedTuple):
    """From where to where, and by which Spark."""

    source: str
    options: dict[str, Any]
    """Of the object store that the source is in."""
    warehouse: str
    kind: Kind
    master: str
    gone: list[str]
    """Shards that are not missed when they have no segments."""


@contextmanager
def _pipeline(route: Route, *, stopping: Callable[[], bool] | None = None, waits: bool = False) -> Iterator[Pipeline]:
    from omnirelay.lakehouse.errors import needs_extra

    try:
        from omnirelay.lakehouse.pipeline import Pipeline
    except ImportError as error:
        raise needs_extra(error) from None
    check_source(route, waits=waits)
    with _session(route.kind, route.master) as spark:
        yield Pipeline(
            spark,
            route.source,
            route.warehouse,
            route.kind,
            options=route.options,
            report=_report,
            stopping=stopping,
            gone=route.gone,
        )


def check_source(route: Route, *, waits: bool) -> None:
    """Raises NotFound for a directory without segments, before Spark is started.

    Whoever `waits` for them does so only where tables were made of some before.
    """
    from omnirelay.lakehouse.errors import TablesMissing
    from omnirelay.lakehouse.shards import NO_SEGMENTS, shards_at
    from omnirelay.lakehouse.upkeep import check_warehouse

    if not is_path(route.source):
        return  # To list a bucket twice would take longer than Spark takes to start.
    try:
        run_async(shards_at(route.source, route.options))
    except NotFound as missing:
        if not waits or missing.code != NO_SEGMENTS:
            raise
        try:
            check_warehouse(route.warehouse)
        except TablesMissing:
            raise missing from None


@contextmanager
def opened_tables(warehouse: str, kind: Kind, master: str) -> Iterator[TableStore]:
    """Tables that are there. Raises TablesMissing for a directory without any, before Spark is started."""
    from omnirelay.lakehouse.formats import open_tables
    from omnirelay.lakehouse.upkeep import check_warehouse

    check_warehouse(warehouse)
    with _session(kind, master) as spark:
        yield open_tables(spark, warehouse, kind)


# -- what is printed -------------------------------------------------------------------------------


def _report(step: str, seconds: float | None) -> None:
    if seconds is not None:
        note(f"{step}  {short(seconds)}")


def _print(summary: Summary, output: Format) -> None:
    answer: dict[str, Any] = {
        "events": summary.events,
        "segments": summary.segments,
        "changed": summary.changed,
        "progress": summary.progress,
        "steps": [{"table": step.table, "seconds": round(step.seconds, 3)} for step in summary.steps],
        "refused": [
            {"shard": each.shard, "segment": each.segment, "sequence": each.sequence, "reason": each.reason}
            for each in summary.refused
        ],
        "seconds": round(summary.seconds, 3),
    }
    print_answer(output, answer, None, lambda: _summary(summary))
    # Whoever reads this from a pipe wants it now, not when the command ends.
    sys.stdout.flush()


def _summary(summary: Summary) -> RenderableType | str:
    shards = table(["shard", "last event"], sorted(summary.progress.items()), right=["last event"])
    done = f"{summary.events} new events from {summary.segments} segments, {len(summary.steps)} tables changed"
    refused = [
        f"REFUSED {each.segment} of {each.shard!r}, from event {each.sequence} on: {each.reason}"
        for each in summary.refused
    ]
    return stacked(shards, f"{done}, in {short(summary.seconds)}", *refused)
