"""A server whose answers are known beforehand, for what no node does when it is asked to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

from tests.cli.conftest import Relay


class Refused:
    """An answer that is an error, of a node unless it has another `body`."""

    def __init__(self, http: int, code: str, metadata: dict[str, str], body: bytes | None = None) -> None:
        self.http = http
        self.body = body or json.dumps({"code": code, "message": "no", "metadata": metadata}).encode()


Answer = bytes | None | Refused | Callable[[], bytes | None]


class Scripted(Relay):
    """The command line, pointed at the server. `asked` has the verb and the body of every call so far."""

    def __init__(self, url: str, namespace: str, asked: list[tuple[str, Any]]) -> None:
        super().__init__(url, namespace)
        self.asked = asked


@contextmanager
def server(*answers: Answer) -> Iterator[Scripted]:
    """Gives these bodies one after the other; None hangs up without an answer."""
    coming = iter(answers)
    asked: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received = self.rfile.read(int(self.headers["content-length"]))
            asked.append((self.path.rpartition("/")[2], json.loads(received)))
            answer = next(coming)
            http = answer.http if isinstance(answer, Refused) else 200
            if isinstance(answer, Refused):
                answer = answer.body
            body = answer() if callable(answer) else answer
            if body is None:
                self.close_connection = True
                return
            self.send_response(http)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Scripted(f"http://127.0.0.1:{listening.server_port}", "any", asked)
        listening.shutdown()
        thread.join()
