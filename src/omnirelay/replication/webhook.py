"""Events by HTTP: POSTed in batches, signed, with a key by which a receiver recognises what it has had.

    POST url
    Idempotency-Key: {shard}:{first}-{last}
    X-OmniRelay-Signature: sha256={HMAC of the body, in hexadecimal}

    {"shard": "…", "first": 1, "last": 9, "events": [ … ]}

2xx: taken. 408, 409, 425, 429 and 5xx: tried again. Any other 4xx: refused; a batch is then sent in halves, until the
event that the receiver does not take stands alone.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import httpx

from omnirelay.errors import Unavailable
from omnirelay.replication.events import ReplicatedEvent
from omnirelay.replication.sinks import SinkRefused, SinkUnusable

_AGAIN = frozenset({408, 409, 425, 429})


class WebhookSink:
    """Stateless: what the receiver has is the receiver's business. How far it is, is kept here."""

    rebuilds_state = False

    def __init__(self, url: str, *, secret: bytes | None = None, headers: dict[str, str] | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise SinkUnusable(f"{url!r} is not an http address")
        self._url = url
        self._secret = secret
        self._client = httpx.AsyncClient(headers=headers, timeout=30)

    async def open(self, shard: str) -> int | None:
        return None

    async def apply(self, events: Sequence[ReplicatedEvent]) -> None:
        status = await self._post(events)
        if 200 <= status < 300:
            return
        if status >= 500 or status in _AGAIN or status < 400:
            raise Unavailable(f"{self._url} answered with {status}")
        if len(events) == 1:
            raise SinkRefused(f"{self._url} refused it with {status}", sequence=events[0].sequence)
        half = len(events) // 2
        await self.apply(events[:half])
        await self.apply(events[half:])

    async def _post(self, events: Sequence[ReplicatedEvent]) -> int:
        first, last = events[0], events[-1]
        body = b'{"shard":"%b","first":%d,"last":%d,"events":[%b]}' % (
            first.shard.encode(),
            first.sequence,
            last.sequence,
            b",".join(event.json() for event in events),
        )
        headers = {
            "content-type": "application/json",
            "idempotency-key": f"{first.shard}:{first.sequence}-{last.sequence}",
        }
        if self._secret is not None:
            headers["x-omnirelay-signature"] = f"sha256={hmac.new(self._secret, body, hashlib.sha256).hexdigest()}"
        try:
            response = await self._client.post(self._url, content=body, headers=headers)
        except httpx.HTTPError as error:
            raise Unavailable(f"cannot reach {self._url}: {error!r}") from None
        return response.status_code

    async def close(self) -> None:
        await self._client.aclose()
