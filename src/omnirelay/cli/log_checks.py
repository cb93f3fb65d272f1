"""`log verify|at`: work on the files of a node, which may be running, and on copies. They are only read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirelay.cli.commands import command, complain
from omnirelay.cli.directories import DEFAULT_DATA, chosen, only, with_log
from omnirelay.cli.exits import DAMAGED, REFUSED, Stop, nothing, usage
from omnirelay.cli.log_places import Place, StoreOptions, look_at, read_options
from omnirelay.cli.logs import LogNamespace
from omnirelay.cli.options import Format, Output, instant_option
from omnirelay.cli.printing import fields, print_answer, progress, spaced, stacked
from omnirelay.cli.running import in_thread, run_async
from omnirelay.errors import DataLoss, LogSchemaTooNew, UnknownEvent

if TYPE_CHECKING:
    from omnirelay.log.base import VerifyReport
    from omnirelay.log.sqlite import SqliteLog

Data = Annotated[Path, typer.Option("--data", help="Directory of a node, running or not.", metavar="DIR")]
NotByUrl = Annotated[str | None, typer.Option("--url", help="Not for this command: it reads files.", metavar="URL")]


def add_to(group: typer.Typer) -> None:
    command(group, "verify", _VERIFY)(verify)
    command(group, "at", _AT)(at)


def need_files(url: str | None, name: str) -> None:
    if url is not None:
        raise usage(f"`log {name}` reads the files of a node: run it where they are, with --data DIR instead of --url")


_VERIFY = """
    omnirelay log verify --data omnirelay-data
    omnirelay log verify --data omnirelay-data --namespace tablelease -o json
    omnirelay log verify backups/monday
    omnirelay log verify omnirelay-data/resourcelease/leases.db
    omnirelay log verify s3://lake/leases --option region=eu-central-1
"""


def verify(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[ADDRESS]",
            help="A backup or segments, of all shards or of one: a directory, or the address of an object store. Or the"
            " file leases.db of a log.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help=f"Directory of a node, running or not. [{DEFAULT_DATA}]", metavar="DIR"),
    ] = None,
    namespace: LogNamespace = None,
    option: StoreOptions = None,
    url: NotByUrl = None,
    output: Output = Format.TABLE,
) -> None:
    """Check every frame of a log: hashes, links, contents, head, snapshots, witnesses. Ends with 6 when one is damaged.

    Without --namespace all logs of the place are checked. The first damage of each is named; `omnirelay log recover`
    says what can be kept. One that a newer version wrote ends it with 5: only that version can check it. Of segments
    every object is read: its digest, its frames, its columns or lines, and that it continues the one before it.
    """
    need_files(url, "verify")
    if source is not None and data is not None:
        raise usage(f"say one place to verify: {source}, or --data {data}")
    if source is None:
        data = data or DEFAULT_DATA
        reports = [_verified(data, name) for name in chosen(data, namespace)]
    else:
        reports = run_async(_verified_at(source, namespace, read_options(option)))
    answer = reports[0] if len(reports) == 1 else {"logs": reports}
    print_answer(output, answer, reports, lambda: stacked(*spaced([fields(report.items()) for report in reports])))
    results = {report["result"] for report in reports}
    if results != {"whole"}:
        raise Stop(DAMAGED if "damaged" in results else REFUSED)


async def _verified_at(source: str, namespace: str | None, options: dict[str, Any]) -> list[dict[str, Any]]:
    place = await look_at(source, options, namespace)
    reports = []
    for shard, kind in place.kinds.items():
        try:
            reports.append(await (_verified_segments if kind == "segments" else _verified_backup)(place, shard))
        except DataLoss as damage:
            reports.append(_damaged(shard, damage))
    return reports


async def _verified_segments(place: Place, shard: str) -> dict[str, Any]:
    from omnirelay.segments.libraries import library_for

    with library_for("segments"):
        from omnirelay.segments.verification import verify as verify_segments

    with progress(f"verify {shard}") as move:
        report = await verify_segments(place.store, shard, move)
    return {
        "namespace": shard,
        "result": "whole",
        "horizon": report.begin,
        "anchored": report.anchored,
        "segments": report.segments,
        "frames": report.frames,
        "events": report.events,
        "bytes": report.bytes,
        "lastSequence": report.position.sequence,
        "chainHead": report.position.chain.hex(),
        "generation": report.generation,
    }


async def _verified_backup(place: Place, shard: str) -> dict[str, Any]:
    from omnirelay.log.sqlite import SqliteLog

    with progress(f"fetch {shard}", in_bytes=True) as fetched:
        async with place.files_of(shard, fetched) as directory:
            log = await in_thread(SqliteLog.open, directory, shard, read_only=True)
            try:
                return _report(shard, await log.verify())
            finally:
                await log.close()


def _verified(data: Path, namespace: str) -> dict[str, Any]:
    from omnirelay.replication.confirmed import check_confirmed

    try:
        with progress(f"verify {namespace}") as move:
            report = with_log(data, namespace, lambda log: log.verify(progress=move))
        check_confirmed(data, namespace)
    except DataLoss as damage:
        return _damaged(namespace, damage)
    return _report(namespace, report)


def _damaged(namespace: str, damage: DataLoss) -> dict[str, Any]:
    complain(damage.message, damage.code)
    result = "too new" if isinstance(damage, LogSchemaTooNew | UnknownEvent) else "damaged"
    return {"namespace": namespace, "result": result, "code": damage.code, "message": damage.message}


def _report(namespace: str, report: VerifyReport) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "result": "whole",
        "horizon": report.anchor.sequence,
        "frames": report.frames,
        "events": report.events,
        "bytes": report.bytes,
        "lastSequence": report.position.sequence,
        "chainHead": report.position.chain.hex(),
        "generation": report.generation,
        "snapshots": report.snapshots,
        "witnessed": report.witness_sequence,
    }


_AT = """
    omnirelay log at 4711 --data omnirelay-data
    omnirelay log at --time 2026-01-31T08:00:00+00:00 --data omnirelay-data
