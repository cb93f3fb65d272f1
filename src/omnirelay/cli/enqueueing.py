"""`enqueue`: one item from arguments, or many from a file or a stream."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from omnirelay.cli.calling import Client
from omnirelay.cli.commands import WORKING, command
from omnirelay.cli.exits import INTERRUPTED, UNREACHABLE, USAGE, Stop, usage
from omnirelay.cli.lines import BadLine, opened, send_all
from omnirelay.cli.options import (
    DEFAULT_NAMESPACE,
    DEFAULT_URL,
    Attributes,
    Delay,
    Format,
    Namespace,
    Output,
    Url,
    duration,
    instant_option,
    read_attributes,
    read_bytes,
)
from omnirelay.cli.printing import print_answer, progress
from omnirelay.cli.stopping import Interrupted, heeding_signals


def add_to(app: typer.Typer) -> None:
    command(app, "enqueue", _EXAMPLES, WORKING)(enqueue)


_EXAMPLES = """
    omnirelay enqueue table sales.orders
    omnirelay enqueue table sales.orders --body '{"op":"compact"}' --encoding application/json
    omnirelay enqueue table sales.orders --priority 0 --delay 30s -a tenant=acme --request-id nightly-1
    omnirelay enqueue --from items.jsonl
    producer | omnirelay enqueue --from - --batch 100
"""


def enqueue(
    resource_type: Annotated[str | None, typer.Argument(metavar="TYPE", help="Resource type.")] = None,
    resource_id: Annotated[str | None, typer.Argument(metavar="ID", help="Resource id.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="A file with one item a line, or - for stdin.", metavar="FILE")
    ] = None,
    body: Annotated[str | None, typer.Option("--body", help="Body of the item.", metavar="TEXT")] = None,
    body_file: Annotated[
        Path | None, typer.Option("--body-file", help="The body from a file, or - for stdin.", metavar="FILE")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option("--encoding", help="Content type of the body.", metavar="TYPE")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", "-p", help="0 to 9, 0 goes first. [5]", min=0, max=9)
    ] = None,
    delay: Delay = None,
    not_before: Annotated[str | None, instant_option("--not-before", help="Not before this instant.")] = None,
    attributes: Attributes = None,
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="The same id again is the same item.", metavar="ID")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", help="Dead after so many.", min=1, metavar="N")
    ] = None,
    weight: Annotated[
        int | None, typer.Option("--weight", help="What it counts in limits.", min=1, metavar="N")
    ] = None,
    partition_key: Annotated[
        str | None, typer.Option("--partition-key", help="Instead of the resource id.", metavar="KEY")
    ] = None,
    wait: Annotated[int | None, duration("--wait", help="Wait for room when the queue is full.")] = None,
    batch: Annotated[int, typer.Option("--batch", help="Most items per call with --from.", min=1, max=10_000)] = 500,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Put an item in, or with --from every line of a file.

    A line is an item {"payload": {...}, "priority": 0, ...} or only its payload {"resourceType", "resourceId", "body",
    ...}. The body is base64, or a JSON object or array, which is sent as its text. A line without a requestId gets
    none: sent twice, it is there twice. A bad line is named and ends the run; what was accepted before it stays. So
    does what was accepted before an interruption, which says with which line to go on.
    """
    payload: dict[str, Any] = {
        "resourceType": resource_type,
        "resourceId": resource_id,
        "partitionKey": partition_key,
        "payloadEncoding": encoding,
        "attributes": read_attributes(attributes) or None,
        "requestId": request_id,
    }
    options = {
        "priority": priority,
        "delayMs": delay,
        "notBefore": not_before,
        "maxAttempts": max_attempts,
        "weight": weight,
    }
    if source is not None:
        given = [body, body_file, *payload.values(), *options.values()]
        if any(value is not None for value in given):
            raise usage("with --from the items say everything themselves; only --batch and --wait go with it")
        _enqueue_lines(source, batch, wait, url, namespace, output)
        return
    if resource_type is None or resource_id is None:
        raise usage("say what to enqueue: TYPE and ID, or --from FILE")
    content = read_bytes(body, body_file, "body")
    payload["body"] = None if content is None else base64.b64encode(content).decode()
    item = {"payload": {name: value for name, value in payload.items() if value is not None}, **options}
    with Client(url, namespace) as client:
        answer = client.call("enqueue", {**item, "waitMs": wait}, wait_ms=wait or 0)
    print_answer(output, answer, None, lambda: _said(answer))


