"""`bench`: a small load on a running node, to see what it does on this machine."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from omnirelay.cli.calling import Client
from omnirelay.cli.commands import TOOLS, command
from omnirelay.cli.exits import FAILED, Stop, usage
from omnirelay.cli.options import DEFAULT_NAMESPACE, DEFAULT_URL, Format, Namespace, Output, Url
from omnirelay.cli.printing import note, print_answer, stacked, table
from omnirelay.cli.stopping import Interrupted, heeding_signals

RESOURCE_TYPE = "omnirelay-bench"
STATES = ("ready", "leased")
PAGE = 1_000
VERBS = ("enqueue", "lease", "complete")


def add_to(app: typer.Typer) -> None:
    command(app, "bench", _EXAMPLES, TOOLS)(bench)


_EXAMPLES = """
    omnirelay bench
    omnirelay bench --connections 32 --batch 100 --seconds 10
    omnirelay bench --url http://127.0.0.1:7171 -o json
"""


def bench(
    connections: Annotated[int, typer.Option("--connections", help="How many at once.", min=1, max=1000)] = 8,
    batch: Annotated[int, typer.Option("--batch", help="Items per call.", min=1, max=1000)] = 1,
    seconds: Annotated[float, typer.Option("--seconds", help="How long.", min=0.1, max=3600)] = 5,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Measure full cycles of enqueue, lease and complete against a running node.

    Uses items of the type omnirelay-bench only and takes them all out again, also when it is interrupted. What other
    clients do at the same time is measured with it.
    """
    with Client(url, namespace) as client:
        client.call("stats")  # Says clearly what is wrong when nothing is there.
    if urlsplit(url).scheme != "http":
        raise usage("bench speaks plain HTTP only")
    from omnirelay.cli.bench_load import measure

    left = ""
    try:
        with heeding_signals() as signals, signals.held("the items to be taken out again"):
            run = measure(url, namespace, connections, batch, seconds, lambda: signals.came)
            report = run.report(connections, batch)
            print_answer(output, report, None, lambda: _table(report))
            left = _clean(url, namespace)
    except Interrupted as interrupted:
        raise Stop(interrupted.exit_code, f"interrupted; {left or 'all items are taken out again'}") from None
    if left:
        note(left)
    if run.cycles == 0:
        raise Stop(FAILED, f"not one cycle succeeded: {run.problem}")


def _table(report: dict[str, Any]) -> Any:
    rows = [(verb, report[verb]["calls"], _time(report[verb]["p50Ms"]), _time(report[verb]["p99Ms"])) for verb in VERBS]
    drawn = table(["call", "calls", "p50", "p99"], rows, right=["calls", "p50", "p99"])
    head = (
        f"{report['cyclesPerSecond']:.0f} cycles/s ({report['cycles']} items through enqueue, lease and complete in"
        f" {report['seconds']:.1f} s), {report['connections']} connections, batch {report['batch']},"
        f" {report['errors']} errors"
    )
    return stacked(head, drawn)


def _time(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.2f} ms"


def _clean(url: str, namespace: str) -> str:
    """Complete what the last rounds left behind. Returns what is to be said of that which stays."""
    request = {"resourceTypes": [RESOURCE_TYPE], "maxItems": 1000, "waitMs": 0, "peerId": "bench-end"}
    left: dict[str, int] = {}
    try:
        with Client(url, namespace) as client:
            while leases := client.call("lease", request)["leases"]:
                client.call("complete", {"acks": [{"ownershipToken": each["ownershipToken"]} for each in leases]})
            for state in STATES:
                left[state] = _count(client, state)
    except Stop as stop:
        return f"items of the type {RESOURCE_TYPE} may stay, as they could not be taken out: {stop.message}"
    said = [f"{count} {state}" for state, count in left.items() if count]
    if not said:
        return ""
    return (
        f"items of the type {RESOURCE_TYPE} stay in the shard ({', '.join(said)}), as they could not be leased;"
        " the next bench takes them out"
    )


def _count(client: Client, state: str) -> int:
    count, request = 0, {"state": state, "resourceType": RESOURCE_TYPE, "maxItems": PAGE}
    while True:
        page = client.call("peek", request)
        count += len(page["items"])
        if not page.get("next"):
            return count
        request["after"] = page["next"]
