"""Events as OpenTelemetry log records, over OTLP/HTTP in protobuf.

    body         the event as JSON, as every other sink has it
    attributes   omnirelay.event.type, omnirelay.shard, omnirelay.sequence; resource: service.name, cloud.region
    severity     WARN for what went wrong, INFO for the rest; timestamp: the event's

The requests are made here and not by an exporter of the SDK: those do not tell when a receiver took only a part. When
it did, or refused the whole (400, 413), the batch comes again in halves until the bad record stands alone. The others
are then there twice; `omnirelay.sequence` tells which are the same.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

import httpx

from omnirelay._version import __version__
from omnirelay.client.connections import http_options
from omnirelay.errors import Unavailable
from omnirelay.replication.addresses import is_address, without_secrets
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.extras import extra
from omnirelay.replication.otel_records import request_of
from omnirelay.replication.settings import FollowSettings
from omnirelay.replication.sinks import SinkRefused, SinkUnusable
from omnirelay.replication.threads import OneThread

with extra("otel"):
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

    DecodeError: type[Exception] = import_module("google.protobuf.message").DecodeError

_REFUSED: Final = frozenset({400, 413, 415, 422})


class OtelSink:
    """Stateless: what the receiver has is the receiver's business. How far it is, is kept here."""

    rebuilds_state = False

    def __init__(
        self, url: str, *, headers: Mapping[str, str] | None = None, timeout_ms: int = FollowSettings().timeout_ms
    ) -> None:
        """`url` is the whole address, usually http://HOST:4318/v1/logs."""
        if not is_address("otel", url):
            raise SinkUnusable("the url of an otel sink begins with http:// or https://")
        self._url = url
        self._target = without_secrets(url)
        self._headers = {
            **(headers or {}),
            "content-type": "application/x-protobuf",
            "content-encoding": "gzip",
            "user-agent": f"omnirelay/{__version__}",
        }
        self._seconds = timeout_ms / 1000 * 0.9
        self._client: httpx.Client | None = None
        self._thread = OneThread("omnirelay-otel-sink")

    async def open(self, shard: str) -> int | None:
        return None

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        if events:
            await self._thread.run(lambda: self._send(events))

    async def close(self) -> None:
        await self._thread.run(self._let_go)
        self._thread.close()

    # -- in the sink's thread --------------------------------------------------------------------

    def _let_go(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _send(self, events: Sequence[ReplicatedEvent]) -> None:
        refusal = self._post(request_of(events))
        if refusal is None:
            return
        if len(events) == 1:
            raise SinkRefused(f"{self._target} refused it: {refusal}", sequence=events[0].sequence)
        half = len(events) // 2
        self._send(events[:half])
        self._send(events[half:])

    def _post(self, request: bytes) -> str | None:
        """Why the receiver refused some of it, None when it took everything. Raises when it is to be tried again."""
        if self._client is None:
            self._client = httpx.Client(timeout=self._seconds, **http_options(self._url))
        body = gzip.compress(request, compresslevel=1)
        try:
            response = self._client.post(self._url, content=body, headers=self._headers)
        except httpx.HTTPError as error:
            raise Unavailable(f"cannot reach {self._target}: {str(error) or type(error).__name__}") from None
        if response.status_code in _REFUSED:
            return f"status {response.status_code}"
        if not response.is_success:
            raise Unavailable(f"{self._target} answered with {response.status_code}")
        try:
            answer = ExportLogsServiceResponse.FromString(response.content)
        except DecodeError:
            # Something else listens there, and has thrown the events away.
            raise Unavailable(f"{self._target} gave an answer that no receiver of OTLP in protobuf gives") from None
        partial = answer.partial_success
        if not partial.rejected_log_records:
            return None
        return f"{partial.rejected_log_records} rejected, {partial.error_message or 'no reason given'}"
