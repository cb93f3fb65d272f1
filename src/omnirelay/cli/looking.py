"""Commands that only look: `stats`, `backpressure`, `peek`, `why`, `introspect`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirelay.cli.calling import Client
from omnirelay.cli.commands import LOOKING, command
from omnirelay.cli.options import (
    DEFAULT_NAMESPACE,
    DEFAULT_URL,
    ONE_SECOND,
    Format,
    Interval,
    Namespace,
    Output,
    ResourceType,
    SequenceId,
    Tenant,
    Url,
    Watch,
)
from omnirelay.cli.printing import fields, print_answer, short, since, stacked, table, watching
from omnirelay.cli.rendering import item_table, pause_table

if TYPE_CHECKING:
    from rich.console import RenderableType

_PAGE_MAX = 1_000
_LEASED_MAX = 20_000
"""Leases that are looked at to find the oldest: a node lists them by when they end."""


class ItemState(StrEnum):
    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"


def add_to(app: typer.Typer) -> None:
    command(app, "stats", _STATS, LOOKING)(stats)
    command(app, "peek", _PEEK, LOOKING)(peek)
    command(app, "why", _WHY, LOOKING)(why)
    command(app, "backpressure", _BACKPRESSURE, LOOKING)(backpressure)
    command(app, "introspect", _INTROSPECT, LOOKING)(introspect)


_STATS = """
    omnirelay stats
    omnirelay stats --watch
    omnirelay stats -o json
"""


def stats(
    watch: Watch = False,
    interval: Interval = ONE_SECOND,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Count what is in a shard."""
    with Client(url, namespace) as client:

        def look() -> tuple[Any, Any, Any]:
            answer = client.call("stats")
            return answer, [answer["stats"]], lambda: _stats(answer["stats"])

        watching(watch, interval, look, output)


def _stats(stats: dict[str, Any]) -> RenderableType:
    oldest = stats["oldestReadyAgeMs"]
    counts = fields(
        [
            ("ready", stats["readyCount"]),
            ("oldest ready", short(oldest / 1000) if stats["readyCount"] else None),
            ("delayed", stats["delayedCount"]),
            ("leased", stats["activeLeaseCount"]),
            ("dead", stats["deadLetterCount"]),
            ("ended (kept)", stats["completedCount"]),
            ("events", stats["lastSequence"]),
            ("backpressure", _pressure(stats["backpressure"])),
            ("paused", None if stats["pauses"] else "nothing"),
        ]
    )
    return stacked(counts, "", pause_table(stats["pauses"])) if stats["pauses"] else counts


def _pressure(signal: dict[str, Any]) -> str:
    if not signal["isActive"]:
        return f"off (on at {signal['highWatermark']} pending)"
    return f"ON since {since(signal.get('since'))}: {signal['reason']}"


_BACKPRESSURE = """
    omnirelay backpressure
    omnirelay backpressure --watch --interval 500ms
"""


