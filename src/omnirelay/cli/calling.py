"""Calls of a node over HTTP, and what their failures mean for the exit code."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from omnirelay.cli.exits import FAILED, UNREACHABLE, Refusal, Stop, usage
from omnirelay.cli.json_texts import encode
from omnirelay.client.addresses import without_password

if TYPE_CHECKING:
    import httpx

ANSWER_SECONDS = 30.0
"""How long a call may take beyond the time it asked to wait."""
_NAMESPACE_MAX = 256
_WAIT_MAX_MS = 24 * 3_600_000
"""No node waits for longer; one that is asked to says so at once."""


class Client:
    """One node and one of its namespaces. Connections are kept, so many calls cost little more than one."""

    def __init__(self, url: str, namespace: str) -> None:
        import httpx

        self.url = url.rstrip("/")
        self.shown_url = without_password(self.url)
        self.namespace = namespace
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise usage(f"--url {self.shown_url!r} is not an address: {error}") from None
        if parsed.scheme not in ("http", "https") or not parsed.host or not 0 < (parsed.port or 80) < 65_536:
            raise usage(f"--url {self.shown_url!r} is not an address such as http://127.0.0.1:7070")
        self._http = httpx.Client(
            base_url=parsed,
            timeout=ANSWER_SECONDS,
            # A proxy of the environment is for the internet, and would only hide that no node runs here.
            trust_env=not _is_local(parsed.host),
            # Reading all certificates of the system takes longer than a call. Plain HTTP needs none, and redirects are
            # not followed to where it would.
            verify=parsed.scheme == "https",
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def call(self, verb: str, request: dict[str, Any] | None = None, *, wait_ms: int = 0) -> Any:
        """The answer of a verb. Fields that are None are left out. Raises Refusal, or Stop when nobody answers."""
        fields = {name: value for name, value in (request or {}).items() if value is not None}
        response = self.post(self._path(verb), fields, wait_ms=wait_ms)
        return _answer(response, self.namespace)

    def _path(self, verb: str) -> str:
        name = self.namespace
        if not 0 < len(name) <= _NAMESPACE_MAX or not name.isprintable() or "/" in name:
            raise usage(f"--namespace {name[:_NAMESPACE_MAX]!r} is no name of a shard")
        return f"/v1/{quote(name, safe='')}/{verb}"

    def post(
        self,
        path: str,
        body: Any,
        *,
        headers: dict[str, str] | None = None,
        wait_ms: int = 0,
    ) -> httpx.Response:
        """Send JSON and take whatever comes back; raises Stop when nothing does."""
        import httpx

        content = body if isinstance(body, bytes) else encode(body)
        timeout = httpx.Timeout(ANSWER_SECONDS, read=ANSWER_SECONDS + min(wait_ms, _WAIT_MAX_MS) / 1000)
        with self._reaching():
            return self._http.post(
                path,
                content=content,
                headers={"content-type": "application/json", **(headers or {})},
                timeout=timeout,
            )

    def page(self, path: str) -> Any:
        """A page of the node that is JSON."""
        with self._reaching():
            response = self._http.get(path)
        return _answer(response, self.namespace)

    def events(self, query: dict[str, str]) -> Iterator[tuple[str, bytes]]:
        """The log as a server-sent stream: pairs of sequence number and JSON, until it ends.

        Raises Refusal for an error before or in the stream, and Stop when it was to come to the last event and did not.
        """
        import httpx

        path = self._path("watch")
        timeout = httpx.Timeout(ANSWER_SECONDS, read=60.0)  # A comment comes every 15 s.
        headers = {"accept": "text/event-stream"}
        with (
            self._reaching(),
            self._http.stream("GET", path, params=query, headers=headers, timeout=timeout) as response,
        ):
            if response.status_code != 200:
                response.read()
                _answer(response, self.namespace)
            whole = yield from _events(_lines(response.iter_bytes()))
            if not whole and "untilCaughtUp" in query:
                raise Stop(UNREACHABLE, f"{self.shown_url} ended the stream before the last event", "stream-ended")

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except (httpx.ReadTimeout, httpx.WriteTimeout):
            raise Stop(
                UNREACHABLE, f"{self.shown_url} did not answer in time; the call may still take effect", "timeout"
            ) from None
        except (httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteError):
            raise Stop(
                UNREACHABLE,
                f"{self.shown_url} hung up before it had answered; whether the call took effect is not known",
                "connection-lost",
            ) from None
        except (httpx.TransportError, httpx.UnsupportedProtocol) as error:
            raise Stop(
                UNREACHABLE,
                f"nothing answers at {self.shown_url}: {_reason(error)};"
                " start a node with `omnirelay dev`, or say --url",
                "unreachable",
            ) from None


def _is_local(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _reason(error: Exception) -> str:
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)).lower() or type(error).__name__


def _answer(response: httpx.Response, namespace: str) -> Any:
    try:
        body = response.json()
    except ValueError:
        if response.status_code in (502, 503, 504):
            raise Stop(
                UNREACHABLE,
                f"{without_password(str(response.url))} answers HTTP {response.status_code} in place of a node; whether"
                " the call took effect is not known",
                "unreachable",
            ) from None
        raise Stop(
            FAILED,
            f"what answers at {without_password(str(response.url))} is not an OmniRelay node"
            f" (HTTP {response.status_code}, no JSON)",
        ) from None
    if response.status_code < 300:
        return body
    raise refusal(response.status_code, body, namespace)


def refusal(http: int, body: Any, namespace: str) -> Refusal:
    """The error that a node answered with."""
    if not isinstance(body, dict):
        body = {}
    code = str(body.get("code", f"http-{http}"))
    message = str(body.get("message", "the node refused the call"))
    if code == "unimplemented":
        message += f"; does the node serve the namespace {namespace!r}? (`omnirelay introspect` lists them)"
    metadata = body.get("metadata")
    retry_after_ms = body.get("retryAfterMs")
    return Refusal(
        http,
        message,
        code,
        metadata if isinstance(metadata, dict) else None,
        retry_after_ms if isinstance(retry_after_ms, int) else None,
    )


def _refusal_in_stream(body: dict[str, Any]) -> Refusal:
    from omnirelay.rpc.statuses import HTTP_STATUS, status_named

    status = status_named(str(body.get("status", "")))
    return refusal(500 if status is None else HTTP_STATUS[status], body, "")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines that end with a line feed and nothing else: JSON may hold other characters that end lines elsewhere."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _events(lines: Iterator[bytes]) -> Generator[tuple[str, bytes], None, bool]:
    """Parse server-sent events. One called `error` ends the stream by being raised, one called `end` says that it is
    whole, which is what comes back.
    """
    identity, kind = "", b""
    data: list[bytes] = []
    for line in lines:
        if line.startswith(b"id:"):
            identity = line[3:].strip().decode()
        elif line.startswith(b"event:"):
            kind = line[6:].strip()
        elif line.startswith(b"data:"):
            data.append(line[5:].strip())
        elif not line and kind == b"end":
            return True
        elif not line and data:
            text = b"\n".join(data)
            if kind == b"error":
                raise _refusal_in_stream(json.loads(text))
            yield identity, text
            kind, data = b"", []
    return False
