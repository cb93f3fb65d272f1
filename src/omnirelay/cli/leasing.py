"""`lease`, and what a worker says about its lease: `heartbeat`, `complete`, `fail`, `release`."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from omnirelay.cli.calling import Client
from omnirelay.cli.commands import WORKING, command
from omnirelay.cli.exits import NOTHING, Stop, exit_of_answer
from omnirelay.cli.options import (
    DEFAULT_NAMESPACE,
    DEFAULT_URL,
    Delay,
    Format,
    Namespace,
    Output,
    Url,
    duration,
    read_bytes,
    read_json,
)
from omnirelay.cli.printing import note, print_answer, short, since
from omnirelay.cli.rendering import lease_table, short_token
from omnirelay.cli.tokens import FORM, read_tokens

NO_WAIT: Any = "0s"

Token = Annotated[str, typer.Argument(metavar="TOKEN", help=f"{FORM}.")]
Peer = Annotated[str | None, typer.Option("--peer", help="Name of the worker.", metavar="NAME")]


class Mode(StrEnum):
    RETRY = "retry"
    RELEASE = "release"
    DEAD = "dead"


def add_to(app: typer.Typer) -> None:
    add = {"panel": WORKING}
    command(app, "lease", _LEASE, **add)(lease)
    command(app, "heartbeat", _HEARTBEAT, **add)(heartbeat)
    command(app, "complete", _COMPLETE, **add)(complete)
    command(app, "fail", _FAIL, **add)(fail)
    command(app, "release", _RELEASE, **add)(release)


_LEASE = """
    omnirelay lease
    omnirelay lease --type 'table*' --wait 10s --duration 60s
    omnirelay lease --max 10 -o jsonl
    omnirelay lease -o json | omnirelay complete -
"""


def lease(
    peer: Annotated[str | None, typer.Option("--peer", help="Name of the worker. [cli@HOST]", metavar="NAME")] = None,
    types: Annotated[
        list[str] | None, typer.Option("--type", "-t", help="Only types like this; may be repeated.", metavar="GLOB")
    ] = None,
    tenants: Annotated[
        list[str] | None, typer.Option("--tenant", help="Only this tenant; may be repeated.", metavar="TENANT")
    ] = None,
    max_items: Annotated[int | None, typer.Option("--max", help="Lease up to so many.", min=1, max=1000)] = None,
    wait: Annotated[int, duration("--wait", help="Wait this long for work.")] = NO_WAIT,
    lease_duration: Annotated[int | None, duration("--duration", help="Length of the lease.")] = None,
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="A repeat with the same id gets the same leases.", metavar="ID")
    ] = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Take work: lease one item, or several. Ends with 4 when there is none."""
    import socket

    request = {
        "peerId": peer or f"cli@{socket.gethostname()}"[:256],
        "resourceTypes": types or None,
        "tenants": tenants or None,
        "maxItems": max_items,
        "waitMs": wait,
        "leaseDurationMs": lease_duration,
        "requestId": request_id,
    }
    with Client(url, namespace) as client:
        answer = client.call("lease", request, wait_ms=wait)
    leases = answer["leases"] if max_items is not None else [answer] if answer else []
    if leases or output is not Format.TABLE:
        try:
            print_answer(output, answer, leases, lambda: lease_table(leases))
            sys.stdout.flush()
        except OSError:
            # Nobody else can have these items until the leases run out, so somebody has to hear of them.
            tokens = [short_token(lease["ownershipToken"]) or "" for lease in leases]
            if tokens:
                note(f"leased, but not shown: {' '.join(tokens)}")
            raise
    if not leases:
        note("nothing to lease")
        raise Stop(NOTHING)


_HEARTBEAT = """
    omnirelay heartbeat 17:1:0b9f5c9e-52a1-4c3e-9d5a-3f1f1a2b3c4d:42
    omnirelay heartbeat TOKEN --fraction 0.5 --message 'half of the files' --data '{"file": 12}'
"""


