"""Options that many commands share, and how their text is read."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from omnirelay.cli.exits import usage

DEFAULT_URL = "http://127.0.0.1:7070"
DEFAULT_NAMESPACE = "resourcelease"


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


def _duration(text: str) -> int:
    from omnirelay.node.quantities import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not {error}") from None


INTERVAL_MIN_MS: Final = 100
INTERVAL_MAX_MS: Final = 24 * 3_600_000


def interval_of(text: str) -> int:
    """A pause between two looks. Without one a node would do nothing but answer them, so there is a shortest; and a
    longest, because no machine can wait for as long as people can write down.
    """
    return min(max(_duration(text), INTERVAL_MIN_MS), INTERVAL_MAX_MS)


def _instant(text: str) -> str:
    """An instant that the node will understand, checked before anything is sent."""
    from omnirelay.errors import InvalidArgument
    from omnirelay.wire.instants import instant, read_instant

    try:
        return instant(read_instant("instant", text))
    except InvalidArgument as error:
        raise typer.BadParameter(error.message.removeprefix("instant ")) from None


Url = Annotated[str, typer.Option("--url", envvar="OMNIRELAY_URL", help="Address of the node.", metavar="URL")]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", envvar="OMNIRELAY_NAMESPACE", help="Namespace of the shard.", metavar="NS")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="OMNIRELAY_CONFIG", help="A TOML file.", metavar="FILE")
]
Output = Annotated[
    Format,
    typer.Option("--output", "-o", help="table: for people. json: the answer. jsonl: one object a line."),
]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again until ctrl-C.")]
Interval = Annotated[
    int,
    typer.Option(
        "--interval",
        parser=interval_of,
        metavar="DURATION",
        help="Time between two looks with --watch, at least 100ms.",
    ),
]

LAST_NUMBER: Final = (1 << 63) - 1
"""No event and no item has a higher one."""

# The value of a parsed option is what its parser returns; defaults are text, which is parsed as well.
ONE_SECOND: Any = "1s"


def duration(*names: str, help: str) -> Any:
    """An option with a duration such as 30s; the command gets milliseconds."""
    return typer.Option(*names, parser=_duration, metavar="DURATION", help=help)


def instant_option(*names: str, help: str) -> Any:
    return typer.Option(*names, parser=_instant, metavar="INSTANT", help=help)


Delay = Annotated[int | None, duration("--delay", help="Not before this much time has passed.")]
ResourceType = Annotated[str | None, typer.Option("--type", "-t", help="Only this resource type.", metavar="TYPE")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only this tenant.", metavar="TENANT")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; kept in the log.", metavar="TEXT")]
SequenceId = Annotated[int, typer.Argument(metavar="ID", help="Sequence id of the item.", min=0)]
Attributes = Annotated[
    list[str] | None, typer.Option("--attribute", "-a", help="An attribute; may be repeated.", metavar="KEY=VALUE")
]


def read_attributes(pairs: list[str] | None) -> dict[str, str]:
    attributes = {}
    for pair in pairs or []:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise usage(f"--attribute wants KEY=VALUE, got {pair!r}")
        attributes[name] = value
    return attributes


def read_bytes(text: str | None, path: Path | None, what: str) -> bytes | None:
    """What `--{what}` or `--{what}-file` gave; a file called - is stdin. None when neither was given."""
    import sys

    if text is not None and path is not None:
        raise usage(f"--{what} and --{what}-file exclude each other")
    if text is not None:
        return text.encode("utf-8", "surrogateescape")
    if path is None:
        return None
    if str(path) == "-":
        return sys.stdin.buffer.read()
    try:
        return path.read_bytes()
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror or error}") from None


def read_json(text: str, what: str) -> Any:
    from omnirelay.cli.json_texts import parse

    try:
        return parse(text)
    except ValueError as error:
        raise usage(f"{what} is not JSON: {error}") from None
