"""`lakehouse audit`: prove what segments hold, rule by rule, with Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from omnirelay.cli.commands import command
from omnirelay.cli.exits import DAMAGED, FAILED, Stop
from omnirelay.cli.lakehouse_run import Master, Source
from omnirelay.cli.lakehouse_sessions import spark_for_command
from omnirelay.cli.log_places import StoreOptions, look_at, read_options
from omnirelay.cli.options import Format, Output
from omnirelay.cli.printing import note, print_answer, short, stacked, table
from omnirelay.cli.running import run_async

if TYPE_CHECKING:
    from rich.console import RenderableType

    from omnirelay.lakehouse.audit import Report, ShardResult
    from omnirelay.lakehouse.audit_digests import Known
    from omnirelay.lakehouse.audit_plan import ShardPlan

_LONG_EVENTS: Final = 1_000_000
"""From here on it takes long enough for Java's full compilation to pay."""
_SHOWN: Final = 5
"""Violations of a rule that a table names."""


def add_to(group: typer.Typer) -> None:
    command(group, "audit", _AUDIT)(audit)


_AUDIT = """
    omnirelay lakehouse audit --source ./segments
    omnirelay lakehouse audit --source s3://lake/leases --shard orders --from 100000 -o json
    omnirelay lakehouse audit --source ./segments --data omnirelay-data --strict
    omnirelay lakehouse audit --source ./segments --backup s3://backups/monday --master spark://host:7077
"""


def audit(
    source: Source,
    shard: Annotated[
        list[str] | None, typer.Option("--shard", help="Only this shard; may be repeated.", metavar="NAME")
    ] = None,
    first: Annotated[
        int, typer.Option("--from", help="Look for violations from this event on.", metavar="SEQ", min=1)
    ] = 1,
    last: Annotated[
        int | None, typer.Option("--to", help="Look at nothing behind this event.", metavar="SEQ", min=1)
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Compare states with this directory of a node.", metavar="DIR")
    ] = None,
    backup: Annotated[
        str | None, typer.Option("--backup", help="Compare states with this backup.", metavar="ADDRESS")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with 1 when an opinion could not see everything.")
    ] = False,
    option: StoreOptions = None,
    master: Master = "local[*]",
    output: Output = Format.TABLE,
) -> None:
    """Replay whole logs with the rules that made them, question them with SQL, and check every byte of their segments.

    Ends with 6 when a rule is violated; the first events that violate it are named. The digest of each shard's last
    state is what `log at` says for the same event. Nothing is written. What an opinion could not look at is named
    behind the rules; it changes how the command ends with --strict only.
    """
    from omnirelay.lakehouse.errors import needs_extra

    if data is not None and backup is not None:
        raise typer.BadParameter("say --data or --backup, not both")
    if last is not None and last < first:
        raise typer.BadParameter(f"--to {last} is before --from {first}")
    try:
        from omnirelay.lakehouse.audit import Audit, as_plain
        from omnirelay.lakehouse.audit_plan import plan
        from omnirelay.lakehouse.session import LONG_RUN, QUICK_START, open_session
    except ImportError as error:
        raise needs_extra(error) from None
    options = read_options(option)
    plans, found = run_async(plan(source, shards=shard, first=first, last=last, options=options))
    place = str(data) if data is not None else backup
    known = {} if place is None else run_async(_known(place, plans, options if data is None else {}))
    for each in known.values():
        if each.remark is not None:
            note(each.remark)
    events = sum(entry.events for each in plans for entry in each.entries)
    note(f"{len(plans)} shards, {events} events; starting Spark")
    flags = LONG_RUN if events >= _LONG_EVENTS else QUICK_START
    with spark_for_command(
        lambda: open_session(master, app="omnirelay audit", delta=False, driver_flags=flags)
    ) as spark:
        report = Audit(spark, source, plans, found, known=known, options=options, report=note).run()
    print_answer(output, as_plain(report), None, lambda: drawn(report))
    end_by(report, strict=strict)


def end_by(report: Report, *, strict: bool) -> None:
    """Ends the command when something is wrong, or with `strict` when something was not seen."""
    if not report.clean:
        raise typer.Exit(DAMAGED)
    if strict and not report.complete:
        shards = ", ".join(sorted({each.shard for each in report.unseen}))
        raise Stop(FAILED, f"--strict: not every opinion saw everything of {shards}")


async def _known(address: str, plans: list[ShardPlan], options: dict[str, Any]) -> dict[str, Known]:
    """What the logs at an address say about the states of these shards, or why they say nothing."""
    from omnirelay.lakehouse.audit_digests import Known, known_of

    place = await look_at(address, options, None)
    known: dict[str, Known] = {}
    for plan in plans:
        if place.kinds.get(plan.shard) not in ("files", "backup"):
            known[plan.shard] = Known("", {}, remark=f"{address} has no log of {plan.shard!r}")
            continue
        async with place.files_of(plan.shard) as directory:
            known[plan.shard] = await known_of(directory, plan.shard, anchor=plan.anchor.sequence, last=plan.last)
        if known[plan.shard].log_id != plan.log_id:
            remark = f"{address} has another log of {plan.shard!r} than the segments"
            known[plan.shard] = Known(known[plan.shard].log_id, {}, remark=remark)
    return known


# -- what is printed -------------------------------------------------------------------------------


def drawn(report: Report) -> RenderableType:
    """The report for people."""
    rules = [
        (
            each.rule.id,
            "ok" if not each.violations else f"{each.violations} VIOLATIONS",
            ", ".join(f"{opinion} {count or 'ok'}" for opinion, count in each.counts.items()) or "not looked at",
            each.rule.sentence,
        )
        for each in report.rules
    ]
    first = [
        (finding.rule, finding.opinion, finding.shard, finding.sequence, finding.item, finding.what)
        for each in report.rules
        for finding in each.first[:_SHOWN]
    ]
    columns = ["rule", "opinion", "shard", "event", "item", "what"]
    speed = round(report.events / report.seconds) if report.seconds else 0
    return stacked(
        table(["rule", "result", "opinions", "what it says"], rules),
        "",
        *([table(columns, first, right=["event", "item"]), ""] if first else []),
        table(
            ["shard", "events", "from", "to", "segments", "state behind the last event"],
            [_shard_row(each) for each in report.shards],
            right=["events", "from", "to", "segments"],
        ),
        *_not_seen(report),
        "",
        f"{_verdict(report)}: {report.events} events in {short(report.seconds)}, {speed} a second",
    )


def _shard_row(each: ShardResult) -> tuple[object, ...]:
    digest = "not replayed" if each.replayed.digest is None else f"{each.replayed.last} {each.replayed.digest}"
    return each.shard, each.events, each.first, each.last, each.segments, digest


def _not_seen(report: Report) -> list[str]:
    """Which opinions did not see everything, a line for each and why."""
    lines = [f"  {each.opinion}, shard {each.shard}: {each.why}" for each in report.unseen]
    opinions = ", ".join(sorted({each.opinion for each in report.unseen}))
    return [f"NOT EVERYTHING WAS SEEN by {opinions}:", *lines] if lines else []


def _verdict(report: Report) -> str:
    if not report.clean:
        return f"{report.violations} violations"
    return "Clean" if report.complete else "Clean as far as it could be seen"