def heartbeat(
    token: Token,
    fraction: Annotated[
        float | None, typer.Option("--fraction", help="How much is done, 0 to 1.", min=0, max=1, metavar="NUMBER")
    ] = None,
    message: Annotated[str | None, typer.Option("--message", help="How far it is, in words.", metavar="TEXT")] = None,
    data: Annotated[str | None, typer.Option("--data", help="For the next attempt.", metavar="JSON")] = None,
    peer: Peer = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Keep a lease, and report how far the work is."""
    progress: dict[str, Any] = {}
    if fraction is not None:
        progress["fraction"] = fraction
    if message is not None:
        progress["message"] = message
    if data is not None:
        progress["data"] = read_json(data, "--data")
    _acknowledge("heartbeat", token, {"progress": progress or None}, peer, url, namespace, output, _kept)


def _kept(outcome: dict[str, Any]) -> str:
    text = f"kept for {short(outcome['remainingMs'] / 1000)}"
    text += f", next heartbeat in {short(outcome['heartbeatAfterMs'] / 1000)}"
    return text + ("; a cancel was requested: stop, then fail or release it" if outcome["cancelRequested"] else "")


_COMPLETE = """
    omnirelay complete 17:1:0b9f5c9e-52a1-4c3e-9d5a-3f1f1a2b3c4d:42
    omnirelay complete TOKEN --result '{"rows": 10}' --result-encoding application/json
    omnirelay lease -o json | omnirelay complete -
"""


def complete(
    token: Token,
    result: Annotated[str | None, typer.Option("--result", help="What came of it.", metavar="TEXT")] = None,
    result_file: Annotated[
        Path | None, typer.Option("--result-file", help="The result from a file.", metavar="FILE")
    ] = None,
    result_encoding: Annotated[
        str | None, typer.Option("--result-encoding", help="Content type of the result.", metavar="TYPE")
    ] = None,
    peer: Peer = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """End an item well."""
    found = read_bytes(result, result_file, "result")
    request = {
        "result": None if found is None else base64.b64encode(found).decode(),
        "resultEncoding": result_encoding,
    }
    _acknowledge("complete", token, request, peer, url, namespace, output, lambda _: "completed")


_FAIL = """
    omnirelay fail 17:1:0b9f5c9e-52a1-4c3e-9d5a-3f1f1a2b3c4d:42 --reason 'no space left'
    omnirelay fail TOKEN --mode dead --error-code schema.mismatch
    omnirelay fail TOKEN --delay 5m
"""


def fail(
    token: Token,
    reason: Annotated[str | None, typer.Option("--reason", help="What went wrong.", metavar="TEXT")] = None,
    error_code: Annotated[
        str | None, typer.Option("--error-code", help="The same for programs.", metavar="CODE")
    ] = None,
    mode: Annotated[
        Mode, typer.Option("--mode", help="retry: again. release: again, unburned. dead: no more.")
    ] = Mode.RETRY,
    delay: Delay = None,
    peer: Peer = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Give an item up: to be tried again, released, or dead."""
    request = {"reason": reason, "errorCode": error_code, "mode": mode.value, "delayMs": delay}
    _acknowledge("fail", token, request, peer, url, namespace, output, _now)


_RELEASE = """
    omnirelay release 17:1:0b9f5c9e-52a1-4c3e-9d5a-3f1f1a2b3c4d:42
    omnirelay release TOKEN --delay 30s
"""


def release(
    token: Token,
    delay: Delay = None,
    peer: Peer = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Hand an item back; the attempt does not count."""
    _acknowledge("release", token, {"delayMs": delay}, peer, url, namespace, output, _now)


def _now(outcome: dict[str, Any]) -> str:
    not_before = outcome.get("notBefore")
    return f"it is {outcome['state']} now" + (f", again {since(not_before)}" if not_before else "")


def _acknowledge(
    verb: str,
    token: str,
    request: dict[str, Any],
    peer: str | None,
    url: str,
    namespace: str,
    output: Format,
    say: Callable[[dict[str, Any]], str],
) -> None:
    """Send one acknowledgement, or all of those on stdin in one batch."""
    tokens = read_tokens(token)
    acks = [
        {
            name: value
            for name, value in {**request, "ownershipToken": each, "peerId": peer}.items()
            if value is not None
        }
        for each in tokens
    ]
    with Client(url, namespace) as client:
        if len(acks) == 1:
            answer = client.call(verb, acks[0])
            print_answer(output, answer, None, lambda: f"item {_id(tokens[0])}: {say(answer)}")
            return
        answer = client.call(verb, {"acks": acks})
    outcomes = answer["results"]
    lines = [
        f"item {_id(token)}: {say(outcome) if outcome['success'] else _refused(outcome)}"
        for token, outcome in zip(tokens, outcomes, strict=True)
    ]
    print_answer(output, answer, outcomes, lambda: "\n".join(lines))
    refused = [outcome for outcome in outcomes if not outcome["success"]]
    if refused:
        note(f"{len(refused)} of {len(outcomes)} were refused")
        raise Stop(max(exit_of_answer(200, outcome["errorCode"]) for outcome in refused))


def _id(token: dict[str, Any]) -> object:
    return next((value for name, value in token.items() if name.lower() == "sequenceid"), "?")


def _refused(outcome: dict[str, Any]) -> str:
    return f"refused: {outcome['errorMessage']} ({outcome['errorCode']})"
