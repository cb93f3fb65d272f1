"""`request`: any procedure of a node, as it is."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from omnirelay.cli.calling import Client, refusal
from omnirelay.cli.commands import TOOLS, command
from omnirelay.cli.exits import Stop, usage
from omnirelay.cli.options import DEFAULT_NAMESPACE, DEFAULT_URL, Namespace, Url, duration, read_bytes
from omnirelay.cli.printing import note

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OF_THE_BODY = ("content-length", "transfer-encoding")


def add_to(app: typer.Typer) -> None:
    command(app, "request", _EXAMPLES, TOOLS)(request)


_EXAMPLES = """
    omnirelay request stats
    omnirelay request resourcelease::get --body '{"sequenceId": 17}'
    omnirelay request lease --body @lease.json --ttl 2s --caller worker-1 --header Rpc-Shard-Key=a
"""


def request(
    procedure: Annotated[str, typer.Argument(metavar="PROCEDURE", help="NAMESPACE::VERB, or a verb.")],
    body: Annotated[str | None, typer.Option("--body", help="The request; @FILE reads it.", metavar="JSON")] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", "-H", help="May be repeated.", metavar="NAME=VALUE")
    ] = None,
    ttl: Annotated[int | None, duration("--ttl", help="How long the node may take.")] = None,
    caller: Annotated[str | None, typer.Option("--caller", help="Who is calling.", metavar="NAME")] = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
) -> None:
    """Call a procedure and print what it answers. A refusal is printed too, with its status on stderr."""
    name = procedure if "::" in procedure else f"{namespace}::{procedure}"
    sent = {"Rpc-Procedure": name, "Rpc-Encoding": "json"}
    if ttl is not None:
        sent["Rpc-Ttl-Ms"] = str(ttl)
    if caller is not None:
        sent["Rpc-Caller"] = caller
    for pair in headers or []:
        key, separator, value = pair.partition("=")
        if not separator or not _HEADER_NAME.fullmatch(key):
            raise usage(f"--header wants NAME=VALUE, got {pair!r}")
        if key.lower() in _OF_THE_BODY:
            raise usage(f"{key} follows from the body and cannot be said")
        sent[key] = value
    if not all(name.isascii() and value.isascii() and value.isprintable() for name, value in sent.items()):
        raise usage("headers are plain ASCII text, and so are the procedure and the caller")
    with Client(url, namespace) as client:
        response = client.post("/", _body(body), headers=sent, wait_ms=ttl or 0)
    text = response.text
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    if response.status_code >= 300:
        try:
            refused = refusal(response.status_code, response.json(), name.partition("::")[0])
        except ValueError:
            refused = refusal(response.status_code, None, "")
        status = response.headers.get("rpc-status", response.reason_phrase)
        note(f"refused: HTTP {response.status_code} {status} ({refused.code})")
        raise Stop(refused.exit_code)


def _body(text: str | None) -> bytes:
    if text is None:
        return b"{}"
    if text.startswith("@"):
        return read_bytes(None, Path(text[1:]), "body") or b""
    return text.encode("utf-8", "surrogateescape")
