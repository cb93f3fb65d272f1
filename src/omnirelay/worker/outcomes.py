"""What a handler returned or raised, as a node takes it."""

from __future__ import annotations

from typing import Any

from omnirelay.client.asking import json_of
from omnirelay.worker.handlers import FailMode, GiveUp, Registered, Retry

REASON_MAX = 2_000


def encoded_result(result: Any) -> tuple[bytes | None, str | None]:
    """A result as the node keeps it: bytes as they are, text as text, anything else as JSON."""
    if result is None:
        return None, None
    if isinstance(result, bytes | bytearray | memoryview):
        return bytes(result), "application/octet-stream"
    if isinstance(result, str):
        return result.encode(), "text/plain"
    return json_of(result), "application/json"


def mode_of(handler: Registered, error: BaseException) -> FailMode:
    for kind, mode in handler.on_error.items():
        if isinstance(error, kind):
            return mode
    return "retry"


def reason_of(error: BaseException) -> str | None:
    """Why an attempt failed. The class says nothing where the error is but a way to say it."""
    said = [_text_of(error)] if isinstance(error, Retry | GiveUp) else [type(error).__name__, _text_of(error)]
    reason = ": ".join(filter(None, said))
    return _clean(reason[:REASON_MAX]) if reason else None


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as unsayable:
        return f"its text cannot be had: {type(unsayable).__name__}"


def _clean(text: str) -> str:
    """Without the control characters that a node does not take."""
    text = text.encode("utf-8", "replace").decode()
    return "".join(c if c >= " " or c in "\t\n\r" else " " for c in text).replace("\x7f", " ")