def _said(answer: dict[str, Any]) -> str:
    stats = answer["stats"]
    what = "was there already as" if answer["duplicate"] else "enqueued as"
    return f"{what} item {answer['sequenceId']} ({stats['pendingCount']} pending, {stats['activeLeaseCount']} leased)"


# -- many ----------------------------------------------------------------------------------------


def _enqueue_lines(source: Path, size: int, wait: int | None, url: str, namespace: str, output: Format) -> None:
    accepted = duplicates = last_line = 0
    results: list[dict[str, Any]] = []
    with (
        opened(source) as (file, total),
        Client(url, namespace) as client,
        progress("enqueue", total, in_bytes=True) as move,
        heeding_signals() as signals,
    ):

        def send(lines: list[int], items: list[Any], read: int) -> None:
            nonlocal accepted, duplicates, last_line
            with signals.held("the answer to the last call"):
                answer = client.call("enqueue", {"items": items, "waitMs": wait}, wait_ms=wait or 0)
                accepted += len(items)
                duplicates += sum(result["duplicate"] for result in answer["results"])
                last_line = lines[-1]
                if output is Format.JSONL:
                    print_answer(output, None, answer["results"], str)
                elif output is Format.JSON:
                    results.extend(answer["results"])
            move(read, None)

        try:
            send_all(file, size, item_of_line, send)
        except BadLine as bad:
            raise Stop(
                USAGE, f"line {bad.number} of {source} {bad.why}; {_kept(accepted, last_line)}", "bad-line"
            ) from None
        except Stop as stop:
            stop.message = f"{stop.message}; {_kept(accepted, last_line)}"
            if stop.exit_code == UNREACHABLE:
                stop.message += _DOUBLE
            raise
        except Interrupted as interrupted:
            raise Stop(interrupted.exit_code, f"interrupted; {_kept(accepted, last_line)}") from None
        except KeyboardInterrupt:
            raise Stop(
                INTERRUPTED,
                f"interrupted before the last call was answered; {_kept(accepted, last_line)}{_DOUBLE}",
            ) from None
    if output is not Format.JSONL:
        counts = {"acceptedCount": accepted - duplicates, "duplicateCount": duplicates}
        print_answer(
            output,
            {**counts, "results": results},
            None,
            lambda: f"enqueued {counts['acceptedCount']} items" + (f", {duplicates} were there" if duplicates else ""),
        )


_DOUBLE = " (the lines of the last call may be in already: those without a requestId are there twice then)"


def _kept(accepted: int, last_line: int) -> str:
    if not accepted:
        return "no line was accepted before"
    return f"{accepted} items up to line {last_line} were accepted and stay, go on from line {last_line + 1}"


_BESIDE_PAYLOAD = ("priority", "weight", "notbefore", "delayms", "maxattempts")
"""What a payload does not have, in lower case: a node would pass over it."""


def item_of_line(value: dict[str, Any]) -> dict[str, Any]:
    """The EnqueueItem that a line stands for."""
    named = {name.lower(): name for name in value}
    if "payload" in named:
        payload = value[named["payload"]]
        if isinstance(payload, dict):
            value = {**value, named["payload"]: _with_body(payload)}
        return value
    if "resourcetype" in named or "resourceid" in named:
        beside = [name for lower, name in named.items() if lower in _BESIDE_PAYLOAD]
        if beside:
            raise ValueError(f'has {beside[0]}, which stands beside a payload: {{"payload": …, "{beside[0]}": …}}')
        return {"payload": _with_body(value)}
    raise ValueError("is neither an item with a payload nor a payload with resourceType and resourceId")


def _with_body(payload: dict[str, Any]) -> dict[str, Any]:
    named = {name.lower(): name for name in payload}
    body = payload.get(named.get("body", ""))
    if not isinstance(body, (dict, list)):
        return payload
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    filled = {**payload, named["body"]: base64.b64encode(text).decode()}
    if payload.get(named.get("payloadencoding", "")) is None:
        filled[named.get("payloadencoding", "payloadEncoding")] = "application/json"
    return filled