"""


def at(
    sequence: Annotated[int | None, typer.Argument(metavar="SEQ", help="Number of an event.", min=0)] = None,
    time: Annotated[str | None, instant_option("--time", help="After the last event up to then.")] = None,
    data: Data = DEFAULT_DATA,
    namespace: LogNamespace = None,
    url: NotByUrl = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what was in a shard after an event, and the digest of that state: equal digests are equal states."""
    need_files(url, "at")
    if (sequence is None) == (time is None):
        raise usage("say when: the number of an event, or --time, and only one of them")

    async def look(log: SqliteLog) -> dict[str, Any]:
        reached = sequence if time is None else await _last_before(log, time)
        return await _state(log, reached)

    answer = with_log(data, only(data, namespace), look)
    print_answer(output, answer, None, lambda: fields(answer.items()))


async def _state(log: SqliteLog, sequence: int | None) -> dict[str, Any]:
    from omnirelay.core.snapshot import digest
    from omnirelay.core.views import stats
    from omnirelay.engine.recovery import rebuild
    from omnirelay.wire.instants import instant

    with progress("replay") as move:
        state = (await rebuild(log, sequence, progress=move)).state
    counts = stats(state, state.time)
    return {
        "sequence": state.sequence,
        "time": instant(state.time),
        "ready": counts.ready_count,
        "delayed": counts.delayed_count,
        "leased": counts.active_lease_count,
        "dead": counts.dead_letter_count,
        "ended": counts.completed_count,
        "pauses": len(counts.pauses),
        "backpressure": counts.backpressure.active,
        "generation": counts.generation,
        "digest": digest(state),
    }


async def _last_before(log: SqliteLog, time: str) -> int:
    """The last event that was decided up to an instant. Times never go back in a log."""
    from omnirelay.log.frame import decode_frame
    from omnirelay.wire.instants import read_instant

    until = read_instant("time", time)
    anchor = await log.anchor()
    found = anchor.sequence if anchor.time_ms <= until else None
    async for frame in log.read(anchor.sequence + 1):
        if frame.time_ms > until:
            for event in decode_frame(frame, shard=log.shard, log_id=log.log_id):
                if event.timestamp > until:
                    break
                found = event.sequence_number
            break
        found = frame.last
    if found is None or (found == 0 and anchor.sequence == 0):
        raise nothing(f"the log has no event up to {time}")
    return found
