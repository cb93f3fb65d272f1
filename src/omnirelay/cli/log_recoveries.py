"""`log recover`: what can be kept of a damaged log, and giving up the rest when an operator says so."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from omnirelay.cli.commands import command
from omnirelay.cli.directories import DEFAULT_DATA, only, with_log
from omnirelay.cli.exits import DAMAGED, Stop, nothing, usage
from omnirelay.cli.logs import LogNamespace
from omnirelay.cli.options import Format, Output
from omnirelay.cli.printing import fields, note, print_answer, progress
from omnirelay.cli.running import run_async
from omnirelay.errors import DataLoss, LogDamaged, LogRegressed, LogSchemaTooNew, LogUnavailable, UnknownEvent


def add_to(group: typer.Typer) -> None:
    command(group, "recover", _RECOVER)(recover)


_RECOVER = """
    omnirelay log recover --data omnirelay-data
    omnirelay log recover --data omnirelay-data --accept-loss
    omnirelay log recover --data omnirelay-data --namespace tablelease --accept-loss --yes
"""


def recover(
    data: Annotated[Path, typer.Option("--data", help="Directory of a node that is stopped.", metavar="DIR")] = (
        DEFAULT_DATA
    ),
    namespace: LogNamespace = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Give up for good what is damaged or missing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Say what can be kept of a log that a node refuses, and with --accept-loss go on with that.

    Everything up to the first damage is kept, and what comes after it is lost: look for a backup first (`omnirelay log
    restore`). The damaged file stays beside the new one. The node goes on in a new generation, whose fences lie above
    all that is known of. Without --accept-loss nothing is changed, and it ends with 6 when something is wrong.
    """
    name = _chosen(data, namespace)
    damage = _damage(data, name)
    if damage is None:
        print_answer(output, {"namespace": name, "result": "whole"}, None, lambda: f"the log of {name} is whole")
        return
    if isinstance(damage, LogSchemaTooNew | UnknownEvent):
        raise damage
    kept, known = run_async(_reach(data, name, damage))
    said = f"{damage.message}\n{_loss(kept, known)}"
    if not accept_loss:
        raise Stop(DAMAGED, f"{said}\nnothing was changed: --accept-loss gives it up", damage.code)
    if not yes:
        if not sys.stdin.isatty():
            raise usage("what is given up cannot be had back and nobody is there to be asked: say --yes")
        note(said)
        typer.confirm(f"Give it up, in the log of {name}, for good?", abort=True, err=True)
    answer = run_async(_recovered(data, name, damage))
    print_answer(output, answer, None, lambda: fields(answer.items()))
    note(f"start it with `omnirelay serve --data {data}`; it goes on in a new generation")


def _chosen(data: Path, namespace: str | None) -> str:
    # Also one whose database is gone, and only the witness says that there was one.
    if namespace is not None and (data / namespace / "leases.witness").exists():
        return namespace
    return only(data, namespace)


def _damage(data: Path, namespace: str) -> DataLoss | None:
    from omnirelay.replication.confirmed import check_confirmed

    try:
        with progress(f"verify {namespace}") as move:
            with_log(data, namespace, lambda log: log.verify(progress=move))
        check_confirmed(data, namespace)
    except DataLoss as damage:
        return damage
    except LogUnavailable as error:
        if (data / namespace / "leases.db").exists():
            raise
        return LogRegressed(
            f"{error.message}, and its witness says that there was one; put it back, or accept the loss"
        )
    return None


def _loss(kept: int, known: int) -> str:
    if known <= kept:
        return f"kept: all events that are known of, up to {kept}"
    head = f"kept: the events up to {kept}" if kept else "kept: no event"
    return f"{head}; lost: {kept + 1} to {known}, and whatever came after that"


async def _reach(data: Path, namespace: str, damage: DataLoss) -> tuple[int, int]:
    """The last event before the first damage, and the last that head, witness or sinks know of."""
    from omnirelay.log.frame import decode_frame
    from omnirelay.log.sqlite import SqliteLog
    from omnirelay.log.witness import read_witness

    kept = 0
    known = _number(damage, "expected") if isinstance(damage, LogRegressed) else _number(damage, "known")
    with suppress(LogDamaged):
        witness = read_witness(data / namespace / "leases.witness")
        known = max(known, witness.sequence if witness is not None else 0)
    with suppress(LogDamaged, LogUnavailable):
        kept = _number(damage, "kept")
        log = SqliteLog.open(data, namespace, read_only=True)
        try:
            with suppress(LogDamaged):
                known = max(known, (await log.head()).position.sequence)
            kept = (await log.anchor()).sequence
            async for frame in log.read(kept + 1):
                decode_frame(frame, shard=log.shard, log_id=log.log_id)
                kept = frame.last
        finally:
            await log.close()
    return kept, max(kept, known)


def _number(damage: DataLoss, detail: str) -> int:
    """What the damage says of how far the log reaches; 0 when it does not."""
    return int(str(damage.details.get(detail, 0)))


async def _recovered(data: Path, namespace: str, damage: DataLoss) -> dict[str, Any]:
    import asyncio

    from omnirelay.log.sqlite import SqliteLog
    from omnirelay.replication.confirmed import CHECKPOINT_FILE, give_up_confirmed

    if isinstance(damage, LogRegressed) and damage.details.get("witness") == str(data / CHECKPOINT_FILE):
        await asyncio.to_thread(give_up_confirmed, data, namespace, damage)
    before = set((data / namespace).glob("leases.db.damaged-*"))
    # Raises LogLocked while a node runs.
    log = await asyncio.to_thread(SqliteLog.open, data, namespace, accept_loss=True)
    try:
        start = await log.acquire("omnirelay log recover")
        await log.verify()
    finally:
        await log.close()
    aside = [path for path in (data / namespace).glob("leases.db.damaged-*") if path not in before]
    if start.unproven is None:
        raise nothing(f"there is nothing in the log of {namespace} that could be given up")
    return {
        "namespace": namespace,
        "result": "recovered",
        "lastSequence": start.position.sequence,
        "fencesAbove": start.highest_known,
        "damagedFile": str(min(aside)) if aside else None,
        "reason": start.unproven,
    }
