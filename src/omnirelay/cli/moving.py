"""`drain` to a file and `restore` from it: pending items leave one shard and enter another, as they are."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from omnirelay.cli.calling import Client
from omnirelay.cli.commands import HANDLING, command
from omnirelay.cli.exits import FAILED, UNREACHABLE, USAGE, Refusal, Stop, usage
from omnirelay.cli.lines import BadLine, at_line, batches, opened
from omnirelay.cli.options import DEFAULT_NAMESPACE, DEFAULT_URL, Format, Namespace, Output, Url
from omnirelay.cli.printing import note, print_answer, progress

_PAGE = 1_000


def add_to(app: typer.Typer) -> None:
    command(app, "drain", _DRAIN, HANDLING)(drain)
    command(app, "restore", _RESTORE, HANDLING)(restore)


_DRAIN = """
    omnirelay drain --to pending.jsonl
    omnirelay drain --to pending.jsonl --pause-intake
    omnirelay drain --to - --max 100 | omnirelay restore --from - --url http://127.0.0.1:7171
"""


def drain(
    to: Annotated[Path, typer.Option("--to", help="A file that does not exist yet, or - for stdout.", metavar="FILE")],
    pause_intake: Annotated[bool, typer.Option("--pause-intake", help="Refuse new items from now on.")] = False,
    items_max: Annotated[int | None, typer.Option("--max", help="Take at most so many.", min=1, metavar="N")] = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
) -> None:
    """Take all pending items out of a shard, into a file with one item a line.

    Each page is safe in the file before the next is asked for. Leased items stay. `omnirelay restore` takes the file.
    """
    taken = 0
    with Client(url, namespace) as client:
        client.call("stats")  # Before anything is made or taken: a node that is not there leaves no empty file.
        with _created(to) as file, progress("drain") as move:
            remaining = 1
            while remaining > 0 and (items_max is None or taken < items_max):
                wanted = _PAGE if items_max is None else min(_PAGE, items_max - taken)
                try:
                    answer = client.call("drain", {"maxItems": wanted, "pauseIntake": pause_intake})
                except Stop as stop:
                    raise _interrupted(stop, taken, to) from None
                _keep(file, answer["items"], to)
                taken += len(answer["items"])
                remaining = answer["remainingCount"] if answer["items"] else 0
                move(taken, taken + remaining)
    note(f"drained {taken} items" + ("" if str(to) == "-" else f" to {to}") + f", {remaining} pending items remain")


@contextmanager
def _created(path: Path) -> Iterator[BinaryIO]:
    if str(path) == "-":
        yield sys.stdout.buffer
        return
    try:
        file = path.open("xb")
    except FileExistsError:
        raise usage(f"{path} exists already and is not overwritten") from None
    except OSError as error:
        raise usage(f"cannot write {path}: {error.strerror or error}") from None
    with file:
        yield file
        # The name of the file has to last as well as its content.
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _keep(file: BinaryIO, items: list[Any], to: Path) -> None:
    """Write a page and have it on the disk. These items are nowhere else any more but in the log."""
    text = "".join(json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n" for item in items).encode()
    try:
        file.write(text)
        file.flush()
        if str(to) != "-":
            os.fsync(file.fileno())
    except OSError as error:
        raise Stop(
            FAILED,
            f"cannot write {to}: {error.strerror or error}; the {len(items)} items drained last are in the node's log"
            " only (omnirelay log export)",
        ) from None


def _interrupted(stop: Stop, taken: int, to: Path) -> Stop:
    stop.message += f"; {taken} drained items are safe in {to}"
    if stop.exit_code == UNREACHABLE:
        stop.message += ", and if the last page was taken, its items are in the node's log only (omnirelay log export)"
    return stop


_RESTORE = """
    omnirelay restore --from pending.jsonl
    omnirelay restore --from pending.jsonl --namespace tablelease --batch 100
"""


def restore(
    source: Annotated[Path, typer.Option("--from", help="A file that drain wrote, or - for stdin.", metavar="FILE")],
    batch: Annotated[int, typer.Option("--batch", help="Items per call.", min=1, max=10_000)] = 500,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Take drained items in. One that is there already is counted as a duplicate, so a repeat does no harm.

    One whose id stands for another item there comes in under a new id, and is named with both by `-o json`.
    """
    restored = duplicates = 0
    renumbered: list[dict[str, int]] = []
    with (
        opened(source) as (file, total),
        Client(url, namespace) as client,
        progress("restore", total, in_bytes=True) as move,
    ):
        try:
            for lines, items, read in batches(file, batch, _pending):
                try:
                    answer = client.call("restore", {"items": items})
                except Refusal as refusal:
                    raise at_line(refusal, lines) from None
                restored += answer["restoredCount"]
                duplicates += answer["duplicateCount"]
                renumbered += answer.get("renumbered", [])
                move(read, None)
        except BadLine as bad:
            raise Stop(
                USAGE, f"line {bad.number} of {source} {bad.why}; {_so_far(restored, duplicates)}", "bad-line"
            ) from None
        except Stop as stop:
            stop.message += f"; {_so_far(restored, duplicates)}"
            raise
    counts: dict[str, Any] = {"restoredCount": restored, "duplicateCount": duplicates}
    text = f"restored {restored} items, {duplicates} were there already"
    if renumbered:
        counts["renumbered"] = renumbered
        text += f"; {len(renumbered)} got new ids, theirs were taken"
    print_answer(output, counts, None, lambda: text)


def _pending(value: dict[str, Any]) -> dict[str, Any]:
    if not any(name.lower() == "sequenceid" for name in value):
        raise ValueError("is no drained item: it has no sequenceId")
    return value


def _so_far(restored: int, duplicates: int) -> str:
    return f"{restored} were restored before it and {duplicates} were there already; repeat with the whole file"
