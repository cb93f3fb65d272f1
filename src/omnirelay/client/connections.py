"""Connections to a node: what they have in common, and the one over plain HTTP, where a stream cannot go.

Both do the same two things: `call` a verb with an encoded request, and `acknowledge` a lease. Each call is made once,
and raises TimeoutError when its time is over; whoever owns the connection decides what to do when it breaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from omnirelay.client.addresses import without_password
from omnirelay.client.arguments import as_kind
from omnirelay.client.asking import Asking, encoded
from omnirelay.client.failures import ConnectionLost, NotConnected, error_of
from omnirelay.errors import InvalidArgument, OmniRelayError
from omnirelay.wire.answers import ErrorBody, Outcome
from omnirelay.wire.compact import COMPACT_ANSWERS
from omnirelay.wire.streams import StreamAck

CONNECT_SECONDS = 10.0
NAMESPACE_MAX = 256

_encode = msgspec.json.Encoder().encode
A = TypeVar("A")


def checked_url(url: str) -> str:
    """The address of a node. Raises InvalidArgument when it is none."""
    try:
        parts = urlsplit(as_kind("url", url, str))
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        shown = without_password(url)
        raise InvalidArgument(f"the address of a node is like http://127.0.0.1:7070, not {shown!r}", field="url")
    return url


def checked_namespace(namespace: str) -> str:
    """The name of a shard. Raises InvalidArgument when no node can have one of that name."""
    name = as_kind("namespace", namespace, str)
    if not 0 < len(name) <= NAMESPACE_MAX or not name.isprintable() or "/" in name:
        raise InvalidArgument(f"{name[:NAMESPACE_MAX]!r} is no name of a shard", field="namespace")
    return name


def unreachable(url: str, error: Exception) -> str:
    """Why nobody could be reached there, in words for whoever gave the address."""
    reason = str(error) or "no answer in time"
    # OpenSSL's words for an answer in plain text; which of them depends on its version.
    if any(said in reason for said in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")):
        reason = "what listens there speaks no TLS; is the address to begin with http:// in place of https://?"
    return f"cannot reach {without_password(url)}: {reason}"


def procedures_at(url: str, namespace: str) -> str:
    """The address below which the procedures of a shard are."""
    return f"{url.rstrip('/')}/v1/{quote(namespace, safe='')}"


def http_client(url: str, **options: Any) -> httpx.AsyncClient:
    """Plain HTTP to a node. Raises InvalidArgument when the environment names a proxy that cannot be used."""
    try:
        return httpx.AsyncClient(**http_options(url), **options)
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise InvalidArgument(f"the proxy that the environment names cannot be used: {error}", field="url") from None


def http_options(url: str) -> dict[str, Any]:
    """How any client of httpx is to reach an address."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_local = host in ("localhost", "::1") or host.startswith("127.")
    return {
        # A proxy of the environment is for the internet; to this machine itself it leads nowhere.
        "trust_env": not is_local,
        # Plain HTTP needs no certificates, and reading those of the system would hold up the event loop.
        "verify": parts.scheme == "https",
    }


def decoder_of(answer: Any, *, packed: bool = False) -> Callable[[Any], Any]:
    """What reads an answer of this type."""
    return _made_packed_decoder(answer) if packed else _made_decoder(answer)


@cache
def _made_decoder(answer: Any) -> Callable[[Any], Any]:
    return msgspec.json.Decoder(answer).decode


@cache
def _made_packed_decoder(answer: Any) -> Callable[[Any], Any]:
    if answer in COMPACT_ANSWERS:
        form, read = COMPACT_ANSWERS[answer]
        decode = msgspec.msgpack.Decoder(form).decode
        return lambda data: read(decode(data))
    decode, decode_json = msgspec.msgpack.Decoder(answer).decode, _made_decoder(answer)

    def read_as_json(data: Any) -> Any:
        """Types that are not of this package want bytes as JSON has them."""
        return decode_json(_encode(msgspec.msgpack.decode(data)))

    return decode if getattr(answer, "__module__", "") == ErrorBody.__module__ else read_as_json


class Connection(Protocol):
    @property
    def alive(self) -> bool: ...

    @property
    def packs(self) -> bool:
        """It carries MessagePack."""
        ...

    async def call(self, verb: str, request: Asking, ttl_ms: float, answer: type[A]) -> A: ...

    async def acknowledge(self, ack: StreamAck, ttl_ms: float) -> Outcome: ...

    async def aclose(self) -> None: ...


def refused(status: int, body: bytes, *, called: bool = False) -> OmniRelayError:
    """What an answer means that is no success. `called`: a call had been sent, and a proxy that answers in place of the
    node may have handed it on before.
    """
    try:
        return error_of(msgspec.json.decode(body, type=ErrorBody))
    except msgspec.DecodeError:
        kind = ConnectionLost if called else NotConnected
        return kind(f"the node answered with HTTP {status}", retry_after_ms=1_000, status=status)


def broken(error: httpx.HTTPError, address: object) -> ConnectionLost | NotConnected:
    """What it means that a call over plain HTTP got no answer."""
    place = without_password(str(address))
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return NotConnected(unreachable(str(address), error), retry_after_ms=100)
    return ConnectionLost(f"the call to {place} broke off: {error!r}")


class HttpConnection:
    """Calls one by one over HTTP: slower, but it gets through every proxy."""

    def __init__(self, url: str, namespace: str, headers: dict[str, str]) -> None:
        # As many connections as there are calls: one that waits must hold up nothing behind it.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        base_url = procedures_at(url, namespace)
        self._client = http_client(url, base_url=base_url, headers=headers, limits=limits)

    packs = False

    @property
    def alive(self) -> bool:
        return not self._client.is_closed

    async def call(self, verb: str, request: Asking, ttl_ms: float, answer: type[A]) -> A:
        async with asyncio.timeout(ttl_ms / 1000):
            body = await self._post(verb, request.body(packed=False), ttl_ms)
        try:
            decoded: A = decoder_of(answer)(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # A proxy that has a page of its own for everything, and may have handed the call on before.
            raise ConnectionLost(f"the answer is not that of a node: {error}", retry_after_ms=1_000) from None
        return decoded

    async def _post(self, verb: str, request: bytes, ttl_ms: float) -> bytes:
        try:
            response = await self._client.post(
                verb,
                content=request,
                headers={"content-type": "application/json", "rpc-ttl-ms": str(int(ttl_ms))},
                timeout=httpx.Timeout(ttl_ms / 1000 + 5, connect=CONNECT_SECONDS),
            )
        except httpx.HTTPError as error:
            raise broken(error, self._client.base_url) from None
        if response.status_code != 200:
            raise refused(response.status_code, response.content, called=True)
        return response.content

    async def acknowledge(self, ack: StreamAck, ttl_ms: float) -> Outcome:
        request = msgspec.json.decode(encoded(ack))
        verb = request.pop("verb")
        return await self.call(verb, Asking(request), ttl_ms, Outcome)

    async def aclose(self) -> None:
        await self._client.aclose()
