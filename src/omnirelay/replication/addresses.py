"""Addresses of targets: which kinds take which, and where a governance sink sends to. Known without any library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

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
    try:
        parts = urlsplit(url)
    except ValueError:
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
