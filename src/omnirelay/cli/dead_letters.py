"""`deadletters list|show|edit|redrive|purge`: items that used up their attempts, or were given up for good."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from omnirelay.cli.calling import Client
from omnirelay.cli.commands import HANDLING, command, new_group
from omnirelay.cli.exits import nothing, usage
from omnirelay.cli.options import (
    DEFAULT_NAMESPACE,
    DEFAULT_URL,
    Attributes,
    Format,
    Namespace,
    Output,
    ResourceType,
    SequenceId,
    Url,
    read_attributes,
    read_bytes,
)
from omnirelay.cli.printing import print_answer
from omnirelay.cli.rendering import item_details, item_table

_PAGE_MAX = 1_000

ErrorCode = Annotated[str | None, typer.Option("--error-code", help="Only those that failed with it.", metavar="CODE")]
Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="Sequence ids of dead items.", min=0)]
Everything = Annotated[bool, typer.Option("--all", help="All dead letters.")]


def add_to(app: typer.Typer) -> None:
    group = new_group("Look at dead letters, mend them, send them on or forget them.")
    command(group, "list", _LIST)(list_letters)
    command(group, "show", _SHOW)(show_letter)
    command(group, "edit", _EDIT)(edit)
    command(group, "redrive", _REDRIVE)(redrive)
    command(group, "purge", _PURGE)(purge)
    app.add_typer(group, name="deadletters", rich_help_panel=HANDLING)


_LIST = """
    omnirelay deadletters list
    omnirelay deadletters list --type table --error-code schema.mismatch --max 10
    omnirelay deadletters list -o jsonl
"""


def list_letters(
    resource_type: ResourceType = None,
    error_code: ErrorCode = None,
    items_max: Annotated[int, typer.Option("--max", help="At most so many.", min=1, metavar="N")] = 100,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """List dead letters, the longest dead first."""
    items: list[dict[str, Any]] = []
    after = None
    with Client(url, namespace) as client:
        while True:
            request = {"resourceType": resource_type, "errorCode": error_code, "after": after}
            page = client.call("deadletters", {**request, "maxItems": min(items_max - len(items), _PAGE_MAX)})
            items += page["items"]
            after = page.get("next")
            if after is None or len(items) >= items_max:
                break
    answer = {"items": items, "total": page["total"]} | ({} if after is None else {"next": after})
    rest = f"\nthere are {page['total']} dead letters in all; --max shows more" if after is not None else ""
    print_answer(output, answer, items, lambda: item_table(items, "dead", rest))


_SHOW = """
    omnirelay deadletters show 17
    omnirelay deadletters show 17 -o json
"""


def show_letter(
    sequence_id: SequenceId,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Show one dead letter with its last error and its body."""
    with Client(url, namespace) as client:
        item = _letter(client, sequence_id)
    print_answer(output, {"item": item}, [item], lambda: item_details(item))


def _letter(client: Client, sequence_id: int) -> dict[str, Any]:
    item: dict[str, Any] = client.call("deadletters", {"sequenceId": sequence_id})["items"][0]
    return item


_EDIT = """
    omnirelay deadletters edit 17 --body '{"op":"compact","dry":true}'
    omnirelay deadletters edit 17 --body-file fixed.json --encoding application/json
    omnirelay deadletters edit 17 -a retried=yes
"""


def edit(
    sequence_id: SequenceId,
    body: Annotated[str | None, typer.Option("--body", help="The new body.", metavar="TEXT")] = None,
    body_file: Annotated[
        Path | None, typer.Option("--body-file", help="The new body from a file, or - for stdin.", metavar="FILE")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option("--encoding", help="Content type of the new body.", metavar="TYPE")
    ] = None,
    attributes: Attributes = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Change the body or attributes of a dead letter; all else in its payload stays as it is."""
    content = read_bytes(body, body_file, "body")
    changed = read_attributes(attributes)
    if content is None and not changed and encoding is None:
        raise usage("say what to change: --body, --body-file, --encoding or --attribute")
    with Client(url, namespace) as client:
        payload = dict(_letter(client, sequence_id)["payload"])
        if content is not None:
            payload["body"] = base64.b64encode(content).decode()
        if encoding is not None:
            payload["payloadEncoding"] = encoding
        payload["attributes"] = {**(payload.get("attributes") or {}), **changed}
        answer = client.call("edit", {"sequenceId": sequence_id, "payload": payload})
    print_answer(output, answer, [answer["item"]], lambda: item_details(answer["item"]))


_REDRIVE = """
    omnirelay deadletters redrive 17 18
    omnirelay deadletters redrive --type table --rate 10
    omnirelay deadletters redrive --all
"""


def redrive(
    ids: Ids = None,
    resource_type: ResourceType = None,
    error_code: ErrorCode = None,
    everything: Everything = False,
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="Only so many a second.", metavar="NUMBER", min=0.001, max=1_000_000),
    ] = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Make dead letters pending again, with new attempts. Ends with 4 when there was none.

    Without ids those that do not fit into the shard stay dead and are counted; repeat when there is room.
    """
    request = _selected(ids, resource_type, error_code, everything) | {"ratePerSecond": rate}
    with Client(url, namespace) as client:
        answer = client.call("redrive", request)
    left = answer.get("leftCount", 0)
    rest = f"; there was no room for {left} more, repeat when there is" if left else ""
    _report(answer, answer["redrivenCount"], f"redriven{rest}", output)


_PURGE = """
    omnirelay deadletters purge 17 18
    omnirelay deadletters purge --error-code schema.mismatch --yes
    omnirelay deadletters purge --all --yes
"""


def purge(
    ids: Ids = None,
    resource_type: ResourceType = None,
    error_code: ErrorCode = None,
    everything: Everything = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Forget dead letters for good. Asks first; without a terminal it wants --yes."""
    request = _selected(ids, resource_type, error_code, everything)
    if not yes:
        if not sys.stdin.isatty():
            raise usage("purging cannot be undone and nobody is there to be asked: say --yes")
        which = f"dead letters {', '.join(map(str, ids))}" if ids else "these dead letters"
        typer.confirm(f"Forget {'ALL dead letters' if everything else which} for good?", abort=True, err=True)
    with Client(url, namespace) as client:
        answer = client.call("purge", request)
    _report(answer, answer["purgedCount"], "purged", output)


def _report(answer: dict[str, Any], count: int, done: str, output: Format) -> None:
    if count or output is not Format.TABLE:
        letters = "dead letter" if count == 1 else "dead letters"
        print_answer(output, answer, None, lambda: f"{count} {letters} {done}")
    if not count:
        raise nothing("there is no such dead letter")


def _selected(
    ids: list[int] | None, resource_type: str | None, error_code: str | None, everything: bool
) -> dict[str, Any]:
    """Which dead letters, said in exactly one way."""
    ways = {
        "sequenceIds": ids or None,
        "resourceType": resource_type,
        "errorCode": error_code,
        "all": everything or None,
    }
    given = {name: value for name, value in ways.items() if value is not None}
    if len(given) != 1:
        raise usage("say which dead letters in one way: ids, --type, --error-code or --all")
    return given
