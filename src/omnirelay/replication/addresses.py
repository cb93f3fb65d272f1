"""Addresses of targets: which kinds take which, and where a governance sink sends to. Known without any library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

SCHEMES: Final[Mapping[str, tuple[str, ...]]] = {
    "webhook": ("http", "https"),
    "otel": ("http", "https"),
    "postgres": ("postgresql", "postgres"),
    "nats": ("nats", "tls"),
    "kafka": ("kafka",),
    "objects": ("s3", "gs", "az", "abfs", "file"),
    "governance": ("http", "https", "nats", "tls", "kafka"),
}
"""What an address of each kind may begin with."""

_BUSES: Final = ("nats", "kafka")
_OF_SERVERS: Final = ("nats", "tls", "kafka")

OWN_HEADERS: Final = frozenset(
    {
        "content-type",
        "content-encoding",
        "content-length",
        "transfer-encoding",
        "idempotency-key",
        "x-omnirelay-signature",
    }
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VISIBLE: Final = re.compile(r"[!-~]([\t -~]*[!-~])?|")

FIXED_PROPERTIES: Final[Mapping[str, str]] = {
    "enable.idempotence": "true",
    "acks": "all",
    # One that failed for good must not be followed by those behind it: who reads by the sequence would lose it.
    "enable.gapless.guarantee": "true",
    # Messages wait for as long as the sink says, never for less: one that gave up alone would leave a gap.
    "message.timeout.ms": "0",
    # The same partition for the same shard, as every other client of Kafka would choose it.
    "partitioner": "murmur2_random",
}
"""What a producer of Kafka must have so that nothing is lost, repeated by itself or out of order."""


def scheme_of(url: str) -> str:
    return url.partition(":")[0].lower()


def is_address(kind: str, url: str) -> bool:
    return url.lower().startswith(tuple(f"{scheme}://" for scheme in SCHEMES[kind]))


def address_problem(url: str) -> str | None:
    """Why an address leads nowhere, though it begins as it should; None when it may lead somewhere. What it holds is
    not repeated: it may be a secret.
    """
    scheme = scheme_of(url)
    if scheme in ("http", "https"):
        return None if _is_server(url) else f"names no server: {scheme}:// is followed by HOST or HOST:PORT"
    if scheme in _OF_SERVERS:
        servers = url.partition("://")[2].rstrip("/").split(",")
        if all(_is_server(f"//{server.rpartition('://')[2].strip()}") for server in servers):
            return None
        return f"names no server: {scheme}:// is followed by HOST:PORT, or by several with commas between them"
    if scheme == "file":
        parts = _parts(url)
        if parts is not None and parts.netloc in ("", "localhost") and parts.path.strip("/"):
            return None
        return "is no address of a directory: write file:///and/its/path"
    if scheme in SCHEMES["objects"]:
        parts = _parts(url)
        return None if parts is not None and parts.netloc else f"names no bucket: {scheme}:// is followed by its name"
    return None


def _is_server(url: str) -> bool:
    parts = _parts(url)
    try:
        return parts is not None and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _parts(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def header_problems(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Which headers cannot be sent along, and why. Their values may be secrets, and are not repeated."""
    problems = []
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            problems.append((name, "is no name of a header"))
        elif name.lower() in OWN_HEADERS:
            problems.append((name, "is what the sink says itself"))
        elif not _VISIBLE.fullmatch(value):
            problems.append((name, "has characters that no header can have: those of ASCII, in one line"))
    return problems


def schemes_in_words(kind: str) -> str:
    *others, last = (f"{scheme}://" for scheme in SCHEMES[kind])
    return f"{', '.join(others)} or {last}" if others else last


def governance_target(url: str | None) -> str:
    """The kind of sink that carries the lines: by the address, a file without one."""
    if url is None:
        return "file"
    return next((kind for kind in _BUSES if scheme_of(url) in SCHEMES[kind]), "webhook")


def without_secrets(url: str) -> str:
    """Where it points to, for messages: a path or a query may be a key, as that of many webhooks is."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return f"{scheme_of(url)}://…"
    return f"{parts.scheme}://{host}"


def holds_password(url: str) -> bool:
    parts = _parts(url)
    if parts is None:
        return False  # It will be refused as no address at all.
    named = (name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    return parts.password is not None or any("password" in name for name in named)


def property_problems(names: Iterable[str]) -> list[tuple[str, str]]:
    """Which properties of a Kafka producer may not be set, and why."""
    problems = []
    for name in names:
        if name == "bootstrap.servers":
            problems.append((name, "is what url says"))
        elif name in FIXED_PROPERTIES:
            problems.append((name, f"is always {FIXED_PROPERTIES[name]} here: without it events get lost or repeated"))
        elif any(word in name for word in ("password", "secret", "key.pem")):
            problems.append((name, "is a secret: a file holds it, which password_file or a ….location names"))
    return problems


def default_subject(kind: str) -> str:
    """Subject or topic: governance lines are no events, and must not be mistaken for them."""
    return "omnirelay.governance" if kind == "governance" else "omnirelay.events"


def default_stream(kind: str) -> str:
    return default_subject(kind).replace(".", "_").upper()
