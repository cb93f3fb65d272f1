"""Logs of a node: one JSON object a line for machines, one readable line for people. Always on stderr."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}

_encode = msgspec.json.Encoder(enc_hook=str).encode


def _details(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """`{"time", "level", "logger", "event", …details, "error"?}`; `event` is a stable name."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_details(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return _encode(line).decode()


class PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        details = " ".join(f"{name}={value}" for name, value in _details(record).items())
        line = f"{time} {record.levelname.lower():7} {record.getMessage()} {details}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up_logs(level: str, *, as_json: bool) -> None:
    """Send all logs of this process to stderr. What libraries say of single connections and requests is left out: it is
    noise, and an address may hold a secret.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else PlainFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for library in ("asyncio", "httpcore", "httpx", "uvicorn", "websockets"):
        logging.getLogger(library).setLevel(logging.WARNING)
