"""`log restore`: an empty node gets the log that a backup or segments hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirelay.cli.commands import command
from omnirelay.cli.directories import check_can_be_directory
from omnirelay.cli.exits import nothing, usage
from omnirelay.cli.log_places import Place, StoreOptions, look_at, read_options
from omnirelay.cli.logs import LogNamespace
from omnirelay.cli.options import Format, Output
from omnirelay.cli.printing import fields, note, print_answer, progress, spaced, stacked
from omnirelay.cli.running import in_thread, run_async

if TYPE_CHECKING:
    from omnirelay.replication.origins import Origin
    from omnirelay.replication.proving import Restored

Move = Callable[[int, int | None], None]

_HIGHEST = 1 << 62
"""HIGHEST_RESTORED of the segments, which are not imported for a help text."""


def add_to(group: typer.Typer) -> None:
    command(group, "restore", _RESTORE)(restore)


_RESTORE = """
    omnirelay log restore --from backups/monday --data new-data
    omnirelay log restore --from s3://lake/leases --namespace resourcelease --data new-data
    omnirelay log restore --from s3://lake/leases --base backups/monday --data new-data
"""


def restore(
    source: Annotated[
        str,
        typer.Option("--from", help="A backup, or segments: a directory or the address of a store.", metavar="ADDRESS"),
    ],
    data: Annotated[Path, typer.Option("--data", help="Directory of the new node.", metavar="DIR")],
    namespace: LogNamespace = None,
    base: Annotated[
        str | None,
        typer.Option("--base", help="A backup to begin with, when the segments have no beginning.", metavar="ADDRESS"),
    ] = None,
    above: Annotated[
        int | None,
        typer.Option(
            "--above",
            help="The highest fence that was ever given out, if you know it.",
            min=0,
            max=_HIGHEST,
            metavar="N",
        ),
    ] = None,
    option: StoreOptions = None,
    output: Output = Format.TABLE,
) -> None:
    """Restore logs from a backup or from segments into a node that has none.

    Without --namespace everything that is there is restored. Logs are built beside their places, and take them only
    when every chain is whole, every event was replayed and every snapshot agrees. If anything is wrong with one,
    nothing is restored. A restored log may lack the end that was lost: the node starts a new generation, whose fences
    lie above all that came before.
    """
    check_can_be_directory(data)
    restored = run_async(_restored(source, base, data, namespace, above, read_options(option)))
    answers = [_answer(each) for each in restored]
    answer = answers[0] if len(answers) == 1 else {"logs": answers}
    print_answer(output, answer, answers, lambda: stacked(*spaced([fields(each.items()) for each in answers])))
    note(f"start it with `omnirelay serve --data {data}`; it goes on in a new generation")


def _answer(restored: Restored) -> dict[str, Any]:
    return {
        "namespace": restored.shard,
        "result": "restored",
        "horizon": restored.horizon,
        "events": restored.events,
        "lastSequence": restored.last,
        "chainHead": restored.chain,
        "generation": restored.generation,
        "fencesAbove": restored.fences_above,
        "snapshots": restored.snapshots,
        "digest": restored.digest,
    }


async def _restored(
    source: str, base: str | None, data: Path, namespace: str | None, above: int | None, options: dict[str, Any]
) -> list[Restored]:
    from omnirelay.replication.restoring import check_empty, prepare, put_in_place

    place = await look_at(source, options, namespace)
    if base is not None:
        _check_base_is_of_use(source, place)
    for shard in place.kinds:
        check_empty(data, shard)
    placed: list[Restored] = []
    async with AsyncExitStack() as stack:
        prepared = []
        for shard in place.kinds:
            with progress(f"restore {shard}") as move:
                async with _origin(place, base, shard, options, move) as origin:
                    prepared.append(await stack.enter_async_context(prepare(origin, data, _told(move))))
        try:
            await put_in_place(prepared, marks=place.store, above=above, placed=placed.append)
        except BaseException:
            _say_what_is_there(placed, [shard for shard in place.kinds if shard not in {each.shard for each in placed}])
            raise
    return placed


def _check_base_is_of_use(source: str, place: Place) -> None:
    whole = [shard for shard, kind in place.kinds.items() if kind != "segments"]
    if whole:
        raise usage(
            f"--base is for segments, and what {source} has of {', '.join(whole)} is a backup: say --from with the"
            " segments, or leave out --base"
        )


def _say_what_is_there(placed: list[Restored], missing: list[str]) -> None:
    """Only for a disk that fails between two names: whatever can be wrong with a log was found before the first."""
    for each in placed:
        note(f"restored {each.shard} up to event {each.last}, digest {each.digest}")
    if placed:
        note(f"not restored: {', '.join(missing)}; go on with --namespace")


def _told(move: Move) -> Callable[[str, int, int], None]:
    """One bar for both halves: copying and proving take about as long."""

    def said(what: str, done: int, total: int) -> None:
        move(done if what == "copy" else total + done, 2 * total)

    return said


@asynccontextmanager
async def _origin(
    place: Place, base: str | None, shard: str, options: dict[str, Any], move: Move
) -> AsyncIterator[Origin]:
    from omnirelay.replication.origins import BackupOrigin

    if place.kinds[shard] != "segments":
        async with place.files_of(shard, move) as directory:
            yield await in_thread(BackupOrigin, directory, shard)
        return
    from omnirelay.replication.segment_origin import SegmentOrigin

    if base is None:
        yield await SegmentOrigin.open(place.store, shard)
    else:
        below = await look_at(base, {} if "://" not in base else options, shard)
        if below.kinds[shard] == "segments":
            raise nothing(f"there is no backup of {shard!r} in {base}, only segments; --base wants a backup")
        async with below.files_of(shard, move) as directory:
            backup = await in_thread(BackupOrigin, directory, shard)
            yield await SegmentOrigin.open(place.store, shard, backup)
