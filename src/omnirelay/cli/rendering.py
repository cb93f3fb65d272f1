"""Items and leases as people read them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from omnirelay.cli.printing import fields, short, since, stacked, table

if TYPE_CHECKING:
    from rich.console import RenderableType

_BODY_SHOWN = 2_000


def short_token(token: dict[str, Any] | None) -> str | None:
    """SEQ:ATTEMPT:LEASEID:FENCE, as every command that wants a token takes it."""
    if token is None:
        return None
    parts = [token["sequenceId"], token["attempt"], token["leaseId"]]
    if token.get("fence") is not None:
        parts.append(token["fence"])
    return ":".join(str(part) for part in parts)


def text_of(encoded: str | None, length_max: int = _BODY_SHOWN) -> str | None:
    """Bytes from an answer as text if they are text, else their number."""
    if not encoded:
        return None
    data = base64.b64decode(encoded)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"({len(data)} bytes that are not text; -o json has them as base64)"
    return text if len(text) <= length_max else f"{text[:length_max]}… ({len(data)} bytes)"


def error_of(item: dict[str, Any]) -> str | None:
    error = item.get("lastError")
    if error is None:
        return None
    return f"{error['message']} ({error['code']})" if error.get("code") else str(error["message"])


def progress_of(item: dict[str, Any]) -> str | None:
    progress = item.get("progress")
    if not progress:
        return None
    parts = []
    if progress.get("fraction") is not None:
        parts.append(f"{progress['fraction']:.0%}")
    if progress.get("message"):
        parts.append(str(progress["message"]))
    return " ".join(parts) or "data only"


def _when(instant: str | None) -> str | None:
    return None if instant is None else f"{instant} ({since(instant)})"


def _payload_rows(payload: dict[str, Any]) -> list[tuple[str, object]]:
    attributes = payload.get("attributes") or {}
    partition = payload.get("partitionKey")
    return [
        ("type", payload["resourceType"]),
        ("resource", payload["resourceId"]),
        ("partition key", partition if partition != payload["resourceId"] else None),
        ("encoding", payload.get("payloadEncoding")),
        ("attributes", " ".join(f"{name}={value}" for name, value in attributes.items()) or None),
        ("request id", payload.get("requestId")),
        ("body", text_of(payload.get("body"))),
    ]


def item_details(item: dict[str, Any]) -> RenderableType:
    progress = (item.get("progress") or {}).get("data")
    return fields(
        [
            ("id", item["sequenceId"]),
            ("state", item["state"]),
            *_payload_rows(item["payload"]),
            ("attempt", f"{item['attempt']}" + (f" of {item['maxAttempts']}" if item.get("maxAttempts") else "")),
            ("priority", item["priority"]),
            ("weight", item["weight"] if item["weight"] != 1 else None),
            ("enqueued", _when(item["enqueuedAt"])),
            ("not before", _when(item.get("notBefore"))),
            ("owner", item.get("ownerPeerId") or None),
            ("principal", item.get("principal")),
            ("token", short_token(item.get("ownershipToken"))),
            ("granted", _when(item.get("grantedAt"))),
            ("heartbeat", _when(item.get("lastHeartbeatAt"))),
            ("expires", _when(item.get("expiresAt"))),
            ("progress", progress_of(item)),
            ("progress data", None if progress is None else json.dumps(progress, ensure_ascii=False)),
            ("cancel requested", item.get("cancelReason") or item.get("cancelRequested")),
            ("last error", error_of(item)),
            ("result", text_of(item.get("result"))),
            ("result encoding", item.get("resultEncoding")),
            ("parent", item.get("parentSequenceId")),
            ("ended", _when(item.get("endedAt"))),
        ]
    )


def lease_details(lease: dict[str, Any]) -> RenderableType:
    token = short_token(lease["ownershipToken"])
    return fields(
        [
            ("token", token),
            *_payload_rows(lease["payload"]),
            ("attempt", lease["attempt"]),
            ("priority", lease["priority"]),
            ("owner", lease.get("ownerPeerId") or None),
            ("expires", f"in {short(lease['remainingMs'] / 1000)}"),
            ("progress", progress_of(lease)),
            ("last error", error_of(lease)),
            ("then", f"omnirelay complete {token}"),
        ]
    )


def lease_table(leases: list[dict[str, Any]]) -> RenderableType | str:
    if len(leases) == 1:
        return lease_details(leases[0])
    rows = [
        (
            short_token(lease["ownershipToken"]),
            lease["payload"]["resourceType"],
            lease["payload"]["resourceId"],
            lease["attempt"],
            f"in {short(lease['remainingMs'] / 1000)}",
            text_of(lease["payload"].get("body"), 60),
        )
        for lease in leases
    ]
    return table(["token", "type", "resource", "attempt", "expires", "body"], rows, right=["attempt"])


Column = tuple[str, Callable[[dict[str, Any]], object]]

_ITEM: list[Column] = [
    ("id", lambda item: item["sequenceId"]),
    ("type", lambda item: item["payload"]["resourceType"]),
    ("resource", lambda item: item["payload"]["resourceId"]),
]
_ATTEMPT: Column = ("attempt", lambda item: item["attempt"])
_ERROR: Column = ("last error", error_of)
_COLUMNS: dict[str, list[Column]] = {
    "ready": [
        ("priority", lambda item: item["priority"]),
        _ATTEMPT,
        ("enqueued", lambda item: since(item["enqueuedAt"])),
        _ERROR,
    ],
    "delayed": [
        ("priority", lambda item: item["priority"]),
        _ATTEMPT,
        ("not before", lambda item: since(item.get("notBefore"))),
        _ERROR,
    ],
    "leased": [
        ("owner", lambda item: item.get("ownerPeerId")),
        ("principal", lambda item: item.get("principal")),
        ("fence", lambda item: (item.get("ownershipToken") or {}).get("fence")),
        _ATTEMPT,
        ("expires", lambda item: since(item.get("expiresAt"))),
        ("last heartbeat", lambda item: since(item.get("lastHeartbeatAt")) or "never"),
        ("progress", progress_of),
    ],
    "dead": [_ATTEMPT, ("ended", lambda item: since(item.get("endedAt"))), _ERROR],
    "completed": [
        _ATTEMPT,
        ("ended", lambda item: since(item.get("endedAt"))),
        ("result", lambda item: text_of(item.get("result"), 60)),
    ],
    "cancelled": [
        ("ended", lambda item: since(item.get("endedAt"))),
        ("reason", lambda item: item.get("cancelReason")),
    ],
}


def item_table(items: list[dict[str, Any]], state: str, more: str = "") -> RenderableType | str:
    """Items in one state with what matters there; `more` says that these are not all."""
    if not items:
        return f"no {state} items"
    columns = _ITEM + _COLUMNS[state]
    rows = [[value(item) for _, value in columns] for item in items]
    drawn = table([name for name, _ in columns], rows, right=["id", "priority", "attempt", "fence"])
    return stacked(drawn, more) if more else drawn


def pause_table(pauses: list[dict[str, Any]]) -> RenderableType | str:
    if not pauses:
        return "nothing is paused"
    rows = [
        (
            _scope(pause),
            "grants and intake" if pause["intake"] else "grants",
            since(pause["since"]),
            _when(pause.get("until")) or "until resumed",
            pause.get("reason"),
            pause.get("principal"),
        )
        for pause in pauses
    ]
    return table(["paused", "what", "since", "until", "reason", "by"], rows)


def _scope(pause: dict[str, Any]) -> str:
    if pause.get("resourceType") is not None:
        return f"type {pause['resourceType']}"
    return f"tenant {pause['tenant']}" if pause.get("tenant") is not None else "everything"
