"""`replication status|pause|resume|reset|replay`: the sinks that follow the log of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirelay.cli.calling import Client
from omnirelay.cli.commands import HANDLING, command, new_group
from omnirelay.cli.exits import Refusal, usage
from omnirelay.cli.options import DEFAULT_URL, ONE_SECOND, Format, Interval, Output, Url, Watch
from omnirelay.cli.printing import print_answer, short, stacked, table, watching

if TYPE_CHECKING:
    from rich.console import RenderableType

NAMESPACE = "replication"

Sink = Annotated[str, typer.Argument(metavar="SINK", help="Name of the sink: NAME of [sinks.NAME].")]
AnySink = Annotated[str | None, typer.Argument(metavar="[SINK]", help="Only this sink.")]
Shard = Annotated[
    str | None, typer.Option("--shard", "-s", help="Only of the shard with this namespace.", metavar="NS")
]


def add_to(app: typer.Typer) -> None:
    group = new_group("Look at the sinks that follow the log, hold them, and have them begin again.")
    command(group, "status", _STATUS)(status)
    command(group, "pause", _PAUSE)(pause)
    command(group, "resume", _RESUME)(resume)
    command(group, "reset", _RESET)(reset)
    command(group, "replay", _REPLAY)(replay)
    app.add_typer(group, name="replication", rich_help_panel=HANDLING)


_STATUS = """
    omnirelay replication status
    omnirelay replication status lake --shard orders --watch
    omnirelay replication status -o jsonl
"""


def status(
    sink: AnySink = None,
    shard: Shard = None,
    watch: Watch = False,
    interval: Interval = ONE_SECOND,
    url: Url = DEFAULT_URL,
    output: Output = Format.TABLE,
) -> None:
    """Show how far each sink has come, how far it is behind, and its last error."""
    with Client(url, NAMESPACE) as client:

        def look() -> tuple[Any, Any, Any]:
            answer = client.call("status", {"sink": sink, "shard": shard})
            return answer, answer["sinks"], lambda: _sinks(answer["sinks"])

        watching(watch, interval, look, output)


_PAUSE = """
    omnirelay replication pause lake
    omnirelay replication pause lake --shard orders
"""


def pause(sink: Sink, shard: Shard = None, url: Url = DEFAULT_URL, output: Output = Format.TABLE) -> None:
    """Deliver nothing to a sink until it is resumed, also after a restart of the node."""
    _call("pause", {"sink": sink, "shard": shard}, url, output)


_RESUME = """
    omnirelay replication resume lake
"""


def resume(sink: Sink, shard: Shard = None, url: Url = DEFAULT_URL, output: Output = Format.TABLE) -> None:
    """Go on with a sink that was paused, or that failed and has been mended."""
    _call("resume", {"sink": sink, "shard": shard}, url, output)


_RESET = """
    omnirelay replication reset lake --to 12000
    omnirelay replication reset lake --shard orders --to 0
"""


def reset(
    sink: Sink,
    to: Annotated[int, typer.Option("--to", help="The last event that counts as delivered.", metavar="N", min=0)],
    shard: Shard = None,
    url: Url = DEFAULT_URL,
    output: Output = Format.TABLE,
) -> None:
    """Set the checkpoint of a sink. Set ahead of where it is, the events between are left out for good."""
    _call("reset", {"sink": sink, "shard": shard, "sequence": to}, url, output)


_REPLAY = """
    omnirelay replication replay lake
    omnirelay replication replay lake --from 12001
"""


def replay(
    sink: Sink,
    from_sequence: Annotated[
        int, typer.Option("--from", help="The first event to deliver again.", metavar="N", min=1)
    ] = 1,
    shard: Shard = None,
    url: Url = DEFAULT_URL,
    output: Output = Format.TABLE,
) -> None:
    """Deliver the log again. A target that recognises events by their number keeps each of them once."""
    try:
        _call("reset", {"sink": sink, "shard": shard, "sequence": from_sequence - 1}, url, output)
    except Refusal as refusal:
        last = refusal.metadata.get("last", "")
        if not last.isdigit():
            raise
        # The node speaks of the event before the one that was typed.
        raise usage(
            f"--from {from_sequence} lies behind event {last}, where the log of {refusal.metadata.get('shard')} ends"
        ) from None


def _call(verb: str, request: dict[str, Any], url: str, output: Format) -> None:
    with Client(url, NAMESPACE) as client:
        answer = client.call(verb, request)
    print_answer(output, answer, answer["sinks"], lambda: _sinks(answer["sinks"]))


def _requirement(sink: dict[str, Any]) -> str:
    if not sink["required"]:
        return ""
    if sink.get("requirementDropped"):
        return " (required, dropped)"
    return " (required, closes intake)" if sink.get("closesIntake") else " (required)"


_COLUMNS = ("sink", "shard", "state", "checkpoint", "behind", "lag", "per second", "failures", "parked", "last error")


def _sinks(sinks: list[dict[str, Any]]) -> RenderableType | str:
    if not sinks:
        return "no sinks: a node has those of [sinks.NAME] in its configuration"
    rows = [
        (
            each["sink"] + _requirement(each),
            each["shard"],
            each["state"],
            each["checkpoint"],
            each["lagEvents"],
            short(each["lagMs"] / 1000) if each["lagEvents"] and "lagMs" in each else None,
            each["ratePerSecond"],
            each["failures"],
            each["parked"],
            each.get("lastError"),
        )
        for each in sinks
    ]
    closing = "\n".join(f"{each['shard']}: {each['closesIntake']}" for each in sinks if each.get("closesIntake"))
    shown = table(_COLUMNS, rows, right=("checkpoint", "behind", "per second", "failures", "parked"))
    return stacked(shown, "", closing) if closing else shown
