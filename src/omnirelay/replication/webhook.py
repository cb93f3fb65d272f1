"""Events by HTTP: POSTed in batches, signed, with a key by which a receiver recognises what it has had.

    POST url
    Idempotency-Key: {shard}:{log}:{first}-{last}, with `governance:` before it where it is no events that are sent
    X-OmniRelay-Signature: sha256={HMAC of the body, in hexadecimal}

    {"shard": "…", "first": 1, "last": 9, "events": [ … ]}

2xx: taken. 400, 413, 415 and 422: refused; a batch is then sent in halves, until the event that the receiver does not
take stands alone. Anything else is tried again: a receiver that is down, or does not know us (401, 404), says nothing
about an event, and parking the whole log one by one would be the worst answer to a wrong password.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence

import httpx

from omnirelay.client.connections import http_client
from omnirelay.errors import InvalidArgument, Unavailable
from omnirelay.replication.addresses import without_secrets
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.files import lines_of, whole_event
from omnirelay.replication.sinks import SinkRefused, SinkUnusable

_REFUSED = frozenset({400, 413, 415, 422})


class WebhookSink:
    """Stateless: what the receiver has is the receiver's business. How far it is, is kept here."""

    rebuilds_state = False

    def __init__(
        self,
        url: str,
        *,
        secret: bytes | None = None,
        headers: dict[str, str] | None = None,
        line_of: Callable[[ReplicatedEvent], bytes | None] = whole_event,
        lines_are: str = "",
    ) -> None:
        """`line_of` makes the JSON of an event, None for one that is not sent. `lines_are` says what it makes, where
        that is no event: whoever takes both must not take one for a repetition of the other.
        """
        if not url.startswith(("http://", "https://")):
            raise SinkUnusable("the url of a webhook begins with http:// or https://")
        self._url = url
        self._target = without_secrets(url)
        self._secret = secret
        self._headers = headers
        self._line_of = line_of
        self._kind = f"{lines_are}:" if lines_are else ""
        self._log_id = ""
        self._client: httpx.AsyncClient | None = None

    def of_log(self, log_id: str) -> None:
        """Of another log the same numbers are other events."""
        self._log_id = log_id

    async def open(self, shard: str) -> int | None:
        if self._client is None:
            try:
                # In a thread: it may read certificates. How long a delivery may take is for the follower to say.
                self._client = await asyncio.to_thread(http_client, self._url, headers=self._headers, timeout=None)
            except InvalidArgument as error:
                raise SinkUnusable(error.message) from None
        return None

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        lines = lines_of(events, self._line_of)
        if lines:
            await self._send(lines)

    async def _send(self, lines: Sequence[tuple[ReplicatedEvent, bytes]]) -> None:
        status = await self._post(lines)
        if 200 <= status < 300:
            return
        if status not in _REFUSED:
            raise Unavailable(f"{self._target} answered with {status}")
        if len(lines) == 1:
            raise SinkRefused(f"{self._target} refused it with {status}", sequence=lines[0][0].sequence)
        half = len(lines) // 2
        await self._send(lines[:half])
        await self._send(lines[half:])

    async def _post(self, lines: Sequence[tuple[ReplicatedEvent, bytes]]) -> int:
        assert self._client is not None
        first, last = lines[0][0], lines[-1][0]
        body = b'{"shard":"%b","first":%d,"last":%d,"events":[%b]}' % (
            first.shard.encode(),
            first.sequence,
            last.sequence,
            b",".join(line for _, line in lines),
        )
        headers = {
            "content-type": "application/json",
            "idempotency-key": f"{self._kind}{first.shard}:{self._log_id}:{first.sequence}-{last.sequence}",
        }
        if self._secret is not None:
            headers["x-omnirelay-signature"] = f"sha256={hmac.new(self._secret, body, hashlib.sha256).hexdigest()}"
        try:
            response = await self._client.post(self._url, content=body, headers=headers)
        except httpx.HTTPError as error:
            raise Unavailable(f"cannot reach {self._target}: {str(error) or type(error).__name__}") from None
        return response.status_code

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
