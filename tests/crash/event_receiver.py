"""Receives webhooks or OTLP and keeps every event as a line, on the disk before it answers. `… FORM PORT FILE`.

It takes what comes and compares nothing: whoever reads the file finds out what came twice.
"""

from __future__ import annotations

import gzip
import os
import sys
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec

EventsOf = Callable[[bytes], Sequence[bytes]]


class Delivery(msgspec.Struct):
    events: list[msgspec.Raw]


_read = msgspec.json.Decoder(Delivery).decode


def of_webhook(body: bytes) -> Sequence[bytes]:
    return [bytes(event) for event in _read(body).events]


def of_otlp(body: bytes) -> Sequence[bytes]:
    # An extra: only those who test this target need it.
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    request = ExportLogsServiceRequest.FromString(gzip.decompress(body))
    scopes = [scope for resource in request.resource_logs for scope in resource.scope_logs]
    return [record.body.string_value.encode() for scope in scopes for record in scope.log_records]


FORMS: dict[str, EventsOf] = {"webhook": of_webhook, "otlp": of_otlp}


def whole_lines(path: Path) -> None:
    """Cut off a line that a crash left half written."""
    if path.exists():
        data = path.read_bytes()
        with path.open("rb+") as file:
            file.truncate(data.rfind(b"\n") + 1)


def serve(events_of: EventsOf, port: int, path: Path) -> None:
    whole_lines(path)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            data = b"".join(event + b"\n" for event in events_of(body))
            with one_at_a_time:
                view = memoryview(data)
                while view:
                    view = view[os.write(file, view) :]
                os.fsync(file)
            # An answer without a body is also the message of OTLP that says that all of it was taken.
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    serve(FORMS[sys.argv[1]], int(sys.argv[2]), Path(sys.argv[3]))
