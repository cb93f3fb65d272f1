"""The headers of a call over HTTP, in and out: the names of this system and those of YARPC."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from omnirelay.errors import OmniRelayError, Status
from omnirelay.rpc.calls import RequestMeta
from omnirelay.rpc.statuses import status_name
from omnirelay.wire.answers import error_body_of

RawHeaders = Iterable[tuple[bytes, bytes]]

_PREFIX = "rpc-header-"
_MESSAGE_MAX = 1_024
_PRESERVED = frozenset(range(0x20, 0x7F))

_encode_pretty = msgspec.json.format


def read_headers(raw: RawHeaders) -> dict[str, str]:
    """Headers by lower-case name, the first value of each. `Rpc-Header-Name` is what YARPC calls `Name`."""
    headers: dict[str, str] = {}
    prefixed = False
    for name, value in raw:
        key = name.decode("latin-1")
        if key not in headers:
            headers[key] = value.decode("latin-1")
            prefixed = prefixed or key.startswith(_PREFIX)
    if prefixed:
        for key in [key for key in headers if key.startswith(_PREFIX)]:
            headers.setdefault(key[len(_PREFIX) :], headers[key])
    return headers


def request_meta(headers: Mapping[str, str], procedure: str, service: str, loop_time: float) -> RequestMeta:
    get = headers.get
    return RequestMeta(
        procedure=procedure,
        service=get("rpc-service", service),
        caller=get("rpc-caller"),
        encoding=get("rpc-encoding") or get("content-type"),
        transport="http",
        shard_key=get("rpc-shard-key"),
        routing_key=get("rpc-routing-key"),
        routing_delegate=get("rpc-routing-delegate"),
        deadline=_deadline(headers, loop_time),
        headers=headers,
    )


def _deadline(headers: Mapping[str, str], loop_time: float) -> float | None:
    """The earliest of all that limit the call. A value that cannot be read limits nothing."""
    limits = []
    for name in ("rpc-ttl-ms", "context-ttl-ms"):
        if name in headers:
            try:
                ttl_ms = float(headers[name])
            except ValueError:
                continue
            if math.isfinite(ttl_ms):
                limits.append(loop_time + ttl_ms / 1000)
    if "rpc-deadline" in headers:
        try:
            at = datetime.fromisoformat(headers["rpc-deadline"].strip())
            at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
            limits.append(loop_time + at.timestamp() - time.time())
        except (ValueError, OverflowError):
            pass
    return min(limits, default=None)


def printable(text: str) -> str:
    """Text as a header may have it: whatever could end the line or is not ASCII is written as an escape."""
    if len(text) > _MESSAGE_MAX:
        text = text[: _MESSAGE_MAX - 1] + "…"
    return "".join(c if ord(c) in _PRESERVED else c.encode("unicode_escape").decode("ascii") for c in text)


def error_headers(error: OmniRelayError) -> dict[str, str]:
    headers = {
        "rpc-status": status_name(error.status),
        "rpc-error-code": printable(error.code),
        "rpc-error-message": printable(error.message),
    }
    retry_after_ms = error.retry_after_ms
    if retry_after_ms is None and error.status in (Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED):
        retry_after_ms = 1_000  # Who made the error knows of no better time, but clients rely on the header.
    if retry_after_ms is not None:
        headers["retry-after"] = str(max(1, math.ceil(retry_after_ms / 1000)))
    return headers


def error_body(error: OmniRelayError) -> bytes:
    return _encode_pretty(msgspec.json.encode(error_body_of(error)), indent=2) + b"\n"
