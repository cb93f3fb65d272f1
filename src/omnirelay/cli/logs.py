"""`log tail`: the events of a shard, from a running node or from the files of any."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirelay.cli.calling import Client
from omnirelay.cli.commands import command
from omnirelay.cli.directories import only, with_log
from omnirelay.cli.exits import Refusal, usage
from omnirelay.cli.log_following import follow_node
from omnirelay.cli.options import DEFAULT_NAMESPACE, DEFAULT_URL, LAST_NUMBER, Format, Output, Url
from omnirelay.cli.printing import cell, print_encoded, print_json, visible

if TYPE_CHECKING:
    from omnirelay.log.sqlite import SqliteLog

Data = Annotated[Path | None, typer.Option("--data", help="Directory of a node, instead of --url.", metavar="DIR")]
LogNamespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", envvar="OMNIRELAY_NAMESPACE", help="Namespace of the shard.", metavar="NS"),
]
_LIST_MAX = 10
"""Most elements of a list that stand in a line for people; `-o jsonl` has all of them."""

Take = Callable[[int, bytes], bool]
"""Takes an event, its number and its JSON, and says whether more are wanted."""


def add_to(group: typer.Typer) -> None:
    command(group, "tail", _TAIL)(tail)


_TAIL = """
    omnirelay log tail
    omnirelay log tail --from 1 --types Enqueue,Completed -o jsonl
    omnirelay log tail --no-follow --data omnirelay-data
"""


def tail(
    first: Annotated[
        int | None,
        typer.Option("--from", help="First event. [the next one; with --no-follow the first]", min=1, max=LAST_NUMBER),
    ] = None,
    types: Annotated[
        str | None, typer.Option("--types", help="Only these, such as Enqueue,Completed.", metavar="TYPE,...")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for new events, or end with the last one.")
    ] = True,
    data: Data = None,
    url: Url = DEFAULT_URL,
    namespace: LogNamespace = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the events of a shard as they are decided, over restarts of its node. Files (--data) are read to the end."""
    from omnirelay.wire.events import event_types_named

    wanted = None if types is None else {name.strip().lower() for name in types.split(",") if name.strip()}
    if wanted is not None and not wanted:
        raise usage("--types names no type of event")

    def show(text: bytes) -> None:
        if wanted is None or json.loads(text)["eventType"].lower() in wanted:
            _print_event(text, output)

    def take(_: int, text: bytes) -> bool:
        show(text)
        return True

    if data is not None:
        event_types_named(() if types is None else types.split(","))  # A node knows its own.
        _read_files(data, namespace, first, take)
    elif follow:
        follow_node(url, namespace or DEFAULT_NAMESPACE, first, show, types)
    else:
        read_node(url, namespace or DEFAULT_NAMESPACE, first, take, types)


def _print_event(text: bytes, output: Format) -> None:
    if output is Format.JSONL:
        print_encoded(text)
    elif output is Format.JSON:
        print_json(json.loads(text))
    else:
        sys.stdout.write(_line(json.loads(text)) + "\n")
    sys.stdout.flush()


def _line(event: dict[str, Any]) -> str:
    """An event in one line: when, which, what, and what is special about it."""
    known = ("eventType", "sequenceNumber", "timestamp", "schemaVersion")
    details = " ".join(f"{name}={_brief(value)}" for name, value in event.items() if name not in known)
    return f"{event['timestamp']}  {event['sequenceNumber']:>8}  {event['eventType']:<18}  {details}".rstrip()


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        if "leaseId" in value:
            return f"{value['sequenceId']}:{value['attempt']}:{value['leaseId']}:{value.get('fence', '')}"
        if "resourceType" in value:
            return visible(f"{value['resourceType']}/{value['resourceId']}")
        return visible(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    if isinstance(value, list):
        return _list(value)
    return cell(value)


def _list(values: list[Any]) -> str:
    """Numbers and names as they are, as many as fit a line; of anything larger only how many there are."""
    if any(isinstance(value, (dict, list)) for value in values):
        return f"[{len(values)} {'object' if len(values) == 1 else 'objects'}]"
    shown = ",".join(cell(value) for value in values[:_LIST_MAX])
    return f"[{shown},{len(values) - _LIST_MAX} more]" if len(values) > _LIST_MAX else f"[{shown}]"


# -- where events come from ----------------------------------------------------------------------


def _read_files(data: Path, namespace: str | None, first: int | None, take: Take) -> None:
    async def read(log: SqliteLog) -> None:
        import msgspec

        from omnirelay.log.frame import decode_frame
        from omnirelay.wire.events import event_of

        start = first if first is not None else (await log.anchor()).sequence + 1
        async for frame in log.read(start):
            for event in decode_frame(frame, shard=log.shard, log_id=log.log_id):
                number = event.sequence_number
                if number >= start and not take(number, msgspec.json.encode(event_of(event))):
                    return

    with_log(data, only(data, namespace), read)


def read_node(url: str, namespace: str, first: int | None, take: Take, types: str | None = None) -> None:
    """Hand on the events that a node has, from `first` or from the first there is, until no more are wanted."""
    with Client(url, namespace) as client:
        try:
            _read(client, first or 1, take, types)
        except Refusal as refusal:
            horizon = refusal.metadata.get("anchor", "")
            if first is not None or refusal.code != "error.log.trimmed" or not horizon.isdigit():
                raise
            # Nobody said where to begin, so the first event there is will do.
            _read(client, int(horizon) + 1, take, types)


def _read(client: Client, first: int, take: Take, types: str | None) -> None:
    query = {"untilCaughtUp": "true", "from": str(first)} | ({} if types is None else {"types": types})
    for identity, text in client.events(query):
        if not take(int(identity), text):
            break
