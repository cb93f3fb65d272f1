"""Receives webhooks and keeps every event as a line, on the disk before it answers. `python -m … PORT FILE`.

It takes what comes and compares nothing: whoever reads the file finds out what came twice.
"""

from __future__ import annotations

import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec


class Delivery(msgspec.Struct):
    events: list[msgspec.Raw]


_read = msgspec.json.Decoder(Delivery).decode


def whole_lines(path: Path) -> None:
    """Cut off a line that a crash left half written."""
    if path.exists():
        data = path.read_bytes()
        with path.open("rb+") as file:
            file.truncate(data.rfind(b"\n") + 1)


def serve(port: int, path: Path) -> None:
    whole_lines(path)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            data = b"".join(bytes(event) + b"\n" for event in _read(body).events)
            with one_at_a_time:
                view = memoryview(data)
                while view:
                    view = view[os.write(file, view) :]
                os.fsync(file)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