def backpressure(
    watch: Watch = False,
    interval: Interval = ONE_SECOND,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Say whether the intake of a shard is held back, why, and at how many pending items that changes."""
    with Client(url, namespace) as client:

        def look() -> tuple[Any, Any, Any]:
            signal = client.call("stats")["stats"]["backpressure"]
            rows = [
                ("backpressure", "on" if signal["isActive"] else "off"),
                ("since", since(signal.get("since"))),
                ("pending", signal["pendingCount"]),
                ("on at", signal["highWatermark"]),
                ("off at", signal["lowWatermark"]),
                *((f"closed by {each['cause']}", each["reason"]) for each in signal.get("causes", ())),
                ("observed", signal["observedAt"]),
            ]
            return signal, None, lambda: fields(rows)

        watching(watch, interval, look, output)


_PEEK = """
    omnirelay peek
    omnirelay peek --state leased --watch
    omnirelay peek --state delayed --type table --max 10 -o jsonl
"""


def peek(
    state: Annotated[ItemState, typer.Option("--state", "-s", help="Which items.")] = ItemState.READY,
    resource_type: ResourceType = None,
    tenant: Tenant = None,
    items_max: Annotated[int, typer.Option("--max", help="At most so many.", min=1, metavar="N")] = 100,
    watch: Watch = False,
    interval: Interval = ONE_SECOND,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """List items in one state without touching them. The oldest come first."""
    with Client(url, namespace) as client:

        def look() -> tuple[Any, Any, Any]:
            items, more = _peek(client, state.value, resource_type, tenant, items_max)
            rest = f"\nthere are more; --max {items_max * 10} shows more of them" if more else ""
            return {"items": items}, items, lambda: item_table(items, state.value, rest)

        watching(watch, interval, look, output)


def _peek(
    client: Client, state: str, resource_type: str | None, tenant: str | None, items_max: int
) -> tuple[list[dict[str, Any]], bool]:
    """As many items as asked for, page by page, and whether there are more."""
    wanted = _LEASED_MAX if state == "leased" else items_max
    items: list[dict[str, Any]] = []
    after: int | None = None
    while len(items) < wanted:
        page = client.call(
            "peek",
            {
                "state": state,
                "resourceType": resource_type,
                "tenant": tenant,
                "after": after,
                "maxItems": min(wanted - len(items), _PAGE_MAX),
            },
        )
        items += page["items"]
        after = page.get("next")
        if after is None:
            break
    if state == "leased":
        items.sort(key=lambda item: (item.get("grantedAt", ""), item["sequenceId"]))
    return items[:items_max], after is not None or len(items) > items_max


_WHY = """
    omnirelay why 17
    omnirelay why 17 -o json
"""


def why(
    sequence_id: SequenceId,
    url: Url = DEFAULT_URL,
    namespace: Namespace = DEFAULT_NAMESPACE,
    output: Output = Format.TABLE,
) -> None:
    """Explain why an item is not running: every gate between it and a worker, one a line."""
    with Client(url, namespace) as client:
        answer = client.call("why", {"sequenceId": sequence_id})
    print_answer(output, answer, answer["gates"], lambda: _why(answer))


def _why(answer: dict[str, Any]) -> RenderableType | str:
    head = f"item {answer['sequenceId']} is {answer['state']}"
    closed = f"new items are not taken in: {answer['intake']}" if answer.get("intake") else ""
    if not answer["gates"]:
        return f"{head}: it is next" + (f"\n{closed}" if closed else "")
    rows = [(gate["gate"], gate["message"] + _detail(gate)) for gate in answer["gates"]]
    gates = table(["gate", "why"], rows)
    return stacked(f"{head}:", gates, closed) if closed else stacked(f"{head}:", gates)


def _detail(gate: dict[str, Any]) -> str:
    names = {"until": "until", "principal": "by"}
    return "".join(f", {name} {gate[field]}" for field, name in names.items() if gate.get(field) is not None)


_INTROSPECT = """
    omnirelay introspect
    omnirelay introspect -o json
"""


def introspect(url: Url = DEFAULT_URL, output: Output = Format.TABLE) -> None:
    """Show what a node is: its version, its shards and their state, its procedures."""
    with Client(url, "") as client:
        answer = client.page("/omnirelay/introspect")
    print_answer(output, answer, None, lambda: _node(answer))


def _node(answer: dict[str, Any]) -> RenderableType:
    node = answer.get("node") or {}
    about = fields(
        [
            ("service", answer["service"]),
            ("status", answer["status"]),
            ("version", answer["version"]),
            ("url", node.get("url")),
            ("data", node.get("data") or "in memory"),
            ("pid", node.get("pid")),
            ("started", since(node.get("startedAt"))),
            ("procedures", sum(len(shape) for shape in answer["procedures"].values())),
        ]
    )
    rows = [
        (
            component["name"],
            component.get("log"),
            "ready" if component.get("ready") else f"not ready: {component.get('reason')}",
            component.get("pending"),
            component.get("active"),
            component.get("deadLetters"),
            component.get("lastSequence"),
        )
        for component in answer["components"]
    ]
    columns = ["namespace", "log", "state", "pending", "leased", "dead", "events"]
    return stacked(about, "", table(columns, rows, right=columns[3:]))
