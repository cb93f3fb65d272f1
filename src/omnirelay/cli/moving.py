"""`drain` to a file and `restore` from it: pending items leave one shard and enter another, as they are."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from omnirelay.cli.calling import Client
from omnirelay.cli.commands import HANDLING, command
from omnirelay.cli.exits import FAILED, INTERRUPTED, UNREACHABLE, USAGE, Stop
from omnirelay.cli.keeping import Kept, NotKept, kept_in, passed_on
from omnirelay.cli.lines import BadLine, Size, opened, send_all, send_in_parts
from omnirelay.cli.options import DEFAULT_NAMESPACE, DEFAULT_URL, Format, Namespace, Output, Url
from omnirelay.cli.printing import note, print_answer, progress
from omnirelay.cli.stopping import Interrupted, heeding_signals

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

    Each page is safe in the file before the next is asked for, and an interruption waits for the page that is on its
    way. Leased items stay. `omnirelay restore` takes the file.

    A file is the safe way. Nobody can say what became of items that went into a pipe: its reader may end with items
    that it has read and not taken in. So with --to - all of them are in a file as well, which is named in the end and
    stays until you remove it; only when stdout is a file itself is there no second one.
    """
    remaining: int | None = None
    with Client(url, namespace) as client, heeding_signals() as signals:
        client.call("stats")  # Before anything is made or taken: a node that is not there leaves no empty file.
        with passed_on() if str(to) == "-" else kept_in(to) as kept, progress("drain") as move:
            try:
                while remaining != 0 and (items_max is None or kept.count < items_max):
                    wanted = _PAGE if items_max is None else min(_PAGE, items_max - kept.count)
                    with signals.held("the page that was asked for"):
                        answer = client.call("drain", {"maxItems": wanted, "pauseIntake": pause_intake})
                        remaining = answer["remainingCount"] if answer["items"] else 0
                        _keep(kept, answer["items"], client)
                    move(kept.count, kept.count + remaining)
            except Stop as stop:
                raise _broken_off(stop, kept) from None
            except Interrupted as interrupted:
                raise Stop(
                    interrupted.exit_code, f"interrupted; {kept.said}, {_left(remaining)} remain in the shard"
                ) from None
            except KeyboardInterrupt:
                raise Stop(INTERRUPTED, f"interrupted while a page was on its way; {kept.said}{_LOST}") from None
    note(f"drained {kept.count} items{_where(to)}, {_left(remaining)} remain{_advice(kept, to)}")


_LOST = ", and if the last page was taken, its items are in the node's log only (omnirelay log export)"


def _keep(kept: Kept, items: list[Any], client: Client) -> None:
    """Keep a page, or give it back to the shard that it came from."""
    try:
        kept.keep(items)
    except NotKept as why:
        text = f"cannot write {kept.path}: {why}"

        def send(_: list[int], part: list[Any], __: int) -> None:
            client.call("restore", {"items": part})

        try:
            send_in_parts([0] * len(items), items, 0, send, Size(len(items)))
        except Stop as stop:
            raise Stop(
                FAILED,
                f"{text}; the {len(items)} items drained last could not be put back ({stop.message}) and are in the"
                f" node's log only (omnirelay log export); {kept.said}",
            ) from None
        raise Stop(FAILED, f"{text}; the {len(items)} items drained last were put back; {kept.said}") from None


def _broken_off(stop: Stop, kept: Kept) -> Stop:
    if kept.said not in stop.message:
        stop.message += f"; {kept.said}"
    if stop.exit_code == UNREACHABLE:
        stop.message += _LOST
    return stop


def _left(remaining: int | None) -> str:
    return "the pending items" if remaining is None else f"{remaining} pending items"


def _where(to: Path) -> str:
    return " to stdout" if str(to) == "-" else f" to {to}"


def _advice(kept: Kept, to: Path) -> str:
    if str(to) != "-" or not kept.path.exists():
        return ""
    return f"; all of them are in {kept.path}, too: remove it when whoever reads stdout has taken them in"


_RESTORE = """
    omnirelay restore --from pending.jsonl
    omnirelay restore --from pending.jsonl --namespace tablelease --batch 100
"""


def restore(
    source: Annotated[Path, typer.Option("--from", help="A file that drain wrote, or - for stdin.", metavar="FILE")],
    batch: Annotated[int, typer.Option("--batch", help="Most items per call.", min=1, max=10_000)] = 500,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Take drained items in. One that is there already is counted as a duplicate, so a repeat does no harm.

    One whose id stands for another item there comes in under a new id, and is named with both by `-o json`. Nothing is
    read before the node has answered. An interruption waits for the call under way, and with --from - for the end of
    the input: what was read from a pipe cannot be read again.
    """
    restored = duplicates = 0
    renumbered: list[dict[str, int]] = []
    with (
        Client(url, namespace) as client,
        opened(source) as (file, total),
        progress("restore", total, in_bytes=True) as move,
        heeding_signals() as signals,
    ):
        client.call("stats")

        def send(_: list[int], items: list[Any], read: int) -> None:
            nonlocal restored, duplicates
            with signals.held("the answer to the last call"):
                answer = client.call("restore", {"items": items})
                restored += answer["restoredCount"]
                duplicates += answer["duplicateCount"]
                renumbered.extend(answer.get("renumbered", []))
            move(read, None)

        to_the_end: AbstractContextManager[None] = (
            signals.held("the end of the input") if str(source) == "-" else nullcontext()
        )
        try:
            with to_the_end:
                send_all(file, batch, _pending, send)
        except BadLine as bad:
            raise Stop(
                USAGE, f"line {bad.number} of {source} {bad.why}; {_so_far(restored, duplicates, source)}", "bad-line"
            ) from None
        except Stop as stop:
            stop.message += f"; {_so_far(restored, duplicates, source)}"
            raise
        except Interrupted as interrupted:
            so_far = _so_far(restored, duplicates, source)
            if str(source) == "-":
                so_far = f"the input is in to its end, {restored} were restored and {duplicates} were there already"
            raise Stop(interrupted.exit_code, f"interrupted; {so_far}") from None
        except KeyboardInterrupt:
            raise Stop(INTERRUPTED, f"interrupted; {_so_far(restored, duplicates, source)}") from None
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


def _so_far(restored: int, duplicates: int, source: Path) -> str:
    again = "all of the items (drain names the file that has them)" if str(source) == "-" else "the whole file"
    return f"{restored} were restored before it and {duplicates} were there already; repeat with {again}"
