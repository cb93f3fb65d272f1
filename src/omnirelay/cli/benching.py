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

RESOURCE_TYPE = "omnirelay-bench"
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

    Uses items of the type omnirelay-bench only and takes them all out again. What other clients do at the same time
    is measured with it.
    """
    with Client(url, namespace) as client:
        client.call("stats")  # Says clearly what is wrong when nothing is there.
    if urlsplit(url).scheme != "http":
        raise usage("bench speaks plain HTTP only")
    from omnirelay.cli.bench_load import measure

    run = measure(url, namespace, connections, batch, seconds)
    report = run.report(connections, batch)
    print_answer(output, report, None, lambda: _table(report))
    _clean(url, namespace)
    if run.cycles == 0:
        raise Stop(FAILED, f"not one cycle succeeded: {run.problem}")


def _table(report: dict[str, Any]) -> Any:
    rows = [
        (verb, report[verb]["calls"], f"{report[verb]['p50Ms']:.2f} ms", f"{report[verb]['p99Ms']:.2f} ms")
        for verb in VERBS
    ]
    drawn = table(["call", "calls", "p50", "p99"], rows, right=["calls", "p50", "p99"])
    head = (
        f"{report['cyclesPerSecond']:.0f} cycles/s ({report['cycles']} items through enqueue, lease and complete in"
        f" {report['seconds']:.1f} s), {report['connections']} connections, batch {report['batch']},"
        f" {report['errors']} errors"
    )
    return stacked(head, drawn)


def _clean(url: str, namespace: str) -> None:
    """Complete what the last rounds left behind."""
    request = {"resourceTypes": [RESOURCE_TYPE], "maxItems": 1000, "waitMs": 0, "peerId": "bench-end"}
    with Client(url, namespace) as client:
        while leases := client.call("lease", request)["leases"]:
            client.call("complete", {"acks": [{"ownershipToken": each["ownershipToken"]} for each in leases]})
        left = client.call("peek", {"state": "ready", "resourceType": RESOURCE_TYPE, "maxItems": 1})["items"]
    if left:
        note(f"some items of the type {RESOURCE_TYPE} stay: something keeps them from being leased")
