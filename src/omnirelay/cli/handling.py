"""`get`, `cancel`, `pause` and `resume`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from omnirelay.cli.calling import Client
from omnirelay.cli.commands import HANDLING, LOOKING, command
from omnirelay.cli.exits import REFUSED, Stop, usage
from omnirelay.cli.options import (
    DEFAULT_NAMESPACE,
    DEFAULT_URL,
    Format,
    Namespace,
    Output,
    Reason,
    ResourceType,
    SequenceId,
    Tenant,
    Url,
    duration,
    instant_option,
)
from omnirelay.cli.printing import print_answer
from omnirelay.cli.rendering import item_details, pause_table

NO_WAIT: Any = "0s"


def add_to(app: typer.Typer) -> None:
    command(app, "get", _GET, LOOKING)(get)
    command(app, "cancel", _CANCEL, HANDLING)(cancel)
    command(app, "pause", _PAUSE, HANDLING)(pause)
    command(app, "resume", _RESUME, HANDLING)(resume)


_GET = """
    omnirelay get 17
    omnirelay get 17 --wait 30s
    omnirelay get --request-id nightly-1 -o json
"""


def get(
    sequence_id: Annotated[int | None, typer.Argument(metavar="ID", help="Sequence id of the item.", min=0)] = None,
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="The item that was enqueued with this id.", metavar="ID")
    ] = None,
    wait: Annotated[int, duration("--wait", help="Wait this long for the end of the item.")] = NO_WAIT,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Show one item with everything that is known of it. Ends with 4 when there is none."""
    if (sequence_id is None) == (request_id is None):
        raise usage("say which item: ID or --request-id, and only one of them")
    with Client(url, namespace) as client:
        request = {"sequenceId": sequence_id, "requestId": request_id, "waitMs": wait}
        answer = client.call("get", request, wait_ms=wait)
    print_answer(output, answer, [answer["item"]], lambda: item_details(answer["item"]))


_CANCEL = """
    omnirelay cancel 17 --reason 'asked for twice'
    omnirelay cancel 17 --force
"""


def cancel(
    sequence_id: SequenceId,
    reason: Reason = None,
    force: Annotated[bool, typer.Option("--force", help="End the lease of a running item.")] = False,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Cancel a pending item, or ask the owner of a running one to stop. Ends with 5 when it has ended otherwise."""
    with Client(url, namespace) as client:
        answer = client.call("cancel", {"sequenceId": sequence_id, "reason": reason, "force": force})
    print_answer(output, answer, None, lambda: f"item {sequence_id}: {_cancelled(answer)}")
    # One that was cancelled before is what was asked for.
    if not answer["success"] and answer["state"] != "cancelled":
        raise Stop(REFUSED)


def _cancelled(answer: dict[str, Any]) -> str:
    if answer["state"] == "leased":
        return "its owner is asked to stop and hears of it with the next heartbeat (--force ends the lease now)"
    return "cancelled" if answer["state"] == "cancelled" else f"is {answer['state']}, there is nothing to cancel"


_PAUSE = """
    omnirelay pause --reason 'migrating the catalog'
    omnirelay pause --type table --for 10m
    omnirelay pause --tenant acme --until 2026-01-31T08:00:00+00:00
    omnirelay pause --intake
"""


def pause(
    resource_type: ResourceType = None,
    tenant: Tenant = None,
    intake: Annotated[bool, typer.Option("--intake", help="Refuse new items as well.")] = False,
    reason: Reason = None,
    until: Annotated[str | None, instant_option("--until", help="Resume by itself then.")] = None,
    length: Annotated[int | None, duration("--for", help="Resume by itself after this time.")] = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Grant nothing from a type, a tenant or the whole shard. What is leased goes on."""
    if until is not None and length is not None:
        raise usage("--until and --for exclude each other")
    with Client(url, namespace) as client:
        if length is not None:
            until = _from_now(client, length)
        request = {"resourceType": resource_type, "tenant": tenant, "intake": intake, "reason": reason, "until": until}
        _print_pauses(output, client.call("pause", request))


def _from_now(client: Client, length_ms: int) -> str:
    """The instant at which this much time has passed for the node: the clock of this machine may be off."""
    from omnirelay.core.intake import TIME_MAX_MS
    from omnirelay.wire.instants import instant, read_instant

    now_ms = read_instant("observedAt", client.call("stats")["stats"]["backpressure"]["observedAt"])
    if now_ms + length_ms > TIME_MAX_MS:
        raise usage("--for must end before the year 10000; without it a pause lasts until `omnirelay resume`")
    return instant(now_ms + length_ms)


_RESUME = """
    omnirelay resume
    omnirelay resume --type table
    omnirelay resume --tenant acme
"""


def resume(
    resource_type: ResourceType = None,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """End a pause of a type, of a tenant, or of the whole shard. Shows what is still paused."""
    with Client(url, namespace) as client:
        _print_pauses(output, client.call("resume", {"resourceType": resource_type, "tenant": tenant}))


def _print_pauses(output: Format, answer: dict[str, Any]) -> None:
    print_answer(output, answer, answer["pauses"], lambda: pause_table(answer["pauses"]))
